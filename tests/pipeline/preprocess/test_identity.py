"""Functions are told apart by all that they are made of, and what cannot be told apart is made again."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import os
import random
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import offline_data
from offline_data.base.config import resolve_settings
from offline_data.base.errors import UsageError
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.identity import (
    UnknownIdentityError,
    describe_function,
    digest_of,
    is_own,
)
from offline_data.pipeline.preprocess.job import Job
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.worker import plan_job
from tests.pipeline.preprocess.runs import InOrder, Notes, write_plain

BASE = """
    import math
    import helpers
    SCALE = 2
    UNUSED = 5
    TABLE = {"a": [1, 2], "b": {"x", "y", "z"}}

    class Shift:
        by = 1
        def __call__(self, x):
            return x + self.by

    SHIFT = Shift()

    def inner(x):
        return x * SCALE

    def unrelated(x):
        return x - 1

    def fn(x, add=1, *, more=2):
        def local(y):
            return [inner(z) for z in y]
        if x in {"p", "q", "r"}:
            return math.sqrt(TABLE["a"][0])
        return helpers.shift(SHIFT(sum(local([x])))) + add * more
"""


def digest(source: str, name: str = "fn", helpers: str = "def shift(x): return x + 1") -> str:
    """Run a module of the user's, which is in no file, and digest what it defines."""
    other = ModuleType("helpers")
    exec(textwrap.dedent(helpers), other.__dict__)  # noqa: S102
    sys.modules["helpers"] = other
    try:
        module: dict[str, Any] = {"__name__": "users"}
        exec(textwrap.dedent(source), module)  # noqa: S102
        return digest_of(module[name])
    finally:
        del sys.modules["helpers"]


