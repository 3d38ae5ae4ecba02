"""The parent's side of the peers' child processes (``peers/child.py``): starting, asking, and proving what they answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peerlist import Peer, UnavailableError
from PIL import Image
from proof import WrongDataError

SIZE = 224
POOLED = 14
# Levels: other filters and decoders differ by one or two on average, another picture by dozens.
TOLERANCE = 4.0
LONGEST_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Truth:
    """What has to be read.

    Attributes:
        digests: xxh3-64 of every file.
        labels: the class of every file.
        pictures: by ``crop``: mean levels of every picture at 224 x 224, 14 x 14 pixels averaged to one: (n, 3, 16, 16).
    """

    digests: list[int]
    labels: list[int]
    pictures: dict[bool, NDArray[np.float32]] = field(default_factory=dict)

    def prove_files(self, name: str, orders: Sequence[Sequence[int]] | None, passes: int, answer: dict[str, Any]) -> None:
        """Compare what was read with the files.

        Args:
            name: of the peer, for the message.
            orders: the numbers asked for; None where the peer has an order of its own.
            passes: how often all files were read.
            answer: the digests and labels.

        Raises:
            WrongDataError: a file is missing, too many, altered, or has another label.
        """
        given = list(zip(answer["digests"], answer["labels"], strict=True))
        files = list(zip(self.digests, self.labels, strict=True))
        if orders is None:
            given.sort()
            expected = sorted(files * passes)
        else:
            expected = [files[index] for order in orders for index in order]
        if given != expected:
            raise WrongDataError(f"{name}: the files that were read are not those that were packed, or have other labels")

    def prove_pictures(self, name: str, passes: int, answer: dict[str, Any], proof: Path | None) -> None:
        """Compare decoded batches with the files.

        Args:
            name: of the peer, for the message.
            passes: how often all pictures were read.
            answer: number, label and one value of every picture.
            proof: where the pictures lie, made small; None where only the values are compared.

        Raises:
            WrongDataError: a picture is missing, too many, another one, or has another label.
        """
        indices = answer["indices"]
        if sorted(indices) != sorted(list(range(len(self.labels))) * passes):
            raise WrongDataError(f"{name}: pictures are missing or too many: {len(indices)} of {passes} x {len(self.labels)}")
        if answer["labels"] != [self.labels[index] for index in indices]:
            raise WrongDataError(f"{name}: pictures have other labels than their files")
        expected = self.pictures[answer["crop"]][indices]
        given = np.load(proof) if proof else np.array(answer["values"])
        if not proof:
            middle = SIZE // POOLED // 2
            expected = expected[:, :, middle - 1 : middle + 1, middle - 1 : middle + 1].mean((1, 2, 3))
        if given.shape != expected.shape:
            raise WrongDataError(f"{name}: pictures of {given.shape}, not {expected.shape}")
        differences = np.abs(given - expected).reshape(len(indices), -1).mean(1)
        worst = int(differences.argmax())
        if not differences[worst] <= TOLERANCE:
            raise WrongDataError(f"{name}: picture {indices[worst]} differs by {differences[worst]:.2f} levels on average")


def small_pictures(paths: Sequence[str], *, crop: bool) -> NDArray[np.float32]:
    """The pictures as Pillow gives them at 224 x 224, whole or the centre of each, made small as in ``Truth.pictures``."""
    small: list[NDArray[np.float32]] = []
    for path in paths:
        with Image.open(path) as image:
            picture = image.convert("RGB")
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        box = (left, top, left + side, top + side) if crop else (0, 0, *picture.size)
        pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box), np.float32)
        count = SIZE // POOLED
        small.append(pixels.reshape(count, POOLED, count, POOLED, 3).mean((1, 3)).transpose(2, 0, 1))
    return np.stack(small)


class Child:
    """The child process of a peer.

    Attributes:
        name: of the peer.
        output: the folder that it packs into.
        versions: of what it runs.
    """

    def __init__(self, name: str, command: Sequence[str], stem: Path) -> None:
        self.name = name
        self.output = stem
        self.versions: dict[str, str] = {}
        self._command = command
        self._errors = stem.with_name(f"{stem.name}.log")
        self._process = self._launch()

    def greet(self) -> None:
        """Wait until its libraries are loaded, and learn their versions.

        Raises:
            UnavailableError: its script does not start.
        """
        self.versions = self._answer()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Have something done.

        Raises:
            UnavailableError: the peer cannot do that, or ended.
        """
        if self._process.stdin:
            try:
                self._process.stdin.write(json.dumps({"do": do, "output": str(self.output), **request}) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # that it ended is told where its answer is missing
        answer = self._answer()
        if "unsupported" in answer:
            raise UnavailableError(answer["unsupported"])
        return answer

    def restart(self) -> None:
        """Begin anew: some keep files mapped as long as they run."""
        self.stop(seconds=0)
        self._process = self._launch()
        self.greet()

    def stop(self, seconds: float = 20) -> None:
        """End the process: it has so long to do so by itself."""
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _launch(self) -> subprocess.Popen[str]:
        with self._errors.open("a", encoding="utf-8") as log:
            pipe = subprocess.PIPE
            return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=self._errors.parent)

    def _answer(self) -> dict[str, Any]:
        watch = Timer(LONGEST_SECONDS, self._process.kill)
        watch.start()
        line = self._process.stdout.readline() if self._process.stdout else ""
        in_time = watch.is_alive()
        watch.cancel()
        if not in_time:
            raise UnavailableError(f"no answer in {LONGEST_SECONDS} s")
        if not line:
            lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UnavailableError(f"it ended: {lines[-1][:300] if lines else 'without a word'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def start(peer: Peer, work: Path, environments: Path | None) -> Iterator[Child]:
    """Start the child process of a peer, which is still to be greeted; it ends with the block.

    Args:
        peer: which.
        work: an existing folder for what it writes.
        environments: where environments lie or are made; None where there are to be none.

    Raises:
        UnavailableError: it has no environment.
    """
    child = Child(peer.name, peer.command(environments), work / peer.name.replace(", ", "-").replace(" ", "-"))
    try:
        yield child
    finally:
        child.stop()
