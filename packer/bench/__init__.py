"""Which format is fastest for the user's own files on the user's own disk: measured, shown, and told in one paragraph.

``packer.bench.bench`` runs it. The modules: ``scratch`` and ``signals`` (a folder that is gone in the end), ``sample`` (what is
measured with), ``contenders``, ``folder``, ``packed`` and ``threads`` (who reads), ``loading`` (through torch's DataLoader, or
without), ``plan`` and ``measure`` (what is read how often, and how long that took), ``pagecache`` (what is cold), ``proof``
(that it was right), ``machine``, ``results`` (all that was found), and what is made of it: ``advice``, ``tables``, ``page``,
``figure``.
"""

from __future__ import annotations

__all__: list[str] = []
