"""Pack a folder: all refusals first, then the job."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from packer import formats
from packer.commit import Staging
from packer.errors import OptionError, OutputError
from packer.formats._base import Format
from packer.inspection import require_folder
from packer.job import Job
from packer.options import OnProgress, PackOptions, Summary

__all__ = ["checked_format", "pack_folder", "resolve_target"]


def pack_folder(
    source: str | os.PathLike[str], options: PackOptions | None = None, on_progress: OnProgress | None = None
) -> Summary:
    """Pack a folder of images and ``.npy`` files into one container.

    Files that cannot be decoded are named in the report and stay out; they never end the job. Nothing stands under the
    output's final name before it is whole, read back and on the disk. A job that ended early leaves what it has found out in
    ``.NAME.partial`` beside the output, and the next one with the same options goes on from there.

    Args:
        source: the folder; class folders in its first level give the labels.
        options: how; the defaults where left out.
        on_progress: called now and then, from this thread.

    Raises:
        OptionError: an option does not exist or does not fit; nothing was done.
        InputError: the input is missing, holds nothing that can be packed, or its labels would be a guess.
        TooManySkippedError: more files were skipped than the options allow.
        DatasetError: the dataset that the classes are to be taken from cannot be opened.
        OutputError: the output exists already or cannot be written, or an unfinished one was made with other options.
    """
    options = options or PackOptions()
    container = checked_format(options)
    root = Path(source)
    require_folder(root)
    target = resolve_target(root, container, options)
    started = time.perf_counter()
    with Staging(target, overwrite=options.overwrite) as staging:
        return Job(root, target, container, options, staging, on_progress or (lambda progress: None)).run(started)


def checked_format(options: PackOptions) -> Format:
    """The container format of a job whose options are sound.

    Raises:
        OptionError: they are not.
    """
    container = formats.get(options.format)
    options.require_sound()
    container.require_fitting(options.limits)
    return container


def resolve_target(root: Path, container: Format, options: PackOptions) -> Path:
    """The output's real path, so that everything is made on the same file system as the output itself.

    Raises:
        OptionError: the input has no name to call the output after.
        OutputError: the output is the input or holds it, or there is no folder that it could be made in.
    """
    real_root = Path(os.path.realpath(root))
    output = options.output
    if output is None:
        # Beside what the user named, even where that is a link to somewhere else.
        named = Path(os.path.abspath(root))
        if not named.name:
            raise OptionError(f"{root}: has no name to call the output after; say where with -o")
        output = named.parent / f"{named.name}{container.suffix}"
    target = Path(os.path.realpath(output))
    if target == real_root:
        raise OutputError(f"{output}: is the input itself; choose another with -o")
    if target in real_root.parents:
        raise OutputError(f"{output}: holds the input; choose another with -o")
    try:
        parent = os.stat(target.parent)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise OutputError(f"{target.parent}: {error.strerror}") from None
        parent = None
    if parent is None or not stat.S_ISDIR(parent.st_mode):
        raise OutputError(f"{target.parent}: no such folder, so {target.name} cannot be made in it. Make it first (mkdir -p).")
    return target
