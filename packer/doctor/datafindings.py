"""What is wrong with the data and where it lies: one small function each, of the facts alone."""

from __future__ import annotations

from packer.doctor import sources
from packer.doctor.facts import Facts
from packer.doctor.finding import NOTE, SERIOUS, WARNING, Finding
from packer.words import count_text, size_text

__all__ = ["data_unusable", "far_away", "loose_files", "no_room", "samples_unreadable", "slow_reading"]

_SLOW_S = 1.0
_SLOW_BYTES_S = 5e6
_SLOW_SAMPLES_S = 50
_NEARLY_FULL_BYTES = 100 << 20
_NEARLY_FULL_INODES = 1000
_MANY_FILES = 10_000
_KERNEL = "https://docs.kernel.org"
_REMOTE = {
    "nfs": ("NFS", sources.NFS),
    "nfs4": ("NFS", sources.NFS),
    "cifs": ("SMB", f"{_KERNEL}/admin-guide/cifs/usage.html"),
    "smb3": ("SMB", f"{_KERNEL}/admin-guide/cifs/usage.html"),
    "9p": ("9p, a folder of the host", f"{_KERNEL}/filesystems/9p.html"),
    "virtiofs": ("virtiofs, a folder of the host", f"{_KERNEL}/filesystems/virtiofs.html"),
    "ceph": ("CephFS", f"{_KERNEL}/filesystems/ceph.html"),
    "lustre": ("Lustre", sources.INODES),
    "gpfs": ("GPFS", sources.INODES),
    "beegfs": ("BeeGFS", sources.INODES),
}


def data_unusable(facts: Facts) -> Finding | None:
    """The dataset is missing or does not open."""
    data = facts.data
    if data is None or not data.error:
        return None
    packed = data.kind == "packed"
    return Finding(
        "damaged_dataset" if packed else "no_dataset",
        SERIOUS,
        "the packed dataset cannot be opened" if packed else "there is nothing to read",
        (data.error,),
        f"`pack verify {data.quoted_path}` says what else is wrong; copy it again, or pack again"
        if packed
        else "check the path",
        sources.PACKER,
    )


def samples_unreadable(facts: Facts) -> Finding | None:
    """Some of the samples that were tried are damaged."""
    if facts.data is None or not facts.data.probe.damaged_count:
        return None
    probe, packed = facts.data.probe, facts.data.kind == "packed"
    return Finding(
        "damaged_sample",
        SERIOUS,
        f"{probe.damaged_count:,} of {count_text(probe.samples + probe.damaged_count, 'sample')} that were tried cannot be "
        f"read",
        probe.damaged,
        f"`pack {'verify' if packed else 'check'} {facts.data.quoted_path}` names every one",
        sources.PACKER,
    )


def far_away(facts: Facts) -> Finding | None:
    """The data lies on a server, or in a place with a price."""
    data = facts.data
    if data is None or data.kind == "missing":
        return None
    kind = data.file_system
    loose = data.kind == "folder"
    evidence = (f"{data.path} is on {kind}",)
    if kind in _REMOTE or kind.startswith("fuse"):
        name, source = _REMOTE.get(kind, ("a FUSE file system", sources.FUSE))
        return Finding(
            "file_server",
            WARNING if loose and data.samples >= _MANY_FILES else NOTE,
            f"the data is on {name}: "
            + (
                "each file costs a question to the server, every epoch"
                if loose
                else "a read waits for the server when it is busy or gone"
            ),
            evidence,
            f"`pack {data.quoted_path} --format lmdb` makes one file of it"
            if loose
            else f"`cp -r {data.quoted_path} /local/disk/` before the job",
            source,
        )
    if kind == "overlay":
        return Finding(
            "in_the_image", NOTE, "the data is in the container's own layers: what is written there is copied whole, and "
            "lost with it",
            evidence, "mount the data into the container: docker run -v /data:/data:ro", sources.OVERLAY,
        )  # fmt: skip
    if kind in ("tmpfs", "ramfs"):
        return Finding(
            "in_memory", NOTE, "the data lies in memory, and counts against the memory of the job", evidence,
            "nothing, where there is memory to spare", sources.TMPFS,
        )  # fmt: skip
    return None


def loose_files(facts: Facts) -> Finding | None:
    """Not packed."""
    data = facts.data
    if data is None or data.kind != "folder" or data.error:
        return None
    count = f"{data.samples:,}" if data.counted else f"at least {data.samples:,}"
    return Finding(
        "not_packed", NOTE, "these are loose files; only whether they can be read was looked at, not whether they can be "
        "decoded",
        (f"{count} files, an inode each",),
        f"`pack check {data.quoted_path}` decodes them; `pack {data.quoted_path} --format lmdb` packs those that are sound",
        sources.PACKER,
    )  # fmt: skip


def no_room(facts: Facts) -> Finding | None:
    """The file system is nearly full."""
    data = facts.data
    if data is None or data.kind == "missing":
        return None
    evidence = []
    if data.free_bytes is not None and data.free_bytes < _NEARLY_FULL_BYTES:
        evidence.append(f"{size_text(data.free_bytes)} are free")
    if data.free_inodes is not None and data.free_inodes < _NEARLY_FULL_INODES:
        evidence.append(f"{data.free_inodes:,} inodes are free")
    if not evidence:
        return None
    return Finding(
        "disk_full", WARNING, "the file system of the data is full, or nearly: checkpoints and logs beside it will fail",
        (f"on the file system of {data.path}", *evidence), f"`df -h {data.quoted_path}`, `df -i {data.quoted_path}`, and "
        f"make room",
        sources.WRITE,
    )  # fmt: skip


def slow_reading(facts: Facts) -> Finding | None:
    """Reading some samples took long."""
    if facts.data is None or not facts.data.probe.samples or facts.data.probe.seconds <= 0:
        return None
    probe = facts.data.probe
    rate, speed = probe.samples / probe.seconds, probe.size_bytes / probe.seconds
    if probe.slowest_s < _SLOW_S and (rate >= _SLOW_SAMPLES_S or speed >= _SLOW_BYTES_S):
        return None
    return Finding(
        "slow_reading",
        WARNING,
        "the disk or server of the data is slow, or busy",
        (f"{count_text(probe.samples, 'sample')} at random took {probe.seconds:.1f} s ({rate:,.0f} a second, "
         f"{size_text(speed)}/s), the slowest {probe.slowest_s:.1f} s",),
        f"copy the data to a local disk, or read it in blocks: EpochSampler(data, order=\"blocks\"); `pack bench "
        f"{facts.data.quoted_path}` "
        "measures it",
        sources.PACKER,
    )  # fmt: skip
