"""The peers of the benchmark, and the environments that they need."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).with_name("peers")
LOOSE = "loose files"
FORMATS = ("lmdb", "hdf5", "webdataset")


class UnavailableError(Exception):
    """A peer cannot run here, or cannot do what is measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of a peer. It sees what the project's own has, and comes before it.

    Attributes:
        name: of its folder.
        installs: arguments of ``pip install``, one call after the other.
    """

    name: str
    installs: tuple[tuple[str, ...], ...]

    def python(self, folder: Path) -> Path:
        """Its interpreter."""
        return folder / self.name / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")

    def make(self, folder: Path) -> Path:
        """Make it where it is not there yet, as a whole; returns its interpreter.

        Raises:
            UnavailableError: something could not be installed.
        """
        python, whole = self.python(folder), folder / self.name / "whole"
        if whole.exists():
            return python
        print(f"making the environment {self.name}", file=sys.stderr)
        venv.create(folder / self.name, clear=True, with_pip=True, symlinks=sys.platform != "win32")
        paths = {"base": str(folder / self.name), "platbase": str(folder / self.name)}
        own = Path(sysconfig.get_path("purelib", "venv", paths))
        (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        for arguments in self.installs:
            command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                # Conflicts with what the project's environment has are errors in name only; the status tells.
                lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
                raise UnavailableError(f"pip install {' '.join(arguments)}: {lines[-1] if lines else 'failed'}")
        whole.touch()
        return python


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the tables.

    Attributes:
        name: as the tables show it.
        script: in ``peers/``.
        arguments: of the script.
        environment: None for the project's own.
        packs_only: whether it is left out where files are read: it reads what another one reads.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: Environment | None = None
    packs_only: bool = False

    def command(self, environments: Path | None) -> list[str]:
        """What starts its child process.

        Raises:
            UnavailableError: it has no environment.
        """
        python = Path(sys.executable)
        if self.environment:
            if not environments:
                raise UnavailableError("it needs an environment of its own, and --envs names no folder for it")
            python = self.environment.make(environments)
        return [str(python), "-W", "ignore", str(SCRIPTS / self.script), *self.arguments]


def _own(name: str, *installs: Sequence[str]) -> Environment:
    return Environment(name, tuple(tuple(arguments) for arguments in installs))


# Without its dependencies where they bring torch anew, of several GB, or clients of clouds; what it needs of them follows.
_LITDATA = _own("litdata", ["--no-deps", "litdata"], ["lightning-utilities", "boto3", "obstore", "requests", "tifffile"])
_STREAMING = _own(
    "streaming",
    ["--no-deps", "mosaicml-streaming"],
    [
        "numpy<2.2",
        "xxhash<4",
        "transformers<5",
        "matplotlib",
        "Brotli",
        "zstd",
        "python-snappy",
        "catalogue",
        "boto3",
        "requests",
    ],
)
# Debian 12: needs the packages libturbojpeg0-dev, libopencv-dev, pkg-config and g++.
_FFCV = _own(
    "ffcv",
    ["numpy<2", "numba", "opencv-python-headless<4.12", "wheel", "assertpy", "fastargs", "psutil", "tqdm", "terminaltables"],
    ["numpy<2", "pytorch_pfn_extras"],
    ["--no-build-isolation", "--no-deps", "ffcv"],
)

PEERS: tuple[Peer, ...] = (
    Peer(LOOSE, "with_loose_files.py"),
    *(Peer(f"packer, {name}", "with_packer.py", (name, "none")) for name in FORMATS),
    *(Peer(f"packer, {name}, --check full", "with_packer.py", (name, "full"), packs_only=True) for name in FORMATS),
    Peer("lmdb, bytes", "with_lmdb.py", ("bytes",)),
    Peer("lmdb, pickled", "with_lmdb.py", ("pickled",)),
    *(Peer(f"h5py, {kind}", "with_h5py.py", (kind,)) for kind in ("variable", "chunked", "contiguous")),
    Peer("webdataset", "with_webdataset.py"),
    Peer("wids", "with_wids.py", (), _own("wids", ["webdataset<0.3"])),
    Peer("litdata", "with_litdata.py", (), _LITDATA),
    Peer("mosaicml-streaming", "with_streaming.py", (), _STREAMING),
    Peer("array_record", "with_array_record.py", (), _own("array_record", ["array_record"])),
    Peer("bagz", "with_bagz.py", (), _own("bagz", ["bagz"])),
    Peer("HuggingFace datasets", "with_datasets.py"),
    Peer("lance", "with_lance.py", (), _own("lance", ["pylance"])),
    Peer("blobpack", "with_blobpack.py", (), _own("blobpack", ["blobpack"])),
    Peer("FFCV", "with_ffcv.py", (), _FFCV),
)
