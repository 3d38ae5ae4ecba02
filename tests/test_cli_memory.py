"""What a command says about memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives nothing back at once")

# As liblmdb does at each commit, but more, so that it is the end of the heap that is let go of.
CHURN = """
import resource
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{before}
blocks = [bytes(60_000) for _ in range(200)]
del blocks
start = faults()
for _ in range(20):
    blocks = [bytes(60_000) for _ in range(200)]
    del blocks
print(faults() - start)
"""


def count_faults(before: str = "") -> int:
    command = [sys.executable, "-c", CHURN.format(before=before)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_freed_memory_is_not_given_back_and_asked_for_again() -> None:
    as_it_is = count_faults()
    kept = count_faults("from packer.cli.memory import keep_freed_memory; keep_freed_memory()")
    assert as_it_is > 5_000
    assert kept < as_it_is / 10
