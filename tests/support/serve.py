"""The service with a search of ours: `python -m tests.support.serve CONFIG SEARCH GRACE_S`.

At its end it prints which libraries were loaded that belong into the worker alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from autotune.service.config import load_config
from autotune.service.logs import configure_logs
from autotune.service.serve import serve

if __name__ == "__main__":
    configure_logs()
    exit_code = serve(
        load_config(Path(sys.argv[1])),
        command=(sys.executable, "-m", "tests.support.fake_worker", sys.argv[2]),
        grace_s=float(sys.argv[3]),
    )
    heavy = sorted({"numpy", "optuna", "torch"} & sys.modules.keys())
    sys.stdout.write(json.dumps(heavy))
    sys.exit(exit_code)
