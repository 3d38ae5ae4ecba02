"""The global random generators, for transforms: each sample of each epoch gets its own numbers, whoever makes the batch.

Seeding a worker once, as is usual, makes what a sample gets depend on the number of workers and on which of them had it. Here
the seed comes from the run's seed, the epoch and the sample, so that augmentations are the same with none, one or many workers,
and after a resume.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from packer.tensors import kept_torch_generator, seed_torch

__all__ = ["kept_generators", "seed_generators"]


def seed_generators(seed: int, epoch: int, number: int) -> None:
    """Seed ``random``, numpy's global generator and torch's for the CPU: a sample gets other numbers in each epoch."""
    words = np.random.SeedSequence((seed, epoch, number)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    seed_torch(int(words[0]) << 32 | int(words[1]))


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Give the generators back as they were: a loop that draws numbers itself must not see that samples were made meanwhile."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with kept_torch_generator():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
