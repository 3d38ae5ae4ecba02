"""Causes that show in how a process ended: its signal, its exit status, or that it never answered."""

from __future__ import annotations

from packer.doctor import sources
from packer.doctor.evidence import (
    Case,
    main_without_guard,
    memory_evidence,
    native_libraries,
    shared_evidence,
    short_mappings,
    start_evidence,
    worker_states,
)
from packer.doctor.explanation import Explanation

__all__ = ["LESS_MEMORY", "MORE_SHARED_MEMORY", "cause_of_end", "cause_of_silence"]

_DOCKER_SHM_BYTES = 64 << 20  # what Docker and Kubernetes give where nobody asks for more
_AMPLE_BYTES = 1 << 30
_AMPLE_SHARE = 0.25

LESS_MEMORY = (
    "give the job more memory (docker run --memory=..., sbatch --mem=..., resources.limits.memory), or use less: "
    "DataLoader(..., num_workers={fewer}, prefetch_factor=2) and smaller batches; `pack doctor --pid PID` shows which "
    "process grows"
)
MORE_SHARED_MEMORY = (
    "docker run --shm-size=8g ... (or --ipc=host; in Kubernetes an emptyDir of medium Memory at /dev/shm; elsewhere, as root, "
    "mount -o remount,size=8g /dev/shm); until then fewer num_workers, a smaller batch_size or prefetch_factor=1"
)
_SHOW_WHERE = (
    "run it once more with `PYTHONFAULTHANDLER=1 python ...` and num_workers=0: it then ends in your own process and prints "
    "the line of Python that it was in"
)


def cause_of_end(case: Case) -> Explanation | None:
    """The cause of a signal or of an exit status; ``None`` where nothing ended so."""
    symptom = case.symptom
    if symptom.status is not None and symptom.status < 0:
        return _OF_SIGNAL.get(symptom.signal, _other_signal)(case)
    if symptom.status is not None:
        return _of_status(case)
    return _vanished(case) if symptom.says(r"exited unexpectedly") else None


def cause_of_silence(case: Case) -> Explanation | None:
    """The cause where no batch came within the time that the loader was told to wait."""
    symptom = case.symptom
    if not symptom.says(r"DataLoader timed out after [\d.]+ seconds"):
        return None
    states = worker_states(case)
    if any("state D" in state for state in states):
        why = "a worker waits for its disk or file server"
    elif any("a lock" in state for state in states):
        why = "a worker waits for a lock, as after a fork beside threads (OpenCV, OpenMP, a logger)"
    else:
        why = "the workers are too slow for this timeout, or hang"
    return Explanation(
        "timeout",
        f"no batch came within the loader's timeout: {why}",
        "certain",
        (symptom.headline, *states, *start_evidence(case), *native_libraries()),
        "run `pack doctor --pid PID` (PID of the training process) while it hangs: it shows what each worker waits for, and "
        "its "
        'Python stack where py-spy is installed. Where it is a lock: DataLoader(..., multiprocessing_context="forkserver"), '
        "and cv2.setNumThreads(0) in a worker_init_fn. Where samples are just slow: a larger timeout",
        sources.OPENCV if any("cv2" in library for library in native_libraries()) else sources.CUDA_FORK.partition("#")[0],
    )


