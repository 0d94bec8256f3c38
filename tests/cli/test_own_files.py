"""`convert` of own files on a terminal: it asks, shows the first episode, writes the mapping, converts."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.formats.files.mapping import read_mapping
from offline_data.store.reader import open_reader
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Terminal
from tests.pipeline.ingest.here import convert_here
from tests.pseudo_terminal import type_into
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.files import write_npz

LENGTHS = [5, 4, 3]
ROWS = np.arange(sum(LENGTHS))
LAST = np.isin(ROWS, np.cumsum(LENGTHS) - 1)


def write_csv(path: Path, **columns: Any) -> Path:
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `lab.csv` of three episodes that only a column `trial` divides."""
    monkeypatch.chdir(tmp_path)
    convert_here(monkeypatch)
    trial = np.repeat([3, 5, 9], LENGTHS)
    write_csv(Path("lab.csv"), obs_x=ROWS / 2, obs_y=-ROWS, act=10 * ROWS, reward=ROWS, trial=trial)
    return tmp_path


def lengths_of(name: str, root: Path) -> list[int]:
    (path,) = (root / "local" / name).iterdir()
    return list(open_reader(path).lengths.tolist())


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_asks_what_the_file_does_not_tell(
    terminal: Callable[..., Terminal], folder: Path
) -> None:
    """Name, final observation, episode and ends; the first episode is shown as it is stored."""
    shown = terminal("\n1\n1\n2\ny\n", width=100)
    assert main(["convert", "lab.csv"]) == 0
    said = shown.err.text
    assert re.search(r"^Name of the dataset \(default: lab\): ", said)
    questions = re.findall(
        r"^(?:Number.*: |.*\): )?lab\.csv.*?(?:where|how) (.*)\.$", said, re.MULTILINE
    )
    assert questions == ["the observation after the last action is", "episodes end", "episodes end"]
    assert "1  trial     number of the episode: 3 of 3 to 5 rows" in said
    preview = said[said.index("First episode") :].splitlines()
    assert preview[0] == "First episode, 5 steps, final observation not known"
    assert preview[1].split("  ")[0] == "FEATURE"
    values = {line.split()[0]: line.split()[1:] for line in preview[2:10] if line}
    assert values["action"] == ["0", "10", "20", "40"]  # steps 0, 1, 2 and 4
    assert values["observation"] == ["0", "0", "0.5", "-1", "1", "-2", "2", "-4"]
    assert values["next/observation"] == ["0.5", "-1", "1", "-2", "1.5", "-3", "2", "-4"]
    assert values["next/truncated"] == ["no", "no", "no", "yes"]
    assert "3 episodes of 12 steps\nWrite the mapping to lab.toml" in said
    assert "mapping: lab.toml" in said
    assert lengths_of("lab", folder / "root") == LENGTHS
    mapping = read_mapping("lab.toml")
    assert (mapping.ends.episode, mapping.ends.otherwise) == ("trial", "truncated")
    assert (mapping.final_observation, mapping.leaves["action"]) == ("missing", "act")


def test_only_what_is_not_known_is_asked(terminal: Callable[..., Terminal], folder: Path) -> None:
    arrays = {"obs": np.eye(6), "act": np.ones((5, 1)), "terminated": np.arange(5) == 4}
    write_npz(folder / "known.npz", arrays)
    shown = terminal("y\n")
    assert main(["convert", "known.npz", "known"]) == 0
    assert (
        shown.err.text.count(": ") == shown.err.text.count("mapping: ") + 1
    )  # --mapping known.toml
    assert "[y/N]" in shown.err.text
    assert lengths_of("known", folder / "root") == [5]


def test_from_files_asks_too(terminal: Callable[..., Terminal], folder: Path) -> None:
    """Also where another source would read the file; not where a mapping is next to it."""
    terminal("1\n1\n2\ny\n")
    assert main(["convert", "lab.csv", "lab", "--from", "files"]) == 0
    assert lengths_of("lab", folder / "root") == LENGTHS
    flags = {"terminals": LAST, "timeouts": np.zeros(len(ROWS), bool)}
    arrays = {"observations": np.c_[ROWS], "actions": np.c_[ROWS], "rewards": ROWS * 1.0, **flags}
    write_npz(folder / "flat.npz", arrays)
    shown = terminal("1\ny\n")
    assert main(["convert", "flat.npz", "flat", "--from", "files"]) == 0, shown.err.text
    assert read_mapping("flat.toml").leaves["action"] == "actions"
    Path("flat.toml").rename("flat.npz.toml")
    terminal("")
    assert main(["convert", "flat.npz", "same", "--from", "files"]) == 0
    assert lengths_of("flat", folder / "root") == lengths_of("same", folder / "root")


def test_an_answer_that_a_later_file_needs_is_in_the_mapping(
    terminal: Callable[..., Terminal], folder: Path
) -> None:
    """The last of 52 files, of which 50 are examined, has an episode's end inside."""
    (folder / "runs").mkdir()
    for n in range(52):
        ends = {3} if n < 51 else {1, 3}
        arrays = {
            "obs": np.eye(4),
            "act": np.ones((4, 1)),
            "terminated": np.isin(range(4), [*ends]),
        }
        write_npz(folder / f"runs/{n}.npz", arrays)
    shown = terminal("1\n1\ny\n")
    assert main(["convert", "runs", "runs"]) == 0, shown.err.text
    assert read_mapping("runs.toml").parts == "episodes"
    terminal("")
    assert main(["convert", "runs", "again", "--mapping", "runs.toml"]) == 0
    for name in ("runs", "again"):
        assert lengths_of(name, folder / "root") == [4] * 51 + [2, 2]


