"""What torch is used for. Where it is not installed, datasets are plain sequences of arrays, and Pillow resizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

# Loaded here and not on first use: a process that is forked while a thread imports waits for the import's lock for ever.
if TYPE_CHECKING:
    import torch
    from torch.utils.data import default_collate

    Dataset = Sequence[Any]
else:
    try:
        import torch
        from torch.utils.data import Dataset, default_collate
    except (ImportError, OSError):  # OSError: installed, but its libraries do not load
        torch = None
        Dataset = Sequence

_HAS_TORCH = torch is not None

__all__ = [
    "Dataset",
    "PinnedBuffers",
    "collate",
    "foreign_device",
    "has_pinned_memory",
    "is_generator",
    "is_tensor",
    "kept_torch_generator",
    "pinned",
    "resize_pixels",
    "seed_torch",
    "stack",
    "tensor_maker",
]


def tensor_maker(output: str) -> Callable[[NDArray[Any]], Any]:
    """What turns an array into what is given out: a tensor over the same memory, or for ``"numpy"`` the array itself.

    Raises:
        ImportError: tensors are asked for, and torch is not installed.
    """
    if output == "torch" and not _HAS_TORCH:
        raise ImportError('output="torch" needs torch: pip install "packer[torch]"')
    return _same if output == "numpy" or not _HAS_TORCH else _tensor_over


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


def _tensor_over(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over an array's memory; where this is a tensor's, that tensor, whose memory torch then knows to be pinned."""
    owner: Any = array.base  # numpy's own types know arrays only
    return owner if isinstance(owner, torch.Tensor) and owner.shape == array.shape else torch.from_numpy(array)


def stack(values: list[Any]) -> Any:
    """Tensors, or arrays, of one shape and dtype as one; others stay a list."""
    first = values[0]
    if isinstance(first, np.ndarray):
        together: Callable[[list[Any]], Any] = np.stack
    elif _HAS_TORCH and isinstance(first, torch.Tensor):
        together = torch.stack
    else:
        return values
    kinds = {(type(value), getattr(value, "shape", None), getattr(value, "dtype", None)) for value in values}
    return together(values) if len(kinds) == 1 else values


def has_pinned_memory() -> bool:
    """Whether there is an accelerator that copies from pinned memory while the program goes on."""
    if not _HAS_TORCH:
        return False
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return torch.cuda.is_available()  # all that torch before 2.6 tells of
    return bool(accelerator.current_accelerator().type != "mps")  # where memory is one for both


class PinnedBuffers:
    """Gives out arrays in pinned memory. torch's own allocator uses it again, when no copy to the accelerator is on its way."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array, row-major, with any content, of a dtype that torch has.

        Raises:
            MemoryError: there is not so much.
        """
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        try:
            array: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
        except RuntimeError as error:  # torch has no class of its own for it
            raise MemoryError(str(error)) from error
        return array


def pinned(batch: Any) -> Any:
    """A batch with all its tensors in pinned memory: those that are there already, and copies of the others."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.is_pinned() else batch.pin_memory()
    if isinstance(batch, (list, tuple)) and type(batch) in (list, tuple):
        return type(batch)(pinned(part) for part in batch)
    if type(batch) is dict:
        return {name: pinned(part) for name, part in batch.items()}
    return batch


def foreign_device(batch: Any) -> str:
    """The device of the first tensor in a batch that does not lie in the CPU's memory; empty where there is none."""
    if is_tensor(batch):
        return "" if batch.device.type == "cpu" else str(batch.device)
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return next(filter(None, map(foreign_device, parts)), "")


def is_generator(value: object) -> bool:
    """Whether it is a random generator of torch, other than the global one."""
    return _HAS_TORCH and isinstance(value, torch.Generator) and value is not torch.default_generator


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of torch."""
    return _HAS_TORCH and isinstance(value, torch.Tensor)


def collate(samples: list[Any]) -> Any:
    """A batch as torch's DataLoader makes it of a list of samples; the list itself where torch is not installed."""
    return default_collate(samples) if _HAS_TORCH else samples


def seed_torch(seed: int) -> None:
    """Seed torch's global generator for the CPU. Those of accelerators, which ``torch.manual_seed`` would seed too, stay."""
    if _HAS_TORCH:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def kept_torch_generator() -> Iterator[None]:
    """Give torch's global generator for the CPU back as it was."""
    state = torch.default_generator.get_state() if _HAS_TORCH else None
    try:
        yield
    finally:
        if state is not None:
            torch.default_generator.set_state(state)


def resize_pixels(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8] | None:
    """Resize a picture with torch, in half of Pillow's time; ``None`` where torch is not installed.

    Bilinear, and averaged over all pixels where it becomes smaller; no value is more than one away from Pillow's.

    Args:
        pixels: uint8, shape (height, width) or (height, width, channels).
        size: (height, width) wanted.

    Returns:
        The same number of axes; colours lie in planes in memory.
    """
    if not _HAS_TORCH:
        return None
    planes = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None]).permute(2, 0, 1)
    resized: NDArray[np.uint8] = torch.nn.functional.interpolate(planes[None], size, mode="bilinear", antialias=True)[0].numpy()
    return resized.transpose(1, 2, 0) if pixels.ndim == 3 else resized[0]
