"""Batches of encoded images are those of a raw leaf, in every way that a buffer gives rows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.errors import FormatError, UsageError
from offline_data.store import encoded as column_module
from tests.pictures import (
    JPEG,
    NEXT,
    PIXELS,
    WRIST,
    encoded_batch,
    images_on_disk,
    raw,
    restate,
    write,
)
from tests.same import assert_same


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same 16 transitions with encoded images, and with raw ones."""
    root, batch = tmp_path_factory.mktemp("encoded"), encoded_batch(kind=JPEG)
    return write(root / "encoded", batch), write(root / "raw", raw(batch))


@pytest.fixture
def both(folders: tuple[Path, Path]) -> Any:
    """Open both with the same options."""

    def opened(**options: Any) -> list[Any]:
        return [offline_data.open_dataset(path, **{"batch_size": 6, **options}) for path in folders]

    return opened


class TestBatches:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"keys": [PIXELS]},
            {"keys": [NEXT, "next.done", WRIST]},
            {"in_memory": True},
            {"split_trajs": True},
            {"derived": [offline_data.frame_stack(3, [PIXELS])]},
            {"derived": [offline_data.n_step(3, 0.9), offline_data.frame_stack(2, [PIXELS])]},
            {"prefetch": 2},
            {"transform": lambda td: td.set("sum", td[PIXELS].sum((1, 2, 3)))},
        ],
        ids=lambda options: next(iter(options), "none"),
    )
    def test_options(self, options: dict[str, Any], both: Any) -> None:
        found, expected = both(**options)
        assert_same(found[[2, 0, 3, 3]], expected[[2, 0, 3, 3]])
        for one in (found, expected):
            one.set_sampler(offline_data.SamplerWithoutReplacement(shuffle=False))
        for batch, other in zip(found, expected, strict=True):
            assert_same(batch, other)

    @pytest.mark.usefixtures("gathering")
    def test_rows_by_any_index(self, both: Any) -> None:
        encoded, plain = both()
        every: list[Any] = [slice(None), 3, torch.tensor([[0, 1], [6, 7]]), [], -1]
        for index in every:
            assert_same(encoded[index], plain[index])
        encoded, _ = both(keys=[PIXELS])
        for rows in ([16], [-17], [0, 1 << 40]):
            with pytest.raises(IndexError):
                encoded[rows]
        with pytest.raises(IndexError):
            encoded.storage.gather(torch.tensor([-1]))

    def test_a_row_that_is_in_a_batch_twice_is_decoded_once(
        self, both: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoded, plain = both(keys=[PIXELS, NEXT])
        batch = encoded[[3, 3]]
        batch[PIXELS][0] = 7  # in memory of its own all the same
        assert_same(encoded[[3, 3]][:1], batch[1:])
        seen, real = [], column_module.__dict__["decode_into"]

        def counting(data: bytes, *rest: Any) -> None:
            seen.append(data)
            real(data, *rest)

        monkeypatch.setattr(column_module, "decode_into", counting)
        assert_same(encoded[10:15], plain[10:15])  # steps 0 to 4 of the last episode
        assert len(seen) == len(set(seen)) == 6


class TestOtherWays:
    def test_views(self, both: Any) -> None:
        views = [(one.episodes_at([2, 0]), one.subset([5, 5, 1])) for one in both()]
        for found, expected in zip(*views, strict=True):
            assert_same(found[:], expected[:])

    def test_ensembles_and_mixtures(self, both: Any) -> None:
        encoded, plain = both()
        for members in ((encoded, encoded), (encoded, plain)):
            options: dict[str, Any] = {"sample_from_all": True, "batch_size": 8}
            for part in offline_data.ReplayBufferEnsemble(*members, **options).sample():
                assert torch.equal(part[PIXELS], plain[part["index", "index"]][PIXELS])
        mixed = offline_data.DatasetMixture(encoded, plain, batch_size=8).sample()
        assert torch.equal(mixed[NEXT], plain[mixed["index"]][NEXT])

    def test_arrays(self, both: Any) -> None:
        for style in ("transitions", "episodes", "qlearning", "ogbench"):
            options: dict[str, Any] = {"observation_key": PIXELS, "copy": style == "episodes"}
            for part in (both(), [one.episodes_at([4]) for one in both()]):
                found, expected = (one.to_numpy(style, **options) for one in part)
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[name], array)

    def test_torchrl(self, both: Any) -> None:
        encoded, plain = both()
        batch = encoded.to_torchrl(batch_size=5).sample()
        assert torch.equal(batch[PIXELS], plain.to_torchrl()[batch["index"]][PIXELS])

    def test_pickled_and_forked(self, both: Any) -> None:
        encoded, plain = both()
        encoded[:2]
        again = pickle.loads(pickle.dumps(encoded))  # noqa: S301 - our own bytes
        assert_same(again[:5], plain[:5])
        loader: Any = torch.utils.data.DataLoader(
            encoded,
            sampler=[[0, 3], [5, 4]],
            batch_size=None,
            collate_fn=torch.nn.Identity(),
            num_workers=1,
            multiprocessing_context="fork",
        )
        for batch, rows in zip(loader, ([0, 3], [5, 4]), strict=True):
            assert_same(batch, plain[rows])