CHANGES = [
    ("x * SCALE", "x * SCALE + 0"),  # a function that is called
    ("x * SCALE", "x + SCALE"),
    ("SCALE = 2", "SCALE = 3"),  # a value that it uses
    ("SCALE = 2", "SCALE = 2.0"),
    ("SCALE = 2", "SCALE = True"),
    ("by = 1", "by = 2"),  # a class
    ("x + self.by", "x - self.by"),
    ("SHIFT = Shift()", "SHIFT = Shift(); SHIFT.by = 7"),  # an object
    ("add=1", "add=3"),  # defaults
    ("more=2", "more=3"),
    ('"q", "r"', '"q", "s"'),  # constants
    ('"a": [1, 2]', '"a": [1, 3]'),
    ('{"x", "y", "z"}', '{"x", "y", "w"}'),
    ("[inner(z) for z in y]", "[inner(z) for z in y if z]"),  # functions inside
    ("math.sqrt", "math.cbrt"),  # names of what is installed
    ("helpers.shift", "helpers.other"),
    ("+ add", "- add"),
]
NO_CHANGES = [
    ("UNUSED = 5", "UNUSED = 6"),
    ("x - 1", "x - 2"),  # a function that is not called
    ("SCALE = 2", "\n\n\n    SCALE = 2  # a comment"),
    ('{"x", "y", "z"}', '{"z", "x", "y"}'),
    ("class Shift:", "class Shift:\n        '''Shifts.'''"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES + NO_CHANGES)
def test_what_is_a_change(old: str, new: str) -> None:
    assert old in BASE
    assert (digest(BASE.replace(old, new)) != digest(BASE)) == ((old, new) in CHANGES)


def test_other_modules_of_the_users() -> None:
    """Those that are not installed count with their code, as far as they are used."""
    assert digest(BASE, helpers="def shift(x): return x + 2") != digest(BASE)
    same = "def shift(x): return x + 1\n\ndef nobody(x): return x"
    assert digest(BASE, helpers=same) == digest(BASE)
    deep = "ONE = 1\n\ndef shift(x): return x + ONE"
    assert digest(BASE, helpers=deep) != digest(BASE, helpers=deep.replace("ONE = 1", "ONE = 2"))


def make(k: Any) -> Callable[[Any], Any]:
    return lambda x: x * k


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Settings:
    a: int
    many: list[int] = field(default_factory=list)


def cyclic(value: int) -> Any:
    out: list[Any] = [value]
    out.append({"self": out})
    return out


def with_attribute(value: int) -> Any:
    fn = make(1)
    fn.kept = value  # type: ignore[attr-defined]
    return fn


def seeded(kind: Any, seed: int) -> Any:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator if kind is torch.Generator else kind(seed)


VALUES: dict[str, Callable[[int], Any]] = {
    "closure": make,
    "closure of a tensor": lambda n: make(torch.full((2,), n)),
    "closure of an array": lambda n: make(np.full(2, n)),
    "closure of objects": lambda n: make(np.array(["a", n], object)),
    "partial": lambda n: functools.partial(make, n),
    "partial of keywords": lambda n: functools.partial(make, k=n),
    "bound method": lambda n: Settings(n).__repr__,
    "attribute": with_attribute,
    "object": Settings,
    "nested object": lambda n: {"deep": [(Settings(1, [n]),)]},
    "enum": lambda n: [Colour(n)],
    "set": lambda n: {"a", ("b", n)},
    "dict": lambda n: {"a": n},
    "range": range,
    "slice": lambda n: slice(n),
    "bytes": lambda n: b"x" * n,
    "cycle": cyclic,
    "count": itertools.count,
    "default_rng": lambda n: seeded(np.random.default_rng, n),
    "RandomState": lambda n: seeded(np.random.RandomState, n),
    "Random": lambda n: seeded(random.Random, n),
    "torch.Generator": lambda n: seeded(torch.Generator, n),
    "module": lambda n: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout(n / 10)),
    "parameters": lambda n: torch.nn.ParameterList([torch.full((2,), float(n))]),
    "bfloat16": lambda n: torch.full((2,), n, dtype=torch.bfloat16),
    "complex": lambda n: torch.full((2,), n * 1j).conj(),
    "tensordict": lambda n: TensorDict({"a": torch.full((2,), n)}),
    "path": lambda n: Path(str(n)),
    "strided": lambda n: np.arange(6 * n)[::-n],
    "dates": lambda n: np.array([f"202{n}-01-01"], "M8[D]"),
    "words": lambda n: np.array(["a", "b" * n]),
    "structured": lambda n: np.array([(n, 2.0)], [("a", int), ("b", float)]),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_values_are_told_apart(name: str) -> None:
    value = VALUES[name]
    assert digest_of(value(1)) == digest_of(value(1))
    assert digest_of(value(1)) != digest_of(value(2))


def test_functions_that_are_wrapped() -> None:
    """Caches, properties, methods of a class, compiled functions: their code counts."""

    def source(number: int) -> str:
        return f"""
            import functools
            @functools.lru_cache
            def cached(x): return x + {number}
            class Thing:
                @functools.cached_property
                def one(self): return {number}
                @property
                def two(self): return {number}
                @staticmethod
                def three(): return {number}
                @classmethod
                def four(cls): return {number}
            def of_cached(x): return cached(x)
            def of_thing(x): return Thing
        """

    for name in ("cached", "of_cached", "Thing", "of_thing"):
        assert digest(source(1), name) == digest(source(1), name)
        assert digest(source(1), name) != digest(source(2), name)
    for kept in ("one(self)", "two(self)", "three()", "four(cls)"):
        other = source(1).replace(f"{kept}: return 1", f"{kept}: return 2")
        assert digest(other, "Thing") != digest(source(1), "Thing")


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_kinds_of_values_are_told_apart() -> None:
    values: list[Any] = [
        0, 0.0, -0.0, False, None, "", b"", "0", (), [], {}, set(), frozenset(), 0j, math.nan, math.inf,
        [0], (0,), {0}, {0: 0}, [[], []], [[[]]], np.zeros(1), np.zeros((1, 1)), np.zeros(1, np.int64), np.zeros(0), np.zeros(()),
        torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, dtype=torch.float64), ..., int, float,
        np.float64, math, os, len, math.sqrt, "é", "\ud800", [1, [2]], [[1], 2], ["a", "b"], ["ab"],
    ]  # fmt: skip
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values)


