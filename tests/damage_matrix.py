"""Judges damaged datasets, in a process of its own: whatever a damage does to it, the process that started it sees.

Standard input is one JSON object: ``sound`` (a packed dataset), ``input`` (the folder that it was packed from, which says what
is right), ``work`` (a copy that is damaged), ``damages``, ``way`` (a name of ``WAYS``) and ``liar`` (a name of
``tests.damage_liars.LIARS``, or empty). A line is printed for each damage when it is judged: what gave it away, or
``wrong: `` and what is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import packer.datasets
import packer.verify
from packer.errors import CorruptSampleError, DatasetError
from packer.index import RECORD
from tests.damage_kinds import Damage, changed_files
from tests.damage_liars import lie

CLOSED, WRITTEN, REPLACED = WAYS = ("closed", "written while open", "replaced while open")
"""When and how the files are damaged."""
_SECONDS = 20  # for one damage; it takes about 20 ms
_OUTPUTS = ("bytes", "numpy")


class WrongError(Exception):
    """What must not be."""


def require(holds: bool, problem: str) -> None:
    """Nothing is `assert`ed here: an assertion of the package itself must not look like one of the judge."""
    if not holds:
        raise WrongError(problem)


class Truth:
    """What a sound dataset gives, told by the files it was packed from and by numpy, Pillow and the places in its index."""

    def __init__(self, source: Path, sound: Path) -> None:
        paths = sorted((path for path in source.rglob("*") if path.is_file()), key=lambda path: path.relative_to(source).parts)
        self.names = [path.relative_to(source).as_posix() for path in paths]
        classes = sorted({path.parent.name for path in paths})
        self.targets = [classes.index(path.parent.name) for path in paths]
        self.samples = {"bytes": [path.read_bytes() for path in paths], "numpy": [_decoded(path) for path in paths]}
        self.files = {path.name: path.read_bytes() for path in sound.iterdir()}
        self.shards = [shard["file"] for shard in json.loads(self.files["manifest.json"])["shards"]]
        self.records = np.frombuffer(self.files["index.npy"][512:], RECORD)["data"]

    def damaged_samples(self, folder: Path) -> set[int]:
        """The samples whose bytes in a damaged container are others. A container that is gone is refused at open."""
        found = set()
        for i, record in enumerate(self.records):
            name, start, end = self.shards[record["shard"]], int(record["offset"]), int(record["offset"] + record["size"])
            path = folder / name
            if path.is_file() and path.read_bytes()[start:end] != self.files[name][start:end]:
                found.add(i)
        return found

    def groups(self) -> list[list[int]]:
        """Samples to be read together: all of them, and those of each shape."""
        return [list(range(len(self.names))), *self.shapes()]

    def shapes(self) -> list[list[int]]:
        """The samples of each shape; they can be one array."""
        shapes: dict[object, list[int]] = {}
        for i, sample in enumerate(self.samples["numpy"]):
            shapes.setdefault((sample.shape, sample.dtype.str), []).append(i)
        return list(shapes.values())


def _decoded(path: Path) -> Any:
    return np.load(path) if path.suffix == ".npy" else np.asarray(Image.open(path).convert("RGB"))


def same(found: Any, truth: Any) -> bool:
    """The same bytes, or the same array to the dtype."""
    if isinstance(truth, bytes):
        return type(found) is bytes and found == truth
    return (
        isinstance(found, np.ndarray)
        and (found.dtype, found.shape) == (truth.dtype, truth.shape)
        and found.tobytes() == truth.tobytes()
    )


# ------------------------------------------------------------------------------------------------ damaged before it is opened


def judge_closed(truth: Truth, folder: Path, damage: Damage) -> str:
    """Opened in each way, and everything read in each way.

    Refused at open by each; or at exactly the damaged samples, and all else is right. Then verifying finds it, too.
    """
    hurt = truth.damaged_samples(folder)
    outcomes = set()
    for mmap in (False, True):
        for output in _OUTPUTS:
            try:
                data = packer.datasets.open_dataset(folder, output=output, mmap=mmap)
            except DatasetError as error:
                require(str(folder) in str(error), f"an error that does not name the dataset: {error}")
                outcomes.add("open")
                continue
            outcomes.add("sample" if hurt else "verify")
            read_everything(truth, data, output, hurt)
    require(len(outcomes) == 1, f"ways of reading that do not agree: {sorted(outcomes)}")
    require(verify_finds(folder), "nothing that verifying finds")
    return outcomes.pop()


def read_everything(truth: Truth, data: Any, output: str, hurt: set[int]) -> None:
    """Sample by sample, in lists and in batches; names and labels, too."""
    samples = truth.samples[output]
    require(len(data) == len(samples), f"{len(data)} samples")
    require(list(data.names) == truth.names, "other names")
    require(data.targets.tolist() == truth.targets, "other labels")
    for i, sample in enumerate(samples):
        got = attempt(lambda i=i: data[i], {i} & hurt)
        require(got is None or right(got, sample, truth.targets[i]), f"other data at sample {i}")
        got = attempt(lambda i=i: _viewed(data, i), {i} & hurt)
        require(got is None or got == truth.samples["bytes"][i], f"other data in a view of sample {i}")
    for group in truth.groups():
        for wanted in (group, [i for i in group if i not in hurt], group[::-1]):
            one_shape = output == "bytes" or group in truth.shapes()
            if wanted:
                read_together(truth, data, output, wanted, hurt.intersection(wanted), as_batch=one_shape)


def read_together(truth: Truth, data: Any, output: str, wanted: list[int], hurt: set[int], *, as_batch: bool) -> None:
    """Several samples, as the DataLoader asks for them, and as a batch."""
    samples = [truth.samples[output][i] for i in wanted]
    targets = [truth.targets[i] for i in wanted]
    got = attempt(lambda: data.__getitems__(wanted), hurt)
    if got is not None:
        sound = all(right(*row) for row in zip(got, samples, targets, strict=True))
        require(sound, f"other data in a list of samples {wanted}")
    batch = attempt(lambda: data[wanted], hurt) if as_batch else None
    if batch is not None:
        sound = batch[1].tolist() == targets and all(same(row, sample) for row, sample in zip(batch[0], samples, strict=True))
        require(sound, f"other data in a batch of samples {wanted}")


def _viewed(data: Any, i: int) -> bytes:
    with data.view(i) as view:
        return bytes(view)


def right(got: Any, sample: Any, target: int) -> bool:
    """A sample with its label."""
    return type(got) is tuple and len(got) == 2 and same(got[0], sample) and got[1] == target


def attempt(read: Callable[[], Any], hurt: set[int]) -> Any:
    """What is read, ``None`` where packer's error names a damaged sample that is among those asked for."""
    try:
        got = read()
    except CorruptSampleError as error:
        require(error.index in hurt, f"an error at a sample that is sound: {error}")
        return None
    require(not hurt, f"no error at the damaged samples {sorted(hurt)}")
    return got


