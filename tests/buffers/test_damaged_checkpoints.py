"""A damaged checkpoint or state is an error in a sentence, and the buffer stays as it was."""

from __future__ import annotations

import atexit
import copy
import hashlib
import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data import DatasetMixture, ReplayBufferEnsemble, TensorDictReplayBuffer
from offline_data.base.errors import IntegrityError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import normalize
from offline_data.rows.fields import StateField
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSamplerWithoutReplacement,
)
from offline_data.rows.state import Saves
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyTensorStorage
from offline_data.torchrl.writers import TensorDictMaxValueWriter
from tests.slow import slow_but

SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(seed=1),
    "epochs": lambda: SamplerWithoutReplacement(seed=2),
    "prioritized": lambda: PrioritizedSampler(20, 0.7, 0.5, seed=3),
    "slices": lambda: SliceSamplerWithoutReplacement(slice_len=2, seed=4),
    "weighted slices": lambda: PrioritizedSliceSampler(20, 0.7, 0.5, slice_len=2, seed=5),
}
VALUES: tuple[Any, ...] = (None, -1, 10**18, 10**30, "x", [], {}, 1.5, float("nan"), True, -5, 3)


def seeded(name: str) -> random.Random:
    return random.Random(name)  # noqa: S311 - no secrets


def rows(count: int, first: int) -> TensorDict:
    number = torch.arange(first, first + count)
    done = (number % 5 == 4)[:, None]
    after = {"reward": number[:, None].float(), "done": done, "terminated": done.clone()}
    return TensorDict({"action": number[:, None].float(), "next": after}, [count])


def simple(sampler: str = "random", **options: Any) -> Any:
    options = {"batch_size": 4, "sampler": SAMPLERS[sampler](), **options}
    return TensorDictReplayBuffer(storage=LazyTensorStorage(20), **options)


def mixture() -> Any:
    members = simple(), simple("epochs")
    return DatasetMixture(
        *members, batch_size=4, seed=3, weights=[0.5, 0.5], exact=True, prefetch=2
    )


@cache
def toy() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    write_toy(folder / "toy", [toy_batch([7, 11])])
    return folder / "toy"


def dataset(**options: Any) -> Any:
    return Dataset(toy(), sampler=RandomSampler(seed=6), **options)


BUFFERS: dict[str, Callable[[], Any]] = {
    **{name: partial(simple, name, prefetch=2) for name in SAMPLERS},
    "best": lambda: simple(writer=TensorDictMaxValueWriter()),
    "ensemble": lambda: ReplayBufferEnsemble(
        simple(), simple("epochs"), batch_size=4, prefetch=2, generator=torch.Generator()
    ),
    "mixture": mixture,
    "dataset": lambda: dataset(batch_size=4, prefetch=2),
    "ensemble of datasets": lambda: ReplayBufferEnsemble(
        dataset(), dataset(), batch_size=4, prefetch=2, generator=torch.Generator()
    ),
    "mixture of datasets": lambda: DatasetMixture(
        dataset(), dataset(), batch_size=4, seed=3, prefetch=2
    ),
}
QUICK = {"random", "prioritized", "best", "mixture", "ensemble of datasets"}


def filled(kind: str, count: int, first: int) -> Any:
    buffer = BUFFERS[kind]()
    for member in getattr(buffer, "members", [buffer]):
        if not isinstance(member, Dataset):
            member.extend(rows(count, first))
    for _ in range(1 + first // 100):
        buffer.sample()
    return buffer


def content(buffer: Any) -> Any:
    return [member[:]["action"].tolist() for member in getattr(buffer, "members", [buffer])]


def batches(buffer: Any) -> list[Any]:
    return [buffer.sample()["action"].tolist() for _ in range(4)]


def sealed(state: dict[str, Any]) -> bytes:
    """Return the text of `state.json` with the digest that it should have."""
    state.pop("sha256", None)
    data = json.dumps({**state, "sha256": "0" * 64}, ensure_ascii=False).encode()
    return data[:-66] + hashlib.sha256(data).hexdigest().encode() + data[-2:]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values of a tree."""
    items: Any = node.items() if isinstance(node, dict) else ()
    items = enumerate(node) if isinstance(node, list) else items
    below = [place for key, value in items for place in places(value, (*path, key))]
    return [path, *below] if path else below


MISSING = "missing"


def wrong_values(value: Any) -> list[Any]:
    """Return what a value is replaced by: another type, another size, out of range."""
    if not (isinstance(value, torch.Tensor) and value.numel()):
        return [MISSING, *VALUES]
    found = [MISSING, None, "x", value[None], value.double(), value.reshape(-1)[:-1]]
    if value.dtype is torch.uint8:  # a generator's
        found += [torch.zeros_like(value), torch.zeros(16, dtype=torch.uint8)]
    for number in (float("nan"), -5.0) if value.is_floating_point() else (101,):
        spoiled = value.clone()
        spoiled.view(-1)[-1] = number
        found.append(spoiled)
    return found


def at(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def replaced(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a tree with another value."""
    tree = copy.deepcopy(tree)
    above = at(tree, place[:-1])
    above[place[-1]] = value
    if isinstance(value, str) and value == MISSING:
        del above[place[-1]]
    return tree


def spoiled(tree: Any, chance: random.Random) -> Any:
    """Return a copy of a tree with another value, or without one."""
    place = chance.choice(places(tree))
    return replaced(tree, place, chance.choice(wrong_values(at(tree, place))))


def declared(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], StateField]]:
    """Yield the fields of the state of a buffer and its parts, and their places."""
    for name, field in part.STATE.items():
        yield (*path, name), field
        value = getattr(part, field.attribute or name, None)
        of = enumerate(value) if isinstance(value, list | tuple) else [(None, value)]
        for number, one in of:
            if field.attribute is not None and isinstance(one, Saves):
                yield from declared(one, (*path, name) if number is None else (*path, name, number))


