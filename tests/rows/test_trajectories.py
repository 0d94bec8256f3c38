from __future__ import annotations

import warnings
from pathlib import Path

import torch

from offline_data.buffers.dataset import Dataset
from offline_data.rows.samplers import SamplerWithoutReplacement
from tests.same import assert_same

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl.collectors.utils import split_trajectories


LENGTHS = [3, 1, 4, 2, 1]


def test_the_whole_is_what_torchrl_makes(folder: Path) -> None:
    flat = Dataset(folder)[:].contiguous()
    split = Dataset(folder, split_trajs=True)
    assert len(split) == 5
    found, want = split[:], split_trajectories(flat)
    assert found.batch_size == want.batch_size == (5, 4)
    texts = [("observation", "mission"), ("next", "observation", "mission")]
    for key in texts:  # padding: code 0 there, which is a word; -1 here, which is none
        assert (found[key][~found["mask"]] == -1).all()
        found[key].masked_fill_(~found["mask"], 0)
    assert torch.equal(found["index"], torch.arange(5)[:, None].expand(5, 4))
    assert_same(found.exclude("index").rename_key_("dataset_index", "index"), want)


def test_samples_are_whole_episodes(compact: Path) -> None:
    sampler = SamplerWithoutReplacement(seed=0)
    ds = Dataset(compact, 2, split_trajs=True, sampler=sampler)
    batches = list(ds)
    assert [tuple(batch.batch_size) for batch in batches] == [(2, 4), (2, 4), (1, 4)]
    seen = {}
    for batch in batches:
        for row in range(len(batch)):
            mask = batch["mask"][row]
            episode = int(batch["traj_ids"][row, 0])
            assert mask.sum() == LENGTHS[episode]
            assert (batch["episode"][row][mask] == episode).all()
            assert batch["next", "done"][row][mask][-1].all()
            seen[episode] = batch["dataset_index"][row][mask].tolist()
    assert sorted(seen) == list(range(5))
    assert [row for episode in range(5) for row in seen[episode]] == list(range(11))


def test_padding_is_zero_and_text_is_none(compact: Path) -> None:
    ds = Dataset(compact, 2, split_trajs=True, decode_text=True)
    episode = ds[3]
    assert episode.batch_size == (4,)
    assert episode["mask"].tolist() == [True, True, False, False]
    assert (episode["observation", "state"][2:] == 0).all()
    assert (episode["action"][:2] != 0).all()
    words = list(episode["observation", "mission"])
    assert words[2:] == [None, None]
    assert all(word.startswith("go to") for word in words[:2])
