"""``pack demo``: see it work, in a few seconds, without data of one's own."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from packer.cli.show import emit, escape, plural, short_path, size

__all__ = ["command"]


@click.command("demo")
@click.argument("folder", type=click.Path(readable=False, path_type=Path), default="packer-demo")
def command(folder: Path) -> None:
    """Make a small folder of pictures and arrays, pack it into every format, and read it back.

    Some files are damaged on purpose. All goes into FOLDER, which must not exist yet.
    """
    from packer import formats
    from packer.datasets import open_dataset
    from packer.demo import make_folder
    from packer.errors import OutputError
    from packer.options import PackOptions
    from packer.pack import pack_folder

    source = folder / "files"
    try:
        folder.mkdir(parents=True)
        make_folder(source)
    except FileExistsError:
        raise OutputError(f"{folder}: exists already. Remove it, or name another: pack demo OTHER") from None
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from error
    count = sum(1 for path in source.rglob("*") if path.is_file())
    emit(f"made {plural(count, 'file')} in {escape(str(source))}, some damaged on purpose")
    emit("")
    summaries = [
        pack_folder(source, PackOptions(format=name, output=folder / f"demo{formats.get(name).suffix}"))
        for name in formats.names()
    ]
    rows = [json.loads(line) for line in summaries[0].report.read_text("ascii").splitlines()]
    for outcome, heading in (
        ("skipped", "Left out, since not every pixel or number is there:"),
        ("warned", "Packed, but odd:"),
    ):
        emit(heading)
        for row in rows:
            if row["outcome"] == outcome:
                emit(f"  {escape(row['path'] or '(all)'):<27} {row['code']:<18} {escape(row['detail'])}")
        emit("")
    emit(f"{'format':<11} {'samples':>7} {'size':>9}   read back")
    for summary in summaries:
        data = open_dataset(summary.output, output="bytes")
        same = sum(data[i][0] == (source / data.names[i]).read_bytes() for i in range(len(data)))
        verdict = f"{same} of {len(data)} byte for byte" if same == len(data) else f"ONLY {same} of {len(data)} are the same"
        emit(f"{summary.format:<11} {summary.samples:>7} {size(summary.output_bytes):>9}   {verdict}")
    same_content = len({summary.content_digest for summary in summaries}) == 1
    emit(f"the same content in all of them: {'yes' if same_content else 'NO'}")
    emit("")
    output = short_path(summaries[0].output)
    first = shlex.quote(output)
    emit("Next:")
    emit(f"  pack info {first}")
    emit(f"  pack ls {first}")
    emit(f"  pack verify {first}")
    code = f"from packer import open_dataset; data = open_dataset({output!r}); print(data, data[9])"
    emit(f"  python -c {shlex.quote(code)}")
    emit("  pack YOUR_FOLDER --format lmdb")
