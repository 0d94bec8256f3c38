from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import Derived, action_chunk, normalize
from offline_data.errors import UsageError

pytestmark = pytest.mark.usefixtures("gathering")


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), k=st.integers(1, 8), pad=st.sampled_from(("repeat", "zero")))
def test_actions_are_those_ahead(sets: Any, data: Any, k: int, pad: Any) -> None:
    of = sets.write(*data.draw(sets.strategy))
    rows = data.draw(st.permutations([*range(of.rows), 0]))
    batch, index = of.gather(rows)
    found = action_chunk(k, pad=pad)(batch, index, of.storage)
    assert found["action"].shape == (len(rows), k, 1)
    assert found["chunk_mask"].shape == (len(rows), k)
    assert found["chunk_mask"].dtype == torch.bool
    for place, row in enumerate(rows):
        episode, time = of.place[row]
        for j in range(k):
            inside = time + j < of.episodes[episode].length
            last = min(time + j, of.episodes[episode].length - 1)
            want = -of.state(episode, last)[0] if inside or pad == "repeat" else 0
            assert found["action"][place, j] == want
            assert found["chunk_mask"][place, j] == inside


def test_several_leaves_and_another_mask(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3)])
    derived = action_chunk(2, ["action", "next.bonus"], mask_key=("masks", "chunk"))
    found = of.derive(derived)
    assert found["next", "bonus"].shape == (3, 2, 2)
    assert found["masks", "chunk"].tolist() == [[True, True], [True, True], [True, False]]


def test_a_storage_that_grows(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(2)])), action_chunk(2)
    rows = torch.arange(2)
    derived(storage.gather(rows), rows, storage)
    storage.extend(grown(sets.write([episode(2), episode(2)])).content[2:])
    rows = torch.arange(4)
    found = derived(storage.gather(rows), rows, storage)["action"][..., 0].tolist()
    assert found == [[-1001, -1002], [-1002, -1002], [-2001, -2002], [-2002, -2002]]


def test_through_a_buffer(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4), episode(2)])
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=[action_chunk(3)])
    batch = pickle.loads(pickle.dumps(ds)).sample()  # noqa: S301
    assert batch["action"][:, 0, 0].equal(-batch["observation", "state"][:, 0])
    assert batch["action"].is_contiguous()


def test_it_is_a_value() -> None:
    one = action_chunk(4)
    assert one == action_chunk(4, "action") == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert len({one, action_chunk(4), action_chunk(5)}) == 2
    assert repr(one) == "action_chunk(4, ['action'], pad='repeat', mask_key='chunk_mask')"


def test_what_cannot_be_meant(sets: Any, episode: Any) -> None:
    with pytest.raises(UsageError, match="k is 0"):
        action_chunk(0)
    with pytest.raises(UsageError, match="pad is 'none'"):
        action_chunk(2, pad="none")  # type: ignore[arg-type]
    of = sets.write([episode(3)])
    with pytest.raises(UsageError, match="no leaf 'actions'") as caught:
        of.derive(action_chunk(2, ["actions"]))
    assert "action" in str(caught.value.hint)
    derived: list[Derived] = [normalize("action"), action_chunk(2)]
    with pytest.raises(UsageError, match="takes the leaf 'action'"):
        BaseDatasetExperienceReplay(of.path, 2, derived=derived).sample()
    split = BaseDatasetExperienceReplay(of.path, 2, derived=[action_chunk(2)], split_trajs=True)
    with pytest.raises(UsageError, match="whole episodes"):
        split.sample()
