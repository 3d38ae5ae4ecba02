"""What the code itself promises: which part may know which, and what no part does. Read from the syntax trees."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import packer
from packer import formats
from packer.check import CheckSettings
from packer.checkers import CheckPool
from packer.model import Skipped, Source
from tests.inputs import jpeg, npy, photo, png, write_tree

ROOT = Path(packer.__file__).parent

LAYERS = (
    {"errors", "model", "cgroup", "cpus", "words"},
    {"exif", "files", "filetree", "locks", "names", "npyheader", "pngchunks"}
    | {"buffers", "children", "nursery", "permutation", "syncing", "tensors"},
    {"check", "checksums", "index", "manifest", "plan"},
    {"duplicates", "journal", "listing", "labels", "scan", "report", "commit", "options"},
    {"formats", "checkers", "workers", "intake", "inspection", "quarantine", "estimate"},
    {"cache", "cachefile", "extents", "store", "walk", "proof", "batches", "samples", "resize", "selection", "decode"},
    {"assembly", "pack", "job", "convert", "dryrun", "checking", "verify", "native", "decodable", "unpack"}
    | {"datasets", "demo", "sampler", "bench", "doctor", "seeds", "epochs", "batchmaker", "loader", "torchloader", "survival"}
    | {"deathwatch", "metrics", "owngenerators", "replay", "sendable", "workerlog", "workersetup"},
    {"packer"},  # the package itself: its names resolve to the layer below
    {"cli"},
)
"""From the bottom to the top. A part imports from its own layer, without a circle, and from those below it."""

ONLY_IN = {
    "lmdb": {"packer.formats.lmdb"},
    "h5py": {"packer.formats.hdf5"},
    "webdataset": {"packer.formats.webdataset"},
    "torch": {
        "packer.tensors",
        "packer.torchloader",
        "packer.deathwatch",
        "packer.survival",
        "packer.workersetup",
        "packer.bench.loading",
    },
    "matplotlib": {"packer.bench.figure", "packer.doctor.figure"},
    "click": {"packer.cli"},
    "rich": {"packer.cli"},
    "simplejpeg": {"packer.check.jpeg", "packer.decode"},
    "PIL": {"packer.check", "packer.decode", "packer.demo", "packer.resize", "packer.bench.contenders"},
}
"""Libraries and the only modules (with what is below them) that may import them."""

SAME_FOR_ALL_FORMATS = ("extents", "store", "batches", "samples", "datasets", "decode")

MAX_LINES = 450


@cache
def sources() -> dict[str, str]:
    """Source of every module by its full name."""
    return {
        ".".join(["packer", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path.read_text("utf-8")
        for path in sorted(ROOT.rglob("*.py"))
    }


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module])


@cache
def imports(module: str) -> frozenset[str]:
    """Full names of all modules that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in sources() else str(node.module))
    return frozenset(found)


def own_imports(module: str) -> set[str]:
    return {name for name in imports(module) if name.split(".")[0] == "packer"}


def part(module: str) -> str:
    """``packer.check.jpeg`` belongs to ``check``."""
    return module.split(".")[1] if "." in module else module


def layer(module: str) -> int:
    return next((number for number, parts in enumerate(LAYERS) if part(module) in parts), -1)


def below(module: str, homes: set[str]) -> bool:
    return any(module == home or module.startswith(f"{home}.") for home in homes)


def every_node(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for module in sources():
        yield from ((module, node) for node in ast.walk(tree(module)) if isinstance(node, kind))


def places(nodes: list[tuple[str, ast.AST]]) -> list[str]:
    return [f"{module}:{getattr(node, 'lineno', 0)}" for module, node in nodes]


def test_every_module_has_its_place_in_a_layer() -> None:
    assert [module for module in sources() if layer(module) == -1] == []


def test_imports_go_downwards() -> None:
    upwards = [
        f"{module} imports {name}" for module in sources() for name in own_imports(module) if layer(name) > layer(module)
    ]
    assert upwards == []


def test_no_imports_go_in_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " → ".join([*way[way.index(module) :], module])
        if module not in done:
            for name in sorted(own_imports(module)):
                visit(name, (*way, module))
            done.add(module)

    for module in sources():
        visit(module, ())


def test_formats_know_nothing_of_each_other() -> None:
    allowed = {"packer.formats._base", "packer.errors", "packer.files", "packer.model", "packer.npyheader", "packer.plan"}
    modules = [f"packer.formats.{name}" for name in formats.names()]
    assert [f"{module} imports {name}" for module in modules for name in own_imports(module) - allowed] == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library: str) -> None:
    users = [module for module in sources() if any(name.split(".")[0] == library for name in imports(module))]
    assert [module for module in users if not below(module, ONLY_IN[library])] == []
    assert users != []


def test_only_the_command_line_prints() -> None:
    calls = [
        (module, node)
        for module, node in every_node(ast.Name)
        if isinstance(node, ast.Name) and node.id in ("print", "pprint", "input")
    ]
    streams = [
        (module, node)
        for module, node in every_node(ast.Attribute)
        if isinstance(node, ast.Attribute)
        and node.attr in ("stdout", "stderr", "__stdout__", "__stderr__")
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    ]
    may = {"packer.cli", "packer.workerlog"}  # which stands in for the streams of worker processes
    found = [(module, node) for module, node in calls + streams if not below(module, may)]
    assert places(found) == []
    assert any(below(module, {"packer.cli"}) for module, _ in streams)


