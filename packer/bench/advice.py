"""What to do, in one paragraph: a pure function of the findings. Rates whose spreads overlap are called equal."""

from __future__ import annotations

from collections.abc import Sequence

from packer.bench.results import LIMIT, LOOSE, PILLOW, THREADS, Findings, Setting, Timing, overlap
from packer.words import size_text

__all__ = ["advise"]

_LITTLE = 1.1
"""A gain of less is not worth a conversion."""
_BOUND = 0.8
"""Share of the time from which on decoding is called the limit."""


def advise(findings: Findings) -> str:
    """The advice: which format and settings, what to expect, and whether decoding is the limit."""
    names = [packing.contender for packing in findings.packings]
    advice = _Advice(findings, names)
    is_folder = any(timing.contender == LOOSE for timing in findings.timings)
    return " ".join(advice.about_folder() if is_folder else advice.about_datasets())


class _Advice:
    def __init__(self, findings: Findings, packed: list[str]) -> None:
        self._findings = findings
        self._packed = packed
        self._is_cold = findings.cache.dropped is not False

    def about_folder(self) -> list[str]:
        """For a folder of loose files."""
        gains = {cache: self._gain("decoded", cache) for cache in self._caches()}
        said = [self._recommendation(gains)]
        if self._is_cold:
            said += self._cold(gains.get("cold"))
        else:
            said.append("What it gains when nothing is in memory could not be measured here.")
        said += self._warm(gains.get("warm"))
        said += self._decoder()
        said += self._threads()
        said.append(self._which_holds())
        return [sentence for sentence in said if sentence]

    def about_datasets(self) -> list[str]:
        """For datasets that are compared with each other."""
        said = []
        for cache in self._caches():
            best = self._best(self._packed, "decoded", cache)
            if best is None:
                continue
            equal = self._equal(best, self._packed)
            worst = min((found for name in self._packed if (found := self._best([name], "decoded", cache))), key=_median)
            if len(equal) == len(self._packed) > 1:
                said.append(f"{_capital(cache)}, all of them are equal within the spread.")
            elif len(self._packed) > 1:
                said.append(
                    f"{_capital(cache)}, {_listed(equal)} {_is(equal)} fastest: {_rate(best)} with "
                    f"{_workers(self._fewest_workers(best))}, {_times(best, worst)} as fast as {worst.contender}."
                )
            else:
                said.append(f"{_capital(cache)}, it gives {_rate(best)} with {_workers(self._fewest_workers(best))}.")
            share = self._findings.decode_share(best)
            if share is not None and share >= _BOUND:
                said.append(
                    f"Decoding takes {share:.0%} of that time, so no format could be more than {1 / share - 1:.0%} faster."
                )
        if not self._is_cold:
            said.append("Cold reads could not be measured here.")
        return said or ["Too little was measured for advice: give more --seconds."]

    def _recommendation(self, gains: dict[str, float | None]) -> str:
        known = [gain for gain in gains.values() if gain is not None]
        helping = {cache: gain for cache, gain in gains.items() if gain is not None and gain >= _LITTLE}
        if not known:
            return "Too little was measured for advice: give more --seconds."
        if not helping:
            return f"Packing will not make batches of these {self._content()} much faster on this machine."
        cache = max(helping, key=lambda one: helping[one])
        best = self._best(self._packed, "decoded", cache)
        if best is None:
            return ""
        equal = self._equal(best, self._packed)
        if len(equal) > 1 and (both := [name for name in equal if name in self._equal_in_other(cache)]):
            equal = both
        choice = (
            f"Take {equal[0]}" if len(equal) == 1 else f"Take any of {_listed(equal, 'or')}, which are equal within the spread,"
        )
        return (
            f"{choice} with {_workers(self._fewest_workers(best))} and batches asked for at once (a BatchSampler as sampler)."
        )

    def _equal_in_other(self, cache: str) -> list[str]:
        other = next((one for one in self._caches() if one != cache), None)
        best = self._best(self._packed, "decoded", other) if other else None
        return self._equal(best, self._packed) if best else list(self._packed)

    def _cold(self, gain: float | None) -> list[str]:
        said = []
        raw, raw_loose = self._best(self._packed, "raw", "cold"), self._best([LOOSE], "raw", "cold")
        if raw and raw_loose:
            said.append(f"When nothing is in memory, raw reads {self._compared(raw, raw_loose)}")
        best, loose = self._best(self._packed, "decoded", "cold"), self._best([LOOSE], "decoded", "cold")
        if best and loose:
            share = self._findings.decode_share(best)
            limit = f"; decoding then takes {share:.0%} of the time" if share is not None else ""
            lead = "decoded batches" if said else "When nothing is in memory, decoded batches"
            text = self._compared(best, loose).removesuffix(".")
            said = [f"{said[0].removesuffix('.')}, and {lead} {text}{limit}."] if said else [f"{lead} {text}{limit}."]
        return said

    def _warm(self, gain: float | None) -> list[str]:
        best, loose = self._best(self._packed, "decoded", "warm"), self._best([LOOSE], "decoded", "warm")
        if best is None or loose is None or gain is None:
            return []
        alone = self._findings.find(LIMIT, Setting("decoded", "warm", "shuffled", loose.setting.workers))
        share = self._findings.decode_share(loose)
        if alone and share is not None and share >= _BOUND:
            headroom = max(0.0, alone.median / loose.median - 1)
            return [
                f"Once the files are in memory the format hardly matters: decoding takes {share:.0%} of the time of "
                f"loose files, so that a format which costs nothing would be {headroom:.0%} faster; decoded batches "
                f"{self._compared(best, loose)}"
            ]
        return [f"Once the files are in memory, decoded batches {self._compared(best, loose)}"]

    def _decoder(self) -> list[str]:
        pillow, loose = self._best([PILLOW], "decoded", "warm"), self._best([LOOSE], "decoded", "warm")
        if pillow is None or loose is None or overlap(pillow, loose) or loose.median < _LITTLE * pillow.median:
            return []
        return [
            f"Against {PILLOW} all of this is {_times(loose, pillow)} as fast by the decoder alone, which a packed "
            "dataset brings along."
        ]

    def _threads(self) -> list[str]:
        threads, best = self._best([THREADS], "decoded", "warm"), self._best(self._packed, "decoded", "warm")
        if threads is None or best is None or overlap(threads, best) or threads.median < _LITTLE * best.median:
            return []
        return [
            f"{THREADS}, which needs no worker processes, is {_times(threads, best)} as fast as torch's DataLoader at its best "
            f"({_rate(threads)})."
        ]

    def _which_holds(self) -> str:
        total, memory = self._findings.sample.total_bytes, int(self._findings.machine["memory_bytes"])
        if not memory:
            return ""
        size = size_text(total)
        if total < memory // 2:
            return f"All files are {size} and fit into the memory: the first epoch is cold, later ones are warm."
        return f"All files are {size}, and {size_text(memory)} of memory will not keep them: every epoch is cold."

    def _compared(self, best: Timing, loose: Timing) -> str:
        """``are equal ...``, or how much faster they are."""
        rates = f"{best.median:,.0f} against {loose.median:,.0f} samples/s"
        if overlap(best, loose):
            return f"from {best.contender} and from loose files are equal within the spread ({rates})."
        if best.median < loose.median:
            return f"from {best.contender} are slower than from loose files ({rates})."
        return f"from {best.contender} are {_times(best, loose)} as fast as from loose files ({rates})."

    def _gain(self, work: str, cache: str) -> float | None:
        """The best packed dataset over loose files that are decoded alike; 1 where they are equal within the spread."""
        best, loose = self._best(self._packed, work, cache), self._best([LOOSE], work, cache)
        if best is None or loose is None:
            return None
        return 1.0 if overlap(best, loose) else best.median / loose.median

    def _caches(self) -> list[str]:
        return ["cold", "warm"] if self._is_cold else ["warm"]

    def _best(self, names: Sequence[str], work: str, cache: str) -> Timing | None:
        """The fastest, shuffled, with whatever number of workers."""
        found = [
            timing
            for timing in self._findings.timings
            if timing.contender in names and timing.setting[:3] == (work, cache, "shuffled")
        ]
        return max(found, key=_median, default=None)

    def _equal(self, best: Timing, names: Sequence[str]) -> list[str]:
        """Those whose fastest cannot be told from the fastest of all."""
        mine = {name: self._best([name], *best.setting[:2]) for name in names}
        return [name for name, timing in mine.items() if timing is not None and overlap(timing, best)]

    def _fewest_workers(self, best: Timing) -> int:
        """The least number of workers that cannot be told from the best."""
        same = [
            timing.setting.workers
            for timing in self._findings.timings
            if timing.contender == best.contender and timing.setting[:3] == best.setting[:3] and overlap(timing, best)
        ]
        return min(same)

    def _content(self) -> str:
        return "pictures" if self._findings.sample.content == "pictures" else "arrays"


def _median(timing: Timing) -> float:
    return timing.median


def _times(one: Timing, other: Timing) -> str:
    return f"{one.median / other.median:.1f} times"


def _rate(timing: Timing) -> str:
    return f"{timing.median:,.0f} samples/s"


def _workers(count: int) -> str:
    return f"num_workers={count}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are equally"


def _listed(names: Sequence[str], word: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def _capital(word: str) -> str:
    return word[0].upper() + word[1:]
