"""The D4RL adapter: the contract of sources, its catalogue, and files of the user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.episode.fields import TERMINATED
from offline_data.formats.base import Release
from offline_data.formats.catalogues.d4rl import FAMILIES, NOTES, EndRule, PublishedD4RL, read_table
from offline_data.formats.d4rl.episode_ends import RULES, episode_ends
from offline_data.formats.d4rl.source import D4RL
from offline_data.formats.options import Options
from offline_data.raw.hdf5 import MAGIC
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.d4rl import TOYS, write_published

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest


class TestContract(SourceContract):
    @pytest.fixture(params=["mujoco-v2", "antmaze", "minigrid"])
    def case(self, tmp_path: Path, request: SubRequest) -> SourceCase:
        toy = TOYS[request.param]
        release = D4RL().resolve(toy.dataset, None, Settings(tmp_path))
        return SourceCase(D4RL(), release, write_published(tmp_path / "raw", toy))


def test_the_catalogue() -> None:
    sets = read_table()
    assert len(sets) == 179
    assert len({one.url for one in sets.values()}) == 174
    assert {note for one in sets.values() for note in one.notes} == set(NOTES.values())
    assert {one.rule.marks for one in sets.values()} == set(RULES)
    assert {one.summary for one in sets.values()} == set(FAMILIES.values())
    assert sets["halfcheetah-medium-v2"].rule == EndRule("terminals|timeouts", 1000)
    assert sets["antmaze-large-play-v2"].rule == EndRule("timeouts", 1000)
    assert sets["kitchen-mixed-v0"].rule == EndRule("terminals", 280)
    assert sets["pen-human-v1"].rule == EndRule("terminals|timeouts", 100)


def test_resolving_needs_no_network_and_knows_no_revision(settings: Settings) -> None:
    assert settings.offline
    (file,) = D4RL().resolve("walker2d-medium-replay-v0", None, settings).files
    assert file.path == "walker_mixed.hdf5"
    assert [url.partition("://")[0] for url in file.urls] == ["http", "https"]
    assert (file.magic, file.digest) == (MAGIC, None)
    assert D4RL().resolve("pen-human-v1", "unversioned", settings).revision == "unversioned"
    with pytest.raises(NotFoundError, match="no revisions"):
        D4RL().resolve("pen-human-v1", "3f2a", settings)
    with pytest.raises(NotFoundError) as caught:
        D4RL().resolve("zzz", None, settings)
    assert caught.value.shell_hint == "`offline-data list d4rl` lists all"
    online = replace(settings, offline=False)
    assert D4RL().remote(online) == D4RL().catalog()
    assert D4RL().local(online) == ()


COLUMNS_OF_V2 = {
    **dict.fromkeys(("actions", "next_observations", "observations", "rewards"), "float32"),
    **dict.fromkeys(("terminals", "timeouts"), "bool"),
    **{f"infos/{name}": "float64" for name in ("action_log_probs", "deep/qvel", "qpos")},
}


def test_a_published_set_says_what_it_is(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["mujoco-v2"])
    release = D4RL().resolve("hopper-medium-v2", None, Settings(tmp_path))
    for raw in (path, tmp_path):
        info = D4RL().open(release, raw).info
        assert info.environment == {"id": "hopper-medium-v2", "max_episode_steps": 1000}
        assert info.about == {
            "url": read_table()["hopper-medium-v2"].url,
            "horizon": 1000,
            "ref_min_score": -20.272305,
            "ref_max_score": 3234.3,
            "metadata": {"algorithm": "SAC", "iteration": 600},
            "columns": COLUMNS_OF_V2,
        }
        assert info.licence == "CC-BY-4.0"
        assert [item.key for item in info.dropped] == ["metadata/policy/fc0/weight"]
        assert info.dropped[0].reason.startswith("It belongs to the recording policy")
        assert "2004.07219" in (info.citation or "")


def test_a_users_file_claims_nothing_of_the_publisher(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["adroit"]).rename(tmp_path / "mine.hdf5")
    release = D4RL().release_of(path, "hopper-medium-v2")
    info = D4RL().open(release, path).info
    assert (info.environment, info.licence, info.citation) == ({}, None, None)
    assert list(info.about) == ["columns"]
    assert (info.transitions, info.episodes) == (15, 3)
    reset = replace(release, options=Options(autoreset="next_step"))  # which drops rows
    info = D4RL().open(reset, path).info
    assert (info.transitions, info.episodes) == (None, None)


def test_a_users_file_with_a_published_name_is_cut_by_its_rule(tmp_path: Path) -> None:
    path = write_published(tmp_path, TOYS["antmaze"])
    named = D4RL().open(D4RL().release_of(path, "mine"), path)
    assert named.lengths.tolist() == [6, 6, 6]
    assert named.info.notes[0].startswith("The file has the name of d4rl:antmaze-umaze-v2")
    known = read_table()["antmaze-umaze-v2"].notes
    assert named.info.notes[1 : 1 + len(known)] == known != ()
    other = path.rename(tmp_path / "other.hdf5")
    plain = D4RL().open(D4RL().release_of(other, "antmaze-umaze-v2"), other)
    assert plain.lengths.tolist() == [4, 1, 1, 6, 2, 4]


def test_d3rlpy_files_are_not_taken_for_d4rl(realdata: Path) -> None:
    path = realdata / "agilerl_d3rlpy_v1" / "cartpole_v1.1.0.h5"
    assert not D4RL().accepts(path)
    with pytest.raises(FormatError, match="not a D4RL file"):
        D4RL().release_of(path, "mine")
    with pytest.raises(FormatError, match="'episode_terminals', which d3rlpy writes"):
        D4RL().open(Release("mine", "local-0", local=path), path)


FLAGS = [False, True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("rule", "timeouts", "last", "said"),
    [
        (EndRule(horizon=2), None, [1, 3, 5], "from terminals and the environment's limit of 2"),
        (EndRule(), [0, 0, 0, 1, 0, 0, 1], [1, 3, 5, 6], RULES["terminals|timeouts"]),
        (EndRule("timeouts", 2), [0, 0, 0, 1, 0, 0, 1], [3, 6], RULES["timeouts"]),
        (EndRule("timeouts", 4), [0] * 7, [3], "from the environment's limit of 4 steps"),
        (EndRule("timeouts", 4), None, [3], "from the environment's limit of 4 steps"),
        (EndRule("terminals", 2), [0, 0, 0, 1, 0, 0, 1], [1, 5], RULES["terminals"]),
        (EndRule(), None, [1, 5], "terminals are set. The file has no timeouts."),
    ],
)
def test_episodes_end_by_the_rule(
    rule: EndRule, timeouts: list[int] | None, last: list[int], said: str
) -> None:
    marked = None if timeouts is None else np.array(timeouts, bool)
    ends, applied = episode_ends(rule, np.array(FLAGS), marked, "toy.hdf5")
    assert np.flatnonzero(ends).tolist() == last
    assert said in applied


# Against `qlearning_dataset` of D4RL itself. It leaves out every row that ends an episode by time,
# and the last row of the file, since it takes the next row of the file as the next observation. A
# transition is valid here where its next observation is known, or where it is terminated.


@dataclass(frozen=True)
class Flags:
    """What `qlearning_dataset` looks at, as plain lists."""

    terminals: list[bool]
    timeouts: list[bool] | None
    has_next: bool
    horizon: int


def flags_of(path: Path, published: PublishedD4RL) -> Flags:
    with h5py.File(path) as file:
        timeouts: Any = file["timeouts"][()].tolist() if "timeouts" in file else None
        terminals = [bool(value) for value in file["terminals"][()].ravel()]
        return Flags(terminals, timeouts, "next_observations" in file, published.rule.horizon or 0)


def qlearning_rows(flags: Flags) -> set[int]:
    """Rows that D4RL 1.1's `qlearning_dataset(terminate_on_end=False)` keeps."""
    kept = set()
    episode_step = 0
    for i in range(len(flags.terminals) - 1):
        if flags.timeouts is not None:
            final_timestep = flags.timeouts[i]
        else:
            final_timestep = episode_step == flags.horizon - 1
        if final_timestep:
            episode_step = 0
            continue
        if flags.terminals[i]:
            episode_step = 0
        kept.add(i)
        episode_step += 1
    return kept