def _killed(case: Case) -> Explanation:
    evidence = [f"{_who(case)} was ended by SIGKILL", *memory_evidence(case)]
    group, machine = case.group_kills, case.machine_kills
    cure = LESS_MEMORY.format(fewer=max(0, len(case.symptom.workers) // 2))
    if group:
        sure = "certain" if case.since else "likely"
        return Explanation(
            "out_of_memory", "the kernel killed it since memory was short", sure, tuple(evidence), cure, sources.CGROUP,
            () if case.since else ("killed",),
        )  # fmt: skip
    if machine and case.since:
        return Explanation(
            "out_of_memory", "the kernel killed a process of this machine for lack of memory meanwhile, so probably this one",
            "likely", tuple(evidence), cure, sources.CGROUP, ("killed",),
        )  # fmt: skip
    if case.now.scheduler:
        evidence.append(f"it runs under {case.now.scheduler}, which kills jobs that exceed their memory or time")
    unknown = group is None and machine is None
    return Explanation(
        "killed",
        "somebody or something sent it SIGKILL: kill -9, a scheduler, or a memory daemon such as systemd-oomd"
        + ("; whether the kernel did, for lack of memory, this system does not tell" if unknown else ""),
        "likely" if group == 0 and not machine else "possible",
        tuple(evidence),
        _ask_scheduler(case)
        or "look for who sent it: `journalctl -k -g 'killed process'` (or dmesg) names the kernel's victims, "
        "`journalctl -u systemd-oomd` those of systemd-oomd",
        sources.SIGNALS,
        ("out_of_memory",),
    )


def _ask_scheduler(case: Case) -> str:
    name, _, job = case.now.scheduler.rpartition(" ")
    if name == "Slurm job":
        return f"`sacct -j {job} --format=JobID,State,ExitCode,MaxRSS,ReqMem,Elapsed,Timelimit` says how and why it ended"
    if case.now.scheduler == "Kubernetes":
        return "`kubectl describe pod POD` says OOMKilled or Evicted, and why"
    return ""


def _bus_error(case: Case) -> Explanation:
    now, short = case.now, short_mappings()
    evidence = [
        f"{_who(case)} was ended by SIGBUS: it touched memory that has no page behind it",
        *shared_evidence(now),
        *short,
    ]
    shared = now.shared
    mapped = Explanation(
        "bus_error_mapped_file",
        "a file that was mapped into memory became shorter (it was written anew, or its copy was cut), or its server failed",
        "certain" if short else "likely",
        tuple(evidence),
        "do not change files that are being read; compare the data with its digests (`pack verify DATASET`, or copy it again), "
        "and read without mmap (packer's default; numpy.load without mmap_mode, lmdb on a whole file): damage is then an "
        "exception",
        sources.MMAP,
        ("shared_memory_full",),
    )
    if short or now.system != "Linux":
        return mapped
    if shared is not None and shared.free_bytes >= _AMPLE_BYTES and shared.free_bytes >= _AMPLE_SHARE * shared.total_bytes:
        return mapped
    tiny = shared is not None and shared.total_bytes <= _DOCKER_SHM_BYTES
    if tiny:
        evidence.append("64 MiB is what Docker and Kubernetes give where nobody asks for more")
    return Explanation(
        "shared_memory_full",
        "/dev/shm is too small for the batches that the workers hand over in it",
        "likely" if tiny or (shared is not None and shared.free_bytes < _DOCKER_SHM_BYTES) else "possible",
        tuple(evidence),
        MORE_SHARED_MEMORY,
        sources.SHM,
        ("bus_error_mapped_file",),
    )


def _segfault(case: Case) -> Explanation:
    return Explanation(
        "segfault",
        "native code (a decoder, a library used after a fork, a broken build) touched memory that is not its own",
        "certain",
        (f"{_who(case)} was ended by SIGSEGV", *native_libraries(), *start_evidence(case)),
        _SHOW_WHERE,
        sources.FAULTHANDLER,
    )


def _aborted(case: Case) -> Explanation:
    return Explanation(
        "aborted",
        "native code gave up by itself (a failed check, damaged heap, an exception of C++ that nobody caught); it usually "
        "prints why on standard error",
        "certain",
        (f"{_who(case)} was ended by SIGABRT", *native_libraries()),
        _SHOW_WHERE,
        sources.FAULTHANDLER,
    )


def _illegal(case: Case) -> Explanation:
    return Explanation(
        "wrong_build",
        "a library was built for another processor, or computed something that the processor refuses",
        "likely",
        (f"{_who(case)} was ended by {case.symptom.signal}", *native_libraries()),
        "install the library's official wheel for this machine; " + _SHOW_WHERE,
        sources.FAULTHANDLER,
        ("segfault",),
    )


def _asked_to_end(case: Case) -> Explanation:
    cause = "interrupted" if case.symptom.signal == "SIGINT" else "terminated"
    return Explanation(
        cause,
        "somebody asked it to end: a person, a batch system at its time limit or before it takes the machine away, or a parent "
        "that ended",
        "certain",
        (
            f"{_who(case)} was ended by {case.symptom.signal}",
            *([f"it runs under {case.now.scheduler}"] if case.now.scheduler else []),
        ),
        _ask_scheduler(case) or "nothing is wrong with the data; start it again, from a checkpoint",
        sources.SIGNALS,
    )


def _limit_reached(case: Case) -> Explanation:
    what = "CPU time (ulimit -t)" if case.symptom.signal == "SIGXCPU" else "the size of a file (ulimit -f)"
    return Explanation(
        "limit_reached", f"it reached the limit for {what}", "certain", (f"{_who(case)} was ended by {case.symptom.signal}",),
        f"raise it in the shell that starts the job: `ulimit -{what[-2]} unlimited`", sources.GETRLIMIT,
    )  # fmt: skip


def _other_signal(case: Case) -> Explanation:
    return Explanation(
        "signal", f"it was ended by {case.symptom.signal}", "certain", (f"{_who(case)} was ended by {case.symptom.signal}",),
        _SHOW_WHERE, sources.SIGNALS,
    )  # fmt: skip


def _of_status(case: Case) -> Explanation:
    status = case.symptom.status
    if status == 0:
        return Explanation(
            "ended_normally", "it ended by itself, without an error", "certain", (f"{_who(case)} ended with status 0",),
            "where it should have gone on: something in it called sys.exit() or os._exit(0)", sources.EXIT_STATUS,
        )  # fmt: skip
    guard = _no_guard(case)
    if guard is not None:
        return guard
    return Explanation(
        "exited",
        "it ended by itself with an error: an exception that is printed above on standard error, or a call of sys.exit or "
        "os._exit",
        "certain",
        (f"{_who(case)} ended with status {status}", *start_evidence(case)),
        "read the last traceback on standard error, or run once with num_workers=0, where it is raised in your own process",
        sources.DATALOADER,
    )


def _no_guard(case: Case) -> Explanation | None:
    if case.symptom.status != 1 or case.start_method == "fork" or not (script := main_without_guard()):
        return None
    return Explanation(
        "no_main_guard",
        "each worker runs the script again, from its first line, since it is started by "
        f'{case.start_method} and the script has no `if __name__ == "__main__":`',
        "likely",
        (f"{_who(case)} ended with status 1", f"{script} never asks for __name__", *start_evidence(case)),
        GUARD_CURE,
        sources.GUARD,
        ("exited",),
    )


GUARD_CURE = (
    'put what the script does into a function, and call it at its end: if __name__ == "__main__": main(). On Linux '
    'DataLoader(..., multiprocessing_context="fork") does without'
)


def _vanished(case: Case) -> Explanation:
    """Torch knows only that a worker is gone."""
    kills = case.group_kills or (case.machine_kills if case.since else 0)
    if kills:
        return _killed(case)
    guard = _no_guard(case)
    return guard or Explanation(
        "vanished",
        "a worker is gone, and how it ended is not known any more",
        "possible",
        (case.symptom.headline, *memory_evidence(case), *shared_evidence(case.now), *start_evidence(case)),
        "look for its last words above on standard error; run once with num_workers=0, where an error is raised in your own "
        "process",
        sources.DATALOADER,
        ("out_of_memory", "shared_memory_full", "segfault", "no_main_guard"),
    )


def _who(case: Case) -> str:
    failed = case.symptom.failed
    if not failed:
        return "the process"
    return f"process {failed[0]}" if len(failed) == 1 else f"processes {', '.join(map(str, failed[:8]))}"


_OF_SIGNAL = {
    "SIGKILL": _killed,
    "SIGBUS": _bus_error,
    "SIGSEGV": _segfault,
    "SIGABRT": _aborted,
    "SIGILL": _illegal,
    "SIGFPE": _illegal,
    "SIGTERM": _asked_to_end,
    "SIGINT": _asked_to_end,
    "SIGHUP": _asked_to_end,
    "SIGXCPU": _limit_reached,
    "SIGXFSZ": _limit_reached,
}
