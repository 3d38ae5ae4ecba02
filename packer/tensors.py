"""What torch is used for. Where it is not installed, datasets are plain sequences of arrays, and Pillow resizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

# Loaded here and not on first use: a process that is forked while a thread imports waits for the import's lock for ever.
if TYPE_CHECKING:
    import torch

    Dataset = Sequence[Any]
else:
    try:
        import torch
        from torch.utils.data import Dataset
    except (ImportError, OSError):  # OSError: installed, but its libraries do not load
        torch = None
        Dataset = Sequence

_HAS_TORCH = torch is not None

__all__ = ["Dataset", "resize_pixels", "stack", "tensor_maker"]


def tensor_maker(output: str) -> Callable[[NDArray[Any]], Any]:
    """What turns an array into what is given out: a tensor over the same memory, or for ``"numpy"`` the array itself.

    Raises:
        ImportError: tensors are asked for, and torch is not installed.
    """
    if output == "torch" and not _HAS_TORCH:
        raise ImportError('output="torch" needs torch: pip install "packer[torch]"')
    return _same if output == "numpy" or not _HAS_TORCH else torch.from_numpy


def _same(array: NDArray[Any]) -> NDArray[Any]:
    return array


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
