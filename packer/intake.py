"""The files of a listing in order, each with its verdict and, where it is kept, the very bytes that the verdict is about."""

from __future__ import annotations

import os
from collections.abc import Iterator

import xxhash

from packer.check import CheckSettings, check_bytes
from packer.checkers import CheckPool
from packer.files import read_regular_file
from packer.listing import Listing
from packer.model import Skipped, Source, Unfit, Verdict

__all__ = ["Intake"]


class Intake:
    """Judges files and reads those that are kept.

    Args:
        root: the folder that names are relative to.
        settings: how files are checked.
        pool: checks in worker processes and leaves the bytes in the page cache, from where they are read once more here; a file
            that changed in between is checked again once. ``None``: files are looked at right here, which takes no decoder.
    """

    def __init__(self, root: bytes, settings: CheckSettings, pool: CheckPool | None) -> None:
        self._root = root
        self._settings = settings
        self._pool = pool

    def take(self, listing: Listing) -> Iterator[tuple[Source, Verdict, bytes]]:
        """Each file of the listing; the bytes are empty where it is skipped."""
        wanted = (source for source in listing if source.index not in listing.refused)
        taken = self._look(wanted) if self._pool is None else self._check(wanted, self._pool)
        for source in listing:
            refused = listing.refused.get(source.index)
            yield (source, refused, b"") if refused else next(taken)

    def _look(self, sources: Iterator[Source]) -> Iterator[tuple[Source, Verdict, bytes]]:
        for source in sources:
            payload = self._read(source)
            verdict = payload if isinstance(payload, Skipped) else check_bytes(payload, source.name, self._settings)
            yield source, verdict, b"" if isinstance(payload, Skipped) else payload

    def _check(self, sources: Iterator[Source], pool: CheckPool) -> Iterator[tuple[Source, Verdict, bytes]]:
        for source, verdict in pool.verdicts(sources):
            payload = self._read_as_judged(source, verdict)
            if payload is None:
                verdict = pool.recheck(source.name)
                payload = self._read_as_judged(source, verdict)
            if payload is None:
                verdict, payload = Skipped("changed", "its bytes changed between checking and packing, twice"), b""
            yield source, verdict, payload

    def _read_as_judged(self, source: Source, verdict: Verdict) -> bytes | None:
        """The bytes that a verdict is about, none where it is a skip; ``None`` where the file is no longer what was judged."""
        if isinstance(verdict, Skipped):
            return b""
        payload = self._read(source)
        if isinstance(payload, Skipped) or len(payload) != verdict.size_bytes:
            return None
        return payload if xxhash.xxh3_64_intdigest(payload) == verdict.digest else None

    def _read(self, source: Source) -> bytes | Skipped:
        try:
            return read_regular_file(os.path.join(self._root, source.name), self._settings.max_bytes)
        except Unfit as unfit:
            return Skipped(unfit.code, unfit.detail)
