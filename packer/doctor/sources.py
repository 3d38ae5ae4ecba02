"""Where each cause is described by those who know: documentation, and discussions with the maintainers."""

from __future__ import annotations

__all__ = [
    "CGROUP",
    "CUDA_FORK",
    "CUDA_MEMORY",
    "DATALOADER",
    "EXIT_STATUS",
    "FAULTHANDLER",
    "FD_LEAK",
    "FUSE",
    "GETRLIMIT",
    "GUARD",
    "INODES",
    "LIST_GROWTH",
    "MMAP",
    "NFS",
    "OPENCV",
    "OVERLAY",
    "PACKER",
    "PICKLABLE",
    "PY_SPY",
    "SHARING",
    "SHM",
    "SIGNALS",
    "START_METHODS",
    "TMPFS",
    "WAIT_CHANNEL",
    "WRITE",
]

_PYTORCH = "https://docs.pytorch.org/docs/stable"
_ISSUES = "https://github.com/pytorch/pytorch/issues"
_PYTHON = "https://docs.python.org/3/library"
_MAN = "https://man7.org/linux/man-pages"
_KERNEL = "https://docs.kernel.org"

SHM = f"{_ISSUES}/5040"
FD_LEAK = f"{_ISSUES}/973"
LIST_GROWTH = f"{_ISSUES}/13246"
OPENCV = f"{_ISSUES}/1355"
CUDA_FORK = f"{_PYTORCH}/notes/multiprocessing.html#cuda-in-multiprocessing"
CUDA_MEMORY = f"{_PYTORCH}/notes/cuda.html#memory-management"
SHARING = f"{_PYTORCH}/multiprocessing.html#sharing-strategies"
DATALOADER = f"{_PYTORCH}/data.html"
START_METHODS = f"{_PYTHON}/multiprocessing.html#contexts-and-start-methods"
GUARD = f"{_PYTHON}/multiprocessing.html#the-spawn-and-forkserver-start-methods"
PICKLABLE = f"{_PYTHON}/pickle.html#what-can-be-pickled-and-unpickled"
FAULTHANDLER = f"{_PYTHON}/faulthandler.html"
EXIT_STATUS = f"{_PYTHON}/subprocess.html#subprocess.Popen.returncode"
CGROUP = f"{_KERNEL}/admin-guide/cgroup-v2.html#memory-interface-files"
TMPFS = f"{_KERNEL}/filesystems/tmpfs.html"
OVERLAY = f"{_KERNEL}/filesystems/overlayfs.html"
MMAP = f"{_MAN}/man2/mmap.2.html"
GETRLIMIT = f"{_MAN}/man2/getrlimit.2.html"
WRITE = f"{_MAN}/man2/write.2.html"
SIGNALS = f"{_MAN}/man7/signal.7.html"
FUSE = f"{_MAN}/man4/fuse.4.html"
NFS = f"{_MAN}/man5/nfs.5.html"
WAIT_CHANNEL = f"{_MAN}/man5/proc_pid_wchan.5.html"
PY_SPY = "https://github.com/benfred/py-spy"
INODES = "https://docs.hpc.kifu.hu/tasks/filemgmt.html"
PACKER = "README.md of packer"