def test_nothing_is_asserted_in_shipped_code() -> None:
    """``python -O`` leaves assertions out, and they say nothing to a user."""
    assert places(list(every_node(ast.Assert))) == []


def test_every_broad_except_states_its_reason() -> None:
    """In a comment on its line or just above. One that passes the same exception on needs none."""
    silent = []
    for module, node in every_node(ast.ExceptHandler):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _passes_on(node):
            lines = sources()[module].splitlines()
            own = re.sub(r"#\s*noqa(: [A-Z0-9, ]+)?", "", lines[node.lineno - 1])
            if not re.search(r"#.*\w{3}|-\s+\w{3}", own) and not lines[node.lineno - 2].lstrip().startswith("#"):
                silent.append((module, node))
    assert places(silent) == []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in kinds)


def _passes_on(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_nothing_is_unpickled() -> None:
    """Not by ``pickle``, nor by what uses it inside."""
    loaders = {("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("marshal", "loads"), ("shelve", "open")}
    loaders |= {("np", "load"), ("numpy", "load"), ("torch", "load")}
    found = [
        (module, node)
        for module, node in every_node(ast.Attribute)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in loaders
    ]
    assert places(found) == []
    named = [
        (module, node)
        for module, node in every_node(ast.ImportFrom)
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "_pickle", "marshal", "shelve", "dill", "joblib")
    ]
    assert places(named) == []


@pytest.mark.parametrize("name", SAME_FOR_ALL_FORMATS)
def test_reading_never_asks_which_format_it_is(name: str) -> None:
    """No format's name stands in these modules, but as the class attribute ``format`` that three classes check."""
    module = tree(f"packer.{name}")
    allowed = {
        id(statement.value)
        for node in module.body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and [target.id for target in statement.targets] == ["format"]  # type: ignore[attr-defined]
    }
    found = [
        node.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and node.value in formats.names() and id(node) not in allowed
    ]
    assert found == []


def test_no_source_file_is_a_giant() -> None:
    assert {module: n for module, text in sources().items() if (n := len(text.splitlines())) >= MAX_LINES} == {}


@pytest.mark.parametrize("name", packer.__all__)
def test_each_public_name_resolves_and_is_explained(name: str) -> None:
    value = getattr(packer, name)
    assert isinstance(value, str) or (value.__doc__ or "").strip()
    assert name in dir(packer)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pack_forlder'"):
        packer.pack_forlder  # noqa: B018


@pytest.mark.parametrize("module", sorted(sources()))
def test_what_a_module_says_it_exports_is_there(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert list(loaded.__all__) == list(dict.fromkeys(loaded.__all__))


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a new interpreter imports for ``code``, and not for nothing."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}

    def names(code: str) -> set[str]:
        command = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\w+)", done.stderr, re.MULTILINE))

    return names(code) - names("pass")


def test_importing_packer_loads_nothing_outside_the_standard_library() -> None:
    found = loaded_by("import packer")
    assert found - sys.stdlib_module_names == {"packer"}


def test_importing_the_errors_loads_nothing_outside_the_standard_library() -> None:
    assert loaded_by("from packer import CorruptSampleError, InputError") - sys.stdlib_module_names == {"packer"}


def test_the_help_of_the_command_line_loads_no_container_and_no_decoder() -> None:
    found = loaded_by("from packer.cli.app import run; run(['--help'])")
    assert found & {"torch", "lmdb", "h5py", "webdataset", "PIL", "simplejpeg"} == set()
    assert "click" in found


WORKER = """
import sys
from packer.check import check_source
from packer.model import Skipped

def check(path, settings, checksum):
    verdict = check_source(path, settings, checksum)
    return Skipped(type(verdict).__name__, " ".join(sys.modules))
"""


def test_a_checking_worker_loads_neither_torch_nor_a_container_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes seconds or hundreds of megabytes, once a worker. Asked of a real one that has checked each type."""
    (tmp_path / "told_by_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    files = {"1.jpg": jpeg(), "2.png": png(), "3.npy": npy([1.0, float("nan")]), "4.jpg": jpeg()[:300], "5.jpg": b"text"}
    for kind in ("WEBP", "GIF", "BMP", "TIFF"):
        photo().save(tmp_path / f"x.{kind}", kind)
        files[f"6.{kind.lower()}"] = (tmp_path / f"x.{kind}").read_bytes()
    root = write_tree(tmp_path / "in", files)
    pool = CheckPool(os.fsencode(root), CheckSettings(), 1, 60, check="told_by_worker:check")
    try:
        sources_ = [Source(i, name.encode(), len(data), 0, -1) for i, (name, data) in enumerate(files.items())]
        verdicts = [verdict for _, verdict in pool.verdicts(sources_)]
    finally:
        pool.close()
    assert all(isinstance(verdict, Skipped) for verdict in verdicts)
    assert [verdict.code for verdict in verdicts if isinstance(verdict, Skipped)] == [
        "Kept", "Kept", "Kept", "Skipped", "Skipped", "Kept", "Kept", "Kept", "Kept"
    ]  # fmt: skip
    last = verdicts[-1]
    assert isinstance(last, Skipped)
    modules = set(last.detail.split())
    assert {"packer.check", "numpy", "PIL.Image", "simplejpeg"} <= modules
    assert modules.isdisjoint({"torch", "lmdb", "h5py", "webdataset", "click", "rich", "packer.pack", "packer.datasets"})
