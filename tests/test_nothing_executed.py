"""No code of this project can run what a file says: read out of every call and import it makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remedy import assert_none

ROOT = Path(__file__).resolve().parents[1]

MODULES = {
    "cPickle", "cloudpickle", "dill", "hickle", "joblib", "jsonpickle", "klepto", "marshal",
    "pickle", "_pickle", "runpy", "shelve", "yaml",
}  # fmt: skip
"""What can unpickle, or run code that it is given, if called wrongly: imported by nobody."""

BUILTINS = {"compile", "eval", "exec"}
"""What is named nowhere; methods that are called so are something else."""

NAMES = {
    "Unpickler", "exec_module", "find_class", "from_pickle",
    "load_memmap", "load_module", "open_memmap", "read_array", "read_pickle", "run_module",
    "run_path", "unsafe_load",
}  # fmt: skip
"""What is called nowhere, as a function or as a method of anything."""

GUARDED = {
    "numpy.load": "allow_pickle",
    "torch.load": "weights_only",
}
"""What is called only with this argument spelled out, and so that it is safe."""
SAFE = {"allow_pickle": False, "weights_only": True}

ALLOWED = {
    # Functions and values between this program and processes it started, or a pool that a caller
    # gave it: no byte comes from elsewhere.
    "offline_data/pipeline/jobs/processes/protocol.py": {"cloudpickle", "pickle"},
    # Lets TorchRL's own module be executed as it is imported, and then registers with it.
    "offline_data/__init__.py": {"exec_module"},
    # Runs the Python file that the user names on the command line as the function's home.
    "offline_data/pipeline/preprocess/functions/reference.py": {"cloudpickle", "exec_module"},
    # Finds nothing but functions of its own, each of which checks its arguments.
    "offline_data/raw/restricted_pickle.py": {"pickle", "Unpickler"},
    # Adds three names to those, which stand for descriptions.
    "offline_data/raw/torch_file.py": {"find_class"},
    # Contract tests of steps, like those of adapters, look whether a step survives pickling.
    "offline_data/testing/steps.py": {"pickle"},
    # Contract tests of other people's adapters send datasets to a process that they start.
    "offline_data/testing/sources.py": {"pickle"},
    # Opens what it wrote itself a moment before, with the peer that it measures.
    "benchmarks/sampling_data.py": {"load_memmap"},
}
"""What a file may use all the same, and why."""


def _files() -> list[Path]:
    folders = ("offline_data", "cli", "benchmarks")
    return [ROOT / "setup.py", *(path for x in folders for path in (ROOT / x).rglob("*.py"))]


def unsafe(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything in a module's source that may run what a file says."""
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    aliases = dict(_aliases(nodes))
    for node in nodes:
        for used in (*_imported(node), *_called(node, aliases)):
            yield getattr(node, "lineno", 0), used


def _aliases(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the local name and the full name of whatever is imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((x.asname, x.name) for x in node.names if x.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((x.asname or x.name, f"{node.module}.{x.name}") for x in node.names)


def _imported(node: ast.AST) -> Iterator[str]:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        unsafe_names = NAMES | BUILTINS if node.module == "builtins" else NAMES
        yield from (alias.name for alias in node.names if alias.name in unsafe_names)
        modules = [node.module or ""]
    elif isinstance(node, ast.Call) and _last(node.func) in {"import_module", "__import__"}:
        modules = [str(x.value) for x in node.args if isinstance(x, ast.Constant)]
    yield from (module for module in modules if module.partition(".")[0] in MODULES)


def _called(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    """Yield what is called or only named: a function passed on can be called elsewhere."""
    if isinstance(node, ast.Attribute) and _is_unsafe(node, aliases):
        yield node.attr
    elif isinstance(node, ast.Name) and node.id in NAMES | BUILTINS:
        yield node.id
    elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        if not (isinstance(node.value, ast.Constant) and node.value.value is False):
            yield "allow_pickle"
    elif isinstance(node, ast.Call):
        full = _full(node.func, aliases)
        if full in GUARDED and not _is_guarded(node, GUARDED[full]):
            yield full


def _is_unsafe(node: ast.Attribute, aliases: dict[str, str]) -> bool:
    return node.attr in NAMES or _full(node, aliases) in {f"builtins.{x}" for x in BUILTINS}


def _is_guarded(call: ast.Call, argument: str) -> bool:
    """Return True if a call spells the argument out as a literal, and nothing hides another."""
    given = {x.arg: x.value for x in call.keywords}
    value = given.get(argument)
    return None not in given and isinstance(value, ast.Constant) and value.value is SAFE[argument]


def _full(node: ast.AST, aliases: dict[str, str]) -> str:
    """Return the full dotted name of a function, as far as imports tell it."""
    if isinstance(node, ast.Attribute):
        return f"{_full(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    return _full(node, {}).rpartition(".")[2]


def test_nothing_here_runs_what_a_file_says() -> None:
    found = []
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        allowed = ALLOWED.get(name, set())
        for line, used in unsafe(path.read_text(encoding="utf-8")):
            if used not in allowed:
                found.append(f"{name}:{line} uses {used}")
    assert_none(
        found,
        "use a reader of offline_data/raw, which runs nothing; if no byte of it can come from elsewhere, "
        "add the file to ALLOWED in tests/test_nothing_executed.py, with the reason",
    )


def test_what_is_allowed_is_used() -> None:
    """An exception that nobody needs any more is a hole."""
    for name, allowed in ALLOWED.items():
        used = {used for _, used in unsafe((ROOT / name).read_text(encoding="utf-8"))}
        assert_none(
            allowed - used, f"remove these from ALLOWED[{name!r}]: the file does not use them"
        )
    assert {ROOT / name for name in (*ALLOWED, "cli/offline_data_cli/main.py")} <= {*_files()}


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("import pickle as p", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import importlib\nimportlib.import_module('pickle')", "pickle"),
        ("__import__('marshal').loads(b'')", "marshal"),
        ("import joblib.numpy_pickle", "joblib.numpy_pickle"),
        ("import numpy as np\nnp.load('x', allow_pickle=flag)", "numpy.load"),
        ("import numpy as np\nnp.load('x', **options)", "numpy.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=False, **options)", "numpy.load"),
        ("import numpy\nnumpy.load('x', None, True)", "numpy.load"),
        ("from numpy import load as read\nread('x')", "numpy.load"),
        ("np.save('x', y, allow_pickle=True)", "allow_pickle"),
        ("import torch\ntorch.load('x', weights_only=False)", "torch.load"),
        ("from tensordict import TensorDict as T\nT.load_memmap(p)", "load_memmap"),
        ("opened = TensorDict.load_memmap", "load_memmap"),
        ("eval('1')", "eval"),
        ("map(eval, lines)", "eval"),
        ("import builtins\nbuiltins.exec('1')", "exec"),
        ("from builtins import exec as run\nrun('1')", "exec"),
        ("exec(compile('1', 'x', 'exec'))", "compile"),
        ("from pandas import read_pickle", "read_pickle"),
    ],
)
def test_the_checker_sees(source: str, used: str) -> None:
    assert used in [found for _, found in unsafe(source)]


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import json\njson.load(file)",
        "import re\nre.compile('x')",
        "from offline_data.raw.restricted_pickle import load\nload(stream, size=1, where='x')",
        "module.eval()",
    ],
)
def test_the_checker_lets_pass(source: str) -> None:
    assert list(unsafe(source)) == []
