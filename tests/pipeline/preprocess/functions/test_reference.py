from __future__ import annotations

import functools
import importlib
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.errors import UsageError
from offline_data.pipeline.jobs.processes.protocol import dumps
from offline_data.pipeline.preprocess.functions.reference import load_function
from offline_data.pipeline.preprocess.identity import describe_function

pytestmark = pytest.mark.usefixtures("imports_as_before")


def write(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


def test_a_function_of_a_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "some folder" / "fns.py",
        """
        from dataclasses import dataclass

        @dataclass
        class Scale:
            by: "int"
            def __call__(self, x):
                return x * self.by
            def add(self, x):
                return x + self.by

        def double(x):
            return 2 * x

        class tools:
            triple = Scale(3)
        """,
    )
    assert load_function(f"{path}:double")(21) == 42
    assert load_function(f"{path}:tools.triple")(5) == 15
    assert load_function(f"{path}:tools.triple.add")(5) == 8
    assert "fns" not in sys.modules


def test_a_file_is_read_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it was changed within the second, to the same size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for number in range(3):
        path = write(tmp_path / "fns.py", f"def f(x): return x + {number}\n")
        assert load_function(f"{path}:f")(1) == 1 + number
        assert not (path.parent / "__pycache__").exists()


def test_files_of_the_same_name(tmp_path: Path) -> None:
    one = write(tmp_path / "a" / "fns.py", "K = 1\ndef f(x): return x + K\n")
    other = write(tmp_path / "b" / "fns.py", "K = 2\ndef f(x): return x + K\n")
    first, second = load_function(f"{one}:f"), load_function(f"{other}:f")
    assert (first(0), second(0)) == (1, 2)


@pytest.mark.parametrize("name", ["random", "torch", "numpy", "json", "queue", "offline_data"])
def test_a_file_takes_nobodys_place(tmp_path: Path, name: str) -> None:
    """One that is called as a module is no danger to who imports that one, here or in the file."""
    before = sys.modules.get(name)
    path = write(
        tmp_path / f"{name}.py",
        f"import {name} as own\nimport queue\ndef f(x): return own.__name__, queue.Queue\n",
    )
    found, queue = load_function(f"{path}:f")(0)
    assert found == name
    assert queue.__module__ in {"queue", "_queue"}
    assert sys.modules[name] is (before or sys.modules[name])
    assert str(tmp_path) not in (getattr(importlib.import_module(name), "__file__", None) or "")


def test_modules_beside_the_file(tmp_path: Path) -> None:
    write(
        tmp_path / "beside_helper.py",
        "from beside_deeper import ONE\ndef shift(x): return x + ONE\n",
    )
    write(tmp_path / "beside_deeper.py", "ONE = 1\n")
    path = write(
        tmp_path / "fns.py",
        """
        from beside_helper import shift
        def f(x):
            import beside_deeper
            return shift(x) + beside_deeper.ONE
        """,
    )
    assert load_function(f"{path}:f")(1) == 3
    assert sys.path[-1] == str(tmp_path)


def test_what_a_file_defines_travels_whole(tmp_path: Path) -> None:
    """To a process that has never heard of the file, but can import what is beside it."""
    write(tmp_path / "beside_helper.py", "def shift(x): return x + 1\n")
    path = write(
        tmp_path / "random.py",
        """
        import random, beside_helper
        K = 2
        class Scale:
            def __call__(self, x): return beside_helper.shift(x * K) + random.Random(0).random() * 0
        f = Scale()
        def g(x): return f(x)
        """,
    )
    packed = [dumps(load_function(f"{path}:{name}")) for name in ("f", "g")]
    (tmp_path / "packed").write_bytes(pickle.dumps([packed, sys.path]))
    path.unlink()
    program = (
        "import pickle, sys; packed, sys.path[:] = pickle.load(open(sys.argv[1], 'rb'));"
        "print([pickle.loads(one)(5) for one in packed])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "packed")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[11.0, 11.0]\n"


def test_a_function_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed, or of the current folder, which is looked in first."""
    assert load_function("json:loads")("[1]") == [1]
    assert load_function("json:_default_decoder.decode")("[1]") == [1]
    write(tmp_path / "somepackage" / "__init__.py", "")
    write(tmp_path / "somepackage" / "helper.py", "def one(): return 1\n")
    write(
        tmp_path / "somepackage" / "mod.py",
        "from .helper import one\ndef f(x): return x + one()\n",
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_function("json:loads")("[1]") == [1]
    assert sys.path == before  # nothing there that is wanted
    assert load_function("somepackage.mod:f")(1) == 2
    assert sys.path == [str(tmp_path), *before]


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.py", "1 / 0\n")
    with pytest.raises(UsageError) as error:
        load_function(f"{path}:f")
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert "broken" not in sys.modules
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be imported: SyntaxError"):
        load_function(f"{path}:f")


def test_names_of_functions(tmp_path: Path) -> None:
    class Thing:
        def method(self, td: Any) -> None: ...

        def __call__(self, td: Any) -> None: ...

    def local(x: Any) -> Any:
        return x

    assert describe_function(local)["name"] == "local"
    assert describe_function(functools.partial(functools.partial(local, 1)))["name"] == "local"
    assert describe_function(Thing().method)["name"] == "Thing.method"
    assert describe_function(Thing())["name"] == "Thing"
    assert describe_function(lambda x: x)["name"] == "<lambda>"
    assert describe_function(os.path.join)["name"] == "join"
    path = write(tmp_path / "fns.py", "K = 1\ndef f(x): return x + K\n")
    before = describe_function(load_function(f"{path}:f"))
    assert before["name"] == "f"
    assert describe_function(load_function(f"{path}:f")) == before
    other = write(tmp_path / "b" / "other.py", "K = 1\ndef f(x): return x + K\n")
    assert describe_function(load_function(f"{other}:f")) == before  # wherever it is
    write(path, "K = 2\ndef f(x): return x + K\n")
    assert describe_function(load_function(f"{path}:f"))["sha256"] != before["sha256"]


def test_no_torch_is_needed(tmp_path: Path) -> None:
    """Finding a function is quick; the file itself may import what it likes."""
    path = write(tmp_path / "fns.py", "def f(x): return x\n")
    program = (
        "import sys; from offline_data.pipeline.preprocess.functions.reference import *;"
        "from offline_data.pipeline.preprocess.identity import describe_function;"
        f"describe_function(load_function({f'{path}:f'!r})); print('torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    assert done.stdout == "False\n"
