"""How fast a job is said to be."""

from __future__ import annotations

from packer.cli.progress import _describe, _Rate
from packer.options import Progress


def told(steps: list[tuple[float, int]], total: int) -> str:
    """What is shown after steps, each a time in seconds and a number of files done."""
    rate = _Rate()
    for now, done in steps:
        shown = _describe(Progress("pack", done, total), rate.after(Progress("pack", done, total), now))
    return shown


def test_the_time_left_is_that_of_what_is_done_now_and_not_of_what_was_done_before() -> None:
    """A job that goes on from an unfinished one passes over half a million files at once."""
    at_once = [(second / 10, second * 50_000) for second in range(11)]
    then = [(1.0 + second, 500_000 + 100 * second) for second in range(1, 120)]
    assert "100 files/s" in told(at_once + then, 600_000)


def test_a_steady_job_is_as_fast_as_it_is() -> None:
    assert "200 files/s" in told([(second / 4, second * 50) for second in range(400)], 40_000)
    assert "200 files/s" in told([(0.0, 0), (0.5, 100)], 1_000)
