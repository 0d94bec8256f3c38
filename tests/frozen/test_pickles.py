"""Pickles and digests of this package's objects name public modules only, and stored ones still load.

`OFFLINE_DATA_FREEZE=1 pytest tests/frozen` writes the files of `pickles` anew.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import offline_data as od
from offline_data.base import errors, pickles
from offline_data.pipeline.preprocess.identity import digest_of
from offline_data.pipeline.preprocess.steps.registry import parse_step, step_class, step_names
from tests.frozen import values
from tests.frozen.recorded import compare

STORED = Path(__file__).parent / "pickles"
PLAIN = {"builtins", "collections", "functools", "offline_data", "pathlib", "torch"}
"""Modules that stored pickles may name: `torch` for a device; inner ones of torch and numpy differ between versions."""


def modules_in(data: bytes) -> set[str]:
    """Return the modules that a pickle of protocol 4 names."""
    seen: list[Any] = []
    memo: list[Any] = []
    found = set()
    for code, argument, _ in pickletools.genops(data):
        if code.name == "MEMOIZE":
            memo.append(seen[-1])
            continue
        if code.name == "STACK_GLOBAL":
            found.add(seen[-2])
        known: Any = argument
        seen.append(memo[known] if code.name in {"BINGET", "LONG_BINGET"} else known)
    return found


Make = Callable[[Path], Any]
SAMPLERS = values.samplers()


def _dataset(make: Callable[[], Any], folder: Path) -> Any:
    return values._loaded(folder, make())


def _derived(make: Callable[[], Any], folder: Path) -> Any:
    return values._loaded(folder, derived=[make()])


def _growing(storage: str, sampler: str, folder: Path) -> Any:
    rows = values._loaded(folder)[:].exclude("index")
    buffer = od.TensorDictReplayBuffer(
        storage=getattr(od, storage)(29), sampler=SAMPLERS[sampler](), batch_size=6
    )
    buffer.extend(TensorDict(rows.to_dict(), [len(rows)])[:20])
    buffer.sample()
    return buffer


def _plain(name: str, _: Path) -> Any:
    return getattr(od, name)()


def _step(text: str, _: Path) -> Any:
    return parse_step(text)


def _error(kind: Callable[..., Any], _: Path) -> Any:
    return kind("what failed", hint="what to do")


def _reward_data(_: Path) -> Any:
    make: Any = od.RewardData
    return make(torch.zeros(1, 2), torch.zeros(1, 2), batch_size=[1])


def _mixture(folder: Path) -> Any:
    mixture = od.DatasetMixture(*values._pair(folder), weights=[0.3, 0.7], batch_size=6)
    mixture.sample()
    return mixture


def _exported(folder: Path) -> Any:
    root = values._toy(folder).parents[2]
    return od.export("local:toy", folder / "toy.h5", to="d3rlpy", root=root)


def _inspected(folder: Path) -> Any:
    _exported(folder)
    return od.inspect_files(folder / "toy.h5")


def _prefetching(folder: Path) -> Any:
    buffer = values._loaded(folder, prefetch=1)
    buffer.sample()
    return buffer


OBJECTS: dict[str, Make] = {
    **{f"dataset, {name}": partial(_dataset, make) for name, make in SAMPLERS.items()},
    **{f"derived, {name}": partial(_derived, make) for name, make in values.DERIVED.items()},
    **{
        f"{storage}, {name}": partial(_growing, storage, name)
        for storage in ("LazyTensorStorage", "LazyMemmapStorage", "ListStorage", "LazyStackStorage")
        for name in ("RandomSampler", "PrioritizedSliceSampler")
    },
    **{
        name: partial(_plain, name)
        for name in (
            *("ImmutableDatasetWriter", "RoundRobinWriter", "TensorDictMaxValueWriter"),
            *("TensorDictRoundRobinWriter", "Flat2TED", "TED2Flat"),
        )
    },
    **{f"step, {name}": partial(_step, step_class(name).example) for name in step_names()},
    **{
        name: partial(_error, kind)
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.OfflineDataError)
    },
    "normalize by quantiles": partial(_derived, lambda: od.normalize(by="quantile")),
    "prefetch": _prefetching,
    "filter": lambda to: values._loaded(to).filter("length >= 3"),
    "subset": lambda to: values._loaded(to).subset(torch.arange(9)),
    "split": lambda to: values._loaded(to).split(train=0.6, val=0.4, seed=3),
    "episode": lambda to: values._loaded(to).episode(2),
    "manifest": lambda to: values._loaded(to).manifest,
    "specs": lambda to: values._loaded(to).specs,
    "mixture": _mixture,
    "ensemble": lambda to: od.ReplayBufferEnsemble(*values._pair(to), batch_size=6, p=[0.4, 0.6]),
    "offline to online": lambda to: od.OfflineToOnlineReplayBuffer(
        values._loaded(to), online_capacity=9, batch_size=6
    ),
    "dataloader": lambda to: values._loaded(to).dataloader(5, seed=3),
    "dataloader of a mixture": lambda to: od.DatasetMixture(
        *values._pair(to), batch_size=6
    ).dataloader(5, seed=3),
    "ReplayDataset": lambda to: od.ReplayDataset(values._loaded(to), batch_size=4),
    "StreamingDataset": lambda to: od.StreamingDataset(
        "local:toy", root=values._toy(to).parents[2], batch_size=4
    ),
    "ReplayBuffer": lambda _: od.ReplayBuffer(storage=od.ListStorage(5), batch_size=2),
    "PrioritizedReplayBuffer": lambda _: od.PrioritizedReplayBuffer(
        alpha=0.7, beta=0.9, storage=od.ListStorage(5), batch_size=2
    ),
    "TensorDictPrioritizedReplayBuffer": lambda _: od.TensorDictPrioritizedReplayBuffer(
        alpha=0.7, beta=0.9, storage=od.LazyTensorStorage(5), batch_size=2
    ),
    "Transition": lambda _: od.Transition(
        obs=torch.zeros(2, 3),
        action=torch.zeros(2),
        next_obs=torch.zeros(2, 3),
        reward=torch.zeros(2),
        done=torch.zeros(2),
        batch_size=[2],
    ),
    "RewardData": _reward_data,
    "TextOptions": lambda _: od.TextOptions("tokenizer"),
    "TensorDictTokenizer": lambda _: od.TensorDictTokenizer(None, max_length=4),
    "info": lambda to: od.info("local:toy", root=values._toy(to).parents[2]),
    "stats": lambda to: od.stats("local:toy", root=values._toy(to).parents[2]),
    "check": lambda to: od.check("local:toy", root=values._toy(to).parents[2]),
    "verify": lambda to: od.verify("local:toy", root=values._toy(to).parents[2]),
    "align": lambda to: od.align("local:toy", root=values._toy(to).parents[2]),
    "list": lambda to: od.list_datasets(root=values._toy(to).parents[2]),
    "remove": lambda to: od.remove("local:toy", root=values._toy(to).parents[2]),
    "export": _exported,
    "inspect": _inspected,
    "download": lambda to: od.download("local:toy", root=values._toy(to).parents[2]),
}
"""What makes an object of every kind that users pickle, in a folder."""


@pytest.mark.parametrize("name", OBJECTS)
def test_pickles_name_no_module_that_may_move(name: str, tmp_path: Path) -> None:
    made = OBJECTS[name](tmp_path)
    data = pickle.dumps(made, 4)
    loaded = pickle.loads(data)  # noqa: S301 - written above
    assert type(loaded) is type(made)
    inner = {module for module in modules_in(data) if module.startswith("offline_data.")}
    assert not inner, f"decorate their classes with pickled_by_name, and add them to {pickles}"


@pytest.mark.parametrize("name", pickles._MODULES)
def test_classes_of_the_table_exist_and_are_pickled_by_name(name: str) -> None:
    kind: Any = pickles.named(name)
    assert pickles.name_of(kind) == name
    assert kind.__reduce_ex__ is pickles._reduce_ex or name == "_PrivateTensor"


def test_public_classes_are_pickled_by_name() -> None:
    for name in vars(od)["_names"]:
        kind: Any = getattr(od, name)
        if isinstance(kind, type) and kind.__module__.startswith("offline_data."):
            assert getattr(od, pickles.name_of(kind) or "") is kind, name
            assert vars(pickles)["_reduce_ex"] is kind.__reduce_ex__, name


class Own(od.RandomSampler):
    """A user's class."""


