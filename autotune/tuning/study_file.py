"""The file that Optuna keeps its studies in: an index for samplers that can be thrown away."""

from __future__ import annotations

import fcntl
from pathlib import Path

import optuna

from autotune.errors import ConfigError

_BUSY_TIMEOUT_S = 60.0


def lock_of(path: Path) -> Path:
    """The file whose lock guards another one."""
    return path.with_name(f"{path.name}.lock")


def create_study(path: Path, name: str, sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """A new study that is maximised.

    Several processes may come with the same new file at once.

    Args:
        path: SQLite file; it and the folders above are created.
        name: Name of the study, new to the file.
        sampler: Proposes the trials.

    Raises:
        ConfigError: The file cannot be used.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # It would write over a progress bar.
    url = f"sqlite:///{path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_of(path).open("w") as lock:
            # Optuna creates its tables without a lock: two processes would get in each other's way.
            fcntl.flock(lock, fcntl.LOCK_EX)
            storage = optuna.storages.RDBStorage(
                url, engine_kwargs={"connect_args": {"timeout": _BUSY_TIMEOUT_S}}
            )
        return optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="maximize"
        )
    except RuntimeError as error:  # Optuna's word for tables of another version.
        raise ConfigError(
            f"{path}: written by another version of Optuna: run `optuna storage upgrade --storage "
            f"{url}`, or remove the file, which is only an index"
        ) from error
    except Exception as error:  # OSError, or whatever the database driver raises.
        raise ConfigError(
            f"{path}: cannot hold Optuna's studies ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}): remove the file or name another one"
        ) from error