def test_arrays_without_telling_names_are_chosen(
    terminal: Callable[..., Terminal], folder: Path
) -> None:
    write_csv(folder / "raw.csv", p=ROWS, q=-ROWS, m=10 * ROWS, run=np.repeat([0, 1, 2], LENGTHS))
    shown = terminal("raw\n1,2\n1\n1\n\n2\ny\n")  # p and q; m; missing; run, by default; truncated
    assert main(["convert", "raw.csv"]) == 0, shown.err.text
    mapping = read_mapping("raw.toml")
    assert mapping.leaves == {"observation": ("p", "q"), "action": ("m",)}
    assert mapping.ends.episode == "run"
    assert lengths_of("raw", folder / "root") == LENGTHS


def test_flags_or_the_whole_file(terminal: Callable[..., Terminal], folder: Path) -> None:
    columns = {"obs": ROWS, "act": ROWS, "hit": LAST.astype(int)}
    write_csv(folder / "hits.csv", **columns)
    terminal("1\n\n2\ny\n")  # missing; hit, by default; truncated
    assert main(["convert", "hits.csv", "hits"]) == 0
    assert lengths_of("hits", folder / "root") == LENGTHS
    assert read_mapping("hits.toml").ends.done == "hit"
    shown = terminal("1\n2\n2\ny\n")
    assert main(["convert", "hits.csv", "whole", "--out", "sub/other.toml"]) == 0, shown.err.text
    assert lengths_of("whole", folder / "root") == [len(ROWS)]
    assert read_mapping("sub/other.toml").parts == "episodes"
    assert not Path("whole.toml").exists()


def test_a_further_question_of_an_answer_is_asked(
    terminal: Callable[..., Terminal], folder: Path
) -> None:
    shown = terminal("2\n1\n2\n2\ny\n")  # last_row; trial; rewards of the row before; truncated
    assert main(["convert", "lab.csv", "states"]) == 0, shown.err.text
    assert "has next/reward for each observation: of which action is not known" in shown.err.text
    assert lengths_of("states", folder / "root") == [length - 1 for length in LENGTHS]


@pytest.mark.parametrize(
    "typed", ["", "1\n", "1\n\n", "x\n", "1\n1\n2\n", "1\n1\n2\n\n", "1\n1\n2\nn\n"]
)
def test_an_open_answer_leaves_nothing(
    terminal: Callable[..., Terminal], folder: Path, typed: str
) -> None:
    before = files_in(folder)
    terminal(typed)
    assert main(["convert", "lab.csv", "lab"]) == (1 if typed.startswith("1\n1\n2\n") else 2)
    assert files_in(folder) == before


def test_a_file_that_exists_is_replaced_only_if_the_user_agrees(
    terminal: Callable[..., Terminal], folder: Path
) -> None:
    Path("lab.toml").write_text("mine")
    shown = terminal("1\n1\n2\nn\n")
    assert main(["convert", "lab.csv", "lab"]) == 1
    assert "lab.toml already exists and will be replaced." in shown.err.text
    assert Path("lab.toml").read_text() == "mine"
    terminal("1\n1\n2\ny\n")
    assert main(["convert", "lab.csv", "lab"]) == 0
    assert read_mapping("lab.toml").ends.episode == "trial"


def test_a_pipe_yes_and_json_get_an_error(
    cli: Cli, terminal: Callable[..., Terminal], folder: Path
) -> None:
    before = files_in(folder)
    piped = cli("convert", "lab.csv", "lab")
    assert (piped.code, piped.out) == (5, "")
    assert f"`offline-data convert {folder}/lab.csv --inspect` lists its arrays" in piped.err
    assert cli("convert", "lab.csv").code == 2
    for options in (["--yes"], ["--dry-run"], ["-q"]):
        shown = terminal("1\n1\n2\ny\n")
        assert main(["convert", "lab.csv", "lab", *options]) == 5
        assert shown.err.text == piped.err
        assert main(["convert", "lab.csv", *options]) == 2
    shown = terminal("1\n1\n2\ny\n")
    assert main(["convert", "lab.csv", "lab", "--json"]) == 5
    assert '"code": "format"' in shown.out.text
    assert files_in(folder) == before


@pytest.mark.usefixtures("folder")
def test_files_that_cannot_be_mapped_keep_their_error(
    cli: Cli, terminal: Callable[..., Terminal]
) -> None:
    Path("words.txt").write_text("hello")
    piped = cli("convert", "words.txt", "x")
    shown = terminal()
    assert main(["convert", "words.txt", "x"]) == piped.code
    assert shown.err.text == piped.err
    shown = terminal()
    assert main(["convert", "words.txt"]) == 2
    assert "Missing argument 'NAME'" in shown.err.text
    write_d4rl_hdf5(Path("known.hdf5"), TOYS["mujoco-v2"])
    shown = terminal()
    assert main(["convert", "known.hdf5"]) == 2
    assert "Missing argument 'NAME'" in shown.err.text
    assert "Name of the dataset" not in shown.err.text


def test_ctrl_c_leaves_nothing(folder: Path) -> None:
    """In a terminal of its own, by the key."""
    before = files_in(folder)
    answers = [("Name of the dataset (default: lab): ", "\n"), ("Number [1-2]: ", "\x03")]
    code, said = type_into(["convert", "lab.csv"], answers, folder)
    assert code == 130
    assert "Traceback" not in said
    assert files_in(folder) == before
