"""``python -m tests.fuzz [TARGET ...] --seconds N``: fuzz the readers of strangers' bytes, from the top of the repository.

With atheris (``pip install atheris``), which is guided by coverage, where it is installed, otherwise with the loop of this
package. ``--input FILE`` runs a target on one file. The exit status is 1 where something was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SLOWED = 5  # times that instrumented code takes at most, by and large


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the readers of strangers' bytes.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which (all)")
    parser.add_argument("--seconds", type=float, default=60, help="in all, spread over the targets (60)")
    parser.add_argument("--corpus", type=Path, help="folder with one folder a target: read, and added to")
    parser.add_argument("--input", type=Path, help="run one target on this file")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random numbers (the time)")
    parser.add_argument("--engine", choices=("atheris", "own"), help="atheris where it is installed")
    options = parser.parse_args()
    engine = options.engine or ("atheris" if importlib.util.find_spec("atheris") else "own")
    if engine == "atheris" and len(options.targets) == 1 and not options.input:
        return _guided(options.targets[0], options.seconds, options.corpus, options.seed)

    from tests.fuzz import loop
    from tests.fuzz.targets import TARGETS

    names = options.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if options.input:
        for name in names:
            began = time.process_time()
            print(
                name, loop.examine(TARGETS[name], options.input.read_bytes()), f"{time.process_time() - began:.3f} s", sep=": "
            )
        return 0
    status = 0
    for name in names:
        each = options.seconds / len(names)
        corpus = options.corpus / name if options.corpus else None
        if engine == "atheris":  # it ends the process that it runs in
            status |= _apart(name, each, options.corpus, options.seed)
            continue
        result = loop.fuzz(name, seconds=each, corpus=corpus, seed=options.seed)
        print(
            f"{name}: {result.runs:,} inputs in {each:.0f} s, {len(result.outcomes)} outcomes, {len(result.findings)} findings"
        )
        print("".join(f"  {finding}\n" for finding in result.findings.values()), end="", flush=True)
        status |= bool(result.findings)
    return int(status)


def _apart(name: str, seconds: float, corpus: Path | None, seed: int) -> bool:
    """Run one target with atheris in a process of its own; whether something was found, or the process failed."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--seed", str(seed)]
    command += ["--corpus", str(corpus)] if corpus else []
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    )
    runs = re.search(r"number_of_executed_units: *([0-9]+)", done.stdout)
    findings = re.findall(r"^finding: (.*\n  input: .*\n  again: .*\n)", done.stdout, re.MULTILINE)
    print(f"{name}: {int(runs[1]) if runs else 0:,} inputs in {seconds:.0f} s by atheris, {len(findings)} findings")
    print("".join(f"  {finding}" for finding in findings), end="", flush=True)
    if not runs or done.returncode:
        print(f"  it ended with status {done.returncode}:\n{done.stdout[-2_000:]}", flush=True)
    return bool(findings or not runs or done.returncode)


def _guided(name: str, seconds: float, corpus: Path | None, seed: int) -> int:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["packer"]):
        from tests.fuzz import loop
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.mutate import MAX_BYTES

    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        found = corpus / name if corpus else Path(scratch, "corpus")
        for data in target.seeds():
            loop.save(found, data)
        words = Path(scratch, "words")
        words.write_text("".join(map(_quoted, filter(None, target.words))))

        places: set[str] = set()

        def one(data: bytes) -> None:
            try:
                loop.examine(target, data, loop.MAX_SECONDS * _SLOWED)
            except Exception as error:
                # Once each, and on it goes: an exception that is let through would end the process.
                if (place := loop.place(error)) not in places:
                    places.add(place)
                    print(f"finding: {loop.describe(name, data, error)}", flush=True)

        arguments = [
            "fuzz",
            str(found),
            f"-max_total_time={max(1, int(seconds))}",
            f"-max_len={MAX_BYTES}",
            f"-seed={seed % 2**31}",
        ]
        arguments += [
            *([f"-dict={words}"] if target.words else []),
            "-timeout=60",
            "-rss_limit_mb=3000",
            f"-artifact_prefix={scratch}/",
            "-print_final_stats=1",
        ]
        atheris.Setup(arguments, one, custom_mutator=_mutator(lambda *given: atheris.Mutate(*given), target, loop.hostile))
        atheris.Fuzz()
    return 0


def _quoted(word: bytes) -> str:
    """A line of a dictionary for libFuzzer."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


def _mutator(mutate: Callable[[bytes, int], bytes], target: Any, hostile: Callable[..., bytes]) -> Callable[..., bytes]:
    """Half of the mutants are atheris's and half ours; of both most have their checksums repaired."""

    def custom(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return hostile(chance, target, [data])[:max_size]
        changed = mutate(data, max_size)
        return (target.repair(changed) if chance.random() < 0.75 else changed)[:max_size]

    return custom


if __name__ == "__main__":
    sys.exit(main())
