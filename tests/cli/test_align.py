"""`align` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from offline_data.store.reader import open_reader
from tests.analysis.alignment.worlds import shifted, world, write
from tests.cli.conftest import Cli
from tests.toys.robomimic import libero_demo, write_demos


def test_align_shows_lags_and_exits_1_where_a_leaf_is_shifted(cli: Cli, tmp_path: Path) -> None:
    good = write(tmp_path / "good", world(0))
    ran = cli("align", str(good))
    assert ran.code == 0
    assert "nothing is shifted; 2 of 2 comparisons decided" in ran.out
    late = write(tmp_path / "late", shifted(world(0), ("action",), 2))
    ran = cli("align", str(late))
    assert ran.code == 1
    assert "action is 2 rows late" in ran.out
    assert "--step shift:action,by=2 --out NAME" in ran.out
    found = json.loads(cli("align", str(late), "--json").out)
    assert found["shifts"] == {"action": 2}
    assert found["steps"] == ["shift:action,by=2"]
    assert [(one["leaf"], one["lag"]) for one in found["leaves"]] == [
        ("action", 2),
        ("next/reward", 0),
    ]
    assert cli("align", str(late), "-q").out == "action\n"


def test_fix_writes_a_dataset_whose_leaves_are_shifted_back(cli: Cli, tmp_path: Path) -> None:
    late = write(tmp_path / "late", shifted(world(0), ("action",), 2))
    ran = cli("align", str(late), "--fix", "aligned")
    assert ran.code == 0
    assert "local:aligned" in ran.out
    path = Path(cli("path", "local:aligned").out.strip())
    assert open_reader(path).transitions == 30 * 38
    assert cli("align", "local:aligned").code == 0
    assert "shift" in cli("info", "local:aligned", "--history").out


def test_a_figure_of_the_errors(cli: Cli, tmp_path: Path) -> None:
    late, file = write(tmp_path / "late", shifted(world(0), ("action",), 2)), tmp_path / "lags.svg"
    ran = cli("align", str(late), "--out", str(file))
    assert ran.code == 1
    assert f"{file} written" in ran.err
    assert file.read_text().count('id="axes_') == 2
    assert cli("align", str(late), "--out", str(file)).code == 2
    assert cli("align", str(late), "--out", str(file), "--force").code == 1
    short = write(tmp_path / "short", world(0, episodes=2))
    ran = cli("align", str(short), "--out", str(tmp_path / "no.png"))
    assert (ran.code, (tmp_path / "no.png").exists()) == (2, False)
    assert "no errors to draw: too few episodes" in ran.err


@pytest.mark.parametrize(
    ("by", "given", "found"),
    [
        pytest.param(0, (), [], marks=pytest.mark.slow),
        (1, ("--alignment", "raw"), ["It is 1 row late"]),
        pytest.param(-1, (), [], marks=pytest.mark.slow),
    ],
)
def test_a_libero_file_whose_actions_are_shifted(
    by: int, given: tuple[str, ...], found: list[str], cli: Cli, tmp_path: Path
) -> None:
    """Observations of the file follow the actions; those that precede them are the other known form."""
    demos = {n: libero_demo(n, 60, raw=True) for n in range(10)}
    for demo in demos.values():
        rows = np.clip(np.arange(60) - by, 0, 59)
        demo["actions"] = demo["actions"][rows]
    file = write_demos(tmp_path / "x.hdf5", demos)
    if given:
        assert "do not tell" in cli("convert", str(file), "arm").err
    assert cli("convert", str(file), "arm", *given).code == 0
    findings = cli("check", "local:arm", "--select", "RL044", "--json").json["findings"]
    assert [one["leaf"] for one in findings] == ["action"] * len(found)
    assert [one["message"].partition(":")[0] for one in findings] == found
    decided = {
        one["against"]: one["lag"] for one in cli("align", "local:arm", "--json").json["leaves"]
    }
    assert decided["observation/ee_states"] == by * len(found)


@pytest.mark.parametrize("by", [0, 1, -2])
def test_a_mapped_file_whose_actions_are_shifted(by: int, cli: Cli, tmp_path: Path) -> None:
    batch = shifted(world(0), ("action",), by)
    ends = np.zeros(batch.transitions, bool)
    ends[batch.last_rows] = True
    seen = batch.observations["observation", "state"][batch.root_rows]
    acted, reward = batch.steps["action",], batch.steps["next", "reward"][:, 0]
    np.savez(tmp_path / "x.npz", obs=seen, act=acted, rew=reward, done=ends)
    mapping = tmp_path / "map.toml"
    mapping.write_text(
        'rows = "steps"\nfinal_observation = "missing"\n'
        'ends.done = "done"\nends.otherwise = "truncated"\n'
        '[leaves]\nobservation = "obs"\naction = "act"\n"next/reward" = "rew"\n'
    )
    ran = cli("convert", str(tmp_path / "x.npz"), "mapped", "--mapping", str(mapping))
    assert ran.code == 0, ran.err
    findings = cli("check", "local:mapped", "--json").json["findings"]
    late = [one["message"] for one in findings if one["code"] == "RL044"]
    when = {0: [], 1: ["It is 1 row late"], -2: ["It is 2 rows early"]}
    assert [text.partition(":")[0] for text in late] == when[by]
