"""Start script of the service in a checkout; an installed one is started by `spectune daemon`."""

from autotune.service.serve import run

if __name__ == "__main__":
    raise SystemExit(run())
