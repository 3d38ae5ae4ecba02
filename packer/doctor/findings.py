"""What is wrong with a machine and a loader's settings: one small function each, of the facts alone; and all findings."""

from __future__ import annotations

from collections.abc import Callable

from packer.doctor import sources
from packer.doctor.datafindings import data_unusable, far_away, loose_files, no_room, samples_unreadable, slow_reading
from packer.doctor.facts import FORKED_WORKER_BYTES, STARTED_WORKER_BYTES, Facts
from packer.doctor.finding import NOTE, SERIOUS, WARNING, Finding
from packer.words import count_text, size_text

__all__ = ["CHECKS", "find", "is_sound"]

_WEIGHTS = (SERIOUS, WARNING, NOTE)

_OWN_FILES = 64  # of an interpreter with torch in it
_FILES_A_WORKER = 16  # pipes, sentinels, the resource sharer
_TENSORS_A_BATCH = 2


def shared_memory_small(facts: Facts) -> Finding | None:
    """The batches that workers make ahead do not fit into /dev/shm."""
    shared, need = facts.system.shared, facts.waiting_bytes
    if not facts.workers or facts.system.system != "Linux":
        return None
    if shared is None:
        return Finding(
            "no_shared_memory", SERIOUS, "there is no /dev/shm, through which workers hand batches over",
            ("/dev/shm is missing",), "mount it, as root: mount -t tmpfs -o size=8g tmpfs /dev/shm; or DataLoader(..., "
            "num_workers=0)", sources.TMPFS,
        )  # fmt: skip
    if need <= shared.free_bytes // 2:
        return None
    over = need > shared.free_bytes
    wanted = max(1, -(-2 * need // 2**30))
    larger = (
        f"docker run --shm-size={wanted}g (or --ipc=host); elsewhere, as root: mount -o remount,size={wanted}g /dev/shm; or "
    )
    if facts.system.memory_bytes is not None and wanted << 30 > facts.system.memory_bytes:
        larger = ""  # it is memory, too
    fitting = int(shared.free_bytes // max(1, 2 * facts.batch_bytes))
    return Finding(
        "shared_memory_small",
        SERIOUS if over else WARNING,
        "the batches that workers make ahead do not fit into /dev/shm: a bus error"
        if over
        else "the batches that workers make ahead fill more than half of what is free in /dev/shm",
        (f"/dev/shm has {size_text(shared.total_bytes)}, {size_text(shared.free_bytes)} free", _need(facts)),
        larger + f"smaller batches, or fewer ahead (num_workers × prefetch_factor of at most {fitting})",
        sources.SHM,
    )


def memory_small(facts: Facts) -> Finding | None:
    """Workers and their batches need more memory than there is."""
    if not facts.workers:
        return None
    group, available = facts.system.group, facts.system.available_bytes
    base = FORKED_WORKER_BYTES if facts.system.start_method == "fork" else STARTED_WORKER_BYTES
    # What is being made is in a worker's own memory, and what is ready in shared memory, which counts, too.
    need = facts.workers * (base + 2 * facts.batch_bytes) + facts.waiting_bytes
    rooms: list[tuple[int, str]] = []
    if available is not None:
        rooms.append((available, f"{size_text(available)} of the machine's memory can be had"))
    if group and group.limit_bytes is not None:
        # Of what a group uses, most is cache, which is given up when memory is short; so the whole limit is the measure.
        rooms.append((group.limit_bytes, f"the control group (container, job) may have {size_text(group.limit_bytes)}"))
    if not rooms:
        return None
    room, told = min(rooms)
    if need <= room * 0.8:
        return None
    return Finding(
        "memory_small",
        SERIOUS if need > room else WARNING,
        "workers and their batches need " + ("more memory than there is" if need > room else "nearly all memory that there is"),
        (told, f"{count_text(facts.workers, 'worker')} need about {size_text(need)}: {size_text(base)} and two batches each, "
         "and what lies in shared memory; your model and its data come on top", _need(facts)),
        f"DataLoader(..., num_workers={max(0, facts.workers // 2)}, prefetch_factor=2), smaller batches, or more memory for "
        "the job (docker run --memory=..., sbatch --mem=...)",
        sources.CGROUP,
    )  # fmt: skip


def killed_before(facts: Facts) -> Finding | None:
    """The kernel has killed in this control group."""
    group = facts.system.group
    if group is None or not group.oom_kills:
        return None
    limit = "" if group.limit_bytes is None else f"; it may have {size_text(group.limit_bytes)}"
    return Finding(
        "out_of_memory",
        WARNING,
        "processes of this container or job have been killed for lack of memory",
        (f"the kernel killed {count_text(group.oom_kills, 'process')} of this control group since it was made{limit}",),
        "give it more memory, or use less (fewer workers, smaller batches); `pack doctor --pid PID` shows which process grows",
        sources.CGROUP,
    )


def few_open_files(facts: Facts) -> Finding | None:
    """Tensors on their way from workers take a descriptor each."""
    limit = facts.system.open_files_limit
    if not facts.workers or limit is None or facts.system.system != "Linux":
        return None
    base = _OWN_FILES + (facts.system.open_files or 0) + facts.workers * _FILES_A_WORKER
    waiting = facts.workers * facts.prefetch + 1
    need, worst = base + waiting * _TENSORS_A_BATCH, base + waiting * facts.batch_size * _TENSORS_A_BATCH
    if worst <= limit:
        return None
    hard = facts.system.open_files_hard_limit
    enough = 65_536 if hard is None else min(65_536, hard)
    over = need > limit
    return Finding(
        "few_open_files",
        SERIOUS if over else NOTE,
        "there will be too many open files: workers hand each tensor over as an open file"
        if over
        else "there may be too many open files where batches stay lists of tensors, or are kept: each tensor is one",
        (
            f"{limit:,} files may be open in a process (ulimit -n); batches on their way need about {need:,}, as lists "
            f"{worst:,}",
        ),
        (f"`ulimit -n {enough}` before the job starts; or " if enough > limit else "")
        + 'torch.multiprocessing.set_sharing_strategy("file_system") at the start of the script',
        sources.SHARING,
    )


def started_anew(facts: Facts) -> Finding | None:
    """Workers are not forked here, so that everything they get is pickled."""
    method = facts.system.start_method
    if method == "fork" or not facts.workers:
        return None
    return Finding(
        "not_forked",
        NOTE,
        f'workers are started by {method} here: the script needs its `if __name__ == "__main__":`, and what workers get is '
        f"pickled",
        (f"Python {facts.system.python} on {facts.system.system}",),
        "no lambdas and no functions inside functions in transforms and collate_fn; on Linux "
        'multiprocessing_context="fork" does '
        "without",
        sources.START_METHODS,
    )


def opencv_threads(facts: Facts) -> Finding | None:
    """OpenCV's own threads, in each worker, and after a fork."""
    if not facts.opencv or not facts.workers or facts.threads_limited:
        return None
    return Finding(
        "opencv_threads",
        NOTE,
        "OpenCV starts a thread a CPU in each worker, and can hang after a fork where it was used before",
        (f"cv2 is installed, no environment variable limits it; {count_text(facts.workers, 'worker')} on "
         f"{count_text(facts.system.cpus, 'CPU')}",),
        "cv2.setNumThreads(0) at the start of the script and in a worker_init_fn",
        sources.OPENCV,
    )  # fmt: skip


def many_workers(facts: Facts) -> Finding | None:
    """More processes than CPUs."""
    if facts.workers <= facts.system.cpus:
        return None
    return Finding(
        "many_workers",
        WARNING,
        "there are more workers than CPUs that they may use: they wait for each other, and each takes memory",
        (f"{count_text(facts.workers, 'worker')}, {count_text(facts.system.cpus, 'CPU')} (by affinity and control group)",),
        f"DataLoader(..., num_workers={facts.system.cpus})",
        sources.DATALOADER,
    )


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    data_unusable,
    samples_unreadable,
    shared_memory_small,
    memory_small,
    few_open_files,
    killed_before,
    slow_reading,
    many_workers,
    no_room,
    far_away,
    opencv_threads,
    started_anew,
    loose_files,
)


def find(facts: Facts) -> list[Finding]:
    """All findings, the weightiest first."""
    found = [finding for check in CHECKS if (finding := check(facts)) is not None]
    return sorted(found, key=lambda finding: _WEIGHTS.index(finding.weight))


def is_sound(findings: list[Finding]) -> bool:
    """Whether none of them is of weight."""
    return all(finding.weight == NOTE for finding in findings)


def _need(facts: Facts) -> str:
    known = facts.data is not None and facts.data.sample_bytes > 0
    how = (
        "as stored in the dataset, uint8 pictures at full size; float32 takes four times that"
        if known
        else "assumed: a picture of 224 × 224 as float32"
    )
    return (
        f"{facts.workers} workers × {facts.prefetch} batches ahead × {facts.batch_size} samples × "
        f"{size_text(facts.sample_bytes)} "
        f"({how}) are {size_text(facts.waiting_bytes)} with the batch in use"
    )
