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
        "Both CPUs are busy throughout. Beside its decoding a file costs 45 µs in the worker (markers, end marker, digest, "
        "verdict), 100 to 130 in the parent (writing 25 to 50, reading it again 25, the rest digest, index and report), 13 for "
        "taking in what the worker found, and 10 for reading it back: 0.83 to 0.9 of decoding alone. Rounds differ by 10 %.",
    ),
    (
        r"^packing, check none: pack --check none, ",
        "To start takes 0.25 s. Then a file costs 50 to 80 µs: it is read, digested, written, synced and read back, where tar "
        "copies it in 40. Rounds differ by a fifth, and the budget lies within them.",
    ),
    (
        r"^reading, warm: views, mmap, unverified, \w+ against loose files$",
        "To hash the bytes alone, where nothing is read, is 2.4 times as fast as the loose files: the hash, which both sides "
        "take, is most of the time, and 2.5 is more than there is.",
    ),
    (
        r"^reading, warm: private bytes, \w+ against loose files$",
        "Known ranges, read and digested without a reader, give 1.23 in this run and 1.57 in another, where these "
        "rows had 1.28 and 1.29: how much longer it takes to open a file than to copy it differs with the machine's state.",
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
    (
        r"^reading, warm: mmap, \w+ against loose files$",
        "Rounds reach from 1.3 to 2.0, and the budget lies within them. A map from which nothing is copied, only hashed, gives "
        "2.5: the private copy takes the rest.",
    ),
    (
        r"^reading, arrays: batches, \w+, mmap, unverified against in-memory gather$",
        "A copy of known rows out of the map, without any reader, gives 0.74 in one run and 0.97 in another: a page of a map "
        "costs more than one of an array.",
    ),
    (
        r"^reading, arrays: batches, \w+ against (np\.load a file|FFCV)$",
        "A DataLoader without workers has one thread: to read and digest known ranges alone gives 4.4 times np.load and 0.88 "
        "times FFCV, which reads with a thread for each CPU beside the process. packer.Loader does so, too.",
    ),
    (
        r"^reading, arrays: packer\.Loader, \w+ against (np\.load a file|FFCV)$",
        "FFCV compares nothing with a digest: without that packer.Loader has 1.2 times its rate. FFCV's start takes about "
        "0.08 s of an epoch; with half the arrays these rows had 1.4 to 1.8. Which format is the fastest changes from run to "
        "run: how Linux holds a file in memory, in small or large pieces, is a tenth. np.load takes fresh memory for each "
        "batch: 144 page faults a sample, which cost 1 to 4 µs each on this machine, from one hour to the next.",
    ),
    (
        r"^reading, pictures: batches 500 x 375, \w+ against (Pillow 500 x 375|FFCV)$",
        "Batches of worker processes come through shared memory, fresh pages each, and the process that receives them needs "
        "one of the two cores as well; packer.Loader has neither, and keeps it.",
    ),
    (
        r"^reading, pictures: packer\.Loader 2000 x 1500, \w+ against Pillow 2000 x 1500$",
        "Decoding is 95 % of the time, as with worker processes.",
    ),
    (
        r"^overhead, \w+: resilient, ",
        "Rounds differ by 20 % here, more than there is to be seen: what it costs a batch in CPU time is a row of its own.",
    ),
    (
        r"^scanning: scan against find -printf$",
        "The rounds reach from 1.7 to 3.0, since find itself took 1.3 to 2.3 s. By CPU time it was 2.2 on a machine without "
        "other work.",
    ),
)


def reason(benchmark: str, row: Row) -> str:
    """Why a row misses its budget; ``not explained`` where that is not known."""
    name = ", ".join(filter(None, (benchmark, row.part))) + f": {row.name}"
    return next((text for pattern, text in REASONS if re.search(pattern, name)), "not explained")
