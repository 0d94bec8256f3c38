"""What functions may not be, return or change, with message and hint: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from offline_data.base.errors import OfflineDataError
from offline_data.pipeline.preprocess.functions.reference import load_function
from offline_data.testing.chunks import toy_chunk, with_leaves
from tests.pipeline.preprocess.functions.loops import Fn, ready, run
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))

NAMES = {"np": np, "torch": torch, "TensorDict": TensorDict, "NonTensorData": NonTensorData}
CODES = {"observation.said": (np.arange(17) % 3 - 1).astype(np.int32)}
CHUNK = with_leaves(
    toy_chunk([4, 1, 5, 3], first_episode=1, unknown_final=[2, 3]),
    observations=CODES,
    words={"observation.said": ["yes", "no"]},
)


def fn_of(text: str) -> Fn:
    fn: Fn = eval(f"lambda td: {text}", NAMES)  # noqa: S307
    return fn


def running(chunk: Any = CHUNK, **calling: Any) -> Callable[[str], object]:
    return lambda text: run(fn_of(text), chunk, **calling)


def late(row: int) -> Callable[[str], object]:
    """Run a function that gives something else for one row."""
    chunk = toy_chunk([40])

    def call(text: str) -> object:
        fn = fn_of(text)
        return run(
            lambda td: fn(td) if td["index"] == row else {"a": td["action"]}, chunk, vectorize=False
        )

    return call


def later_rows(text: str) -> object:
    """Apply the step of a function of blocks to rows that it has not met."""
    return ready(fn_of(text), CHUNK, batched=4).apply(replace(CHUNK, rows=CHUNK.rows + 1000))


def imported(source: str) -> object:
    path = Path("module.py")
    path.write_text(source)
    return load_function(f"{path.absolute()}:f")


KINDS: dict[str, Callable[[str], object]] = {
    "result": running(toy_chunk([1])),
    "row 1": late(1),
    "row 39": late(39),
    "rows": running(),
    "rows, one by one": running(vectorize=False),
    "blocks": running(batched=4),
    "later blocks": later_rows,
    "episodes": running(by="episode"),
    "observations": running(on="observations"),
    "observations, one by one": running(on="observations", vectorize=False),
    "references": load_function,
    "modules": imported,
}

FILES = {
    "fns.py": "NUMBER = 3\ndef double(x): return x\nclass Tools:\n    def triple(self): pass\n",
    "fns.txt": "",
    "beside_broken.py": "def g():\n    return {}['x']\nVALUE = g()\n",
    "textwrap.py": "MINE = 1\n",
    "broken_module.py": "1 / 0\n",
    "ending_module.py": "raise SystemExit(2)\n",
    "broken_package/__init__.py": "import no_such_package\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a folder with modules the current one; nothing that a test imports stays."""
    folder = tmp_path_factory.mktemp("here")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@REFUSALS.cases
def test_refusals(kind: str, text: str, folder: Path, imports_as_before: None) -> None:
    def brief() -> None:
        """Of a traceback leave the files alone: Python's versions differ in the rest."""
        try:
            KINDS[kind](text)
        except OfflineDataError as error:
            kept = rf'\n(?! *File "({re.escape(str(folder))}|<string>))[^\n]*'
            error.message = re.sub(kept, "", error.message)
            raise

    names: dict[object, str] = {folder: "FOLDER", textwrap.__file__: "TEXTWRAP"}
    REFUSALS.check(kind, text, brief, names)
