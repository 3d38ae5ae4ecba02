"""The same work by packer and its peers in one run, each proved to give the files' own bytes and labels.

    python benchmarks/peers.py [--count 2000] [--repeat 5] [--workers N] [--envs DIR] [--only NAME ...] [--work DIR]
                               [--json FILE]

The files are photographs of 500 x 375 (``data.py``), about 60 kB each. Each peer (``peerlist.py``) is a child process that runs
a script of ``peers/`` with the libraries in their newest versions: in the project's own environment, or in one of its own, made
under ``--envs`` where it is not there yet. A peer that cannot be installed, does not start, or has no way to do something is
left out there, and the reason is printed and written down.

* ``pack``: all files, from the folder to the disk (everything is synced in the time), and the size of what was written. packer
  packs with ``--check none``, as no peer looks at the files; with all checks, it has rows of its own.
* ``random``: whole files as bytes and their labels in a random order that the benchmark gives, 64 asked for at once, in
  whichever way of the peer is fastest (one after the other where it has no other); ``sequential``: in the order of the files;
  ``own shuffle``: as the peer shuffles by itself. xxh3-64 of every file is taken in the time. ``warm``: from the page cache,
  three times in a run. ``cold``: nothing is open, and nothing of it in the page cache; to open it is in the time. A cold run is
  void if pages were left in the cache, or fewer bytes came from the disk than the files or the output have.
* ``pictures``: batches of 64 decoded and resized to 224 x 224 in a random order, a quarter of the files, with 0 and with
  ``--workers`` worker processes that run already: Pillow in torch's DataLoader, or the loader that the peer has.

In each round all run in turn, and files/s are compared with those of the fastest packer format, and of the loose files, which
are read as an ImageFolder reads them. The exit status is 1 only where data are wrong or a peer failed between rounds, and 2
where scikit-learn or torch is not installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from data import make_photos
from epochs import SourceFiles
from machine import CpuClock, count_cpus, describe_machine, describe_versions
from options import positive_int
from pagecache import cached_share, drop
from peerlist import FORMATS, LOOSE, PEERS, Peer, UnavailableError
from peerside import Child, Truth, small_pictures, start
from proof import WrongDataError
from timing import Contender, Measure, Pair, Result, compare_pairs, format_setting, format_table
from xxhash import xxh3_64_intdigest

import packer

PACKER = tuple(f"packer, {name}" for name in FORMATS)
WARM_PASSES = 3
DECODED_SHARE = 4
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

    def read(child: Child, do: str, passes: int, orders: Iterator[list[int]]) -> int:
        """Answers bytes read from the disk, after the proof; seconds are kept beside."""
        asked = [next(orders) for _ in range(passes)] if do == "random" else [list(range(count))] * passes
        request = {"orders": asked} if do == "random" else {"passes": passes}
        answer = child.ask(do, **request)
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
            if (counted := read(child, do, 1, orders)) < least:
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
            bench.compare(f"pictures, {workers} workers", packed, partial(prepare, workers=workers), len(files))


def random_orders(count: int) -> Iterator[list[int]]:
    """Random orders without end, the same ones for each peer."""
    random = np.random.default_rng(0)
    while True:
        yield random.permutation(count).tolist()


def run_benchmark(bench: Bench, *, count: int, workers: int) -> None:
    """Make the photographs and measure every part.

    Args:
        bench: takes the results.
        count: number of photographs.
        workers: number of worker processes, where there are any.

    Raises:
        WrongDataError: a peer gave something else than the files.
        UnavailableError: a peer failed that had run before.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    listings: list[tuple[SourceFiles, Path]] = []
    for name, number in (("photos", count), ("few-photos", max(1, count // DECODED_SHARE))):
        make_photos(bench.work / name, number, workers=workers)
        files = SourceFiles.of(bench.work / name)
        listing = bench.work / f"{name}.json"
        listing.write_text(json.dumps(list(zip(files.paths, files.targets, strict=True))), encoding="utf-8")
        listings.append((files, listing))
    compare_files(bench, *listings[0])
    compare_pictures(bench, *listings[1], counts=(0, workers))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description="Measure packer and its peers.")
    parser.add_argument("--count", type=positive_int, default=2000, help="photographs (default 2000, 120 MB a peer)")
    parser.add_argument("--repeat", type=positive_int, default=5, help="rounds (default 5)")
    parser.add_argument("--workers", type=positive_int, default=count_cpus(), help="worker processes (default: CPUs)")
    parser.add_argument("--envs", type=Path, metavar="DIR", help="where environments lie or are made (default: none are)")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these beside the loose files")
    parser.add_argument("--work", type=Path, help="an existing folder to work in (default: that for temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write setting and all repetitions as JSON lines")
    options = parser.parse_args(arguments)
    for name in ("work", "envs"):
        folder = getattr(options, name)
        if folder and not folder.is_dir():
            parser.error(f"argument --{name}: {folder} is not a folder")
    asked = {LOOSE, *(options.only or names)}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.work, ignore_cleanup_errors=True) as name:
        work = Path(name).resolve()
        envs = options.envs.resolve() if options.envs else None
        bench = Bench(work, [peer for peer in PEERS if peer.name in asked], envs, options.repeat)
        setting: dict[str, object] = {
            "benchmark": "peers",
            "date": date.today().isoformat(),
            "machine": describe_machine(work),
            "versions": {"packer": packer.__version__, **describe_versions(["numpy", "pillow", "torch", "xxhash"])},
            "options": {"count": options.count, "repeat": options.repeat, "workers": options.workers},
        }
        started = CpuClock.read()
        try:
            run_benchmark(bench, count=options.count, workers=options.workers)
        except (WrongDataError, UnavailableError) as error:
            print(f"peers.py: {error}", file=sys.stderr)
            return 1
        except ModuleNotFoundError as error:
            print(f"peers.py: {error}", file=sys.stderr)
            return 2
    setting["cpus_used_by_others"] = started.cpus_used_by_others(CpuClock.read())
    print(format_setting(setting))
    for part, results in bench.results.items():
        print(f"\n{part}\n{format_table(results)}")
    for part, reasons in bench.skipped.items():
        print("\n".join(f"left out, {part}: {name}: {reason}" for name, reason in reasons.items()))
    if options.json:
        facts = {"sizes": bench.sizes, "peer_versions": bench.versions, "skipped": bench.skipped}
        write_lines(options.json, {**setting, **facts}, bench.results)
    return 0


def write_lines(path: Path, setting: dict[str, object], parts: dict[str, list[Result]]) -> None:
    """Write the JSON lines: setting, then the results of each part."""
    lines: list[dict[str, object]] = [{"kind": "setting", **setting}]
    for part, results in parts.items():
        for result in results:
            derived = {"measure": result.measure.value, "ratios": result.ratios, "ratio": result.ratio, "met": None}
            lines.append({"kind": "result", "part": part, **asdict(result), **derived})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
