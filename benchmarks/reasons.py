"""Why budgets are missed, as measured apart on the machine that the results are from.

A pattern is a regular expression, searched for in ``benchmark, part: subject against baseline``; the first that is found
explains a missed budget.
"""

from __future__ import annotations

import re

from records import Row

REASONS: tuple[tuple[str, str], ...] = (
    (
        r"^packing, check full: pack --check full, ",
        "A file costs 845 µs of decoding, 85 for the rest of its check (markers, end marker, reading, verdict), and 125 in the "
        "parent: reading it again 25, writing 35, syncing, reading back and digesting 40, index, journal and report 20. On two "
        "cores, the three together leave about 0.8 of strict decoding alone, before the start of the command is counted.",
    ),
    (
        r"^packing, check none: pack --check none, ",
        "pack reads, digests, writes, syncs and reads back every byte, where tar copies. Of 24,000 photographs tar takes 48 µs "
        "a file, with a sync 95, and pack 120 to 180. To start the writing to the disk earlier, or another setting of malloc, "
        "changed nothing beyond noise.",
    ),
    (
        r"^reading, warm: views, mmap, unverified, \w+ against loose files$",
        "To hash the bytes alone, where nothing is read, is 2.4 times as fast as the loose files: the hash, which both sides "
        "take, is most of the time, and 2.5 is more than there is.",
    ),
    (
        r"^reading, cold: cold batches, \w+ against loose files$",
        "The disk gives about 14,500 random samples/s, however many are asked for at once, and a bare loop of posix_fadvise "
        "without a line of packer 11,900: about 1.5 times the loose files is what there is.",
    ),
    (
        r"^reading, arrays: batches, \w+ against in-memory gather$",
        "The preadv of one array takes 110 µs and its digest 37, where the gather's take needs 87: a reader that costs nothing "
        "would reach 0.59 of the 0.65.",
    ),
    (
        r"^reading, pictures: batches 2000 x 1500, \w+ against Pillow 2000 x 1500$",
        "Decoding is 95 % of the time. In one thread, simplejpeg's decoding at a reduced scale is 3.8 times as fast as "
        "Pillow's; with a DataLoader's worker for each core, the cores share it less well.",
    ),
)


def reason(benchmark: str, row: Row) -> str:
    """Why a row misses its budget; ``not explained`` where that is not known."""
    name = ", ".join(filter(None, (benchmark, row.part))) + f": {row.name}"
    return next((text for pattern, text in REASONS if re.search(pattern, name)), "not explained")
