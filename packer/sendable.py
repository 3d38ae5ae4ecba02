"""Whether something can be sent to a worker process that is not forked, and if not, what in it is at fault."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from packer.errors import OptionError
from packer.tensors import is_tensor

__all__ = ["require_picklable"]


def require_picklable(parts: Mapping[str, Any], method: str) -> None:
    """Say so now, and what is at fault: the DataLoader would fail in its first batch, with a traceback of pickle.

    Raises:
        OptionError: workers get these parts pickled, and one cannot be.
    """
    for name, part in parts.items():
        if error := _pickle_error(part):
            raise OptionError(
                f"{_at_fault(name, part, set())} cannot be sent to a worker process that is started by {method}: {error}. "
                "Define functions and classes at the top level of a module, and open files, connections and locks on first "
                "use in the worker."
            ) from error


def _at_fault(path: str, value: Any, seen: set[int]) -> str:
    """Which attribute of a value, or of one of its attributes, cannot be pickled."""
    seen.add(id(value))
    chooses = any("__getstate__" in vars(kind) for kind in type(value).__mro__[:-1])  # what it sends
    if not chooses:
        for name, part in getattr(value, "__dict__", {}).items():
            if id(part) not in seen and _pickle_error(part):
                return _at_fault(f"{path}.{name}", part, seen)
    return path


def _pickle_error(value: Any) -> Exception | None:
    """What goes wrong when a value is pickled for a worker; its bytes are kept nowhere."""
    before = get_spawning_popen()
    set_spawning_popen(_Child())  # type: ignore[arg-type]  # it has all that is asked of one here
    try:
        _Trial(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # noqa: BLE001 - PicklingError, AttributeError, TypeError and what a __reduce__ raises
        return error
    finally:
        set_spawning_popen(before)
    return None


class _Child:
    """In place of a child that is being started: locks and memory of multiprocessing can be sent to such a one only."""

    def duplicate_for_child(self, handle: int) -> int:
        return handle

    DupFd = duplicate_for_child


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Trial(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        # A tensor can always be sent, in shared memory: which is not to be made here.
        return (int, ()) if is_tensor(value) else NotImplemented
