"""What stops people for a moment: folders that do not exist yet, other names of options, words of text."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.analysis.checks.registry import all_rules
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.progress import progress_of
from offline_data.formats.registry import FolderOfDatasetsError
from offline_data_cli import complete
from tests.cli.conftest import Cli
from tests.slow import slow_but
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.text import write_tokenizer

OUTPUTS = {
    "report": "x.html",
    "plot": "x.png",
    "check": "x.json",
    "export --to npz": "x.npz",
    "card": "x.md",
}


@pytest.mark.parametrize(
    ("verb", "option"),
    slow_but(
        lambda verb, option: verb == "card" or option == "--out",
        OUTPUTS,
        ["--out", "--output", "--output="],
    ),
)
def test_the_folder_of_an_output_is_created(
    cli: Cli, toy: Path, tmp_path: Path, verb: str, option: str
) -> None:
    file = tmp_path / "new" / "folder" / OUTPUTS[verb]
    given = [f"{option}{file}"] if option.endswith("=") else [option, str(file)]
    ran = cli(*verb.split(), "toy", *given)
    assert (ran.code, file.is_file()) == (0, True), ran.err


@pytest.mark.parametrize("typed", ["", "par", "x"])
def test_formats_of_export_are_completed(typed: str) -> None:
    offered = [word for word, _ in complete.targets(_no_context(), typed)]
    expected = {"": ["minari", "d4rl"], "par": ["parquet"], "x": []}[typed]
    assert offered[: len(expected) or None] == expected


def _no_context() -> Any:
    return SimpleNamespace(params={}, parent=None)


@pytest.mark.parametrize("place", ["d4rl.hdf5", "below/it/d4rl.hdf5"])
def test_a_folder_with_one_dataset_is_that_dataset(cli: Cli, tmp_path: Path, place: str) -> None:
    file = tmp_path / "folder" / place
    file.parent.mkdir(parents=True)
    write_d4rl_hdf5(file)
    (tmp_path / "folder" / "README.txt").write_text("words")
    assert cli("convert", str(tmp_path / "folder"), "mine").code == 0
    whole = offline_data.convert(file, "same", root=tmp_path / "other", progress=False)
    stored = offline_data.convert(
        tmp_path / "folder", "mine", root=tmp_path / "other", progress=False
    )
    assert stored.id.revision == whole.id.revision
    write_d4rl_hdf5(file.with_name("another.hdf5"))
    with pytest.raises(FolderOfDatasetsError, match="2 datasets"):
        offline_data.convert(tmp_path / "folder", "two", root=tmp_path / "other")


@pytest.mark.parametrize("pad", [(), ("--pad", "--max-length", "40")])
@pytest.mark.parametrize("change", ["", "moved", "other"])
def test_head_shows_the_words_of_text(
    cli: Cli, tmp_path: Path, pad: tuple[str, ...], change: str
) -> None:
    """The tokenizer is a file: where it is stands in the root, by its digest."""
    tokenizer = write_tokenizer(tmp_path)
    (tmp_path / "rows.txt").write_text("qr a text\n")
    line = ("convert", str(tmp_path / "rows.txt"), "words", "--from", "text")
    assert cli(*line, "--tokenizer", str(tokenizer), *pad).code == 0
    if change == "moved":
        tokenizer.rename(tmp_path / "elsewhere.json")
    elif change:
        tokenizer.write_text(tokenizer.read_text().replace('"r"', '"%"'))
    ran = cli("head", "words", "-n", "1")
    assert ran.code == 0
    assert (("'qr a text" if pad else "'q'") in ran.out) == (not change)
    report = tmp_path / "x.html"
    assert cli("report", "words", "--out", str(report)).code == 0
    assert (b"qr a text" in report.read_bytes()) == (not change)


@pytest.mark.parametrize(("selected", "ran"), [("RL030", 1), ("RL03", None), ("RL1", None)])
def test_check_says_how_many_of_all_rules_ran(
    cli: Cli, toy: Path, selected: str, ran: int | None
) -> None:
    """The README and its picture have the number of all."""
    ran = ran or sum(code.startswith(selected) for code in all_rules())
    out = cli("check", "toy", "--select", selected).out
    assert out == f"no findings in 1 dataset, by {ran} of {len(all_rules())} rules\n"


@pytest.mark.parametrize(
    ("write", "error", "said"),
    [
        (lambda ds: ds.split(0.9), UsageError, "ds.split(train=0.9, …)"),
        (lambda ds: ds.split(0.8, 0.2), UsageError, "ds.split(train=0.8, val=0.2, …)"),
        (lambda ds: offline_data.DatasetMixture([ds, ds]), UsageError, "DatasetMixture(a, b)"),  # type: ignore[arg-type]
        (lambda ds: offline_data.DatasetMixture((ds,)), UsageError, "DatasetMixture(a, b)"),  # type: ignore[arg-type]
        (lambda _: offline_data.load_dataset("toy", seed=0), TypeError, "sampler=offline_data.RandomSampler(seed=0)"),  # type: ignore[call-arg]
        (lambda _: offline_data.load_dataset("toy", split="train"), TypeError, "ds.split(train=0.9"),  # type: ignore[call-arg]
        (lambda _: offline_data.load_dataset("toy", batchsize=2), TypeError, "did you mean batch_size="),  # type: ignore[call-arg]
        (lambda _: offline_data.load_datset, AttributeError, "did you mean offline_data.load_dataset?"),  # type: ignore[attr-defined]
        (lambda _: offline_data.RandomSamplr, AttributeError, "did you mean offline_data.RandomSampler?"),  # type: ignore[attr-defined]
        (lambda _: offline_data.xyz, AttributeError, "has no attribute 'xyz'"),  # type: ignore[attr-defined]
    ],
)  # fmt: skip
def test_a_call_that_is_nearly_right_says_what_to_write(
    cli: Cli, toy: Path, write: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        write(offline_data.load_dataset("toy"))
    assert said in f"{caught.value} {getattr(caught.value, 'hint', '')}"


_T, _F = [True], [False]


@pytest.mark.parametrize(
    ("ends", "terminated"),
    [
        ({"truncations": True}, False),
        ({"truncations": False}, True),
        ({"timeouts": _F * 2 + _T}, False),
        ({"truncated": np.zeros(3, bool)}, True),
        ({"terminations": False}, False),
        ({"terminations": True}, True),
        ({"terminations": False, "truncations": False}, False),
        ({"terminations": None, "truncations": True}, False),
    ],
)
def test_one_of_both_ends_is_enough(tmp_path: Path, ends: dict[str, Any], terminated: bool) -> None:
    episode = {"observations": np.eye(4), "actions": np.ones((3, 1)), "rewards": np.ones(3), **ends}
    offline_data.convert([episode], "one", root=tmp_path, progress=False)
    found = offline_data.load_dataset("local:one", root=tmp_path)[:]
    last = {key: bool(found["next", key][-1]) for key in ("terminated", "truncated", "done")}
    assert last == {"terminated": terminated, "truncated": not terminated, "done": True}
    assert int(found["next", "done"].sum()) == 1


def test_without_ends_it_says_which_are_needed(tmp_path: Path) -> None:
    episode = {"observations": np.eye(4), "actions": np.ones((3, 1))}
    with pytest.raises(FormatError, match=r"it has none of terminations, .*truncations"):
        offline_data.convert([episode], "one", root=tmp_path)


@pytest.mark.parametrize(
    ("note", "python"),
    [
        ("--force converts it again", "force=True converts it again"),
        ("about 2 GB; --video keep stores the mp4 files.", "about 2 GB; video='keep' stores the mp4 files."),
        ("`offline-data download d4rl:x --force` makes it again", "`offline_data.download('d4rl:x', force=True)` makes it again"),
        ("skipped --images raw", "skipped images='raw'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("progress", [True, False])
def test_notes_are_in_the_words_of_python_in_python(
    caplog: pytest.LogCaptureFixture, note: str, python: str, progress: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        progress_of(progress).note(note)
    assert caplog.messages == [python]
