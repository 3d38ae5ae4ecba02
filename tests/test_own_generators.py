"""Generators that workers would have copies of are found and named; the augmentations of all workers were the same."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch

from packer import make_loader
from packer.owngenerators import own_generators
from tests.loading import Foreign


class Holder:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def test_generators_are_found_wherever_they_are() -> None:
    for generator in (random.Random(1), np.random.default_rng(1), np.random.RandomState(1), torch.Generator()):
        data = Holder(transform=Holder(transforms=[Holder(), {"noise": Holder(rng=generator)}]))
        assert own_generators("data", data) == ["data.transform.transforms[1]['noise'].rng"]


def test_what_is_no_generator_is_none() -> None:
    data = Holder(paths=["a"] * 10, numbers=np.arange(3), module=random, draw=random.random, of_torch=torch.default_generator)
    data.itself = data
    assert own_generators("data", data) == []


def test_a_dataset_of_a_million_objects_is_not_gone_through() -> None:
    looked_at = []

    class Part:
        @property
        def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
            looked_at.append(1)
            return {}

    own_generators("data", Holder(parts=[Part() for _ in range(5_000)]))
    assert 0 < len(looked_at) <= 1_000


def test_a_loader_with_workers_warns_of_it_and_one_without_does_not(caplog: pytest.LogCaptureFixture) -> None:
    data = Foreign(4)
    data.rng = np.random.default_rng(0)  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "packer"):
        make_loader(data, 2, num_workers=0)
        assert caplog.messages == []
        make_loader(data, 2, num_workers=1)
    assert [message.split(" is a generator")[0] for message in caplog.messages] == ["data.rng"]
