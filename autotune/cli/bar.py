"""Progress on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from autotune.cli.output import make_console
from autotune.forecast import Forecast
from autotune.progress import Progress as ProgressReceiver
from autotune.progress import Stage

_LINE_EVERY_S = 30.0


@contextmanager
def progress_bar() -> Iterator[ProgressReceiver]:
    """What fits stderr; a bar is taken off the screen at the end, whatever ends it."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    bar = Bar(console)
    with bar.display:
        yield bar


def time_left(seconds: float) -> str:
    """Seconds as people say them, rounded up: `about 7 min left`."""
    if seconds < 1:
        return "nearly done"
    if seconds < 60:
        return f"about {int(-(-seconds // 5) * 5)} s left"
    return f"about {int(-(-seconds // 60))} min left"


class Bar:
    """One bar over the whole run, with the stage, what is at hand and the time left."""

    def __init__(self, console: Console, forecast: Forecast | None = None) -> None:
        """Prepare; nothing is shown before `display` is entered."""
        self._console = console
        self._forecast = forecast or Forecast()
        self.display = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self.display.add_task("Prepare", total=1.0, left="", detail="")

    def plan(self, stages: Sequence[Stage]) -> None:
        """All stages, before the first begins."""
        self._forecast.plan(stages)

    def begin(self, title: str) -> None:
        """A stage begins."""
        self._forecast.begin(title)
        self._show("")

    def update(self, fraction: float, detail: str = "") -> None:
        """A stage goes on."""
        self._forecast.update(fraction)
        self._show(detail)

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._console.print(text, soft_wrap=True)

    def _show(self, detail: str) -> None:
        self.display.update(
            self._task,
            description=self._forecast.title,
            completed=self._forecast.share_done,
            left=time_left(self._forecast.seconds_left),
            detail=detail,
        )


class Lines:
    """A line per stage, and one now and then within a long stage."""

    def __init__(
        self,
        console: Console,
        forecast: Forecast | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start without a line.

        Args:
            console: Where to.
            forecast: Keeps count.
            clock: Seconds that only grow, to space the lines.
        """
        self._console = console
        self._forecast = forecast or Forecast()
        self._clock = clock
        self._printed = clock()

    def plan(self, stages: Sequence[Stage]) -> None:
        """All stages, before the first begins."""
        self._forecast.plan(stages)

    def begin(self, title: str) -> None:
        """A stage begins."""
        self._forecast.begin(title)
        self._print("")

    def update(self, fraction: float, detail: str = "") -> None:
        """A stage goes on."""
        self._forecast.update(fraction)
        if self._clock() - self._printed >= _LINE_EVERY_S:
            self._print(f": {detail}" if detail else "")

    def note(self, text: str) -> None:
        """Print as a line of its own."""
        self._console.print(text, soft_wrap=True)

    def _print(self, detail: str) -> None:
        self._printed = self._clock()
        left = time_left(self._forecast.seconds_left)
        share = f"{100 * self._forecast.share_done:3.0f} %"
        self._console.print(f"[{share}, {left}] {self._forecast.title}{detail}", soft_wrap=True)
