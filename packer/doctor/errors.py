"""Causes that show in an exception: its class, its message, its error number, the functions that it came through."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

from packer.doctor import sources
from packer.doctor.ends import GUARD_CURE, LESS_MEMORY, MORE_SHARED_MEMORY
from packer.doctor.evidence import Case, files_evidence, memory_evidence, shared_evidence, start_evidence
from packer.doctor.explanation import Explanation
from packer.doctor.symptom import FETCHING

__all__ = ["BEFORE_ENDS", "BEHIND_ENDS"]

Rule = Callable[[Case], Explanation | None]

_IN_SHM = r"/dev/shm|</?torch_|shared memory"
_ENOUGH_FILES = 65_536


def _cuda_after_fork(case: Case) -> Explanation | None:
    said = r"Cannot re-initialize CUDA in forked subprocess|(?i:CUDA (?:runtime )?error).*initialization error"
    if not case.symptom.says(said):
        return None
    return Explanation(
        "cuda_after_fork",
        "a forked process used CUDA, which does not work once the parent has used it: a transform or the dataset puts "
        "tensors on the GPU in a worker",
        "certain",
        (case.symptom.headline, *start_evidence(case)),
        "move tensors to the GPU in the training loop (batch.to(device, non_blocking=True)) and keep them off it in dataset, "
        'transform and collate_fn; or DataLoader(..., multiprocessing_context="spawn")',
        sources.CUDA_FORK,
    )


def _gpu_memory(case: Case) -> Explanation | None:
    if not case.symptom.says(r"CUDA out of memory|CUDA error: out of memory"):
        return None
    return Explanation(
        "gpu_out_of_memory", "the GPU has no memory left; the loader's workers have no part in that", "certain",
        (case.symptom.headline,), "a smaller batch_size", sources.CUDA_MEMORY,
    )  # fmt: skip


def _no_main_guard(case: Case) -> Explanation | None:
    if not case.symptom.says(r"before the\s+current process has finished its bootstrapping phase"):
        return None
    return Explanation(
        "no_main_guard",
        "a worker that is not forked runs the script again from its first line, and there it tried to start workers of its own",
        "certain",
        tuple(start_evidence(case)),
        GUARD_CURE,
        sources.GUARD,
    )


def _too_many_open_files(case: Case) -> Explanation | None:
    symptom, now = case.symptom, case.now
    numbers = {errno.EMFILE, errno.ENFILE} & symptom.numbers
    said = r"received \d+ items of ancdata|Too many open files"
    if not numbers and not symptom.says(said):
        return None
    hard = now.open_files_hard_limit
    enough = min(_ENOUGH_FILES, hard) if hard is not None else _ENOUGH_FILES
    higher = (
        f"`ulimit -n {enough}` in the shell that starts the job"
        if now.open_files_limit is None or enough > now.open_files_limit
        else "more open files than the hard limit need an administrator (docker run --ulimit nofile=65536:65536)"
    )
    where = "the whole machine has" if numbers == {errno.ENFILE} else "this process has"
    return Explanation(
        "too_many_open_files",
        f"{where} as many files open as it may; each tensor that a worker hands over is one, while somebody holds it",
        "certain",
        (symptom.headline, *files_evidence(now)),
        f'{higher}; or torch.multiprocessing.set_sharing_strategy("file_system") at the start of the script, and again in a '
        "worker_init_fn. If it comes after hours: batches are kept (in a list of losses, say), or a dataset opens files and "
        "does not close them",
        sources.FD_LEAK if "ancdata" in symptom.text else sources.SHARING,
    )


def _shared_memory(case: Case) -> Explanation | None:
    symptom = case.symptom
    full = errno.ENOSPC in symptom.numbers or symptom.says(r"No space left on device|\(28\)")
    if full and symptom.says(_IN_SHM):
        return Explanation(
            "shared_memory_full", "/dev/shm is too small for the batches that the workers hand over in it", "certain",
            (symptom.headline, *shared_evidence(case.now)), MORE_SHARED_MEMORY, sources.SHM,
        )  # fmt: skip
    missing = {errno.ENOSYS, errno.ENOENT, errno.EACCES, errno.EPERM} & symptom.numbers
    if missing and case.now.shared is None and case.now.system == "Linux" and symptom.says(r"SemLock|shm|Function not impl"):
        return Explanation(
            "no_shared_memory", "there is no /dev/shm, without which processes cannot share memory or locks",
            "certain", (symptom.headline, *shared_evidence(case.now)),
            "DataLoader(..., num_workers=0); or mount it, as root: mount -t tmpfs -o size=8g tmpfs /dev/shm", sources.TMPFS,
        )  # fmt: skip
    if full:
        return Explanation(
            "disk_full", "a file system is full (or its quota is, of bytes or of files)", "certain", (symptom.headline,),
            "`df -h PATH` and `df -i PATH` (and `quota`) for the path in the message; then make room, or write elsewhere "
            "(TMPDIR=... for temporary files)", sources.WRITE,
        )  # fmt: skip
    return None


def _out_of_memory(case: Case) -> Explanation | None:
    symptom = case.symptom
    known = "MemoryError" in symptom.kinds or errno.ENOMEM in symptom.numbers
    if not known and not symptom.says(r"[Cc]an(?:no|')t allocate memory|not enough memory"):
        return None
    return Explanation(
        "out_of_memory",
        "memory was asked for, and there was none (or a limit forbids more)",
        "certain",
        (symptom.headline, *memory_evidence(case)),
        LESS_MEMORY.format(fewer=max(0, len(symptom.workers) // 2)),
        sources.GETRLIMIT if case.now.address_space_bytes is not None else sources.CGROUP,
    )


def _unpicklable(case: Case) -> Explanation | None:
    symptom = case.symptom
    if symptom.says(r"Can't get attribute '[^']*' on <module '__main__'"):
        return Explanation(
            "not_importable",
            "a worker that is not forked cannot find a class or function that was defined in a notebook or an interactive "
            "session",
            "certain",
            (symptom.headline, *start_evidence(case)),
            'put it into a file of its own and import it from there; on Linux multiprocessing_context="fork" does without',
            sources.GUARD,
        )
    said = r"[Cc]an(?:'t|not) pickle|Can't get local object|Pickling .* is not supported"
    if "PicklingError" not in symptom.kinds and not symptom.says(said):
        return None
    return Explanation(
        "unpicklable",
        "workers that are not forked receive dataset, transform, collate_fn, sampler and worker_init_fn pickled, and one of "
        "them holds what cannot be: a lambda, a function inside a function, an open file, a database or HDF5 handle",
        "certain",
        (symptom.headline, *start_evidence(case)),
        "move the function to the top level of a module (functools.partial for its arguments), and open files on first use in "
        'the worker, not in __init__; on Linux DataLoader(..., multiprocessing_context="fork") does without pickling',
        sources.PICKLABLE,
    )


def _nested_workers(case: Case) -> Explanation | None:
    if not case.symptom.says(r"daemonic processes are not allowed to have children"):
        return None
    return Explanation(
        "nested_workers", "a worker tried to start processes of its own (another DataLoader, a Pool) in dataset or transform",
        "certain", (case.symptom.headline,), "num_workers=0 for the inner one, or threads in place of processes",
        sources.DATALOADER,
    )  # fmt: skip


def _damaged_sample(case: Case) -> Explanation | None:
    symptom = case.symptom
    packed = "CorruptSampleError" in symptom.kinds
    loose = {"UnidentifiedImageError"} & symptom.kinds or symptom.says(
        r"image file is truncated|broken data stream|[Tt]runcated File Read|unrecognized data stream contents"
    )
    if not packed and not loose:
        return None
    cure = (
        "`pack verify DATASET` names every damaged sample; copy the dataset again, or pack again"
        if packed
        else "`pack check FOLDER` names every file that cannot be decoded; pack the folder, and they stay out"
    )
    return Explanation(
        "damaged_sample", "a sample cannot be read or decoded: its bytes are damaged", "certain", (symptom.headline,), cure,
        sources.PACKER,
    )  # fmt: skip


def _damaged_dataset(case: Case) -> Explanation | None:
    kinds = case.symptom.kinds
    if "DatasetChangedError" in kinds:
        return Explanation(
            "dataset_changed", "the dataset was replaced or changed while it was open", "certain", (case.symptom.headline,),
            "open it again; pack to another name while jobs read the old one", sources.PACKER,
        )  # fmt: skip
    if "CorruptDatasetError" not in kinds and "TruncatedFileError" not in kinds:
        return None
    return Explanation(
        "damaged_dataset", "a file of the packed dataset is damaged, cut or missing", "certain", (case.symptom.headline,),
        "copy it again (`pack verify DATASET` says when it is whole), or pack again", sources.PACKER,
    )  # fmt: skip


def _samples_differ(case: Case) -> Explanation | None:
    said = r"expects each tensor to be equal size|storage that is not resizable|input arrays must have the same shape"
    if "MixedBatchError" not in case.symptom.kinds and not case.symptom.says(said):
        return None
    return Explanation(
        "samples_differ", "the samples of a batch differ in shape or dtype, so they cannot become one tensor", "certain",
        (case.symptom.headline,),
        "give all one size: open_dataset(..., size=(224, 224)), or a transform that ends in a resize or crop; or a "
        "collate_fn that returns a list", sources.DATALOADER + "#torch.utils.data.default_collate",
    )  # fmt: skip


def _worker_gone(case: Case) -> Explanation | None:
    symptom = case.symptom
    came_through = FETCHING & symptom.functions
    broken = {"ConnectionError", "EOFError", "FileNotFoundError"} & symptom.kinds
    if not came_through or not broken:
        return None
    return Explanation(
        "worker_gone",
        "a worker ended while a batch of it was still to be fetched from its memory; how it ended is in its own last words "
        "above",
        "likely",
        (symptom.headline, *memory_evidence(case), *shared_evidence(case.now)),
        "keep the loader's iterator alive until its last batch is used (do not break out of the loop and use batches later); "
        "otherwise look for what ended the worker: its exit code in `packer.explain(process)`, or num_workers=0",
        sources.SHARING,
        ("out_of_memory", "killed"),
    )


def _failed_in_worker(case: Case) -> Explanation | None:
    symptom = case.symptom
    sample = re.search(r"in the transform of sample (\d+) .*", symptom.text)
    worker = re.search(r"Caught \w+ in (DataLoader worker process \d+|pin memory thread[^\n.]*)", symptom.text)
    in_transform = sample is not None or symptom.says(r"\n    [^\n]*\btransforms?\(")
    if not in_transform and worker is None:
        return None
    evidence = [symptom.headline]
    if worker:
        evidence.append(f"it was raised in {worker.group(1)}")
    if sample:
        evidence.append(sample.group(0))
    frames = re.findall(r'^  File "([^"\n]*)", line (\d+), in (\S+)', symptom.text, re.MULTILINE)
    if frames:
        evidence.append("it came from {}, line {}, in {}".format(*frames[-1]))
    return Explanation(
        "transform_error" if in_transform else "dataset_error",
        "a transform raised an exception" if in_transform else "the dataset or collate_fn raised an exception in a worker",
        "certain" if sample or not in_transform else "likely",
        tuple(evidence),
        "read the last line of the traceback: it is your own code's. With num_workers=0 a debugger stops there; "
        + (
            f"open_dataset(...)[{sample.group(1)}] with this transform does the same at once"
            if sample
            else "data[i] does it for one sample"
        ),
        sources.DATALOADER,
        () if sample or not in_transform else ("dataset_error",),
    )


def _interrupted(case: Case) -> Explanation | None:
    if "KeyboardInterrupt" not in case.symptom.kinds:
        return None
    return Explanation(
        "interrupted", "somebody pressed Ctrl-C, or sent SIGINT", "certain", (case.symptom.headline or "KeyboardInterrupt",),
        "nothing is wrong with the data; start it again, from a checkpoint", sources.SIGNALS,
    )  # fmt: skip


BEFORE_ENDS: tuple[Rule, ...] = (
    _cuda_after_fork,
    _gpu_memory,
    _no_main_guard,
    _too_many_open_files,
    _shared_memory,
    _out_of_memory,
    _unpicklable,
    _nested_workers,
    _damaged_sample,
    _damaged_dataset,
    _samples_differ,
)
"""What says more than how a process ended; the first that fits holds."""

BEHIND_ENDS: tuple[Rule, ...] = (_worker_gone, _failed_in_worker, _interrupted)
"""What holds where no process is known to have ended by itself."""
