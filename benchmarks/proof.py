"""Proofs that what a benchmark timed did its work: each raises ``WrongDataError`` at the first difference."""

from __future__ import annotations

import tarfile
from pathlib import Path

import packer


class WrongDataError(Exception):
    """A timed run produced something other than it should have; its time means nothing."""


def prove_packed(dataset: Path, source: Path) -> None:
    """Read every sample back and compare bytes, name and class with the source files.

    Args:
        dataset: the packed dataset.
        source: the folder of class folders that it was made from; every file in it must have been packed.

    Raises:
        WrongDataError: a sample is missing, too many, altered or in another class.
    """
    missing = _relative_names(source)
    try:
        _compare_samples(dataset, source, missing)
    except packer.PackerError as error:
        raise WrongDataError(f"{dataset.name} cannot be read back: {error}") from error
    _require_nothing_missing(dataset, missing)


def prove_tar(archive: Path, source: Path) -> None:
    """Compare every member of a tar archive with the source files.

    Args:
        archive: made by ``tar`` from inside ``source``.
        source: the folder that it was made from.

    Raises:
        WrongDataError: a member is missing or altered.
    """
    missing = _relative_names(source)
    with tarfile.open(archive) as members:
        for member in members:
            if not member.isfile():
                continue
            name = member.name.removeprefix("./")
            stream = members.extractfile(member)
            if stream is None or name not in missing or stream.read() != (source / name).read_bytes():
                raise WrongDataError(f"{archive.name}: {name} differs from the source file")
            missing.remove(name)
    _require_nothing_missing(archive, missing)


def _compare_samples(dataset: Path, source: Path, missing: set[str]) -> None:
    """Compare every sample, and take its name out of ``missing``."""
    data = packer.open_dataset(dataset, output="bytes")
    for index in range(len(data)):
        payload, label = data[index]
        name = data.names[index]
        if name not in missing:
            raise WrongDataError(f"{dataset.name}: sample {index} is named {name}: no such source file, or seen before")
        missing.remove(name)
        if data.classes[label] != name.partition("/")[0]:
            raise WrongDataError(f"{dataset.name}: {name} has the label of class {data.classes[label]}")
        if payload != (source / name).read_bytes():
            raise WrongDataError(f"{dataset.name}: the bytes of {name} differ from those of the source file")


def _relative_names(source: Path) -> set[str]:
    return {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}


def _require_nothing_missing(output: Path, missing: set[str]) -> None:
    if missing:
        raise WrongDataError(f"{output.name}: {len(missing)} source files are missing, one of them {min(missing)}")
