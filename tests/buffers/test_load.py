from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import offline_data
from offline_data.base.errors import InvalidIdError, NotFoundError, UsageError
from offline_data.buffers.load import load_dataset, open_dataset
from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with two revisions of a dataset, of 3 and 5 transitions."""
    root = tmp_path_factory.mktemp("root")
    for revision, lengths in (("a1", [3]), ("b2", [3, 2])):
        write_stored(root, f"local:toy@{revision}", toy_batch(lengths))
    return root


def test_by_id_and_revision(root: Path) -> None:
    ds = load_dataset("local:toy@a1", 2, root=root, download=False)
    assert len(ds) == 3
    assert ds.sample().batch_size == (2,)
    ds = load_dataset("local:toy", root=root, revision="b2", download=False)
    assert len(ds) == 5
    assert ds.data_path == root / "local" / "toy" / "b2"


def test_by_path_in_every_form(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "local" / "toy" / "a1"
    monkeypatch.chdir(root)
    for form in (path, str(path), "./local/toy/a1", os.path.relpath(path)):
        assert len(load_dataset(form, download=False)) == 3
        assert len(open_dataset(form)) == 3


def test_all_options_arrive(root: Path) -> None:
    ds = load_dataset(
        "local:toy@b2",
        2,
        root=root,
        download=False,
        sampler=offline_data.SamplerWithoutReplacement(shuffle=False, drop_last=True),
        writer=offline_data.ImmutableDatasetWriter(),
        collate_fn=lambda batch: batch.set("seen", torch.ones(2, 3)),
        transform=lambda batch: batch.set("seen", 2 * batch["seen"]),
        prefetch=1,
        split_trajs=True,
        device="cpu",
        keys=["next.reward"],
        decode_text=True,
    )
    batch = ds.sample()
    assert batch["next", "reward"].shape == (2, 3, 1)
    assert batch["traj_ids"][:, 0].tolist() == [0, 1]
    assert (batch["seen"] == 2).all()


def test_what_is_not_here(root: Path) -> None:
    with pytest.raises(NotFoundError, match="not on this disk"):
        load_dataset("local:other", root=root, download=False)
    with pytest.raises(NotFoundError, match="not a dataset directory"):
        open_dataset(root / "none")
    path = root / "local" / "toy" / "a1"
    with pytest.raises(UsageError, match="download is 'always'"):
        load_dataset("local:toy", root=root, download="always")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is for ids"):
        load_dataset(path, revision="b2")
    with pytest.raises(InvalidIdError):
        load_dataset("local:../toy", root=root)
    with pytest.raises(InvalidIdError):
        load_dataset("local:toy", root=root, revision="../b2")
