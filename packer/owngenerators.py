"""Random generators that a dataset or a transform keeps for itself: every worker has a copy, and all draw the same numbers."""

from __future__ import annotations

import random
from collections import deque
from types import ModuleType
from typing import Any

import numpy as np

from packer.tensors import is_generator

__all__ = ["own_generators"]

_MOST_LOOKED_AT = 1000  # objects: a dataset may hold a million


def own_generators(name: str, value: Any) -> list[str]:
    """Where the generators are in a value: in its attributes, in theirs, and in lists, tuples and dicts of such.

    Args:
        name: of the value.
        value: is not changed, and nothing of it is called.

    Returns:
        Paths as ``data.transform.random``.
    """
    found: list[str] = []
    waiting = deque([(name, value)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_LOOKED_AT:
        path, part = waiting.popleft()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, type, ModuleType, np.ndarray)):
            continue
        seen.add(id(part))
        if isinstance(part, (random.Random, np.random.Generator, np.random.RandomState)) or is_generator(part):
            found.append(path)
        elif isinstance(part, dict):
            waiting += [(f"{path}[{key!r}]", inner) for key, inner in list(part.items())[:_MOST_LOOKED_AT]]
        elif isinstance(part, (list, tuple)):
            waiting += [(f"{path}[{place}]", inner) for place, inner in enumerate(part[:_MOST_LOOKED_AT])]
        else:
            attributes = getattr(part, "__dict__", None)
            waiting += [(f"{path}.{key}", inner) for key, inner in attributes.items()] if isinstance(attributes, dict) else []
    return found