class TestBytes:
    def test_bytes_are_those_of_the_source(self, both: Any, folders: tuple[Path, Path]) -> None:
        images, wrist = (images_on_disk(folders[0], key) for key in (PIXELS, WRIST))
        encoded, plain = both(decode=False)
        batch = encoded[[0, 2, 3]]  # the first and the last of episode 0, the one of episode 1
        assert list(batch[PIXELS]) == [images[row] for row in (0, 2, 4)]
        assert list(batch[NEXT]) == [images[row] for row in (1, 3, 5)]
        assert list(batch[WRIST]) == [wrist[row] for row in (0, 2, 3)]
        assert torch.equal(batch["action"], plain[[0, 2, 3]]["action"])
        assert encoded[2].get(PIXELS).data == images[2]
        assert encoded[[[0, 1], [2, 3]]].get(NEXT).tolist()[1][0] == images[3]
        assert {type(one) for one in encoded.sample()[PIXELS]} == {bytes}

    def test_padding_has_no_bytes(self, both: Any) -> None:
        stack = offline_data.frame_stack(3, [PIXELS], pad="zero")
        stacked, _ = both(decode=False, derived=[stack])
        found = stacked[[0, 2]].get(PIXELS).tolist()
        assert [one is None for one in found[0] + found[1]] == [True, True, *[False] * 4]
        whole, _ = both(decode=False, split_trajs=True)
        found = whole[[1]].get(PIXELS).tolist()[0]
        assert [one is None for one in found[:2]] == [False, True]

    def test_what_bytes_cannot_do(self, both: Any) -> None:
        encoded, _ = both(decode=False)
        with pytest.raises(UsageError, match="not a tensor"):
            offline_data.DatasetMixture(encoded, encoded, batch_size=4).sample()
        normal = offline_data.normalize([PIXELS], {PIXELS: (1.0, 2.0)})
        with pytest.raises(UsageError, match="decode=False"):
            both(decode=False, derived=[normal])[0].sample()


def test_figures_and_spaces(both: Any) -> None:
    encoded, plain = both()
    for found, want in [(encoded, plain), (encoded.subset([5, 1, 2]), plain.subset([5, 1, 2]))]:
        assert found.describe().leaves == want.describe().leaves
        assert str(found.describe()) == str(want.describe())
        assert found.observation_space == want.observation_space


def test_the_leaf_and_the_row_of_a_damaged_image_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    file = folder / "observations/observation/pixels.bytes"
    begin, end = np.fromfile(file.with_suffix(".offsets"), "<i8")[2:4].tolist()
    data = bytearray(file.read_bytes())
    data[begin + 45 : end - 20] = b"\x55" * (end - begin - 65)
    file.write_bytes(data)
    restate(folder)
    buffer = offline_data.open_dataset(folder)
    with pytest.raises(FormatError, match=r"feature 'observation/pixels' .*, row 2, is not a png"):
        buffer[:]
    assert len(buffer[[0, 3]][PIXELS]) == 2
    assert offline_data.open_dataset(folder, decode=False)[2][PIXELS] is not None