class Pair:
    """A buffer that damaged states are loaded into, and one that it stays equal to meanwhile."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.renew()

    def renew(self) -> None:
        self.target, self.untouched = (filled(self.kind, 12, 100) for _ in range(2))

    def refuses(self, load: Callable[[Any], Any], where: object) -> str:
        """Return the error of a state, after which nothing has changed; empty: it was loaded."""
        try:
            load(self.target)
        except (IntegrityError, UsageError) as error:
            assert content(self.target) == content(self.untouched), where
            assert batches(self.target) == batches(self.untouched), where
            return error.message
        with suppress(UsageError):  # of another batch size
            batches(self.target)
        self.renew()
        return ""


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path]:
    """A buffer, and the folder of its state."""
    buffer = filled("random", 18, 0)
    buffer.dumps(tmp_path / "state")
    return buffer, tmp_path / "state"


@pytest.mark.parametrize("kind", slow_but(QUICK.__contains__, BUFFERS))
def test_a_changed_bit_is_noticed_wherever_it_is(kind: str, tmp_path: Path) -> None:
    chance, state, pair = seeded(kind), tmp_path / "state", Pair(kind)
    filled(kind, 18, 0).dumps(state)
    for name in ("state.json", "state.bin"):
        right = (state / name).read_bytes()
        for _ in range(8):
            data, place = bytearray(right), chance.randrange(len(right))
            data[place] ^= 1 << chance.randrange(8)
            (state / name).write_bytes(data)
            assert pair.refuses(lambda b: b.loads(state), (name, place)), (name, place)
        for cut in (right[:-64], right + bytes(64)):
            (state / name).write_bytes(cut)
            assert pair.refuses(lambda b: b.loads(state), len(cut))
        (state / name).write_bytes(right)
    right_one = BUFFERS[kind]()
    right_one.loads(state)
    assert batches(right_one) == batches(filled(kind, 18, 0))


@pytest.mark.parametrize("kind", slow_but(QUICK.__contains__, BUFFERS))
def test_values_that_cannot_be_are_refused_even_with_the_right_digest(
    kind: str, tmp_path: Path
) -> None:
    chance, state, pair = seeded(kind), tmp_path / "state", Pair(kind)
    filled(kind, 18, 0).dumps(state)
    file, refused = state / "state.json", 0
    right = json.loads(file.read_text())
    for number in range(18):
        file.write_bytes(sealed({**right, "tree": spoiled(right["tree"], chance)}))
        refused += bool(pair.refuses(lambda b: b.loads(state), (kind, number)))
    assert refused > 9


@pytest.mark.parametrize("kind", slow_but({"random", "dataset"}.__contains__, BUFFERS))
def test_every_value_missing_or_wrong(kind: str) -> None:
    """What is declared of a field is checked; any other damage is refused or does no harm."""
    buffer, pair = filled(kind, 18, 0), Pair(kind)
    right, fields = copy.deepcopy(buffer.state_dict()), dict(declared(buffer))
    found = {place for place in places(right) if place in fields}
    assert {place[-1] for place in found} >= buffer.STATE.keys() & right.keys()
    for place in places(right):
        for value in wrong_values(at(right, place)):
            state = replaced(right, place, value)
            refused = pair.refuses(methodcaller("load_state_dict", state), (place, value))
            if place not in fields:
                continue
            if isinstance(value, str) and value == MISSING:
                assert fields[place].optional or f"{place[-1]} is missing" in refused, place
            elif not fields[place].holds(value):
                assert refused, (place, value)
                assert type(fields[place]) is not StateField or f"{place[-1]} is " in refused, (
                    refused
                )


@pytest.mark.parametrize("kind", ["ensemble", "ensemble of datasets"])
@pytest.mark.parametrize("value", [None, 3, [0], [[0.5]], [[-1, 0], [0, 0]], "x", {}])
@pytest.mark.parametrize("field", ["index", "buffer_ids"])
def test_draws_of_an_ensemble(kind: str, value: Any, field: str) -> None:
    state = copy.deepcopy(filled(kind, 18, 0).state_dict())
    numeric = isinstance(value, int | list)
    fields = {**state["draws"][0]["rows"], field: torch.tensor(value) if numeric else value}
    state["draws"][0]["rows"] = TensorDict(fields)
    assert Pair(kind).refuses(lambda b: b.load_state_dict(state), value)


def test_a_generator_whose_position_is_beyond_its_words_is_refused() -> None:
    sampler = RandomSampler(seed=1)
    state = sampler.state_dict()["generator"]
    state[8:12] = torch.tensor([600], dtype=torch.int32).view(torch.uint8)  # numbers left
    state[16:20] = torch.tensor([600], dtype=torch.int32).view(torch.uint8)  # the next one
    with pytest.raises(IntegrityError, match="generator"):
        sampler.load_state_dict({"generator": state})


def test_a_state_without_digests_loads_with_one_warning(saved: tuple[Any, Path]) -> None:
    buffer, state = saved
    old = json.loads((state / "state.json").read_text())
    del old["sha256"], old["files"]
    (state / "state.json").write_text(json.dumps({**old, "version": 1}))
    other = BUFFERS["random"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.loads(state)
    assert ["no digests" in str(one.message) for one in caught] == [True]
    assert caught[0].filename == __file__
    assert batches(other) == batches(buffer)


def test_a_state_without_its_digests_is_not_an_old_one(saved: tuple[Any, Path]) -> None:
    buffer, state = saved
    stripped = json.loads((state / "state.json").read_text())
    del stripped["sha256"], stripped["files"]
    (state / "state.json").write_text(json.dumps(stripped))
    with pytest.raises(IntegrityError, match="its digest is another"):
        buffer.loads(state)


@pytest.mark.parametrize("name", ["state.json", "state.bin"])
@pytest.mark.parametrize("what", ["fifo", "loop", "folder", "device"])
def test_what_is_no_file_does_not_hang(name: str, what: str, saved: tuple[Any, Path]) -> None:
    buffer, state = saved
    file = state / name
    file.unlink()
    make: dict[str, Callable[[], Any]] = {
        "fifo": lambda: os.mkfifo(file),
        "loop": lambda: file.symlink_to(name),
        "folder": file.mkdir,
        "device": lambda: file.symlink_to("/dev/zero"),
    }
    make[what]()
    with pytest.raises(IntegrityError, match="not a plain file"):
        buffer.loads(state)


@pytest.mark.parametrize("shape", [[10**15, 0], [2**40, 2**40], [10**30], [-1, -18], [0]])
def test_a_shape_beyond_the_bytes_allocates_nothing(
    shape: list[int], saved: tuple[Any, Path]
) -> None:
    buffer, state = saved
    tree = json.loads((state / "state.json").read_text())
    leaves = [place for place in places(tree["tree"]) if place[-1] == "shape"]
    for *above, last in leaves:
        if not isinstance(at(tree["tree"], (*above, last)), list):
            continue
        changed = {**tree, "tree": replaced(tree["tree"], (*above, last), shape)}
        (state / "state.json").write_bytes(sealed(changed))
        with pytest.raises(IntegrityError):
            buffer.loads(state)


class Refusing:
    """A transform that changes itself before it finds that the state is another's."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, batch: Any) -> Any:
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "right": True}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]
        if not state["right"]:
            raise RuntimeError("another transform's")


def test_a_transform_that_refuses_its_state_changes_nothing() -> None:
    first, second = Refusing(), Refusing()
    buffer = ReplayBufferEnsemble(simple(transform=first), simple(transform=second), batch_size=4)
    for member in buffer.members:
        member.extend(rows(12, 0))
    state = copy.deepcopy(buffer.state_dict())
    for number, right in enumerate((True, False)):
        state["members"][number]["transforms"] = [{"scale": 7.0, "right": right}]
    with pytest.raises(UsageError, match=r"Refusing does not take .* another transform's"):
        buffer.load_state_dict(state)
    assert (first.scale, second.scale) == (1.0, 1.0)


def test_statistics_that_cannot_be_are_refused() -> None:
    scale = normalize("action", {"action": ([1.0], [2.0])})
    state = scale.state_dict()
    for std in ([-2.0], [float("nan")], [2.0, 2.0]):
        spoiled = {"mean": [1.0], "std": std, "count": 3}
        with pytest.raises(IntegrityError, match="normalize is damaged: 'action'"):
            scale.load_state_dict({**state, "statistics": {"action": spoiled}})
    assert repr(scale.state_dict()) == repr(state)