class Refuses:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no")


class Holds:
    def __init__(self, what: Any) -> None:
        self.what = [what]

    def __call__(self, td: Any) -> Any:
        return td


def nested(times: int) -> Any:
    deep: list[Any] = []
    for _ in range(times):
        deep = [deep]
    return deep


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and still in use
        return torch.jit.script(_double)


UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "file": (lambda: sys.__stdout__, "'k' is a _io.TextIOWrapper"),
    "generator": (lambda: (n for n in range(3)), "'k' is a builtins.generator"),
    "in a list": (lambda: [sys.__stdout__], "'k' holds a _io.TextIOWrapper"),
    "in an object": (lambda: Holds(sys.__stdout__), "'k' holds a _io.TextIOWrapper"),
    "refuses": (Refuses, f"'k' is a {__name__}.Refuses"),
    "too deep": (lambda: nested(5000), "it holds hundreds of objects inside each other"),
    "no values": (lambda: torch.zeros(2, device="meta"), "'k' holds a tensor of layout"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "'k' holds a tensor of layout"),
    "thread": (threading.current_thread, "'k' holds a "),
    "compiled": (scripted, "'k' is a torch.jit."),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_told_apart_is_never_the_same(name: str) -> None:
    value, why = UNKNOWN[name]
    held = value()
    for fn in (make(held), lambda td, k=held: td):  # noqa: ARG005
        with pytest.raises(UnknownIdentityError):
            digest_of(fn)
        assert describe_function(fn) != describe_function(fn)
    assert describe_function(make(held))["unknown"].startswith(why)


def test_modules_that_are_closed_over() -> None:
    """What a function uses of its own modules counts, however it reaches them."""
    digests = set()
    for value in (1, 2, 1):
        module = ModuleType("users_constants")
        module.VALUE = value  # type: ignore[attr-defined]
        module.inner = ModuleType("users_constants.inner")  # type: ignore[attr-defined]
        module.inner.VALUE = value

        def closed(x: Any, module: Any = module) -> Any:
            def fn(y: Any) -> Any:
                return y * module.VALUE

            return fn

        def default(x: Any, module: Any = module) -> Any:
            return x * module.inner.VALUE

        digests.add((digest_of(closed(1)), digest_of(default)))
    assert len(digests) == 2


def test_empty_cells_and_missing_names() -> None:
    def fn(x: Any) -> Any:
        return later + x + nowhere  # type: ignore[name-defined] # noqa: F821

    assert len(digest_of(fn)) == 64
    later = 3
    assert later == 3


def test_equal_constants_need_not_be_one_object() -> None:
    """Classes that were pickled by value get functions with constants of their own."""
    pair, equal = (1, (2,)), (1, (int("2"),))
    letters, same = frozenset("ab"), frozenset("ba")
    assert pair is not equal
    assert letters is not same
    assert digest_of([pair, pair]) == digest_of([pair, equal])
    assert digest_of([letters, letters]) == digest_of([letters, same])
    around: tuple[list[Any]] = ([],)
    around[0].append(around)
    assert digest_of(around) == digest_of(around)


def test_the_generators_of_all_do_not_count() -> None:
    """Their state is the process's, and every row begins with its own."""
    found = []
    for _ in range(2):
        found.append(digest_of([np.random.rand, random.random, torch.default_generator]))
        np.random.rand()  # noqa: NPY002
        random.random()  # noqa: S311
        torch.rand(1)
    assert found[0] == found[1]


def test_installed_packages_count_by_name() -> None:
    from numpy.lib import scimath

    assert digest_of(make(scimath.sqrt)) != digest_of(make(scimath.log))
    assert not is_own("numpy.lib.scimath", "")
    assert is_own("numpy.lib.scimath", "numpy")
    assert not is_own("offline_data.base.errors", "")
    assert is_own(__name__, "")
    assert is_own("__main__", "")
    assert is_own("no.such.module", "")
    assert not is_own("itertools", "")