def by_horizon(flags: Flags, after_terminal: int) -> set[int]:
    """Rows at the limit of steps; the row after a terminal is number `after_terminal`."""
    rows, step = set(), 0
    for i, terminal in enumerate(flags.terminals):
        at_limit = step == flags.horizon - 1
        if at_limit:
            rows.add(i)
        step = 0 if at_limit else after_terminal if terminal else step + 1
    return rows


LIMIT = "the limit is reached"


def reasons(flags: Flags) -> dict[str, set[int]]:
    """Rows by the reason for which they are valid here and left out there; `LIMIT` is the reverse."""
    last = len(flags.terminals) - 1
    terminal = {i for i, flag in enumerate(flags.terminals) if flag}
    timeout = {i for i, flag in enumerate(flags.timeouts or []) if flag}
    after = (timeout | {last}) - terminal if flags.has_next else set()
    theirs = by_horizon(flags, 1) if flags.timeouts is None else set()
    ours = by_horizon(flags, 0) - terminal if flags.timeouts is None else set()
    return {
        "next observation is in the file": after,
        "terminal and timeout": timeout & terminal - {last},
        "last row of the file is terminal": {last} & terminal,
        "D4RL's limit is one step early": theirs - ours - {last},
        LIMIT: ours - theirs,
    }


