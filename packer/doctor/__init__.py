"""Why a DataLoader died, what on this machine will make one die, and what a running one does.

``explain`` names the cause of an exception or exit status: ``symptom`` is what the exception or status says by itself,
``snapshot`` what the system says, ``workers`` and ``errors`` (with ``evidence``, ``explanation`` and
``sources``) what follows from both. ``facts`` (with ``data``) and ``findings`` are ``pack doctor``; ``process``, ``watch``,
``stacks``, ``figure`` and ``page`` are ``pack doctor --pid``.
"""

from __future__ import annotations

__all__: list[str] = []
