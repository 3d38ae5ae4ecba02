"""What the check of `pack` lets through: thousands of random mutants of valid files of every format, judged and looked at.

    python benchmarks/damage.py [--mutants 2000] [--seed 0] [--formats png,gif] [--write docs/what-checks-see.md]
                                [--json FILE] [--keep DIR] [--workers N]

Every mutant is judged as `pack` judges a file, by worker processes. What is kept is decoded by the reader of packed
datasets and compared with its original, pixel by pixel. Where pixels are others, decoders that know nothing of packer
are asked: Pillow, simplejpeg and numpy, and OpenCV, imagecodecs and tifffile where they are installed. What none of
them notices, no check can see.

The exit status is 1 where a check is at fault: a mutant was kept without a warning that a decoder complains of, or (MPO)
whose later pictures are damaged; one was kept that the reader refuses; a worker died, ran out of time or took more than
1 GB; or a valid file was skipped. Each such file goes to ``--keep DIR``. It is 2 where scikit-learn is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic

from childmemory import child_processes, peak_memory_bytes
from decoders import known_of, opinions
from machine import count_cpus
from mutants import Mutant, make_mutant
from opinions import EXAMINE, Look, parse_look
from options import positive_int
from specimens import COPIES, VARIANTS, make_specimen
from tallies import WARNINGS, Fault, Result, Unseen

from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.model import Kept, Skipped, Source, Verdict

TIMEOUT_S = 60.0
MEMORY_LIMIT = 1_000_000_000
_BATCH = 512
_ENDED_BADLY = ("worker_died", "timeout")


class Campaign:
    """One run: two pools of processes on one folder, the first of which judges as `pack` does; the second looks.

    Args:
        work: an empty folder.
        seed: of all specimens and mutants.
        workers: processes of each pool.
        keep: the folder for files that a check is at fault with; None keeps none.
        level: of the check.
    """

    def __init__(self, work: Path, seed: int, workers: int, keep: Path | None, level: str) -> None:
        self.result = Result(seed=seed, decoders=list(opinions()))
        self._work, self._keep = work, keep
        for name in ("originals", "judged", "kept", "skipped"):
            (work / name).mkdir()
        root, settings = os.fsencode(work), CheckSettings(level)
        self._judges = CheckPool(root, settings, workers, TIMEOUT_S)
        self._judge_processes = child_processes()
        self._lookers = CheckPool(root, settings, workers, TIMEOUT_S, check=EXAMINE)

    def close(self) -> None:
        """End all processes."""
        self._judges.close()
        self._lookers.close()

    def run(self, formats: Sequence[str], mutants: int) -> Result:
        """Make so many mutants of each format and judge them."""
        self.result.mutants = mutants
        for format_name in formats:
            start = monotonic()
            self._judge_originals(format_name)
            numbers = iter(range(mutants))
            while batch := [make_mutant(format_name, number, self.result.seed) for number in islice(numbers, _BATCH)]:
                self._judge_batch(batch)
            print(f"{format_name}: {mutants} mutants in {monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        self.result.peak_bytes = peak_memory_bytes(self._judge_processes)
        if self.result.peak_bytes > MEMORY_LIMIT:
            self.result.faults.append(Fault("", "", -1, "memory", f"a worker took {self.result.peak_bytes:,} bytes"))
        return self.result

    def _judge_originals(self, format_name: str) -> None:
        """Valid files must be kept, and stay where the lookers find them."""
        names = {}
        for variant in VARIANTS[format_name]:
            for copy in range(COPIES):
                specimen = make_specimen(format_name, variant, copy, self.result.seed)
                (self._work / "originals" / specimen.name).write_bytes(specimen.data)
                names[f"originals/{specimen.name}"] = specimen
        for name, verdict in self._ask(self._judges, list(names)):
            if isinstance(verdict, Skipped):
                specimen = names[name]
                self._report(specimen.data, Fault(specimen.name, "none", -1, "lost", f"{verdict.code}: {verdict.detail}"))
        # The lookers are to find originals equal to themselves, or nothing that they say is worth anything.
        for specimen in names.values():
            (self._work / "kept" / f"whole@{specimen.name}").write_bytes(specimen.data)
        for name, answer in self._ask(self._lookers, [f"kept/whole@{specimen.name}" for specimen in names.values()]):
            if not isinstance(answer, Skipped) or answer.code != "look" or parse_look(answer.detail) != Look("equal", "equal"):
                raise RuntimeError(f"{name} is not found equal to itself: {answer}")

    def _judge_batch(self, batch: Sequence[Mutant]) -> None:
        by_name = {mutant.name: mutant for mutant in batch}
        for mutant in batch:
            (self._work / "judged" / mutant.name).write_bytes(mutant.data)
        verdicts: dict[str, Verdict] = {}
        for path, verdict in self._ask(self._judges, [f"judged/{name}" for name in by_name]):
            name = path.partition("/")[2]
            verdicts[name] = verdict
            (self._work / path).rename(self._work / _folder(verdict) / name)
        for path, answer in self._ask(self._lookers, [f"{_folder(verdict)}/{name}" for name, verdict in verdicts.items()]):
            name = path.partition("/")[2]
            self._count(by_name[name], verdicts[name], _look_of(answer, verdicts[name]))
            (self._work / path).unlink()

    def _ask(self, pool: CheckPool, names: Sequence[str]) -> Iterator[tuple[str, Verdict]]:
        sizes = [(self._work / name).stat().st_size for name in names]
        sources = [Source(i, name.encode(), size, 0, -1) for i, (name, size) in enumerate(zip(names, sizes, strict=True))]
        for source, verdict in pool.verdicts(sources):
            yield source.name.decode(), verdict

    def _count(self, mutant: Mutant, verdict: Verdict, look: Look) -> None:
        original = mutant.original
        warnings = {note.code for note in verdict.warnings} if isinstance(verdict, Kept) else set()
        self.result.cell(original.format, original.variant, mutant.kind).add(look, warnings)
        if isinstance(verdict, Skipped):
            self.result.codes[verdict.code] = self.result.codes.get(verdict.code, 0) + 1
            if verdict.code in _ENDED_BADLY:
                self._report(mutant.data, Fault(mutant.name, mutant.kind, mutant.start, verdict.code, verdict.detail))
            return
        told = not warnings.isdisjoint(WARNINGS)
        known = {name: known_of(original.format, name, words) for name, words in look.noticed.items()}
        complaints = {name: words for name, words in look.noticed.items() if known[name] is None}
        if complaints and (look.reader == "refused" or not told):
            said = "; ".join(f"{name}: {words}" for name, words in complaints.items())
            self._report(mutant.data, Fault(mutant.name, mutant.kind, mutant.start, "noticed", said))
        elif look.reader != "equal" and not told:
            for reason in dict.fromkeys(reason for reason in known.values() if reason is not None):
                self.result.known[reason.why] = self.result.known.get(reason.why, 0) + 1
            self.result.unseen.append(Unseen(mutant.name, mutant.kind, mutant.start, mutant.length, sorted(look.noticed)))
        elif look.later and not told:
            self._report(mutant.data, Fault(mutant.name, mutant.kind, mutant.start, "untold", look.later))

    def _report(self, data: bytes, fault: Fault) -> None:
        self.result.faults.append(fault)
        if self._keep is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / fault.name).write_bytes(data)
            with (self._keep / "faults.jsonl").open("a", encoding="utf-8") as file:
                print(json.dumps({"seed": self.result.seed, **dataclasses.asdict(fault)}), file=file)


def _folder(verdict: Verdict) -> str:
    return "kept" if isinstance(verdict, Kept) else "skipped"


def _look_of(answer: Verdict, verdict: Verdict) -> Look:
    """What a looker saw; where it died, Pillow counts as having refused, and a file that was kept as noticed."""
    if isinstance(answer, Skipped) and answer.code == "look":
        return parse_look(answer.detail)
    said = f"{answer.code}: {answer.detail}" if isinstance(answer, Skipped) else "no answer"
    if isinstance(verdict, Skipped):
        return Look("refused")
    return Look("refused", "refused", {"the process of the decoders": said})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Damage valid files at random and see what the check lets through.")
    parser.add_argument("--mutants", type=positive_int, default=2000, help="mutants of each format (default 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", default=",".join(VARIANTS), help="names with commas (default all)")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="processes (default: one for each CPU)")
    parser.add_argument("--check", choices=("full", "none"), default="full", help="how files are judged (default full)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page with the table here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counts, and each mutant that nothing can see")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="files that a check is at fault with go here")
    options = parser.parse_args(arguments)
    formats = options.formats.split(",")
    if not set(formats) <= set(VARIANTS):
        parser.error(f"--formats: there are {', '.join(VARIANTS)}")
    try:
        with tempfile.TemporaryDirectory(prefix="damage-") as work:
            campaign = Campaign(Path(work), options.seed, options.workers, options.keep, options.check)
            try:
                result = campaign.run(formats, options.mutants)
            finally:
                campaign.close()
    except ModuleNotFoundError as error:
        print(f"damage.py: {error}", file=sys.stderr)
        return 2
    print(result.table())
    print(result.summary())
    for fault in result.faults:
        print(f"{fault.what}: {fault.name} ({fault.kind} at {fault.start}): {fault.said}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    if options.write is not None:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(result.page(), encoding="utf-8")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
