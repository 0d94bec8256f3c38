"""Code metrics: `python -m benchmarks.structure`.

Size by folder beside its budget, import cycles, names defined twice, and the number of this project's
files and functions that run in a conversion, a preprocessing run and a sample. `tests/test_structure.py`
fails where a folder is 5 % above its budget: raising a number is a commit that says why.
"""

from __future__ import annotations

import ast
import collections
import inspect
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from offline_data.processes.protocol import unpack

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("offline_data", "cli")

BUDGETS = {
    "cli": 5_880,
    "offline_data": 2_570,
    "offline_data/alignment": 640,
    "offline_data/api": 1_440,
    "offline_data/buffers": 18_720,
    "offline_data/checks": 4_250,
    "offline_data/episodes": 990,
    "offline_data/executors": 650,
    "offline_data/fetch": 2_870,
    "offline_data/ingest": 4_010,
    "offline_data/jobs": 640,
    "offline_data/pages": 2_440,
    "offline_data/preprocess": 8_880,
    "offline_data/processes": 670,
    "offline_data/project": 1_140,
    "offline_data/readers": 6_370,
    "offline_data/record": 1_570,
    "offline_data/reports": 4_220,
    "offline_data/share": 370,
    "offline_data/targets": 4_110,
    "offline_data/sources": 16_040,
    "offline_data/store": 5_990,
    "offline_data/testing": 940,
    "offline_data/text": 3_090,
    "tests": 95_960,
}
"""Lines of each folder."""


def product_files() -> list[Path]:
    """List the Python files that are installed."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[1:] if parts[0] == "cli" else parts)
    return name.removesuffix(".__init__")


@cache
def syntax_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def import_graph() -> dict[str, set[str]]:
    """Return which modules of this project each one imports, also inside functions and for types."""
    files = {module_of(path): path for path in product_files()}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for node in syntax_nodes(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name for name in names if name in files}
                if any(name not in files for name in names):
                    found.add(node.module)
        graph[module] = (found & set(files)) - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of two modules or more (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    sys.setrecursionlimit(limit)
    return found


def classes_defined_twice() -> dict[str, list[str]]:
    """Return class names that are defined in several files."""
    places = collections.defaultdict(list)
    for path in product_files():
        for node in syntax_nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module_of(path))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


class Trace:
    """Counts this project's functions that run within the block, in all threads."""

    def __init__(self) -> None:
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()

    def _note(self, frame: FrameType, event: str, _value: Any) -> None:
        code = frame.f_code
        # Excludes bodies of classes and modules, and comprehensions, which Python 3.12 inlines.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        ours = any(f"/{folder}/" in code.co_filename for folder in FOLDERS)
        if event == "call" and is_function and ours:
            name = f"{code.co_qualname}" if hasattr(code, "co_qualname") else code.co_name
            self.calls[code.co_filename, name] += 1

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def summary(self) -> str:
        """Number of files, functions and calls."""
        files = {file for file, _ in self.calls}
        return f"{len(files)} files, {len(self.calls)} functions, {sum(self.calls.values())} calls"


def traced(function: Callable[[], Any]) -> str:
    """Call a function and return a summary of this project's functions that ran."""
    with Trace() as trace:
        function()
    return trace.summary


def _frames_to(functions: list[int]) -> Callable[[Any], Any]:
    def fn(td: Any) -> Any:
        frame, ours = sys._getframe(1), 0
        while frame is not None and frame.f_code.co_name != "run_preprocess":
            ours += any(f"/{folder}/" in frame.f_code.co_filename for folder in FOLDERS)
            frame = frame.f_back  # type: ignore[assignment]
        functions.append(ours)
        td["next", "reward"] = td["next", "reward"] * 2
        return td

    return fn


def _files_of_a_download(root: Path) -> int:
    from offline_data.config import Settings
    from offline_data.fetch.files import RemoteFile
    from offline_data.fetch.plan import plan_fetch
    from offline_data.fetch.run import run_fetch
    from tests.toys.servers import FileServer

    settings = Settings(root=root)
    with FileServer({"/x": b"content"}) as server, Trace() as trace:
        run_fetch(plan_fetch([RemoteFile("x", (server.at("/x"),))], settings), settings)
    return len({file for file, _ in trace.calls if "/offline_data/fetch/" in file})


