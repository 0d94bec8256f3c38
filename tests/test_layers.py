"""The layers hold: who may import whom, what loads when, who prints, who reads the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchmarks import structure
from tests.remedy import assert_none

ROOT = Path(__file__).resolve().parents[1]

LAYERS = (
    {"offline_data_cli"},
    {"api", "plugins"},
    {"text"},
    {
        "alignment",
        "ingest",
        "jobs",
        "preprocess",
        "buffers",
        "checks",
        "project",
        "record",
        "reports",
        "pages",
        "share",
        "targets",
    },
    {"store", "sources"},
    {"executors", "readers", "fetch", "episodes"},
    {
        "ahead",
        "errors",
        "exact",
        "hints",
        "markdown",
        "plurals",
        "ids",
        "config",
        "decode",
        "urls",
        "version",
        "pickles",
        "progress",
        "files",
        "processes",
        "strict_json",
    },
)
"""Left may import right, never back; rooms of one layer may import each other unless said."""

APART = {("buffers", "sources"), ("fetch", "sources"), ("readers", "sources")}
"""Pairs where the first must not know the second, although the order would allow it."""

OUTSIDE = {"", "testing"}
"""`offline_data/__init__.py`, which names everything, and contract tests, which use everything."""

HEAVY = {
    "torch", "tensordict", "torchrl", "h5py", "pyarrow", "PIL", "minari", "gymnasium", "jax",
    "httpx", "huggingface_hub", "rich", "isal", "pytest", "cloudpickle", "ray", "matplotlib", "av",
    "rerun",
}  # fmt: skip
"""Imported on use, inside the functions that need them."""

ONE_FILE = {"torchrl", "gymnasium", "isal", "ray", "matplotlib", "av", "rerun"}
"""Optional packages that one file at most may know."""

TORCH = {"torch", "tensordict", "torchrl"}

BRING_TORCH = (
    *("offline_data/buffers/", "offline_data/pipeline/preprocess/functions/"),
    *(f"offline_data/text/{name}.py" for name in ("data", "documents", "tokenize", "topk")),
)
"""Where tensors are handled: whoever imports these has torch imported."""


@dataclass(frozen=True)
class Import:
    """One import statement."""

    file: str
    """Path from the root."""
    line: int
    module: str
    """Full name of what is imported."""
    on_load: bool
    """Whether it runs when the file is imported."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def _files() -> list[Path]:
    return sorted([*(ROOT / "offline_data").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _package(path: Path) -> str:
    """Dotted name of the package a file's relative imports start from."""
    return ".".join(path.parent.relative_to(ROOT).parts)


@cache
def _imports() -> tuple[Import, ...]:
    return tuple(found for path in _files() for found in _imports_of(path))


def _imports_of(path: Path) -> Iterator[Import]:
    typing_only = {id(child) for node in _type_checking(path) for child in ast.walk(node)}
    inside = {
        id(child)
        for node in structure.syntax_nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.walk(node)
    }
    for node in structure.syntax_nodes(path):
        if id(node) in typing_only:
            continue
        for module in _modules(node, path):
            yield Import(_name(path), getattr(node, "lineno", 0), module, id(node) not in inside)


def _type_checking(path: Path) -> Iterator[ast.AST]:
    for node in structure.syntax_nodes(path):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from node.body


def _modules(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = _package(path).split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
    return [f"{base}.{alias.name}" for alias in node.names]


def _room(module: str) -> str | None:
    """Name the room of a module of this project; None for others'."""
    parts = module.replace("/", ".").removesuffix(".py").split(".")
    if "offline_data_cli" in parts[:2]:
        return "offline_data_cli"
    if parts[0] != "offline_data":
        return None
    known = set().union(*LAYERS, OUTSIDE)
    return parts[1] if len(parts) > 1 and parts[1] in known else ""


def _layer(room: str) -> int:
    return next(place for place, rooms in enumerate(LAYERS) if room in rooms)


def test_every_file_has_a_layer() -> None:
    rooms = {path.relative_to(ROOT).parts[1].removesuffix(".py") for path in _files()}
    assert_none(
        rooms - set().union(*LAYERS, OUTSIDE, {"__init__"}),
        "add these packages and modules to LAYERS in tests/test_layers.py, in the layer above all that they import",
    )


def _crossings() -> Iterator[tuple[Import, str, str]]:
    for found in _imports():
        here, there = _room(found.file), _room(found.module)
        if here not in OUTSIDE and here is not None and there is not None and there != here:
            yield found, here, there


def imports_against_the_order() -> list[str]:
    """Return the imports of rooms to the left, also those inside functions."""
    return [
        found.place
        for found, here, there in _crossings()
        if (there in OUTSIDE and here != "offline_data_cli")
        or (there not in OUTSIDE and _layer(there) < _layer(here))
    ]  # fmt: skip


def test_nothing_imports_to_the_left() -> None:
    assert_none(
        imports_against_the_order(),
        "move what is imported to a lower layer of LAYERS (tests/test_layers.py), or pass it as an argument",
    )


def test_no_module_imports_itself_through_others() -> None:
    """Imports of types count, and those inside functions."""
    assert_none(
        map(" ↔ ".join, structure.cycles(structure.import_graph())),
        "move what these modules share to one that they all import",
    )


def test_rooms_that_must_not_know_each_other() -> None:
    assert_none(
        (found.place for found, here, there in _crossings() if (here, there) in APART),
        "pass what is needed as an argument; APART in tests/test_layers.py has the pairs",
    )


def test_nothing_heavy_is_imported_on_load() -> None:
    wrong = [
        found.place
        for found in _imports()
        if found.on_load
        and _top(found) in HEAVY - (TORCH if found.file.startswith(BRING_TORCH) else set())
        and _room(found.file) != "testing"
    ]
    assert_none(
        wrong, "import it inside the function that needs it, types under `if TYPE_CHECKING:`"
    )


def test_torch_stays_in_the_buffers() -> None:
    wrong = [
        found.place
        for found in _imports()
        if _top(found) in TORCH
        and _room(found.file) not in {"buffers", "preprocess", "testing", "text"}
    ]
    assert_none(wrong, "use numpy here; tensors are made in buffers, preprocess and text")


@pytest.mark.parametrize("package", sorted(ONE_FILE))
def test_an_optional_package_is_known_to_one_file(package: str) -> None:
    files = {found.file for found in _imports() if _top(found) == package}
    assert_none(files if len(files) > 1 else (), f"import {package} in one of these files alone")


def _top(found: Import) -> str:
    return found.module.partition(".")[0]


OWN_PIPES = {"offline_data/pipeline/jobs/processes/child.py"}
"""A child process: its standard streams are pipes to the process that started it."""

REDIRECTS = {"offline_data/pipeline/jobs/executors/ray.py"}
"""Where what Ray prints by itself is kept off standard output."""

STOPS_EXITS = {"offline_data/pipeline/preprocess/functions/rows.py"}
"""Where `os._exit` in a user's function becomes an error."""

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def test_only_config_reads_the_environment() -> None:
    users = [
        f"{_name(path)}:{getattr(node, 'lineno', '')}"
        for path in _files()
        for node in structure.syntax_nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
        or (isinstance(node, ast.ImportFrom) and {a.name for a in node.names} & ENVIRONMENT)
    ]
    assert_none(
        (user for user in users if not user.startswith("offline_data/base/config.py:")),
        "read the environment in offline_data/base/config.py: a field of Settings, or a function there",
    )


def test_only_render_prints() -> None:
    """Nobody else but who guards the streams calls `print`, or names the standard streams or typer's ways to print."""
    printers = {
        _name(path)
        for path in _files()
        for node in structure.syntax_nodes(path)
        if (isinstance(node, ast.Name) and node.id in {"print", "input"})
        or (isinstance(node, ast.Attribute) and node.attr in {"echo", "secho", "__stdout__"})
        or (isinstance(node, ast.Attribute) and _is_stream(node))
    }
    allowed = {"cli/offline_data_cli/render.py", "cli/offline_data_cli/streams.py"}
    assert_none(
        printers - OWN_PIPES - REDIRECTS - allowed,
        "return a value; cli/offline_data_cli/render.py prints results, a library tells by `progress` or warnings",
    )


def _is_stream(node: ast.Attribute) -> bool:
    return (
        node.attr in {"stdin", "stdout", "stderr"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


def test_only_the_program_exits() -> None:
    exits = {
        _name(path)
        for path in _files()
        for node in structure.syntax_nodes(path)
        if (isinstance(node, ast.Name) and node.id in {"exit", "quit"})
        or (isinstance(node, ast.Raise) and "SystemExit" in ast.dump(node))
        or (isinstance(node, ast.Attribute) and node.attr in {"exit", "_exit"})
    }
    library = {name for name in exits - OWN_PIPES - STOPS_EXITS if name.startswith("offline_data/")}
    assert_none(
        (name for name in library if _room(name) != "testing"),
        "raise an error of offline_data/base/errors.py: the command line turns it into an exit code",
    )


def test_the_page_on_architecture_has_these_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.partition("<!-- layers")[2].partition("```\n")[2].partition("```")[0]
    expected = "\n".join(" · ".join(sorted(rooms)) for rooms in LAYERS)
    assert drawn.strip() == expected, f"replace the layers in docs/architecture.md by\n{expected}"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_page_names_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:pyi?|md|yml))?)`", text))
    places = [ROOT, ROOT / "offline_data"]
    assert len(named) > 30
    assert_none(
        (name for name in sorted(named) if not any((at / name).exists() for at in places)),
        f"{page} names these, and they do not exist: write where the files are now",
    )
