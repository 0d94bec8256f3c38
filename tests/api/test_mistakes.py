"""What newcomers write in Python, and the sentence that answers: the cases are the lines of `mistakes.json`.

They are by the class that a script catches, which the error is; each says what to do next.
"""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import offline_data
from offline_data.errors import OfflineDataError
from offline_data.testing.toy import toy_batch
from tests.refusals import REFUSED, Refusals
from tests.toys.stored import write_stored

MISTAKES = Refusals(Path(__file__).with_name("mistakes.json"))
NEXT_STEP = re.compile(r"; (?!None$)\w+|expected|there (are|is one)|\| (?!None$)")
"""A hint, or what there is instead of what was found."""


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, batch: Any) -> Any:
        return batch


def arrays(width: int = 2) -> dict[str, Any]:
    rows = np.arange(12.0, dtype=np.float32)
    return {
        "observations": np.repeat(rows[:, None], 3, axis=1),
        "actions": np.repeat(rows[:, None], width, axis=1),
        "rewards": rows,
        "terminals": rows % 4 == 3,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root of three datasets, and files of other kinds."""
    made = tmp_path_factory.mktemp("mistakes")
    write_stored(made / "root", "local:arm@1", toy_batch([3, 2], text=True, images=True))
    for name, width in (("pen", 2), ("door", 3)):
        offline_data.convert(arrays(width), name, root=made / "root", progress=False)
    np.savez(made / "rec.npz", obs=np.ones((4, 2)), act=np.ones((4, 1)), rew=np.ones(4))
    for place in ("empty", "full"):
        (made / place).mkdir()
    (made / "full" / "notes.txt").write_text("x")
    return made


@pytest.fixture(scope="module")
def names(folder: Path) -> dict[str, Any]:
    def load(name: str = "pen", **options: Any) -> Any:
        return offline_data.load_dataset(f"local:{name}", root=folder / "root", **options)

    def closed() -> Any:
        recorder = offline_data.Recorder(gymnasium.make("CartPole-v1"), "mine", progress=False)
        recorder.close()
        return recorder

    own = {
        "ds": load(),
        "arm": load("arm"),
        "load": load,
        "arrays": arrays,
        "Scale": Scale,
        "closed": closed,
    }
    return {**own, "offline_data": offline_data, "torch": torch, "HERE": folder}


@MISTAKES.cases
def test_a_mistake_is_answered_by_what_to_do_next(
    kind: str,
    text: str,
    names: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(folder / "root"))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    monkeypatch.chdir(folder)
    before = {*folder.rglob("manifest.json")}
    with pytest.raises(REFUSED) as caught:
        eval(text, dict(names))  # noqa: S307 - of this repository
    assert isinstance(caught.value, getattr(builtins, kind, OfflineDataError))
    assert str(caught.value) == getattr(caught.value, "message", str(caught.value))
    MISTAKES.check(kind, text, lambda: _raise(caught.value), {folder: "HERE"})
    assert NEXT_STEP.search(str(MISTAKES.known[kind][text]))
    assert {*folder.rglob("manifest.json")} == before


def _raise(error: BaseException) -> None:
    raise error
