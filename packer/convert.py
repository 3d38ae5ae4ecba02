"""Convert a packed dataset to another container format, or to shards of another size; no file is decoded again.

The samples, their order, labels and names stay, and so does the content digest. The report comes along: what was skipped
when the folder was packed is of interest as long as its samples are.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packer import formats
from packer.assembly import Assembly, Labelling
from packer.commit import Staging
from packer.errors import CorruptDatasetError, DatasetError, InputError, OutputError
from packer.files import file_digest
from packer.formats._base import Format
from packer.index import INDEX_FILE, Record
from packer.manifest import REPORT_FILE, Manifest
from packer.model import MODES, TYPES, Kept, Unfit
from packer.npyheader import parse_header
from packer.options import OnProgress, Progress
from packer.plan import ShardLimits
from packer.store import Store

__all__ = ["ConvertSummary", "convert_dataset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertSummary:
    """What converting did.

    Attributes:
        output: the new dataset's folder.
        format: its container format.
        samples: number of samples.
        output_bytes: size of the container.
        shards: number of files of the container.
        content_digest: as that of the dataset it was made from.
        seconds: time it took.
    """

    output: Path
    format: str
    samples: int
    output_bytes: int
    shards: int
    content_digest: str
    seconds: float


def convert_dataset(
    dataset: str | os.PathLike[str],
    format: str,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    limits: ShardLimits | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> ConvertSummary:
    """Write the samples of a packed dataset into another container.

    Every sample is compared with its digest when it is read, and read back before anything stands under the final name.

    Args:
        dataset: a packed dataset.
        format: a name of ``packer.formats.names()``.
        output: where the new dataset will stand; ``None`` for ``NAME.FORMAT`` beside the old one.
        overwrite: replace an output of packer that stands there already; the old one stays until the new one is whole.
        limits: when a shard is full, for formats that have shards.
        on_progress: called now and then, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit.
        DatasetError: the dataset is damaged; nothing was written. ``unpack`` rescues what is whole.
        OutputError: the output exists already or cannot be written.
    """
    started = time.perf_counter()
    container = formats.get(format)
    container.require_fitting(limits)
    store = Store(dataset)
    total = _require_fitting(store, container)
    target = _target(store, container, output)
    with Staging(target, overwrite=overwrite) as staging:
        if staging.journal.exists():
            raise OutputError(
                f"{staging.partial}: an unfinished packing job for {target.name}. Finish it first, or remove that folder."
            )
        staging.start_over()
        try:
            free = shutil.disk_usage(target.parent).free
            if total > free:
                raise OutputError(
                    f"{target.parent}: {free:,} bytes are free, the samples have {total:,}. Make room, or use -o."
                )
            shutil.copyfile(Path(store.path, REPORT_FILE), Path(staging.folder, REPORT_FILE))
            manifest = _assemble(store, container, staging, limits or ShardLimits(), on_progress)
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            where = os.fsdecode(error.filename) if error.filename else staging.folder
            raise OutputError(f"{where}: cannot be written: {error.strerror or error}. Nothing was left behind.") from error
    return ConvertSummary(
        output=target,
        format=container.name,
        samples=manifest.samples,
        output_bytes=manifest.size_bytes,
        shards=len(manifest.shards),
        content_digest=manifest.content_digest,
        seconds=time.perf_counter() - started,
    )


def _assemble(store: Store, container: Format, staging: Staging, limits: ShardLimits, on_progress: OnProgress) -> Manifest:
    source = store.manifest
    label_of = source.class_to_idx
    classes = [name.encode("utf-8", "surrogateescape") for name in source.classes]
    options = {name: value for name, value in source.options.items() if name not in ("shard_bytes", "shard_samples")}
    if container.has_shards:
        options |= {"shard_bytes": limits.size_bytes, "shard_samples": limits.samples}
    with Assembly(
        container,
        staging,
        Labelling(classes, [label_of[name] for name in source.classes], source.labels),
        sizes=_sizes(store),
        limits=limits,
    ) as assembly:
        done_bytes = 0
        for i in range(len(store)):
            record = store.index[i]
            payload = store.payload(i, record)
            assembly.add(store.index.name(i), record.label, _verdict(store, i, record, payload), payload)
            done_bytes += record.size
            staging.renew_lock()
            on_progress(Progress("convert", i + 1, len(store), done_bytes))
        return assembly.commit(options, on_progress)


def _verdict(store: Store, index: int, record: Record, payload: bytes) -> Kept:
    """What was found out about a sample when it was packed."""
    if record.type >= len(TYPES) or record.mode >= len(MODES):
        raise CorruptDatasetError.at(
            Path(store.path, INDEX_FILE), f"sample {index} has type {record.type} and mode {record.mode}, not both are known"
        )
    kind = TYPES[record.type].name
    header = b""
    if kind == "npy":
        try:
            header = payload[: parse_header(payload).size_bytes]
        except Unfit as unfit:
            raise CorruptDatasetError.at(store.path, f"sample {index} is called an array, but: {unfit.detail}") from None
    return Kept(
        type=kind,
        size_bytes=len(payload),
        digest=record.digest,
        mode=MODES[record.mode],
        width=record.width,
        height=record.height,
        frames=record.frames,
        orientation=record.orientation,
        header=header,
    )


def _sizes(store: Store) -> Iterator[int]:
    """Sizes in bytes of all payloads, in order."""
    shared = len(store.manifest.header)
    for block in store.index.blocks():
        yield from (block["data"]["size"] + np.uint64(shared)).tolist()


def _require_fitting(store: Store, container: Format) -> int:
    """Refuse what the container cannot hold; returns the bytes of all payloads together."""
    report = Path(store.path, REPORT_FILE)
    try:
        whole = file_digest(report) == store.manifest.files[REPORT_FILE].digest
    except OSError as error:
        raise DatasetError.at(report, f"cannot be read: {error.strerror}") from error
    if not whole:
        raise CorruptDatasetError.at(report, "its contents are not those that were packed (the digest differs)")
    total = 0
    for i, size in enumerate(_sizes(store)):
        if size > container.max_payload_bytes:
            raise InputError(
                f"{store.path}: sample {i} ({store.name(i)!r}) has {size:,} bytes, {container.name} holds at most "
                f"{container.max_payload_bytes:,} as one value"
            )
        total += size
    return total


def _target(store: Store, container: Format, output: str | os.PathLike[str] | None) -> Path:
    if output is None:
        suffix = formats.get(store.manifest.format).suffix
        output = store.path.with_name(store.path.name.removesuffix(suffix) + container.suffix)
    target = Path(os.path.realpath(output))
    real = Path(os.path.realpath(store.path))
    if target == real:
        raise OutputError(f"{output}: is the dataset itself; choose another with -o")
    if target in real.parents or real in target.parents:
        raise OutputError(f"{output}: holds the dataset, or lies in it; choose another with -o")
    if not target.parent.is_dir():
        raise OutputError(f"{target.parent}: no such folder, so {target.name} cannot be made in it. Make it first (mkdir -p).")
    return target
