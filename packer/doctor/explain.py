"""Why a DataLoader, a worker or a process ended, with what shows it and what helps.

    from packer import explain  # at the top of the script: torch may raise once more while a module is imported

    try:
        for batch in loader: ...
    except Exception as error:
        print(explain(error))
        raise

Nothing outside the standard library is loaded for it, and it never raises for what it is given to explain.
"""

from __future__ import annotations

from packer.doctor import sources
from packer.doctor.ends import cause_of_end, cause_of_silence
from packer.doctor.errors import BEFORE_ENDS, BEHIND_ENDS
from packer.doctor.evidence import Case
from packer.doctor.explanation import Explanation
from packer.doctor.snapshot import SystemSnapshot
from packer.doctor.symptom import is_from_torch, read_symptom

__all__ = ["CAUSES", "explain"]

_MOST_TOLD = 5  # a loader may have lost many workers at once

CAUSES = (
    "aborted", "bus_error_mapped_file", "cuda_after_fork", "damaged_dataset", "damaged_sample", "dataset_changed",
    "dataset_error", "disk_full", "ended_normally", "exited", "gpu_out_of_memory", "interrupted", "killed", "limit_reached",
    "nested_workers", "no_main_guard", "no_shared_memory", "not_importable", "out_of_memory", "running", "samples_differ",
    "segfault", "shared_memory_full", "signal", "terminated", "timeout", "too_many_open_files", "transform_error", "unknown",
    "unpicklable", "vanished", "worker_gone", "wrong_build",
)  # fmt: skip
"""All values of ``Explanation.cause``."""


def explain(what: object, *, since: SystemSnapshot | None = None, now: SystemSnapshot | None = None) -> Explanation:
    """Say why something ended: the cause, what shows it, and one thing to do about it.

    Args:
        what: an exception (of a DataLoader or of anything else; its causes, notes and traceback are looked at, too), an exit
            status (negative for a signal, or 128 and the signal as a shell has it), or a process: whatever has ``exitcode`` or
            ``returncode``, such as ``multiprocessing.Process`` and ``subprocess.CompletedProcess``.
        since: the system before the job: counts that rose since then are evidence. Without it they are told as they are.
        now: the system as it is to be taken for now; by default it is looked at.

    Returns:
        An explanation whose cause is ``"unknown"`` where nothing is known of it.

    Raises:
        TypeError: ``what`` is none of these.
    """
    told: list[BaseException] = []
    while True:
        try:
            return _explain(what, told, since, now)
        except RuntimeError as error:
            if not is_from_torch(error) or len(told) >= _MOST_TOLD:
                raise
            told.append(error)  # it interrupted this function, and belongs to the answer


def _explain(what: object, told: list[BaseException], since: SystemSnapshot | None, now: SystemSnapshot | None) -> Explanation:
    symptom = read_symptom(what, *told)
    case = Case(symptom, now or SystemSnapshot.take(), since)
    if symptom.runs:
        return Explanation(
            "running", "it has not ended", "certain", (), "`pack doctor --pid PID` shows what it does", sources.PY_SPY
        )
    for rule in (*BEFORE_ENDS, cause_of_end, cause_of_silence, *BEHIND_ENDS):
        found = rule(case)
        if found is not None:
            return found
    return Explanation(
        "unknown",
        "this is no failure that the doctor knows",
        "possible",
        (symptom.headline,) if symptom.headline else (),
        "read the traceback from its end; where workers take part, run once with num_workers=0, and `pack doctor` looks at the "
        "machine",
        sources.DATALOADER,
    )