def test_a_users_subclass_is_pickled_as_usual() -> None:
    data = pickle.dumps(Own(), 4)
    assert type(pickle.loads(data)) is Own  # noqa: S301 - written above
    assert modules_in(data) == {__name__}


# ---- stored pickles -------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Writes paths below `folder` relative to it."""

    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file, 4)
        self._folder = folder

    def persistent_id(self, value: Any) -> str | None:
        inside = isinstance(value, Path) and value.is_relative_to(self._folder)
        return str(value.relative_to(self._folder)) if inside else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def persistent_load(self, name: str) -> Path:
        return self._folder / name


def _same_draws(name: str) -> Callable[[Any], None]:
    return lambda buffer: compare("batches", name, values._draws(buffer))


def _same(expected: Any) -> Callable[[Any], None]:
    def check(found: Any) -> None:
        assert found == expected
        assert type(found) is type(expected)

    return check


def _same_error(found: Any) -> None:
    assert (type(found), str(found), found.hint) == (errors.UsageError, "m", "h")


STORABLE: dict[str, tuple[Make, Callable[[Any], None]]] = {
    "dataset": (OBJECTS["dataset, default"], _same_draws("dataset, default")),
    "slices": (OBJECTS["dataset, SliceSampler"], _same_draws("dataset, SliceSampler")),
    "n_step": (lambda _: od.n_step(3, gamma=0.9), _same(od.n_step(3, gamma=0.9))),
    "step": (lambda _: parse_step("clip:action,low=-1,high=1"),
             _same(parse_step("clip:action,low=-1,high=1"))),
    "error": (lambda _: errors.UsageError("m", hint="h"), _same_error),
    "options": (lambda _: od.TextOptions("tokenizer"), _same(od.TextOptions("tokenizer"))),
}  # fmt: skip
"""What makes an object, and what shows that one that was stored behaves the same."""


@pytest.mark.parametrize("name", STORABLE)
def test_stored_pickles_load_and_behave_the_same(name: str, tmp_path: Path) -> None:
    make, check = STORABLE[name]
    made = make(tmp_path)  # its files, too
    file = STORED / f"{name}.pickle"
    if os.environ.get("OFFLINE_DATA_FREEZE"):
        data = io.BytesIO()
        _Pickler(data, tmp_path).dump(made)
        assert modules_in(data.getvalue()) <= PLAIN
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data.getvalue())
    with file.open("rb") as stored:
        check(_Unpickler(stored, tmp_path).load())


def test_the_digest_of_a_function_with_objects_of_this_package() -> None:
    recipe = partial(
        print, od.n_step(3, gamma=0.9), od.TextOptions("x"), od.n_step, od.RandomSampler
    )
    compare("digests", "partial of public objects", digest_of(recipe))
