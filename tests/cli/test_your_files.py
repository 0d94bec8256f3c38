"""`convert --inspect` and `--mapping`: what is printed, asked for, and written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Cli
from tests.formats.test_files import EPISODES, as_rows, check, with_way
from tests.toys.files import write_npz

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_npz(tmp_path / "x.npz", with_way(as_rows(EPISODES, "missing"), "done"))


def test_the_mapping_goes_to_stdout_whole_and_is_toml(cli: Cli, file: Path) -> None:
    ran = cli("convert", str(file), "--inspect")
    assert ran.code == 0
    mapping = tomllib.loads(ran.out)
    assert mapping["leaves"] == {"observation": "obs", "action": "act", "next/reward": "rew"}
    assert mapping["ends"] == {"done": "done", "terminated": "term", "truncated": "trunc"}
    assert "final_observation" not in mapping
    assert '# final_observation = "missing"   # ' in ran.out
    assert max(map(len, ran.out.splitlines())) < 100
    data = cli("convert", str(file), "--inspect", "--json").json
    assert data["mapping"] == mapping
    assert data["toml"] == ran.out
    assert [one["place"] for one in data["questions"]] == ["final_observation"]
    found = {one["name"]: one for one in data["arrays"]}
    assert (found["obs"]["shape"], found["obs"]["least"]) == ([8, 2], -3004.0)


def test_out_is_a_file_and_the_arrays_a_table(cli: Cli, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.toml"
    ran = cli("convert", str(file), "--inspect", "--out", str(out))
    assert ran.rows[1][:3] == ["obs", "[8, 2]", "float32"]
    assert f"choose a line in {out}" in ran.err
    assert tomllib.loads(out.read_text())["rows"] == "steps"
    assert cli("convert", str(file), "--inspect", "--out", str(out), "-q").out == f"{out}\n"


def test_a_question_is_a_usage_error_without_a_terminal(
    cli: Cli, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "map.toml"
    cli("convert", str(file), "--inspect", "--out", str(out))
    ran = cli("convert", str(file), "toy", "--mapping", str(out))
    assert ran.code == 2
    assert '  final_observation = "last_row"  # ' in ran.err
    out.write_text(
        out.read_text().replace('# final_observation = "missing"', 'final_observation = "missing"')
    )
    assert cli("convert", str(file), "toy", "--mapping", str(out), "--audit", "all").code == 0
    assert cli("convert", str(file), "toy", "--mapping", str(out), "--dry-run").code == 0


def test_a_question_is_asked_on_a_terminal(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_data.store.reader import open_reader

    out = tmp_path / "map.toml"
    cli("convert", str(file), "--inspect", "--out", str(out))
    asked = []

    def choose(
        question: str, options: list[str], hint: str, *, yes: bool, default: str | None
    ) -> str:
        asked.append(question)
        assert (hint, yes, default) == ("", False, None)
        return options[0]

    monkeypatch.setattr("offline_data_cli.commands.own_files.choose", choose)
    ran = cli("convert", str(file), "toy", "--mapping", str(out), "--json")
    assert ran.code == 0
    assert len(asked) == 1
    check(open_reader(Path(ran.json[0]["path"])), "missing")


def test_typos_and_missing_arguments(cli: Cli, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.toml"
    out.write_text('ends.don = "done"\n[leaves]\nobservation = "obs"\naction = "act"\n')
    ran = cli("convert", str(file), "toy", "--mapping", str(out))
    assert (ran.code, "did you mean done?" in ran.err) == (2, True)
    assert f"{out}: ends has the unknown key 'don'" in ran.err


def test_a_file_of_no_known_format_names_the_option(cli: Cli, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "y.npz", {"x": np.zeros(3)})
    ran = cli("convert", str(path), "toy")
    assert f"`offline-data convert {path} --inspect`" in ran.err
