"""The options about shards, which packing and converting share."""

from __future__ import annotations

import re
from typing import Any

import click

from packer.cli.inputs import Function
from packer.plan import ShardLimits

__all__ = ["shard_limits", "shard_options"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?i?)b?", str(value).strip().lower())
        size = int(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
        if not size:
            self.fail(f"{value!r} is no size; examples: 500MB, 1GB, 2GiB")
        return size


def shard_options(command: Function) -> Function:
    """Add the options to a command, which takes them as keywords."""
    size = click.option("--shard-size", type=_Size(), metavar="SIZE", help="Size of a shard, webdataset only.  [default: 1GB]")
    samples = click.option("--shard-samples", type=click.IntRange(min=1), metavar="N", help="Samples a shard, webdataset only.")
    return size(samples(command))


def shard_limits(values: dict[str, Any]) -> ShardLimits | None:
    """What the command got, taken out of its values; ``None`` where nothing was given."""
    size, samples = values.pop("shard_size"), values.pop("shard_samples")
    default = ShardLimits()
    return ShardLimits(size or default.size_bytes, samples or default.samples) if size or samples else None
