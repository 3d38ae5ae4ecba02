"""Container formats: one module each in this folder, and nothing else changes when one is added.

A module ends with one constant, ``FORMAT`` (see ``packer.formats._base.Format``). It is imported when its format is asked
for, so packing into LMDB never loads h5py.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from packer.errors import OptionError

if TYPE_CHECKING:
    from packer.formats._base import Format  # which loads numpy, and the names of the formats are wanted for any --help

__all__ = ["get", "names"]


def names() -> list[str]:
    """Names of all formats, in order. Nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def get(name: str) -> Format:
    """The format of a name.

    Raises:
        OptionError: there is no such format.
    """
    if name not in names():
        raise OptionError(f"no format {name!r}; there are {', '.join(names())}")
    module = importlib.import_module(f"packer.formats.{name}")
    found: Format = module.FORMAT
    return found
