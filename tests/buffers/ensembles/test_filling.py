from __future__ import annotations

from typing import Any

import pytest
import torch

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.ensembles.filling import draw_exactly
from offline_data.buffers.samplers import (
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.errors import UsageError


def test_epochs_follow_each_other_row_by_row(datasets: list[BaseDatasetExperienceReplay]) -> None:
    sampler = SamplerWithoutReplacement(seed=0)
    rows = torch.cat([draw_exactly(sampler, datasets[0].storage, 7)[0] for _ in range(5)])
    epochs = rows.reshape(7, 5)
    assert epochs.sort(1).values.tolist() == [[0, 1, 2, 3, 4]] * 7
    assert sampler.epoch == 7


def test_what_samplers_say_goes_on_too(datasets: list[BaseDatasetExperienceReplay]) -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=2, seed=0)
    rows, leaves = draw_exactly(sampler, datasets[0].storage, 6)
    assert len(rows) == 6
    assert leaves["next", "truncated"][:, 0].tolist() == [False, True] * 3
    assert (rows[1::2] == rows[::2] + 1).all()


def test_slices_that_would_become_shorter_are_refused(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    sampler = SliceSamplerWithoutReplacement(num_slices=4)
    with pytest.raises(UsageError, match="end of an epoch after 4 rows of the 8") as caught:
        draw_exactly(sampler, datasets[0].storage, 8)
    assert "slice_len" in str(caught.value.hint)
    short = SliceSampler(slice_len=6, strict_length=False)
    with pytest.raises(UsageError, match="of the 12 of a sub-batch") as caught:
        draw_exactly(short, datasets[0].storage, 12)
    assert "pad_output" in str(caught.value.hint)


def test_a_sampler_that_gives_nothing_does_not_hang(
    datasets: list[BaseDatasetExperienceReplay],
) -> None:
    class Nothing(Sampler):
        ran_out = True

        def sample(self, *_: Any) -> tuple[torch.Tensor, dict[Any, Any]]:
            return torch.zeros(self.given, dtype=torch.int64), {}

        given = 0

    with pytest.raises(UsageError, match="0 rows of the 3"):
        draw_exactly(Nothing(), datasets[0].storage, 3)
    more = Nothing()
    more.given = 4
    with pytest.raises(UsageError, match="4 rows of the 3"):
        draw_exactly(more, datasets[0].storage, 3)