PROGRAM = """
import sys, json, math, random, functools
import numpy as np
sys.path.insert(0, sys.argv[1])
import users
from offline_data.pipeline.preprocess.identity import describe_function
print(describe_function(users.fn)["sha256"])
if len(sys.argv) > 2:
    import torch
    import torchrl.envs.transforms as T
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    scale = T.RewardScaling(loc=0.0, scale=0.5, in_keys=[("next", "reward")])
    cat = T.CatTensors(in_keys=["a", "b"], out_key="c", del_keys=False)
    print(describe_function(functools.partial(layer))["sha256"])
    print(describe_function(T.Compose(scale, cat, T.DoubleToFloat()))["sha256"])
"""


def _program(folder: Path, seed: str, *more: str) -> str:
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder), *more]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout


def test_the_same_in_every_process(tmp_path: Path) -> None:
    """Wherever the file is, and however the process hashes."""
    found = set()
    for number in ("0", "7"):
        folder = tmp_path / number
        folder.mkdir()
        (folder / "users.py").write_text(textwrap.dedent(BASE))
        (folder / "helpers.py").write_text("def shift(x): return x + 1\n")
        found.add(_program(folder, number))
    assert len(found) == 1


@pytest.mark.slow
def test_objects_of_torch_are_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(textwrap.dedent(BASE))
    (tmp_path / "helpers.py").write_text("def shift(x): return x + 1\n")
    first, again = (_program(tmp_path, seed, "torch") for seed in ("1", "2"))
    assert first == again
    assert len(set(first.split())) == 3


@pytest.fixture
def ds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Five episodes, which can be five tasks."""
    monkeypatch.setattr(planning, "GROUP_BYTES", 1)
    return offline_data.open_dataset(write_plain(tmp_path / "toy", [4] * 5))


class Handle:
    """An object that cannot be pickled, and looks like every other one."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


def counting(n: float) -> Any:
    while True:
        yield n


def giving(held: Any, number: Callable[[Any], Any] = lambda held: held[0]) -> Callable[[Any], Any]:
    """Return a function that sets actions to a number of an object that it holds."""
    return lambda td: td.set("action", td["action"] * 0 + float(number(held)))


def of_hdf5(folder: Path, number: float) -> Any:
    file = h5py.File(folder / f"{number}.h5", "w")
    return giving(file.create_dataset("x", data=[number]))


def of_object(_: Path, number: float) -> Any:
    return giving([Handle(number)], lambda held: held[0].number)


def actions(path: Path) -> Any:
    return np.unique(offline_data.open_dataset(path)[:]["action"].numpy()).tolist()


@pytest.mark.parametrize("make", [of_hdf5, of_object])
def test_it_is_not_used_again(ds: Any, tmp_path: Path, make: Callable[[Path, float], Any]) -> None:
    one, other = make(tmp_path, 1), make(tmp_path, 2)
    ds.preprocess(one, dest=tmp_path / "out")
    for fn in (other, one):
        with pytest.raises(UsageError, match=r"another dataset.*has no fingerprint") as error:
            ds.preprocess(fn, dest=tmp_path / "out")
        assert "--force" in str(error.value.shell_hint)
    ds.preprocess(other, dest=tmp_path / "out", force=True)
    assert actions(tmp_path / "out") == [2.0]
    place: dict[str, Any] = {"name": "new", "root": tmp_path / "root"}
    ds.preprocess(one, **place)
    with pytest.raises(UsageError, match=r"made by another recipe.*has no fingerprint"):
        ds.preprocess(one, **place)
    notes = offline_data.open_dataset(tmp_path / "out").manifest.notes
    assert "its results are not reused" in str(notes)


