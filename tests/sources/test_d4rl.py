"""The D4RL adapter: the contract of sources, its catalogue, and files of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data.config import Settings
from offline_data.errors import FormatError, NotFoundError
from offline_data.readers.hdf5 import MAGIC
from offline_data.sources.base import Release
from offline_data.sources.d4rl import D4RL
from offline_data.sources.d4rl.catalog import FAMILIES, NOTES, listed
from offline_data.sources.d4rl.ends import RULES, EndRule
from offline_data.testing.d4rl_toy import TOYS, write_published
from offline_data.testing.sources import SourceCase, SourceContract

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest


class TestContract(SourceContract):
    @pytest.fixture(params=["mujoco-v2", "antmaze", "minigrid"])
    def case(self, tmp_path: Path, request: SubRequest) -> SourceCase:
        toy = TOYS[request.param]
        release = D4RL().resolve(toy.dataset, None, Settings(tmp_path))
        return SourceCase(D4RL(), release, write_published(tmp_path / "raw", toy))


def test_every_published_id_is_listed_once() -> None:
    assert len(listed()) == 179
    assert len({one.url for one in listed().values()}) == 174


def test_the_catalogue_uses_every_note_rule_and_family_and_no_other() -> None:
    said = {note for one in listed().values() for note in one.notes}
    assert said == set(NOTES.values())
    assert {one.rule.marks for one in listed().values()} == set(RULES)
    assert {one.summary for one in listed().values()} == set(FAMILIES.values())


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("halfcheetah-medium-v2", EndRule("terminals|timeouts", 1000)),
        ("antmaze-large-play-v2", EndRule("timeouts", 1000)),
        ("antmaze-umaze-v0", EndRule("timeouts", 700)),
        ("kitchen-mixed-v0", EndRule("terminals", 280)),
        ("minigrid-fourrooms-v0", EndRule("terminals", 50)),
        ("flow-merge-random-v0", EndRule("terminals|timeouts", 750)),
        ("maze2d-umaze-v1", EndRule("terminals|timeouts", 300)),
        ("pen-human-v1", EndRule("terminals|timeouts", 100)),
    ],
)
def test_families_have_their_rule(name: str, rule: EndRule) -> None:
    assert listed()[name].rule == rule


def test_file_names_come_from_the_table(settings: Settings) -> None:
    (file,) = D4RL().resolve("walker2d-medium-replay-v0", None, settings).files
    assert file.path == "walker_mixed.hdf5"
    assert [url.partition("://")[0] for url in file.urls] == ["http", "https"]
    assert file.magic == MAGIC
    assert file.digest is None


def test_resolving_needs_no_network_and_knows_no_revision(settings: Settings) -> None:
    assert settings.offline
    assert D4RL().resolve("pen-human-v1", "unversioned", settings).revision == "unversioned"
    with pytest.raises(NotFoundError, match="no revisions"):
        D4RL().resolve("pen-human-v1", "3f2a", settings)


def test_a_wild_name_points_to_the_list(settings: Settings) -> None:
    with pytest.raises(NotFoundError) as caught:
        D4RL().resolve("zzz", None, settings)
    assert caught.value.hint == "`offline-data list d4rl` lists all"


def test_the_remote_list_is_the_catalogue(tmp_path: Path) -> None:
    assert D4RL().remote(Settings(tmp_path)) == D4RL().catalog()
    assert D4RL().local(Settings(tmp_path)) == ()


def test_a_published_set_says_what_it_is(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"])
    release = D4RL().resolve("hopper-medium-v2", None, Settings(tmp_path))
    for raw in (path, tmp_path):
        info = D4RL().open(release, raw).info
        assert info.environment == {"id": "hopper-medium-v2", "max_episode_steps": 1000}
        assert info.about["ref_min_score"] == -20.272305
        assert info.about["ref_max_score"] == 3234.3
        assert info.about["metadata"] == {"algorithm": "SAC", "iteration": 600}
        assert info.licence == "CC-BY-4.0"
        assert "2004.07219" in (info.citation or "")


def test_the_policy_of_the_recording_is_dropped_with_the_reason(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"])
    dropped = D4RL().open(D4RL().release_of(path, "mine"), path).info.dropped
    assert [item.key for item in dropped] == ["metadata/policy/fc0/weight"]
    assert "--keep-raw" in dropped[0].reason


def test_a_users_file_claims_nothing_of_the_publisher(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["adroit"]).rename(tmp_path / "mine.hdf5")
    info = D4RL().open(D4RL().release_of(path, "hopper-medium-v2"), path).info
    assert (info.environment, info.about, info.licence, info.citation) == ({}, {}, None, None)
    assert info.episodes == 3


def test_a_users_file_with_a_published_name_is_cut_by_its_rule(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["antmaze"])
    named = D4RL().open(D4RL().release_of(path, "mine"), path)
    assert named.lengths.tolist() == [6, 6, 6]
    assert named.info.notes[0].startswith("The file has the name of d4rl:antmaze-umaze-v2")
    other = path.rename(tmp_path / "other.hdf5")
    plain = D4RL().open(D4RL().release_of(other, "mine"), other)
    assert plain.lengths.tolist() == [4, 1, 1, 6, 2, 4]


def test_the_revision_of_a_users_file_changes_with_it(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["adroit"])
    first = D4RL().release_of(path, "mine").revision
    assert first == D4RL().release_of(path, "mine").revision
    with path.open("ab") as file:
        file.write(b"more")
    assert D4RL().release_of(path, "mine").revision != first


def test_d3rlpy_files_are_not_taken_for_d4rl(realdata: Path) -> None:
    path = realdata / "agilerl_d3rlpy_v1" / "cartpole_v1.1.0.h5"
    assert not D4RL().accepts(path)
    with pytest.raises(FormatError, match="not a D4RL file"):
        D4RL().release_of(path, "mine")
    with pytest.raises(FormatError, match="'episode_terminals', which d3rlpy writes"):
        D4RL().open(Release("mine", "local-0", local=path), path)


@pytest.mark.parametrize("family", sorted(TOYS))
def test_accepts_every_family(tmp_path: Path, family: str) -> None:
    assert D4RL().accepts(write_published(tmp_path, TOYS[family]))
