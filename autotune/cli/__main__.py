"""`python -m autotune.cli`: the same as `spectune`, where no script is installed."""

from autotune.cli import main

main()