def test_it_is_not_resumed(ds: Any, tmp_path: Path) -> None:
    one, other = (giving(counting(n), lambda held: held.gi_frame.f_locals["n"]) for n in (1.0, 2.0))
    with pytest.raises(KeyboardInterrupt, match=r"nothing is kept.*has no fingerprint"):
        ds.preprocess(one, dest=tmp_path / "out", chunksize=4, engine=InOrder(3))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    ds.preprocess(other, dest=tmp_path / "out", chunksize=4, resume=True)
    assert actions(tmp_path / "out") == [2.0]


GLOBAL = [0.0]


def by_global(td: Any) -> Any:
    return td.set("action", td["action"] * 0 + GLOBAL[0])


def test_a_function_with_other_values_is_another_one(ds: Any, tmp_path: Path) -> None:
    out, two = tmp_path / "out", tmp_path / "two"
    GLOBAL[0] = 1.0
    for _ in range(2):
        ds.preprocess(by_global, dest=out)
    assert actions(out) == [1.0]
    GLOBAL[0] = 2.0
    with pytest.raises(UsageError, match="another dataset"):
        ds.preprocess(by_global, dest=out)
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        ds.preprocess(by_global, dest=two, chunksize=4, engine=InOrder(3))
    GLOBAL[0] = 3.0
    with pytest.raises(UsageError, match="another recipe"):
        ds.preprocess(by_global, dest=two, chunksize=4, resume=True)
    GLOBAL[0] = 2.0
    ds.preprocess(by_global, dest=two, chunksize=4, resume=True)
    assert actions(two) == [2.0]


def test_steps_of_the_users_own(ds: Any, tmp_path: Path) -> None:
    """Their code counts too."""

    def step(by: float) -> Step:
        class Times(Step):
            name = "times"

            def describe(self) -> dict[str, Any]:
                return {"step": "times"}

            def apply(self, chunk: Any) -> Any:
                steps = {**chunk.batch.steps, ("action",): chunk.batch.steps["action",] * 0 + by}
                return chunk.having(steps=steps)

        return Times()

    for _ in range(2):
        ds.preprocess(step(1), dest=tmp_path / "out")
    with pytest.raises(UsageError, match="another dataset"):
        ds.preprocess(step(2), dest=tmp_path / "out")
    assert actions(tmp_path / "out") == [1.0]


def test_it_cannot_be_planned_for_other_programs(ds: Any, tmp_path: Path) -> None:
    (tmp_path / "fns.py").write_text(
        f"import h5py\nX = h5py.File({str(tmp_path / 'x.h5')!r}, 'a')\n"
        "def fn(td):\n    X.filename\n    return td\n"
    )
    order = Job(ds.data_path, (f"fn:{tmp_path}/fns.py:fn",), None, tmp_path / "out")
    settings = resolve_settings(root=tmp_path / "root")
    with pytest.raises(UsageError, match=r"'X' is a h5py.*other programs"):
        plan_job(order, tmp_path / "plan.json", settings)
    preprocess(order, settings)


@pytest.mark.parametrize("named", [False, True])
def test_what_is_not_the_datasets_stays(ds: Any, tmp_path: Path, named: bool) -> None:
    """A user's own files in a directory that is replaced by force are kept, and named."""
    place: dict[str, Any] = {"name": "new", "root": tmp_path / "root"}
    place = place if named else {"dest": tmp_path / "out"}
    first, told = ds.preprocess(giving([1.0]), **place).reader.path, Notes()
    (first / "notes.txt").write_text("mine")
    (first / "plots").mkdir()
    (first / "plots" / "a.png").write_text("mine too")
    ds.preprocess(giving([2.0]), **place, force=True, progress=told)
    found = sorted(tmp_path.rglob("notes.txt")) + sorted(tmp_path.rglob("a.png"))
    assert [path.read_text() for path in found] == ["mine", "mine too"]
    assert all(any(str(path) in note for note in told.notes) for path in found), told.notes
    assert not (first / "manifest.json").exists() or not named
