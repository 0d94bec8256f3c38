"""A name without a source means the same dataset in every function as in the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.base.errors import InvalidIdError, NotFoundError, OfflineError, UsageError
from offline_data.testing.toy import toy_batch
from offline_data_cli.main import main
from tests.slow import every_second
from tests.toys.stored import write_stored

HOPPER = "d4rl:hopper-medium-v2"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    for name in (HOPPER, "lerobot:lerobot/pusht", "local:other"):
        write_stored(tmp_path, f"{name}@1", toy_batch([30, 40]))
    return tmp_path


FUNCTIONS: dict[str, Callable[[str, Path], Any]] = {
    "align": lambda name, _: offline_data.align(name),
    "card": lambda name, _: offline_data.card(name),
    "check": lambda name, _: offline_data.check(name),
    "diff": lambda name, _: offline_data.diff(name, "other"),
    "download": lambda name, _: offline_data.download(name),
    "export": lambda name, to: offline_data.export(name, to / "x.npz", to="npz"),
    "info": lambda name, _: offline_data.info(name),
    "load_arrays": lambda name, _: offline_data.load_arrays(name),
    "load_dataset": lambda name, _: offline_data.load_dataset(name),
    "load_dataset, no download": lambda name, _: offline_data.load_dataset(name, download=False),
    "load_dataset, a revision": lambda name, _: offline_data.load_dataset(name, revision="1"),
    "merge": lambda name, _: offline_data.merge(name, "other", name="both"),
    "push": lambda name, to: offline_data.push(name, to / "pushed"),
    "remove": lambda name, _: offline_data.remove(name),
    "stats": lambda name, _: offline_data.stats(name),
    "verify": lambda name, _: offline_data.verify(name),
}


@pytest.mark.parametrize(
    ("function", "name"), every_second(FUNCTIONS, ["hopper-medium-v2", "lerobot/pusht"])
)
def test_every_function_takes_the_name_of_a_dataset(
    root: Path, tmp_path_factory: pytest.TempPathFactory, function: str, name: str
) -> None:
    FUNCTIONS[function](name, tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("function", every_second(FUNCTIONS))
def test_every_function_names_the_nearest_datasets(
    root: Path, tmp_path: Path, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFoundError, match="No dataset is called 'hoper-medium-v2'") as caught:
        FUNCTIONS[function]("hoper-medium-v2", tmp_path)
    assert f"did you mean {HOPPER}" in str(caught.value.hint)
    assert main(["info", "hoper-medium-v2"]) == 3
    assert f"hint: {caught.value.shell_hint}" in capsys.readouterr().err.replace("\n      ", " ")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ant-medium-v2", "d4rl:ant-medium-v2"),
        ("D4RL/door/human-v2", "minari:D4RL/door/human-v2"),
        ("lerobot/aloha_sim_insertion_human", "lerobot:lerobot/aloha_sim_insertion_human"),
    ],
)
@pytest.mark.parametrize(
    "load",
    [
        offline_data.load_dataset,
        offline_data.load_arrays,
        offline_data.download,
        lambda name: next(iter(offline_data.StreamingDataset(name, 2))),
    ],
)
def test_a_name_of_a_catalogue_is_downloaded(
    root: Path, load: Callable[[str], Any], name: str, wanted: str
) -> None:
    with pytest.raises(OfflineError, match=wanted):
        load(name)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("human-v2", UsageError, r"4 datasets are called 'human-v2'"),
        ("", InvalidIdError, "not a valid name"),
        ("../hopper", NotFoundError, "not a dataset directory"),
        ("what-is-this", NotFoundError, "No dataset is called"),
    ],
)
@pytest.mark.parametrize("function", [offline_data.load_dataset, offline_data.stats])
def test_names_that_say_too_little(
    root: Path, function: Callable[[str], Any], name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        function(name)
    if error is UsageError:
        assert "minari:D4RL/door/human-v2" in str(caught.value.hint)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["pusht", "lerobot/pushtt"])
def test_only_a_whole_name_is_removed(root: Path, name: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        offline_data.remove(name)
    assert caught.value.hint == "did you mean lerobot:lerobot/pusht?"