def verify_finds(folder: Path) -> bool:
    """Whether verifying finds anything; that there is no dataset counts only where there is no manifest."""
    try:
        return bool(list(packer.verify.verify_dataset(folder)))
    except DatasetError:
        if (folder / "manifest.json").exists():
            raise WrongError("verifying raises instead of telling what it finds") from None
        return True


# ------------------------------------------------------------------------------------------------- damaged while it is open


def judge_open(truth: Truth, folder: Path, damage: Damage, way: str) -> Callable[[], str]:
    """Opened and read in part; then damaged by the caller; then read whole: right, or packer's error."""
    opened = []
    in_place = way != REPLACED
    for mmap in (False, True):
        if mmap and in_place and shortens(truth, damage):
            continue  # a bus error, which is documented
        for output in _OUTPUTS:
            for read in (0, 1, len(truth.names)):
                data = packer.datasets.open_dataset(folder, output=output, mmap=mmap)
                require(all(right(data[i], truth.samples[output][i], truth.targets[i]) for i in range(read)), "no sound start")
                opened.append((output, data))

    def after() -> str:
        hurt = truth.damaged_samples(folder) if in_place else set()
        failed = 0
        for output, data in opened:
            for i, sample in enumerate(truth.samples[output]):
                try:
                    got = data[i]
                    name = data.names[i]
                except DatasetError as error:
                    require(str(folder) in str(error), f"an error that does not name the dataset: {error}")
                    failed += 1
                    continue
                require(i not in hurt, f"no error at the damaged sample {i}")
                require(right(got, sample, truth.targets[i]), f"other data at sample {i}")
                require(name == truth.names[i], f"another name of sample {i}")
            try:
                got = data.__getitems__(list(range(len(truth.names))))
            except DatasetError:
                failed += 1
                continue
            require(not hurt, f"no error in a list with the damaged samples {sorted(hurt)}")
            rows = zip(got, truth.samples[output], truth.targets, strict=True)
            require(all(right(*row) for row in rows), "other data in a list")
        return "error" if failed else "right"

    return after


def shortens(truth: Truth, damage: Damage) -> bool:
    """Whether a file of the container becomes shorter by it."""
    changed = changed_files(truth.files, damage)
    return any(
        name in truth.shards and data is not None and len(data) < len(truth.files[name]) for name, data in changed.items()
    )


# -------------------------------------------------------------------------------------------------------------- the damages


def write(folder: Path, changed: dict[str, bytes | None], in_place: bool) -> None:
    """Damage files where they lie, or put others in their place."""
    for name, data in changed.items():
        path = folder / name
        if data is None:
            path.unlink()
        elif in_place:
            with path.open("r+b") as file:
                file.write(data)
                file.truncate()
        else:
            path.with_name("new").write_bytes(data)
            os.replace(path.with_name("new"), path)


def judged(way: str, truth: Truth, folder: Path, damage: Damage) -> str:
    """What gives a damage away, or what is wrong."""
    changed = changed_files(truth.files, damage)
    in_place = way != REPLACED
    signal.alarm(_SECONDS)  # nothing catches it: a hang ends the process by this signal
    try:
        if way == CLOSED:
            write(folder, changed, in_place)
            return judge_closed(truth, folder, damage)
        after = judge_open(truth, folder, damage, way)
        write(folder, changed, in_place)
        return after()
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        write(folder, {name: truth.files[name] for name in changed}, in_place=False)


def main() -> None:
    """Judge what standard input asks for."""
    asked = json.load(sys.stdin)
    truth = Truth(Path(asked["input"]), Path(asked["sound"]))
    if asked["liar"]:
        lie(asked["liar"])
    for values in asked["damages"]:
        sys.stdout.write(judged(asked["way"], truth, Path(asked["work"]), Damage(*values)).replace("\n", " ") + "\n")
        sys.stdout.flush()
