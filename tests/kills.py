"""A campaign of kills: ``python -m tests.kills --kills 300`` kills real ``pack`` jobs, several in a row for one output.

Each job goes on from what the one before has left. A kill comes at a random moment, or just after something has appeared in
the partial folder, so that the short stages are hit as well. After each kill there is nothing under the final name, or the old
output where it is being replaced, or the whole new one; and the run that ends the row gives, byte for byte, what an
undisturbed run gives, and leaves nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from packer import formats
from tests.check_hooks import environment
from tests.inputs import jpeg, npy, photo, write_tree

__all__ = ["STAGES", "Campaign", "Kill", "make_input"]

_MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from packer.cli import main; main()"
_WITHOUT_EXCHANGE = "from packer import commit; commit._renameat2 = lambda *ignored: False\n"
# The last stages are over in less than a millisecond on a good disk; a slow one is no other job.
_SLOW_DISK = """
import os, time
from packer import commit
def slow(call):
    return lambda *arguments: time.sleep(0.004) or call(*arguments)
os.fsync, commit._renameat2 = slow(os.fsync), slow(commit._renameat2)
"""
_DEADLINE_S = 120.0
_AFTER_S = 0.005

STAGES = ("start", "scan", "pack", "read back", "sync", "commit", "tidy up")
"""Where a job can be killed: before it has a journal; before it has a report; while it writes; while it reads back; after the
manifest is there; when only the rename is missing; and after that. The first three hold what a resumed job does as well."""


@dataclass(frozen=True)
class Kill:
    """How a job is ended.

    Attributes:
        wait_for: a stage, just after whose beginning it comes; empty for a random moment.
        how: ``"all"`` for SIGKILL to the job and its workers, ``"parent"`` for SIGKILL to the job alone, or a signal's name.
        after_s: seconds from then, or from the job's start.
    """

    wait_for: str
    how: str
    after_s: float


def make_input(folder: Path, files: int) -> Path:
    """Arrays and small pictures in three classes, some of them damaged, with names of several kinds."""
    made: dict[str | bytes, bytes] = {}
    for i in range(files):
        name = f"{'abc'[3 * i // files]}/{i:04d}"
        if i % 3:
            made[f"{name}.npy"] = npy(np.full(i % 900 + 1, i, "f4"))
        elif i % 21:
            made[f"{name}.é.jpg"] = jpeg(photo(40, 30, seed=i))
        else:
            made[f"{name}.jpg"] = jpeg(photo(40, 30, seed=i))[: i * 3]
    return write_tree(folder, made)


def digests(folder: Path) -> dict[str, str]:
    """Of each file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@dataclass
