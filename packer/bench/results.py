"""What a benchmark has found: one frozen value, from which every table, plot and sentence is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, NamedTuple

__all__ = [
    "ARRAY_READER",
    "CACHES",
    "LIMIT",
    "LOOSE",
    "ORDERS",
    "PILLOW",
    "THREADS",
    "WORKS",
    "Cache",
    "Findings",
    "Packing",
    "Sample",
    "Setting",
    "Timing",
    "overlap",
]

WORKS = ("raw", "decoded")
CACHES = ("cold", "warm")
ORDERS = ("shuffled", "sequential")

LOOSE = "loose files"
PILLOW = "ImageFolder with Pillow"
THREADS = "packer.Loader"
"""The contender that reads the first packed dataset in a thread for each CPU, without worker processes."""
ARRAY_READER = "numpy.load"
LIMIT = "decoding alone"
"""The contender that decodes bytes which are in memory already: nobody who decodes the same can be faster."""


_NEAR = 1.03
"""A few repetitions may by chance be nearer to each other than the next one would be."""


class Setting(NamedTuple):
    """What is read, and how.

    Attributes:
        work: of ``WORKS``: the files' bytes, or batches of what they hold.
        cache: of ``CACHES``: whether the pages of the files were dropped from memory before.
        order: of ``ORDERS``.
        workers: processes of torch's DataLoader; 0 reads in the process itself.
    """

    work: str
    cache: str
    order: str
    workers: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast one contender was in one setting.

    Attributes:
        contender: its name.
        setting: what it did.
        rates: samples a second, one number a repetition; at least one.
    """

    contender: str
    setting: Setting
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle rate."""
        return median(self.rates)

    @property
    def low(self) -> float:
        """The lowest rate."""
        return min(self.rates)

    @property
    def high(self) -> float:
        """The highest rate."""
        return max(self.rates)


def overlap(one: Timing, other: Timing) -> bool:
    """Whether two timings cannot be told apart: the rates of each reach into those of the other, or as good as that."""
    return one.low <= other.high * _NEAR and other.low <= one.high * _NEAR


@dataclass(frozen=True, slots=True)
class Packing:
    """A dataset that is compared: what it takes to have it.

    Attributes:
        contender: its name.
        format: its container format.
        size_bytes: of all its files.
        samples: in it.
        seconds: that packing the sample took without checking, one number a repetition; none where it was packed before.
    """

    contender: str
    format: str
    size_bytes: int
    samples: int
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """What is read.

    Attributes:
        content: ``"pictures"``, ``"arrays"``, or ``"arrays of different shapes"``.
        count: samples a contender reads from.
        mean_bytes: of their files.
        total: samples that there are.
        total_bytes: of their files.
        left_out: files that were drawn and left out, by reason.
        checked_per_s: files that ``--check full`` judges in a second here; 0 where nothing was checked.
        copied: whether the loose files are copies, since links were not possible.
    """

    content: str
    count: int
    mean_bytes: float
    total: int
    total_bytes: int
    left_out: dict[str, int]
    checked_per_s: float
    copied: bool


@dataclass(frozen=True, slots=True)
class Cache:
    """Whether cold was cold.

    Attributes:
        dropped: whether the system drops files' pages when it is asked to; ``None`` where that could not be found out.
        most_cached: largest share of looked-at pages that was still in memory before a cold run.
        why: a sentence where ``dropped`` is not true.
    """

    dropped: bool | None
    most_cached: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was found.

    Attributes:
        source: what was measured, as it is shown.
        sample: what was read.
        packings: the datasets compared.
        timings: those that were measured.
        cache: whether cold was cold.
        batches: samples a batch, by what is done.
        size: (height, width) that pictures were resized to.
        has_torch: without it there are no workers.
        seed: of all that was random.
        machine: what it ran on.
        versions: of the libraries.
        notes: what else a reader must know.
        seconds: that all took.
    """

    source: str
    sample: Sample
    packings: tuple[Packing, ...]
    timings: tuple[Timing, ...]
    cache: Cache
    batches: dict[str, int]
    size: tuple[int, int]
    has_torch: bool
    seed: int
    machine: dict[str, str | int]
    versions: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    def find(self, contender: str, setting: Setting) -> Timing | None:
        """A timing, where there is one."""
        wanted = (contender, setting)
        return next((timing for timing in self.timings if (timing.contender, timing.setting) == wanted), None)

    def workers(self) -> list[int]:
        """The numbers of workers, in order."""
        return sorted({timing.setting.workers for timing in self.timings})

    def contenders(self, work: str) -> list[str]:
        """Who did this, in the order of the timings."""
        return list(dict.fromkeys(timing.contender for timing in self.timings if timing.setting.work == work))

    def decode_share(self, timing: Timing) -> float | None:
        """Share of a timing's seconds that decoding takes, 0 to 1; ``None`` where decoding alone was not measured so."""
        alone = self.find(LIMIT, Setting("decoded", "warm", "shuffled", timing.setting.workers))
        if alone is None or timing.setting.work != "decoded" or timing.contender in (LIMIT, PILLOW, ARRAY_READER, THREADS):
            return None
        return min(1.0, timing.median / alone.median)

    def as_values(self) -> dict[str, Any]:
        """Plain values for JSON; each timing with its median and its share of decoding."""
        values = asdict(self)
        values["timings"] = [
            {
                "contender": timing.contender,
                **timing.setting._asdict(),
                "samples_per_s": list(timing.rates),
                "median": timing.median,
                "min": timing.low,
                "max": timing.high,
                "decode_share": self.decode_share(timing),
            }
            for timing in self.timings
        ]
        return values
