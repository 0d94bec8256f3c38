"""The layers hold: who may import whom, what loads when, who prints, who reads the environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import structure
from tests.remedy import assert_none

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = {
    "base": "Errors, settings, names, files, JSON and progress, which every other package uses.",
    "document": "A result as blocks, tables and named values, which terminal, notebooks, pages and cards show alike.",
    "episode": "Whole episodes as arrays: the one shape that readers return and writers take.",
    "raw": "Bytes of files as arrays: HDF5, Arrow, npz, TFRecord, archives, images and video.",
    "fetch": "Files of hosts on this disk: planned first, then fetched, with sizes and digests checked.",
    "store": "The dataset directory: written once, audited, published by a rename, read by anyone.",
    "rows": "Numbers to rows to features: samplers, selections, storages, gathering and derived features.",
    "formats": "Published formats: how datasets of each are listed, read and written.",
    "analysis": "Facts about a dataset: statistics, checks, quality of episodes, alignment, replays.",
    "pipeline": "Everything that makes a dataset, or files of one: conversion, recipes, recording, export.",
    "buffers": "Datasets to sample from: buffers, views, mixtures, loaders and streams.",
    "torchrl": "Buffers that are written to, their storages and writers, and other names of TorchRL's.",
    "agilerl": "AgileRL's names: transitions, and batches of a buffer for a `DataLoader`.",
    "text": "Text for language models: sources, tokenizers, documents, preference pairs, prompts, rules.",
    "reports": "Figures, pages, films and cards of datasets.",
    "project": "Datasets of a project: `datasets.toml`, `datasets.lock`, `sync` and `push`.",
    "plugins": "Names for packages with sources, rules and steps of their own.",
    "api": "The functions of `offline_data`, which the command line calls, too.",
    "offline_data_cli": "The command line: a command parses its options, makes one call, and returns a result.",
}
"""Packages in their order, and what is in each: one imports itself and those before it."""

DEPRECATED = {"checks", "episodes", "sources", "strict_json"}
"""Earlier names of modules, which import from `offline_data.plugins`."""

OUTSIDE = {"", "errors", "testing", *DEPRECATED}
"""Names for others: `offline_data/__init__.py`, errors, contract tests, which use everything."""

HEAVY = {
    "torch", "tensordict", "torchrl", "h5py", "pyarrow", "PIL", "minari", "gymnasium", "jax",
    "httpx", "huggingface_hub", "rich", "isal", "deflate", "pytest", "cloudpickle", "ray", "matplotlib", "av",
    "rerun",
}  # fmt: skip
"""Imported on use, inside the functions that need them."""

ONE_FILE = {"torchrl", "gymnasium", "isal", "deflate", "ray", "matplotlib", "av", "rerun"}
"""Optional packages that one file at most may know."""

TORCH = {"torch", "tensordict", "torchrl"}

BRING_TORCH = (
    *(
        "offline_data/rows/",
        "offline_data/buffers/",
        "offline_data/torchrl/",
        "offline_data/agilerl.py",
    ),
    "offline_data/pipeline/preprocess/functions/",
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


def _parent(path: Path) -> str:
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
        parts = _parent(path).split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
    return [f"{base}.{alias.name}" for alias in node.names]


def _package(module: str) -> str | None:
    """Name the package of a module of this project; None for others'."""
    parts = module.replace("/", ".").removesuffix(".py").split(".")
    if "offline_data_cli" in parts[:2]:
        return "offline_data_cli"
    if parts[0] != "offline_data":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in {*PACKAGES, *OUTSIDE} else ""


def test_every_file_is_in_a_package() -> None:
    packages = {path.relative_to(ROOT).parts[1].removesuffix(".py") for path in _files()}
    assert_none(
        packages - {*PACKAGES, *OUTSIDE, "__init__"},
        "add these packages and modules to PACKAGES in tests/test_layers.py, after all that they import",
    )


def _crossings() -> Iterator[tuple[Import, str, str]]:
    for found in _imports():
        here, there = _package(found.file), _package(found.module)
        if here not in OUTSIDE and here is not None and there is not None and there != here:
            yield found, here, there


def imports_against_the_order() -> list[str]:
    """Return the imports of later packages, also those inside functions."""
    place = {package: number for number, package in enumerate(PACKAGES)}
    return [
        found.place
        for found, here, there in _crossings()
        if (there in OUTSIDE and here != "offline_data_cli")
        or (there not in OUTSIDE and place[there] > place[here])
    ]  # fmt: skip


def test_nothing_imports_a_later_package() -> None:
    assert_none(
        imports_against_the_order(),
        "move what is imported to an earlier one of PACKAGES (tests/test_layers.py), or pass it as an argument",
    )


def test_no_module_imports_itself_through_others() -> None:
    """Imports of types count, and those inside functions."""
    assert_none(
        map(" ↔ ".join, structure.cycles(structure.import_graph())),
        "move what these modules share to one that they all import",
    )


def test_nothing_heavy_is_imported_on_load() -> None:
    wrong = [
        found.place
        for found in _imports()
        if found.on_load
        and _top(found) in HEAVY - (TORCH if found.file.startswith(BRING_TORCH) else set())
        and _package(found.file) != "testing"
    ]
    assert_none(
        wrong, "import it inside the function that needs it, types under `if TYPE_CHECKING:`"
    )


def test_torch_stays_in_the_buffers() -> None:
    wrong = [
        found.place
        for found in _imports()
        if _top(found) in TORCH
        and _package(found.file) not in {"rows", "buffers", "torchrl", "agilerl", "testing", "text"}
        and not found.file.startswith("offline_data/pipeline/preprocess/")
    ]
    assert_none(wrong, "use numpy here; tensors are made in rows, buffers, preprocess and text")


@pytest.mark.parametrize("package", sorted(ONE_FILE))
def test_an_optional_package_is_known_to_one_file(package: str) -> None:
    files = {found.file for found in _imports() if _top(found) == package}
    assert_none(files if len(files) > 1 else (), f"import {package} in one of these files alone")


def _top(found: Import) -> str:
    return found.module.partition(".")[0]


OWN_PIPES = {"offline_data/pipeline/jobs/processes/child.py"}
"""A child process: its standard streams are pipes to the process that started it."""

REDIRECTS = {"offline_data/pipeline/jobs/ray.py"}
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
        (name for name in library if _package(name) != "testing"),
        "raise an error of offline_data/base/errors.py: the command line turns it into an exit code",
    )


def test_the_page_on_architecture_has_these_packages() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    expected = "\n".join(f"| `{package}` | {text} |" for package, text in PACKAGES.items())
    assert expected in page, f"replace the rows of packages in docs/architecture.md by\n{expected}"


def test_a_package_says_first_what_is_in_it() -> None:
    said = {
        package: import_module(f"offline_data.{package}").__doc__ or ""
        for package in structure.package_sizes()
        if package in PACKAGES
    }
    assert_none(
        (
            package
            for package, text in said.items()
            if package not in {"api"} and not text.startswith(PACKAGES[package])
        ),
        "begin the docstring of `__init__.py` with the sentence in PACKAGES (tests/test_layers.py)",
    )


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