class Campaign:
    """Kills of jobs that pack one folder into one format.

    Attributes:
        root: where outputs are made.
        source: the input.
        format_name: the format.
        rng: decides when and how.
        hits: number of kills by stage.
        modes: number of kills by how they came.
        rows: number of outputs that were finished.
    """

    root: Path
    source: Path
    format_name: str
    rng: random.Random
    hits: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    _due: list[str] = field(default_factory=list)
    _started_ns: int = 0

    def __post_init__(self) -> None:
        self.target = self.root / "out"
        self.partial = self.root / ".out.partial"
        before = time.monotonic()
        self._finish(self._start(exchanges=True))
        self._seconds = time.monotonic() - before
        self.new = digests(self.target)
        self.target.rename(self.root / "new")
        small = make_input(self.root / "small", 5)
        self._finish(self._start(exchanges=True, source=small, more=["--check", "none"]))
        self.target.rename(self.root / "old")
        self.old = digests(self.root / "old")

    def run_row(self, kills: int, *, overwrite: bool, exchanges: bool) -> int:
        """Kill so many jobs in a row, or fewer where one is done before, and let the last one end; returns the number."""
        if overwrite:
            shutil.copytree(self.root / "old", self.target)
        allowed = [self.old] if overwrite else [None]
        if overwrite and not exchanges:
            allowed.append(None)
        done = 0
        while done < kills:
            kill, stage = self._kill(self._next_kill(), exchanges=exchanges, overwrite=overwrite)
            found = digests(self.target) if self.target.exists() else None
            assert found in (*allowed, self.new), f"{kill}: something else stands under the final name"
            if not stage:
                break  # the job was faster
            self.hits[stage] += 1
            self.modes[kill.how] += 1
            done += 1
            if found == self.new and not overwrite:
                break
        job = self._start(exchanges=exchanges, overwrite=overwrite)
        _, errors = job.communicate(timeout=_DEADLINE_S)
        is_there = not overwrite and "exists already" in errors
        assert is_there or (job.returncode, errors) == (0, ""), errors
        assert digests(self.target) == self.new, "the output is not that of an undisturbed run"
        assert sorted(os.listdir(self.root)) == ["new", "old", "out", "small"], os.listdir(self.root)
        shutil.rmtree(self.target)
        self.rows += 1
        return done

    def _next_kill(self) -> Kill:
        if not self._due:  # each stage comes as often as any other
            self._due = ["", "", "", *STAGES[1:]]
            self.rng.shuffle(self._due)
        wait_for = self._due.pop()
        how = self.rng.choice(["all", "parent", "parent", "SIGTERM", "SIGINT"])
        if not wait_for:
            return Kill(wait_for, how, self.rng.uniform(0, 0.9 * self._seconds))
        return Kill(wait_for, how, self.rng.choice([0.0, self.rng.uniform(0, _AFTER_S)]))

    def _kill(self, kill: Kill, *, exchanges: bool, overwrite: bool) -> tuple[Kill, str]:
        """Start a job, wait for the moment, and kill; returns the stage that it was at, empty where it was done before."""
        self._started_ns = time.time_ns()
        job = self._start(exchanges=exchanges, overwrite=overwrite, slow=bool(kill.wait_for))
        how = kill.how
        deadline = time.monotonic() + _DEADLINE_S
        while kill.wait_for and not self._has_come_to(kill.wait_for):
            if job.poll() is not None:
                break
            assert time.monotonic() < deadline, "the job hangs"
            self._look()
        until = time.monotonic() + kill.after_s
        while job.poll() is None and time.monotonic() < until:
            self._look()
        if job.poll() is not None:
            self._finish(job)
            return kill, ""
        stage = self._stage()
        _end(job, how)
        _, errors = job.communicate(timeout=_DEADLINE_S)
        if job.returncode == 0:
            return kill, ""
        expected = {"SIGTERM": [143], "SIGINT": [130]}.get(how, [-signal.SIGKILL])
        if stage == "tidy up" and how.startswith("SIG"):
            expected.append(-signal.Signals[how])  # all is done, and Python is just leaving
        if stage != "start":  # until then Python is loading the command line, and answers itself
            assert job.returncode in expected, (kill, stage, job.returncode, errors)
            assert "Traceback" not in errors, errors
        # One that tidies up after itself looks otherwise afterwards; one that was killed went on until it was.
        return kill, stage if how.startswith("SIG") else self._stage()

    def _has_begun(self, stage: str) -> bool:
        """Whether the job that runs now has come to a stage, by what has appeared since it was started."""
        output = self.partial / "output"
        if stage == "read back":
            return self._is_of_this_job(output / "report.jsonl") and (output / "report.jsonl").stat().st_size > 0
        signs = {
            "scan": self.partial / "lock",
            "pack": output / "report.jsonl",
            "sync": output / "manifest.json",
            "commit": self.partial / "committing",
            "tidy up": self.target,
        }
        return self._is_of_this_job(signs[stage])

    def _is_of_this_job(self, path: Path) -> bool:
        try:
            return path.stat().st_ctime_ns > self._started_ns
        except FileNotFoundError:
            return False

    def _has_come_to(self, stage: str) -> bool:
        return STAGES.index(self._stage()) >= STAGES.index(stage)

    def _stage(self) -> str:
        """The last stage that the job has come to."""
        with contextlib.suppress(FileNotFoundError):  # it went on in that very moment
            return next((stage for stage in reversed(STAGES[1:]) if self._has_begun(stage)), STAGES[0])
        return self._stage()

    def _look(self) -> None:
        for _ in range(3):  # between two looks it may be exchanged
            if (self.target / "manifest.json").exists() or not os.path.lexists(self.target):
                return
        raise AssertionError(f"half an output under the final name: {os.listdir(self.target)}")

    def _start(
        self,
        *,
        exchanges: bool,
        overwrite: bool = False,
        slow: bool = False,
        source: Path | None = None,
        more: list[str] | None = None,
    ) -> subprocess.Popen[str]:
        has_shards = formats.get(self.format_name).has_shards
        arguments = [source or self.source, "-f", self.format_name, "-o", self.target, "--workers", "1", *(more or [])]
        arguments += ["--shard-samples", "40"] if has_shards else []
        arguments += ["--overwrite"] if overwrite else []
        code = ("" if exchanges else _WITHOUT_EXCHANGE) + (_SLOW_DISK if slow else "") + _MAIN
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments), "-q"],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _finish(self, job: subprocess.Popen[str]) -> None:
        _, errors = job.communicate(timeout=_DEADLINE_S)
        assert (job.returncode, errors) == (0, ""), errors


def _end(job: subprocess.Popen[str], how: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        if how == "all":
            for worker in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(worker), signal.SIGKILL)
            os.killpg(job.pid, signal.SIGKILL)
        else:
            job.send_signal(signal.SIGKILL if how == "parent" else signal.Signals[how])


def main() -> None:
    """Run the campaign over all formats, and print how often each stage was hit."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kills", type=int, default=300, help="number of kills over all formats")
    parser.add_argument("--format", choices=formats.names(), action="append", help="only this one; may be given again")
    parser.add_argument("--files", type=int, default=300, help="files of the input")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = options.format or formats.names()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="packer-kills-") as folder:
        source = make_input(Path(folder, "in"), options.files)
        for number, name in enumerate(names):
            root = Path(folder, name)
            root.mkdir()
            campaign = Campaign(root, source, name, rng)
            left = options.kills // len(names) + (number < options.kills % len(names))
            while left > 0:
                overwrite = rng.random() < 0.5
                left -= campaign.run_row(min(left, rng.randint(1, 5)), overwrite=overwrite, exchanges=rng.random() < 0.6)
                print(f"\r{name}: {sum(campaign.hits.values())} kills, {campaign.rows} outputs", end="", flush=True)
            print(f"\r{name}: {sum(campaign.hits.values())} kills, {campaign.rows} outputs, all as undisturbed")
            print("  " + ", ".join(f"{stage} {campaign.hits[stage]}" for stage in STAGES))
            print("  " + ", ".join(f"{how} {count}" for how, count in sorted(campaign.modes.items())))


if __name__ == "__main__":
    main()
