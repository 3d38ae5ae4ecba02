"""``pack SRC --dry-run``: the plan as a person or a program reads it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from packer.cli.show import emit, escape, listed, plural, short_path, size
from packer.dryrun import DryRun, Findings

__all__ = ["emit_plan"]

_CLASSES = 20


def emit_plan(plan: DryRun, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Print what a job would do; with ``verbose`` every class."""
    if as_json:
        emit(json.dumps(dataclasses.asdict(plan)))
    elif not quiet:
        emit(_lines(plan, verbose=verbose))


def _lines(plan: DryRun, *, verbose: bool) -> Iterator[str]:
    estimate = plan.estimate
    refused = sum(found.count for found in plan.refused.values())
    yield (
        f"would pack {plan.files - refused:,} of {plural(plan.files, 'file')} ({size(plan.bytes)}) of {escape(plan.source)} "
        f"into {escape(short_path(Path(plan.output)))}; nothing was written, no file was opened"
    )
    yield (
        f"output:  {plan.format}, about {size(estimate.output_bytes)}: container {size(estimate.container_bytes)}, "
        f"index {size(estimate.index_bytes)}, names {size(estimate.names_bytes)}"
    )
    if plan.shard_bytes is not None:
        most = f" and {plan.shard_samples:,} samples" if plan.shard_samples else ""
        yield f"shards:  about {estimate.shards:,}, of at most {size(plan.shard_bytes)}{most}"
    yield f"space:   {size(plan.free_bytes)} free there, {'enough' if plan.enough_space else 'NOT ENOUGH'}"
    yield f"inodes:  {plan.files:,} become {estimate.output_files:,}, {plan.inodes_saved:,} saved"
    types = (f"{escape(name)} {amount.files:,} ({size(amount.bytes)})" for name, amount in plan.types.items())
    yield f"types:   {', '.join(types) or 'none'}"
    yield from _classes(plan, verbose=verbose)
    yield from _findings("would skip", plan.refused)
    yield from _findings("warnings", plan.warned)
    if plan.ignored:
        yield f"ignored {sum(plan.ignored.values()):,}: {escape(listed(plan.ignored))}"
    for refusal in plan.refusals:
        yield f"would fail with status {refusal.exit_status}: {escape(refusal.message)}"


def _classes(plan: DryRun, *, verbose: bool) -> Iterator[str]:
    if not plan.classes:
        yield "labels:  none"
        return
    source = {"folder": "by the order of the class folders", "number": "the numbers that the class folders are called"}
    yield f"labels:  {plural(len(plan.classes), 'class')}, {source[plan.labels_from]}"
    shown = plan.classes if verbose else plan.classes[:_CLASSES]
    rows = [("label", "files", "size"), *((str(one.label), f"{one.files:,}", size(one.bytes)) for one in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, name in zip(rows, ("class", *(escape(one.name) for one in shown)), strict=True):
        yield "  ".join(("", *(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), name))
    if len(shown) < len(plan.classes):
        yield f"  ... and {len(plan.classes) - len(shown):,} more"


def _findings(what: str, findings: Mapping[str, Findings]) -> Iterator[str]:
    if not findings:
        return
    counts = {code: found.count for code, found in findings.items()}
    yield f"{what} {sum(counts.values()):,}: {listed(counts)}"
    for code, found in findings.items():
        for example in found.examples:
            yield f"  {code} {escape(example)}"
        if found.count > len(found.examples):
            yield f"  {code} ... and {found.count - len(found.examples):,} more"
