"""The parts of the peers' benchmark: packing, raw reads and pictures, each timed in turn and proved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from epochs import SourceFiles
from pagecache import cached_share, drop
from peerlist import FORMATS, LOOSE, Peer, UnavailableError
from peerside import Child, Truth, small_pictures, start
from timing import Contender, Measure, Pair, Result, compare_pairs
from xxhash import xxh3_64_intdigest

PACKER = tuple(f"packer, {name}" for name in FORMATS)
WARM_PASSES = 3
# Of the pages that were dropped; and of the bytes of the files, or of the output where it is smaller.
MOST_CACHED = 0.01
LEAST_COUNTED = 0.95


@dataclass(slots=True)
class Bench:
    """One run of the benchmark, and what it has found so far.

    Attributes:
        work: an existing folder; what is made in it stays.
        peers: those that take part.
        environments: where environments lie or are made; None where there are to be none.
        repeat: number of rounds.
        results: by part; two of each peer, against the fastest packer format and the loose files.
        sizes: bytes on the disk of each peer's output.
        versions: of what each peer runs.
        skipped: the reason why a peer is left out, by part.
    """

    work: Path
    peers: list[Peer]
    environments: Path | None
    repeat: int
    results: dict[str, list[Result]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)

    def start(self, stack: ExitStack, work: Path, *, packs: bool = False) -> list[Child]:
        """Start the peers' child processes, and leave out for good those that do not start.

        Args:
            stack: ends them.
            work: the folder for what they write.
            packs: whether those take part that only pack.
        """
        work.mkdir(exist_ok=True)
        children: list[Child] = []
        for peer in self.peers:
            if peer.name not in self.skipped.get("all", {}) and (packs or not peer.packs_only):
                with self.leaving_out("all", peer.name):
                    children.append(stack.enter_context(start(peer, work, self.environments)))
        for child in list(children):
            children.remove(child)
            with self.leaving_out("all", child.name):
                child.greet()
                children.append(child)
                self.versions[child.name] = child.versions
        return children

    @contextmanager
    def leaving_out(self, part: str, name: str) -> Iterator[None]:
        """Tell why a peer is left out, where the block says so."""
        try:
            yield
        except UnavailableError as reason:
            print(f"  {part}: without {name}: {reason}", file=sys.stderr)
            self.skipped.setdefault(part, {})[name] = str(reason)

    def compare(self, part: str, children: Sequence[Child], run: Callable[[Child], Callable[[], float]], files: int) -> None:
        """Time one part: every peer once without a clock, then all in turn.

        Args:
            part: what is measured.
            children: the peers.
            run: what does the work of a peer once and returns its seconds.
            files: that each run treats.
        """
        print(f"{part}: {files} files", file=sys.stderr)
        contenders: list[Contender] = []
        for child in children:
            contender = Contender(child.name, run(child))
            with self.leaving_out(part, child.name):
                contender.run()
                contenders.append(contender)
        itself = [Pair(contender.name, contender.name) for contender in contenders]
        times = compare_pairs(contenders, itself, measure=Measure.RATE, files=files, repeat=self.repeat)
        self.results[part] = against_the_best(times)


def against_the_best(times: Sequence[Result]) -> list[Result]:
    """Each result against the fastest packer format, and against the loose files where there are any."""
    by_name = {result.subject: result for result in times}
    ours = [by_name[name] for name in PACKER if name in by_name]
    best = min(ours, key=lambda result: median(result.seconds), default=None)
    found: list[Result] = []
    for result in times:
        for baseline in (best, by_name.get(LOOSE)):
            if baseline and baseline is not result:
                pair = (result.subject, baseline.subject, Measure.RATE, None, result.files, result.seconds, baseline.seconds)
                found.append(Result(*pair))
    return found


def compare_packing(bench: Bench, children: Sequence[Child], files: SourceFiles, listing: Path) -> None:
    """Pack with all peers; the last outputs stay."""

    def run(child: Child) -> float:
        shutil.rmtree(child.output, ignore_errors=True)
        seconds = float(child.ask("pack", files=str(listing))["seconds"])
        bench.sizes[child.name] = sum(path.stat().st_blocks * 512 for path in child.output.rglob("*") if path.is_file())
        return seconds

    for child in children:
        if child.name == LOOSE:
            child.ask("pack", files=str(listing))
            bench.sizes[LOOSE] = sum(Path(path).stat().st_blocks * 512 for path in files.paths)
    packing = [child for child in children if child.name != LOOSE]
    bench.compare("pack", packing, lambda child: partial(run, child), len(files))


def compare_reading(bench: Bench, children: Sequence[Child], files: SourceFiles) -> None:
    """Read what was packed, as bytes."""
    truth = Truth([xxh3_64_intdigest(Path(path).read_bytes()) for path in files.paths], files.targets)
    count = len(files)

    def read(child: Child, do: str, passes: int, orders: Iterator[list[int]], *, is_cold: bool = False) -> int:
        """Answers bytes read from the disk, after the proof; seconds are kept beside."""
        asked = [next(orders) for _ in range(passes)] if do == "random" else [list(range(count))] * passes
        request = {"orders": asked} if do == "random" else {"passes": passes}
        answer = child.ask(do, cold=is_cold, **request)
        truth.prove_files(child.name, None if do == "shuffled" else asked, passes, answer)
        seconds[child.name] = float(answer["seconds"])
        return int(answer["disk_bytes"])

    def warm(child: Child, do: str) -> Callable[[], float]:
        orders = random_orders(count)

        def run() -> float:
            read(child, do, WARM_PASSES, orders)
            return seconds[child.name]

        return run

    def cold(child: Child, do: str) -> Callable[[], float]:
        orders = random_orders(count)
        inside = [path for path in child.output.rglob("*") if path.is_file() and path.stat().st_size]
        paths = [*map(Path, files.paths)] if child.name == LOOSE else inside
        least = LEAST_COUNTED * min(files.size_bytes, sum(path.stat().st_blocks * 512 for path in paths))

        def run() -> float:
            child.ask("close")
            drop(paths)
            if cached_share(paths) > MOST_CACHED:
                child.restart()
                drop(paths)
            if (cached := cached_share(paths)) > MOST_CACHED:
                raise UnavailableError(f"not cold: {cached:.1%} of its pages stay in the cache")
            if (counted := read(child, do, 1, orders, is_cold=True)) < least:
                raise UnavailableError(f"not cold: {counted:,} of {least:,.0f} bytes were read from the disk")
            return seconds[child.name]

        return run

    seconds: dict[str, float] = {}
    packs_only = {peer.name for peer in bench.peers if peer.packs_only}
    readers = [child for child in children if child.name in bench.sizes and child.name not in packs_only]
    for part, do in (("random", "random"), ("sequential", "sequential"), ("own shuffle", "shuffled")):
        bench.compare(f"{part}, warm", readers, partial(warm, do=do), WARM_PASSES * count)
    for part in ("random", "sequential"):
        bench.compare(f"{part}, cold", readers, partial(cold, do=part), count)


def compare_files(bench: Bench, files: SourceFiles, listing: Path) -> None:
    """Pack the files and read them as bytes."""
    with ExitStack() as stack:
        children = bench.start(stack, bench.work / "raw", packs=True)
        compare_packing(bench, children, files, listing)
        compare_reading(bench, children, files)


def compare_pictures(bench: Bench, files: SourceFiles, listing: Path, counts: Sequence[int]) -> None:
    """Read batches of decoded pictures."""
    truth = Truth([], files.targets, {crop: small_pictures(files.paths, crop=crop) for crop in (False, True)})

    def prepare(child: Child, workers: int) -> Callable[[], float]:
        orders = random_orders(len(files))
        proved = False

        def run() -> float:
            nonlocal proved
            proof = None if proved else child.output.with_suffix(".npy")
            request = {"proof": str(proof)} if proof else {}
            answer = child.ask("pictures", workers=workers, orders=[next(orders)], **request)
            truth.prove_pictures(child.name, 1, answer, proof)
            proved = True
            return float(answer["seconds"])

        return run

    with ExitStack() as stack:
        packed: list[Child] = []
        for child in bench.start(stack, bench.work / "pictures"):
            with bench.leaving_out("pictures", child.name):
                child.ask("pack", files=str(listing))
                packed.append(child)
        for workers in counts:
            part = f"pictures, {workers} workers"
            fresh: list[Child] = []
            for child in packed:
                with bench.leaving_out(part, child.name):
                    child.restart()  # some of them hang in processes that are forked after their first use
                    fresh.append(child)
            bench.compare(part, fresh, partial(prepare, workers=workers), len(files))


def random_orders(count: int) -> Iterator[list[int]]:
    """Random orders without end, the same ones for each peer."""
    random = np.random.default_rng(0)
    while True:
        yield random.permutation(count).tolist()