def assert_explained(path: Path, published: PublishedD4RL, folder: Path) -> dict[str, int]:
    folder.mkdir(parents=True)
    (folder / published.file).symlink_to(path)
    dataset = D4RL().open(D4RL().resolve(published.name, None, Settings(folder)), folder)
    batch = dataset.read_part(dataset.parts(1 << 50)[0])
    valid = np.ones(batch.transitions, dtype=bool)
    valid[batch.last_rows] = batch.final_observation
    ours = set(np.flatnonzero(valid | batch.steps[TERMINATED][:, 0]).tolist())
    flags = flags_of(path, published)
    theirs, why = qlearning_rows(flags), reasons(flags)
    added = set[int]().union(*(rows for reason, rows in why.items() if reason != LIMIT))
    assert not added & theirs, "a reason that names a row D4RL has is no reason"
    assert why[LIMIT] <= theirs
    assert ours == (theirs | added) - why[LIMIT]
    return {"rows": len(flags.terminals), "d4rl": len(theirs), "ours": len(ours)} | {
        reason: len(rows) for reason, rows in why.items() if rows
    }


def test_real_files(realdata: Path, tmp_path: Path) -> None:
    files = sorted((realdata / "fixtures_generated" / "d4rl").glob("*.hdf5"))
    assert len(files) == 8
    for path in files:
        published = next(one for one in read_table().values() if one.file == path.name)
        assert_explained(path, published, tmp_path / path.name)


EXPECTED = {
    "adroit": {"rows": 15, "d4rl": 12, "ours": 12},
    "antmaze": {"rows": 18, "d4rl": 15, "ours": 16, "terminal and timeout": 1},
    "bullet": {
        "rows": 9,
        "d4rl": 7,
        "ours": 9,
        "next observation is in the file": 1,
        "last row of the file is terminal": 1,
    },
    "carla": {"rows": 8, "d4rl": 6, "ours": 6},
    "flow": {"rows": 1003, "d4rl": 1000, "ours": 1000},
    "kitchen": {"rows": 13, "d4rl": 12, "ours": 13, "last row of the file is terminal": 1},
    "maze2d": {"rows": 18, "d4rl": 14, "ours": 14},
    "minigrid": {"rows": 13, "d4rl": 12, "ours": 13, "last row of the file is terminal": 1},
    "mujoco-v0": {
        "rows": 1045,
        "d4rl": 1043,
        "ours": 1043,
        "D4RL's limit is one step early": 1,
        "the limit is reached": 1,
    },
    "mujoco-v2": {"rows": 17, "d4rl": 15, "ours": 17, "next observation is in the file": 2},
}


@pytest.mark.parametrize("family", sorted(TOYS))
def test_toys_of_every_family(tmp_path: Path, family: str) -> None:
    path = write_published(tmp_path / "toy", TOYS[family])
    published = read_table()[TOYS[family].dataset]
    assert D4RL().accepts(path)
    assert assert_explained(path, published, tmp_path / "raw") == EXPECTED[family]


@pytest.mark.parametrize(
    ("name", "transitions", "episodes"),
    [
        ("halfcheetah-medium-v2", 1_000_000, 1_000),
        ("halfcheetah-medium-replay-v2", 202_000, 202),
        ("hopper-medium-replay-v2", 402_000, 2_041),
        ("hopper-medium-v2", None, 2_187),
        ("pen-human-v1", 5_000, 25),
        ("door-expert-v1", None, 5_000),
        ("maze2d-umaze-v1", None, None),
    ],
)
def test_search_knows_steps_and_episodes_that_are_published(
    name: str, transitions: int | None, episodes: int | None
) -> None:
    (found,) = (one for one in offline_data.search(name) if one.name == name)
    assert (found.transitions, found.episodes) == (transitions, episodes)


def test_published_counts_agree() -> None:
    """A halfcheetah never falls: all its episodes have 1,000 steps."""
    for name, published in read_table().items():
        if published.transitions is not None and published.episodes is not None:
            assert published.episodes <= published.transitions
            assert published.transitions <= published.episodes * (published.rule.horizon or 0) * 2
        if name.startswith("halfcheetah") and published.transitions is not None:
            assert published.transitions == 1_000 * (published.episodes or 0)
