"""The files of a listing in order, each with its verdict and, where it is kept, the very bytes that the verdict is about."""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Collection, Iterable, Iterator

import xxhash

from packer.check import CheckSettings, check_bytes
from packer.check.sniff import sniff
from packer.checkers import CheckPool
from packer.checksums import Checksums
from packer.files import read_regular_file
from packer.journal import Journal
from packer.listing import Listing
from packer.model import Kept, Skipped, Source, Unfit, Verdict, display_name

__all__ = ["Intake"]

_DUPLICATE = "duplicate_content"
_JOURNAL_EVERY = 64  # files; what a kill costs where none was decoded


class Intake:
    """Judges files and reads those that are kept.

    Args:
        root: the folder that names are relative to.
        settings: how files are checked.
        pool: checks in worker processes and leaves the bytes in the page cache, from where they are read once more here; a file
            that changed in between is checked again once. ``None``: files are looked at right here, which takes no decoder.
        checksums: what the user's list says of the files.
        skip: warnings with which a file is skipped.
        journal: verdicts of before, and where new ones that the pool does not write down itself are written.
        read_from: index of the first source whose bytes are wanted; ``None`` for none.
    """

    def __init__(
        self,
        root: bytes,
        settings: CheckSettings,
        pool: CheckPool | None,
        *,
        checksums: Checksums | None = None,
        skip: Collection[str] = (),
        journal: Journal | None = None,
        read_from: int | None = 0,
    ) -> None:
        self._prefix = os.path.join(root, b"")
        self._settings = settings
        self._pool = pool
        self._checksums = checksums
        self._skip = frozenset(skip)
        self._journal = journal
        self._read_from = sys.maxsize if read_from is None else read_from
        self._first_of: dict[tuple[int, int], bytes] = {}  # name by size and digest; filled only where copies are skipped

    def take(self, listing: Listing) -> Iterator[tuple[Source, Verdict, bytes]]:
        """Each file of the listing; the bytes are empty where it is skipped, or where they are not wanted."""
        wanted = (source for source in listing if source.index not in listing.refused) if listing.refused else iter(listing)
        taken: Iterable[tuple[Source, Verdict, bytes]]
        taken = self._look(wanted) if self._pool is None else self._check(wanted, self._pool)
        if listing.refused:
            refused = ((listing[index], verdict, b"") for index, verdict in sorted(listing.refused.items()))
            taken = heapq.merge(taken, refused, key=lambda one: one[0].index)
        for source, verdict, payload in taken:
            if _DUPLICATE in self._skip and isinstance(verdict, Kept):
                verdict = self._skip_copy(source, verdict, payload)
            wanted_bytes = isinstance(verdict, Kept) and self._wants_bytes(source)
            yield source, verdict, payload if wanted_bytes else b""

    def _look(self, sources: Iterator[Source]) -> Iterator[tuple[Source, Verdict, bytes]]:
        fresh: list[tuple[Source, Verdict]] = []
        for source in sources:
            known = None if self._wants_bytes(source) else self._known(source)
            if known is not None:
                yield source, self._as_asked(known), b""
                continue
            verdict, payload = self._look_at(source.name)
            if self._journal:
                fresh.append((source, verdict))
                if len(fresh) == _JOURNAL_EVERY:
                    self._journal.add(*zip(*fresh, strict=True))
                    fresh.clear()
            yield source, self._as_asked(verdict), payload
        if self._journal and fresh:
            self._journal.add(*zip(*fresh, strict=True))

    def _look_at(self, name: bytes) -> tuple[Verdict, bytes]:
        payload = self._read(name)
        if isinstance(payload, Skipped):
            return payload, b""
        expected = self._checksums.expected(name) if self._checksums else ""
        return check_bytes(payload, name, self._settings, expected), payload

    def _check(self, sources: Iterator[Source], pool: CheckPool) -> Iterator[tuple[Source, Verdict, bytes]]:
        for source, verdict in pool.verdicts(sources, self._known):
            verdict = self._as_asked(verdict)
            payload = self._read_as_judged(source, verdict)
            if payload is None:
                verdict = self._as_asked(pool.recheck(source))
                payload = self._read_as_judged(source, verdict)
            if payload is None:
                verdict, payload = Skipped("changed", "its bytes changed between checking and packing, twice"), b""
            yield source, verdict, payload

    def _known(self, source: Source) -> Verdict | None:
        return self._journal.find(source) if self._journal else None

    def _wants_bytes(self, source: Source) -> bool:
        return source.index >= self._read_from

    def _as_asked(self, verdict: Verdict) -> Verdict:
        """The verdict, a skip where it has a warning with which the user does not want the file."""
        if self._skip and isinstance(verdict, Kept):
            for note in verdict.warnings:
                if note.code in self._skip:
                    return Skipped(note.code, note.detail)
        return verdict

    def _skip_copy(self, source: Source, verdict: Kept, payload: bytes) -> Verdict:
        """A skip where the same bytes were kept before; compared, since equal digests are no proof."""
        first = self._first_of.setdefault((verdict.size_bytes, verdict.digest), source.name)
        if first is source.name:
            return verdict
        copy = payload if self._wants_bytes(source) else self._read(source.name)
        if isinstance(copy, Skipped) or copy != self._read(first):
            return verdict
        return Skipped(_DUPLICATE, f"the same {verdict.size_bytes:,} bytes as {display_name(first)}, which is kept")

    def _read_as_judged(self, source: Source, verdict: Verdict) -> bytes | None:
        """The bytes that a verdict is about, none where it is a skip; ``None`` where the file is no longer what was judged."""
        if isinstance(verdict, Skipped) or not self._wants_bytes(source):
            return b""
        payload = self._read(source.name)
        if isinstance(payload, Skipped) or len(payload) != verdict.size_bytes:
            return None
        return payload if xxhash.xxh3_64_intdigest(payload) == verdict.digest else None

    def _read(self, name: bytes) -> bytes | Skipped:
        try:
            return read_regular_file(self._prefix + name, self._settings.max_bytes, sniff)
        except Unfit as unfit:
            return Skipped(unfit.code, unfit.detail)
