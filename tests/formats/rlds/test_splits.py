"""Splits and slices: those of TFDS, by what TFDS 4.9.10 selects."""

from __future__ import annotations

import pytest

from offline_data.base.errors import NotFoundError, OfflineDataError, UsageError
from offline_data.formats.rlds.splits import NamedSplit, select

SPLITS = {
    "train": NamedSplit("train", ("t0", "t1", "t2"), (2, 3, 2)),
    "val": NamedSplit("val", ("v0", "v1", "v2"), (1, 1, 1)),
    "none": NamedSplit("none", ("n0",), (0,)),
}

TFDS = {
    "train": [("t0", 0, 2), ("t1", 0, 3), ("t2", 0, 2)],
    "train[10%:50%]": [("t0", 1, 1), ("t1", 0, 2)],
    "train[:3]": [("t0", 0, 2), ("t1", 0, 1)],
    "train[-2:]": [("t2", 0, 2)],
    "train[:33%]": [("t0", 0, 2)],
    "train[15%:85%]": [("t0", 1, 1), ("t1", 0, 3), ("t2", 0, 1)],
    "train[1shard]": [("t1", 0, 3)],
    "train[-1shard]": [("t2", 0, 2)],
    "train[:-1shard]": [("t0", 0, 2), ("t1", 0, 3)],
    "train[7%:]": [("t0", 0, 2), ("t1", 0, 3), ("t2", 0, 2)],
    "val+train[2:4]": [("v0", 0, 1), ("v1", 0, 1), ("v2", 0, 1), ("t1", 0, 2)],
    "train[7.2%:50%]": [("t0", 1, 1), ("t1", 0, 2)],
}
"""`file_instructions` of TFDS: file, records passed over, records taken."""


@pytest.mark.parametrize("text", TFDS)
def test_the_selection_of_tfds(text: str) -> None:
    found = [(one.file, one.first, one.stop - one.first) for one in select(SPLITS, text)]
    assert found == TFDS[text]


def test_all_splits_are_train_first_and_files_without_episodes_left_out() -> None:
    for text in (None, "all"):
        assert [one.file for one in select(SPLITS, text)] == ["t0", "t1", "t2", "v0", "v1", "v2"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("test", NotFoundError, "there are train, val, none"),
        ("none", NotFoundError, "no episodes"),
        ("train[:0.7%]", NotFoundError, "no episodes"),
        ("train[5:2]", NotFoundError, "no episodes"),
        ("train[4shard]", NotFoundError, "no episodes"),
        ("train[3]", UsageError, "one bound"),
        ("train[:9]", UsageError, "beyond the 7 episodes"),
        ("train[:120%]", UsageError, "beyond"),
        ("train[:1.5]", UsageError, "not a number"),
        ("train[a:b]", UsageError, "not a slice"),
        ("train[:]", UsageError, "not a slice"),
        ("train[1:2:3]", UsageError, "not a slice"),
        ("train[:2", UsageError, "not a split"),
        ("train/x", UsageError, "not a split"),
        ("train+train[:1]", UsageError, "twice"),
    ],
)
def test_what_names_nothing(text: str, error: type[OfflineDataError], said: str) -> None:
    with pytest.raises(error, match=said):
        select(SPLITS, text)
