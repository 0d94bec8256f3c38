"""What another function made is never returned or resumed in the place of this one's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import offline_data
from offline_data.errors import UsageError
from offline_data.preprocess import plan as planning
from offline_data.preprocess.order import carry_out
from offline_data.preprocess.steps.base import Step
from offline_data.progress import SilentProgress
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [4] * 10


@pytest.fixture
def ds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ten episodes, which can be ten tasks."""
    monkeypatch.setattr(planning, "GROUP_BYTES", 1)
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS)])
    return offline_data.open_dataset(tmp_path / "toy")


class Handle:
    """An object that cannot be pickled, and looks like every other one."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


def held_in_hdf5(folder: Path, number: float) -> Any:
    return h5py.File(folder / f"{number}.h5", "w").create_dataset("x", data=[number])


UNKNOWN: dict[str, Callable[[Path, float], Callable[[Any], Any]]] = {
    "h5py": lambda folder, n: _by(held_in_hdf5(folder, n)),
    "object": lambda _, n: _by([Handle(n)], lambda held: held[0].number),
    "generator": lambda _, n: _by(_counting(n), lambda held: held.gi_frame.f_locals["n"]),
}


def _counting(n: float) -> Any:
    while True:
        yield n


def _by(held: Any, number: Callable[[Any], Any] = lambda held: held[0]) -> Callable[[Any], Any]:
    return lambda td: td.set("action", td["action"] * 0 + float(number(held)))


def actions(path: Path) -> Any:
    return np.unique(offline_data.open_dataset(path)[:]["action"].numpy())


@pytest.mark.parametrize("name", UNKNOWN)
def test_it_is_not_used_again(ds: Any, tmp_path: Path, name: str) -> None:
    make, root = UNKNOWN[name], tmp_path / "root"
    one, other = make(tmp_path, 1), make(tmp_path, 2)
    ds.preprocess(one, dest=tmp_path / "out")
    for fn in (other, one):
        with pytest.raises(UsageError, match=r"another dataset.*cannot be told apart") as error:
            ds.preprocess(fn, dest=tmp_path / "out")
        assert "--force" in str(error.value.hint)
    ds.preprocess(other, dest=tmp_path / "out", force=True)
    assert actions(tmp_path / "out").tolist() == [2.0]
    ds.preprocess(one, name="new", root=root)
    with pytest.raises(UsageError, match=r"made by another recipe.*cannot be told apart"):
        ds.preprocess(one, name="new", root=root)
    assert "neither used again nor resumed" in str(
        offline_data.open_dataset(tmp_path / "out").manifest.notes
    )


class Stops:
    """Runs some tasks, and is interrupted."""

    name, shards = "stops", False

    def run(self, job: Any, tasks: Any, progress: Any) -> Any:  # noqa: ARG002
        for number, task in enumerate(tasks):
            if number == 3:
                raise KeyboardInterrupt
            yield number, job(task)


@pytest.mark.parametrize("name", UNKNOWN)
def test_it_is_not_resumed(ds: Any, tmp_path: Path, name: str) -> None:
    make = UNKNOWN[name]
    one, other = make(tmp_path, 1), make(tmp_path, 2)
    with pytest.raises(KeyboardInterrupt, match=r"nothing is kept.*cannot be told apart"):
        ds.preprocess(one, dest=tmp_path / "out", chunksize=4, engine=Stops())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    ds.preprocess(other, dest=tmp_path / "out", chunksize=4, resume=True)
    assert actions(tmp_path / "out").tolist() == [2.0]


def known(number: float) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    def with_default(td: Any, n: float = number) -> Any:
        return td.set("action", td["action"] * 0 + n)

    array = np.array([number])
    tensor = torch.tensor([number], dtype=torch.float64)
    return {
        "closure": (lambda td: td.set("action", td["action"] * 0 + number), lambda x: x),
        "array": (lambda td: td.set("action", td["action"] * 0 + float(array[0])), lambda x: x),
        "tensor": (lambda td: td.set("action", td["action"] * 0 + tensor.item()), lambda x: x),
        "default": (with_default, lambda x: x),
        "global": (by_global, lambda _: GLOBAL.__setitem__(0, number)),
    }  # fmt: skip


GLOBAL = [0.0]


def by_global(td: Any) -> Any:
    return td.set("action", td["action"] * 0 + GLOBAL[0])


@pytest.mark.parametrize("name", known(0))
def test_what_is_told_apart(ds: Any, tmp_path: Path, name: str) -> None:
    """The same function is; the same with other values is another one."""
    for number, resume in ((1.0, False), (1.0, False), (2.0, True)):
        fn, prepare = known(number)[name]
        prepare(None)
        if number == 1.0:
            ds.preprocess(fn, dest=tmp_path / "out")
            assert actions(tmp_path / "out").tolist() == [1.0]
            continue
        with pytest.raises(UsageError, match="another dataset"):
            ds.preprocess(fn, dest=tmp_path / "out")
        with pytest.raises(KeyboardInterrupt, match="--resume"):
            ds.preprocess(fn, dest=tmp_path / "two", chunksize=4, engine=Stops())
        other, prepare = known(3.0)[name]
        prepare(None)
        with pytest.raises(UsageError, match="another recipe"):
            ds.preprocess(other, dest=tmp_path / "two", chunksize=4, resume=resume)
        fn, prepare = known(number)[name]
        prepare(None)
        ds.preprocess(fn, dest=tmp_path / "two", chunksize=4, resume=resume)
        assert actions(tmp_path / "two").tolist() == [2.0]


def test_steps_of_the_users_own(ds: Any, tmp_path: Path) -> None:
    """Their code counts too."""

    def step(by: float) -> Step:
        class Times(Step):
            name = "times"

            def describe(self) -> dict[str, Any]:
                return {"step": "times"}

            def apply(self, piece: Any) -> Any:
                steps = {**piece.batch.steps, ("action",): piece.batch.steps["action",] * 0 + by}
                return piece.having(steps=steps)

        return Times()

    ds.preprocess(step(1), dest=tmp_path / "out")
    ds.preprocess(step(1), dest=tmp_path / "out")
    with pytest.raises(UsageError, match="another dataset"):
        ds.preprocess(step(2), dest=tmp_path / "out")
    assert actions(tmp_path / "out").tolist() == [1.0]


def test_a_step_that_is_given_a_function(ds: Any, tmp_path: Path) -> None:
    from offline_data.preprocess.functions.step import FunctionStep

    ds.preprocess(FunctionStep(known(1.0)["closure"][0]), dest=tmp_path / "out")
    with pytest.raises(UsageError, match="another dataset"):
        ds.preprocess(FunctionStep(known(2.0)["closure"][0]), dest=tmp_path / "out")


def test_it_cannot_be_planned_for_other_programs(ds: Any, tmp_path: Path) -> None:
    from offline_data.config import resolve_settings
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.order import Order
    from offline_data.preprocess.shared_planning import plan_shared
    from offline_data.preprocess.spec import Calling

    (tmp_path / "fns.py").write_text(
        f"import h5py\nX = h5py.File({str(tmp_path / 'x.h5')!r}, 'a')\n"
        "def fn(td):\n    X.filename\n    return td\n"
    )
    order = Order(
        ds.data_path, (f"fn:{tmp_path}/fns.py:fn",), Calling(), None, tmp_path / "out", Options()
    )
    settings = resolve_settings(root=tmp_path / "root")
    with pytest.raises(UsageError, match=r"'X' is a h5py.*other programs"):
        plan_shared(order, tmp_path / "plan.json", settings)
    carry_out(order, settings)


@pytest.mark.parametrize("named", [False, True])
def test_what_is_not_the_datasets_stays(ds: Any, tmp_path: Path, named: bool) -> None:
    """A user's own files in a directory that is replaced by force are kept, and named."""
    notes: list[str] = []

    class Told(SilentProgress):
        def note(self, message: str) -> None:
            notes.append(message)

    place: dict[str, Any] = {"name": "new", "root": tmp_path / "root"}
    place = place if named else {"dest": tmp_path / "out"}
    first = ds.preprocess(known(1.0)["closure"][0], **place).reader.path
    (first / "notes.txt").write_text("mine")
    (first / "plots").mkdir()
    (first / "plots" / "a.png").write_text("mine too")
    ds.preprocess(known(2.0)["closure"][0], **place, force=True, progress=Told())
    found = sorted(tmp_path.rglob("notes.txt")) + sorted(tmp_path.rglob("a.png"))
    assert [path.read_text() for path in found] == ["mine", "mine too"]
    assert all(any(str(path) in note for note in notes) for path in found), notes
    assert not (first / "manifest.json").exists() or not named