class _NoChild:
    """A `Child` that runs in this process, so that a conversion's child is counted, too."""

    ending = "has not begun"

    def __init__(self, function: bytes, **_: object) -> None:
        self._function = unpack([function])
        self._answers: collections.deque[Any] = collections.deque()

    def start(self) -> Self:
        return self

    def send(self, request: object) -> None:
        self._answers.append(self._function(request))

    def receive(self) -> object:
        return self._answers.popleft()

    def close(self) -> None:
        self._answers.clear()


def run_counts() -> Iterator[tuple[str, str]]:
    """Yield what was run, and how much of this project's code ran."""
    import offline_data
    from offline_data_cli.main import main
    from tests.toys.d4rl import write_d4rl_hdf5

    with tempfile.TemporaryDirectory() as folder:
        path = write_d4rl_hdf5(Path(folder, "x.hdf5"))
        yield "one HTTP download", f"{_files_of_a_download(Path(folder, 'x'))} files of fetch"
        line = ["convert", str(path), "x", "--from", "d4rl", "--root", folder, "-q"]
        with patch("offline_data.ingest.conversion.Child", _NoChild):
            yield "convert x.hdf5 --from d4rl", traced(lambda: main(line))
        ds = offline_data.load_dataset("local:x", 4, root=folder)
        for _ in range(3):
            ds.sample()
        yield "sample(), steady state", traced(ds.sample)
        depth: list[int] = []

        def run_preprocess() -> None:
            ds.preprocess(_frames_to(depth), num_workers=0, dest=Path(folder, "y"), vectorize=False)

        yield "preprocess(fn, num_workers=0)", traced(run_preprocess)
        yield "frames of ours between the call and fn", str(max(depth))


def sizes() -> dict[str, list[int]]:
    """Return the lines of each file, by folder; files outside of folders are under `offline_data`."""
    found: dict[str, list[int]] = collections.defaultdict(list)
    for path in [*product_files(), *(ROOT / "tests").rglob("*.py")]:
        parts = path.relative_to(ROOT).parts
        nested = len(parts) > 2 and parts[0] == "offline_data"
        lines = len(path.read_text(encoding="utf-8").splitlines())
        found["/".join(parts[: 2 if nested else 1])].append(lines)
    return found


def participles() -> list[str]:
    """Return functions and classes named by a participle alone, which says not what they do."""
    words = "made|told|found|given|kept|chosen|there|one|held|shown|known"
    pattern = re.compile(rf"_?([A-Za-z][a-z]+ed|{words})")
    return [
        f"{module_of(path)}.{node.name}"
        for path in product_files()
        for node in syntax_nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and pattern.fullmatch(node.name)
    ]


WORDS = {
    "docstring begins with a question word": re.compile(r'^\s*"""(What|Where|Who|How|Which)\b'),
    "is no X": re.compile(r"(?<![Tt]here )\b(is|are) no (?!(longer|more|other|such|less)\b)[a-z]"),
}
"""Wordings that are not used, by name."""


def wordings() -> dict[str, list[str]]:
    """Return the places of wordings that are not used."""
    found: dict[str, list[str]] = {name: [] for name in WORDS}
    for path in product_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name, pattern in WORDS.items():
                if pattern.search(line):
                    found[name].append(f"{path.relative_to(ROOT)}:{number}")
    return found


def main() -> None:
    """Print all counts."""
    print(f"{'folder':30} {'files':>5} {'lines':>6} {'budget':>6} {'longest':>7}")
    found_sizes = sizes()
    for folder, lengths in sorted(found_sizes.items()):
        budget = BUDGETS.get(folder, 0)
        print(f"{folder:30} {len(lengths):5} {sum(lengths):6} {budget:6} {max(lengths):7}")
    every = [n for folder, lengths in found_sizes.items() if folder != "tests" for n in lengths]
    print(f"{'product':30} {len(every):5} {sum(every):6} {'':6} {max(every):7}")
    print(f"named by a participle: {len(participles())}")
    for name, places in wordings().items():
        print(f"{name}: {len(places)}", *places, sep="\n  ")
    found = cycles(import_graph())
    print(f"import cycles: {len(found)}", *(" ↔ ".join(cycle) for cycle in found), sep="\n  ")
    twice = classes_defined_twice()
    print(f"class names defined twice: {len(twice)} ({', '.join(twice)})")
    for what, counts in run_counts():
        print(f"{what}: {counts}")


if __name__ == "__main__":
    main()
