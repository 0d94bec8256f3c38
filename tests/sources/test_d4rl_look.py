"""Files that are not what they should be: an error that names the place, or a stated loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.errors import FormatError, NotFoundError, OfflineDataError
from offline_data.sources.base import Release
from offline_data.sources.d4rl import D4RL
from offline_data.testing.d4rl_toy import TOYS, write_published

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.sources.d4rl.dataset import D4RLEpisodes


def opened(path: Path) -> D4RLEpisodes:
    return D4RL().open(Release("mine", "local-0", local=path), path)


def edited(tmp_path: Path, edit: Callable[[Any], None], family: str = "mujoco-v2") -> Path:
    path = write_published(tmp_path, TOYS[family]).rename(tmp_path / "mine.hdf5")
    with h5py.File(path, "r+") as file:
        edit(file)
    return path


def replaced(name: str, values: Any, **options: Any) -> Callable[[Any], None]:
    def edit(file: Any) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **options)

    return edit


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    path = edited(tmp_path, lambda file: file.pop(name))
    with pytest.raises(FormatError, match=rf"mine\.hdf5 .* expected datasets '{name}'; found"):
        opened(path)
    assert not D4RL().accepts(path)
    with pytest.raises(FormatError, match="not a D4RL file"):
        D4RL().release_of(path, "mine")


def test_a_group_in_place_of_a_column_is_missing(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda file: file.move("observations", "observations2/image"))
    with pytest.raises(FormatError, match="expected datasets 'observations'"):
        opened(path)


@pytest.mark.parametrize(
    "name", ["actions", "rewards", "terminals", "timeouts", "next_observations"]
)
def test_another_number_of_rows_is_named(tmp_path: Path, name: str) -> None:
    def cut(file: Any) -> None:
        replaced(name, file[name][:-1])(file)

    with pytest.raises(FormatError, match=rf"'{name}' has 16 rows, expected 17 as in"):
        opened(edited(tmp_path, cut))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("rewards", np.ones((17, 2)), r"'rewards' has shape \[17, 2\], expected \[17\] or"),
        ("terminals", np.ones((17, 1, 1)), r"'terminals' has shape \[17, 1, 1\]"),
        ("actions", np.array(["a"] * 17, "S1"), r"'actions' has dtype \|S1, expected real"),
        ("actions", 3.0, "'actions' has no rows, expected 17"),
        ("rewards", np.ones(17, complex), "'rewards' has dtype complex128, expected real"),
        ("next_observations", np.ones((17, 4)), r"rows of shape \[4\], expected \[5\]"),
    ],
)
def test_an_unfit_column_is_named(tmp_path: Path, name: str, values: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        opened(edited(tmp_path, replaced(name, values)))


def test_text_in_place_of_a_column_is_named(tmp_path: Path) -> None:
    words = replaced("observations", ["word"] * 17, dtype=h5py.string_dtype())
    with pytest.raises(FormatError, match="'observations' has dtype object, expected real"):
        opened(edited(tmp_path, words))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file[name] = np.zeros(0)
    with pytest.raises(FormatError, match="has no rows"):
        opened(path)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("infos/short", np.ones(16), "has 16 rows, expected 17"),
        ("infos/word", np.array(["a"] * 17, "S1"), "has dtype |S1"),
        ("infos/wave", np.ones(17, complex), "has dtype complex128"),
        ("metadata/loss", np.ones(17), "belongs to the recording policy"),
        ("metadata/seed", np.complex128(1), "is a value that JSON cannot hold"),
        ("infos/nothing", h5py.Empty("f4"), "has no rows"),
    ],
)
def test_other_columns_are_dropped_with_the_reason(
    tmp_path: Path, name: str, values: Any, reason: str
) -> None:
    dataset = opened(edited(tmp_path, replaced(name, values)))
    found = {item.key: item.reason for item in dataset.info.dropped}
    assert found.pop("metadata/policy/fc0/weight")
    assert list(found) == [name]
    assert found[name].startswith(f"It {reason}")
    assert all(name.split("/")[-1] not in key for key in dataset.flat.columns)


def test_scalars_are_kept_wherever_they_stand(tmp_path: Path) -> None:
    scalars = opened(edited(tmp_path, replaced("version", "1.0"))).info.about["metadata"]
    assert scalars == {"algorithm": "SAC", "iteration": 600, "version": "1.0"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    def link(file: Any) -> None:
        file["infos/soft"] = h5py.SoftLink("/rewards")
        file["infos/out"] = h5py.ExternalLink("other.hdf5", "/rewards")

    write_published(tmp_path, TOYS["bullet"]).rename(tmp_path / "other.hdf5")
    dataset = opened(edited(tmp_path, link))
    assert {item.key for item in dataset.info.dropped} >= {"infos/soft", "infos/out"}
    assert dataset.flat.infos.keys() == {"infos/action_log_probs", "infos/qpos", "infos/deep/qvel"}


def test_values_in_other_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(17 * 8))
    elsewhere = [(str(tmp_path / "secret"), 0, 17 * 8)]

    def add(file: Any) -> None:
        file.create_dataset("infos/out", (17,), "f8", external=elsewhere)
        layout = h5py.VirtualLayout((17,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "rewards", (17,))
        file.create_virtual_dataset("infos/virtual", layout)

    dropped = {d.key: d.reason for d in opened(edited(tmp_path, add)).info.dropped}
    assert "another file" in dropped["infos/out"]
    assert "another file" in dropped["infos/virtual"]
    required = replaced("rewards", np.zeros(17), external=elsewhere)
    with pytest.raises(FormatError, match="'rewards' has its values in another file"):
        opened(edited(tmp_path, required))


@pytest.mark.parametrize("drop", ["virtual/1/rewards", "virtual/1/infos/qpos"])
def test_a_piece_without_a_column(tmp_path: Path, drop: str) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"], pieces=(6,))
    with h5py.File(path, "r+") as file:
        del file[drop]
    if "infos" in drop:
        dropped = {d.key: d.reason for d in opened(path).info.dropped}
        assert dropped["infos/qpos"] == "It is in 1 of the 2 pieces."
    else:
        with pytest.raises(FormatError, match="'rewards' is in 1 of the 2 pieces"):
            opened(path)


def test_pieces_of_different_types_are_named(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"], pieces=(6,))
    with h5py.File(path, "r+") as file:
        replaced("virtual/1/actions", np.ones((11, 2)))(file)
    with pytest.raises(FormatError, match="'actions' has a dtype or shape of its own"):
        opened(path)


def test_no_end_of_an_episode_is_an_error_that_says_what_to_add(tmp_path: Path) -> None:
    def unmark(file: Any) -> None:
        del file["timeouts"]
        file["terminals"][:] = False

    with pytest.raises(FormatError, match="marks no end of an episode") as caught:
        opened(edited(tmp_path, unmark))
    assert "'timeouts'" in (caught.value.hint or "")


def test_empty_timeouts_make_one_episode(tmp_path: Path) -> None:
    def unmark(file: Any) -> None:
        file["timeouts"][:] = False
        file["terminals"][:] = False

    dataset = opened(edited(tmp_path, unmark, "maze2d"))
    assert dataset.lengths.tolist() == [18]
    assert "The file stops inside its last episode, of 18 rows" in " ".join(dataset.info.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<!DOCTYPE html><title>Not found", "it is a web page"),
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "damaged or cut short"),
    ],
)
def test_what_is_not_hdf5_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.hdf5"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        opened(path)
    assert not D4RL().accepts(path)


def test_any_cut_is_an_error_of_ours(tmp_path: Path) -> None:
    whole = write_published(tmp_path, TOYS["mujoco-v2"]).read_bytes()
    path = tmp_path / "mine.hdf5"
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        with pytest.raises(OfflineDataError, match=r"mine\.hdf5"):
            opened(path)


def test_a_damaged_chunk_names_column_and_rows(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"]).rename(tmp_path / "mine.hdf5")
    with h5py.File(path) as file:
        chunk = file["actions"].id.get_chunk_info(0)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + chunk.size // 2)
        raw.write(b"\xff" * 8)
    dataset = opened(path)
    with pytest.raises(FormatError, match=r"mine\.hdf5 is damaged: '/actions' .* rows 0 to 16"):
        dataset.read(dataset.parts(1 << 50)[0])


def test_absent_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no file"):
        opened(tmp_path / "absent.hdf5")
    with pytest.raises(FormatError, match="is not a plain file"):
        D4RL().release_of(tmp_path, "mine")
