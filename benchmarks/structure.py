"""Code metrics: `python -m benchmarks.structure`.

A table of the packages right below `offline_data` (its own modules, and the command line, count as one
each): lines of product and tests, files, imports of other packages and by them. Then imports against the order in
`tests/test_layers.py`, cycles, names defined twice, and the number of this project's files and functions
that run in a download, a conversion, a sample and a preprocessing run. `tests/test_structure.py` asks for the
reason where a package has grown by more than a tenth.
"""

from __future__ import annotations

import ast
import collections
import inspect
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from offline_data.pipeline.jobs.processes.protocol import unpack

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("offline_data", "cli")

MODULES = "offline_data"
"""Name in the table of `offline_data/__init__.py`; modules beside the packages have their own."""

RECORDED: dict[str, tuple[int, str]] = {
    "agilerl": (240, ""),
    "analysis": (7_175, ""),
    "api": (
        1_518,
        "reports, pages from a server and provenance have functions, which datasets have as methods",
    ),
    "base": (2_623, ""),
    "buffers": (6_376, ""),
    "checks": (8, ""),
    "cli": (5_785, ""),
    "document": (
        579,
        "blocks of results, and their renderers, came from the command line and the pages; findings and pages are results, too",
    ),
    "episode": (1_100, ""),
    "episodes": (18, ""),
    "errors": (53, ""),
    "fetch": (2_715, ""),
    "formats": (20_660, ""),
    "offline_data": (
        129,
        "it lists TorchRL's names apart from the own ones, and help begins with a quickstart",
    ),
    "pipeline": (16_477, ""),
    "plugins": (69, ""),
    "project": (959, ""),
    "raw": (5_356, ""),
    "reports": (
        4_130,
        "one viewer for report, view and browse: episodes as columns, frames by ranges, marks, pictures, search",
    ),
    "rows": (6_214, ""),
    "sources": (45, ""),
    "store": (6_450, ""),
    "strict_json": (10, ""),
    "testing": (
        1_011,
        "sources are compared with an independent reading, and damaged, by their contract",
    ),
    "text": (2_963, ""),
    "torchrl": (4_938, ""),
}
"""Lines of each package at a time, and, where it has grown since by more than a tenth, why."""


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


def _trace_download(root: Path) -> str:
    from offline_data.base.config import Settings
    from offline_data.fetch.files import RemoteFile
    from offline_data.fetch.plan import plan_fetch
    from offline_data.fetch.run import run_fetch
    from tests.toys.servers import FileServer

    settings = Settings(root=root)
    with FileServer({"/x": b"content"}) as server:
        files = [RemoteFile("x", (server.at("/x"),))]
        return traced(lambda: run_fetch(plan_fetch(files, settings), settings))


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
        yield "download of one file", _trace_download(Path(folder, "x"))
        line = ["convert", str(path), "x", "--from", "d4rl", "--root", folder, "-q"]
        with patch("offline_data.pipeline.ingest.conversion.Child", _NoChild):
            yield "convert x.hdf5 --from d4rl", traced(lambda: main(line))
        ds = offline_data.load_dataset("local:x", 4, root=folder)
        for _ in range(3):
            ds.sample()
        yield "sample(), steady state", traced(ds.sample)
        depth: list[int] = []

        def run_preprocess() -> None:
            ds.preprocess(_frames_to(depth), num_workers=0, dest=Path(folder, "y"), vectorize=False)

        yield "preprocess(fn, num_workers=0)", traced(run_preprocess)
        out = Path(folder, "z.npz")
        yield (
            "export to npz",
            traced(lambda: offline_data.export(ds, out, to="npz")),
        )
        yield "frames of ours between the call and fn", str(max(depth))


def package_of(path: Path) -> str:
    """Return the package of a product file, or the package that a test's folder is named after."""
    first, *rest = path.relative_to(ROOT).parts
    if first == "offline_data":
        return MODULES if rest == ["__init__.py"] else rest[0].removesuffix(".py")
    return rest[0] if first == "tests" and len(rest) > 1 else first


def count_lines(paths: Iterable[Path]) -> collections.Counter[str]:
    """Count the lines of files by package."""
    found: collections.Counter[str] = collections.Counter()
    for path in paths:
        found[package_of(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def package_sizes() -> dict[str, int]:
    """Return the number of lines of each package, without its tests."""
    return dict(sorted(count_lines(product_files()).items()))


def imports_between_packages(graph: dict[str, set[str]]) -> collections.Counter[tuple[str, str]]:
    """Count the imports of modules of other packages, by importing and imported package."""
    packages = {module_of(path): package_of(path) for path in product_files()}
    pairs = (
        (packages[here], packages[there]) for here, others in graph.items() for there in others
    )
    return collections.Counter(pair for pair in pairs if pair[0] != pair[1])


WORDS = {
    "begin the docstring with a verb or a noun, not with a question word": re.compile(
        r'^\s*"""(What|Where|Who|How|Which)\b'
    ),
    "write `is not a …`, not `is no …`": re.compile(
        r"(?<![Tt]here )\b(is|are) no (?!(longer|more|other|such|less)\b)[a-z]"
    ),
}
"""Patterns of wordings that are not used, by what to write instead."""


def wordings() -> dict[str, list[str]]:
    """Return the places of wordings that are not used, by what to write instead."""
    found: dict[str, list[str]] = {remedy: [] for remedy in WORDS}
    for path in product_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for remedy, pattern in WORDS.items():
                if pattern.search(line):
                    found[remedy].append(f"{path.relative_to(ROOT)}:{number}")
    return found


def print_packages(crossing: collections.Counter[tuple[str, str]]) -> None:
    """Print a line for each package, and their sum."""
    files = product_files()
    lines, tests = count_lines(files), count_lines((ROOT / "tests").rglob("*.py"))
    number = collections.Counter(map(package_of, files))
    columns = ("lines", "recorded", "tests", "files", "imports out", "in")
    print(f"{'package':14}", *(f"{name:>11}" for name in columns))
    rows: dict[str, tuple[int, ...]] = {
        package: (
            lines[package],
            RECORDED.get(package, (0, ""))[0],
            tests.pop(package, 0),
            number[package],
            sum(count for (here, _), count in crossing.items() if here == package),
            sum(count for (_, there), count in crossing.items() if there == package),
        )
        for package in sorted(lines)
    }
    rows["other tests"] = (0, 0, tests.total(), 0, 0, 0)
    rows["sum"] = tuple(map(sum, zip(*rows.values(), strict=True)))
    for package, row in rows.items():
        print(f"{package:14}", *(f"{value:11,}" for value in row))


def print_list(what: str, items: list[str]) -> None:
    """Print a number, and the items that were counted below it."""
    print(f"{what}: {len(items)}", *items, sep="\n  ")


def main() -> None:
    """Print all counts."""
    from tests.test_layers import imports_against_the_order

    graph = import_graph()
    crossing = imports_between_packages(graph)
    print_packages(crossing)
    print_list("imports against the order of tests/test_layers.py", imports_against_the_order())
    packages = {
        package: {there for here, there in crossing if here == package}
        for package in package_sizes()
    }
    print_list("cycles between packages", [" ↔ ".join(cycle) for cycle in cycles(packages)])
    print_list("cycles between modules", [" ↔ ".join(cycle) for cycle in cycles(graph)])
    twice = classes_defined_twice()
    print_list(
        "class names defined twice",
        [f"{name}: {', '.join(places)}" for name, places in twice.items()],
    )
    for remedy, places in wordings().items():
        print_list(remedy, places)
    for what, counts in run_counts():
        print(f"{what}: {counts}")


if __name__ == "__main__":
    main()
