"""How long a planned run still takes."""

from __future__ import annotations

import pytest

from autotune.forecast import Forecast
from autotune.progress import Stage

PLAN = [Stage("load", 10.0), Stage("search", 100.0), Stage("validate", 50.0)]


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def forecast(clock: Clock) -> Forecast:
    """A forecast of the plan, nothing of it begun."""
    forecast = Forecast(clock)
    forecast.plan(PLAN)
    return forecast


def test_before_the_first_stage(forecast: Forecast) -> None:
    """The plan is all there is to go by."""
    assert (forecast.title, forecast.seconds_left, forecast.share_done) == ("", 160.0, 0.0)


def test_time_passes_within_a_stage(forecast: Forecast, clock: Clock) -> None:
    """Without news from the stage the plan is counted down, and not below its end."""
    forecast.begin("load")
    clock.now += 4
    assert forecast.seconds_left == pytest.approx(156)
    clock.now += 400
    assert forecast.seconds_left == pytest.approx(150)


def test_finished_stages_scale_the_rest(forecast: Forecast, clock: Clock) -> None:
    """A first stage that took twice its time doubles what is to come."""
    forecast.begin("load")
    clock.now += 20
    forecast.begin("search")
    assert forecast.seconds_left == pytest.approx(300)
    assert forecast.share_done == pytest.approx(10 / 160)


def test_a_stage_that_came_far_goes_by_its_own_pace(forecast: Forecast, clock: Clock) -> None:
    """A quarter done in 10 seconds leaves 30, whatever was planned."""
    forecast.begin("load")
    clock.now += 10
    forecast.begin("search")
    clock.now += 10
    forecast.update(0.25)
    assert forecast.seconds_left == pytest.approx(30 + 50)
    assert forecast.share_done == pytest.approx((10 + 25) / 160)


def test_skipped_stage(forecast: Forecast, clock: Clock) -> None:
    """A stage that never ran is over, and does not count as fast."""
    forecast.begin("load")
    clock.now += 10
    forecast.begin("validate")
    assert forecast.seconds_left == pytest.approx(50)
    assert forecast.share_done == pytest.approx(110 / 160)


def test_unplanned_stage(forecast: Forecast, clock: Clock) -> None:
    """A stage nobody planned runs without an expectation and is followed by the plan."""
    forecast.begin("load")
    clock.now += 10
    forecast.begin("surprise")
    assert forecast.title == "surprise"
    assert forecast.seconds_left == pytest.approx(150)
    forecast.begin("search")
    assert forecast.seconds_left == pytest.approx(150)


def test_shares_never_fall(forecast: Forecast) -> None:
    """A stage that reports less than before, or more than all, does not move the bar back."""
    forecast.begin("load")
    forecast.update(0.5)
    forecast.update(0.2)
    assert forecast.share_done == pytest.approx(5 / 160)
    forecast.update(7.0)
    assert forecast.share_done == pytest.approx(10 / 160)


def test_without_a_plan() -> None:
    """Stages may begin although nothing was planned."""
    forecast = Forecast()
    forecast.begin("alone")
    assert (forecast.title, forecast.share_done, forecast.seconds_left) == ("alone", 0.0, 0.0)
