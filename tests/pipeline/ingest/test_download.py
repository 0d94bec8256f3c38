"""`download`: when it converts, when it uses what is here, and the command that it names offline."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings, resolve_settings
from offline_data.base.errors import NetworkError, NotFoundError, OfflineError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download, ensure, plan_download
from offline_data.pipeline.ingest.resolve import online_command, suggest_command
from offline_data.store.library import entry_at, list_datasets
from tests.toys.minari import toy_episode, write_minari

ID = parse_id("minari:my/set-v0")


def record(settings: Settings, episodes: int) -> Path:
    assert settings.minari_path is not None
    folder = settings.minari_path / "my" / "set-v0"
    shutil.rmtree(folder, ignore_errors=True)
    return write_minari(folder, [toy_episode(e, 3) for e in range(episodes)])


def transitions(path: Path) -> int:
    return int(entry_at(path).manifest.counts["transitions"])


@pytest.mark.parametrize("options", [Options(), Options(episodes=(0, 2))])
def test_a_set_recorded_anew_is_converted_anew(settings: Settings, options: Options) -> None:
    record(settings, 2)
    first = download(ID, settings, options)
    assert download(ID, settings, options).existed
    record(settings, 5)
    second = download(ID, settings, options)
    assert not second.existed
    assert second.id != first.id
    assert second.manifest.counts["episodes"] == (5 if options.episodes is None else 2)


def test_without_download_what_is_here_is_used_as_it_is(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="not on this disk"):
        ensure(str(ID), settings=settings, download=False)
    record(settings, 2)
    path = ensure(str(ID), settings=settings)
    record(settings, 5)
    assert ensure(str(ID), settings=settings, download=False) == path
    assert transitions(path) == 6
    ted = ensure(str(ID), settings=settings, download=False, layout="ted")
    assert (ted, entry_at(ted).manifest.layout) == (path, "ted")
    assert transitions(ensure(str(ID), settings=settings)) == 15


def test_what_is_here_outlives_its_source(settings: Settings) -> None:
    record(settings, 2)
    first = download(ID, settings, Options())
    gone = replace(settings, minari_path=settings.root / "nowhere")
    again = download(ID, gone, Options())
    assert (again.existed, again.path) == (True, first.path)


def test_some_episodes_are_not_taken_for_all(settings: Settings) -> None:
    record(settings, 4)
    some = download(ID, settings, Options(episodes=(1, 3)))
    assert some.manifest.counts["episodes"] == 2
    whole = download(ID, settings, Options())
    assert not whole.existed
    assert whole.manifest.counts["episodes"] == 4
    assert len(list_datasets(settings.root)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_force_converts_what_is_here_again(settings: Settings) -> None:
    record(settings, 2)
    first = download(ID, settings, Options())
    (first.path / "stranger").write_text("x")
    again = download(ID, settings, Options(force=True))
    assert (again.path, again.existed) == (first.path, False)
    assert (first.path / "stranger").read_text() == "x"


def test_the_other_layout_is_made_from_what_is_here(settings: Settings) -> None:
    folder = record(settings, 4)
    compact = download(ID, settings, Options(episodes=(1, 3)))
    shutil.rmtree(folder)
    ted = download(ID, settings, Options(layout="ted", episodes=(1, 3)))
    assert ted.path == compact.path
    assert (ted.manifest.layout, ted.episodes) == ("ted", 2)
    assert ted.manifest.converter["options"]["episodes"] == [1, 3]
    assert ted.manifest.files == compact.manifest.files


PEN = parse_id("d4rl:pen-human-v1")


def test_only_what_matters_is_in_the_command(tmp_path: Path) -> None:
    assert online_command(PEN, Settings(tmp_path), Options()) == f"offline-data download {PEN}"
    options = Options(
        layout="ted", episodes=(None, 3), strict=True, audit="all", keep_raw=True, force=True
    )
    told = resolve_settings(root=tmp_path / "a b", environ={})
    asked = replace(options, raw_only=True)
    assert shlex.split(online_command(PEN, told, asked)) == [
        *("offline-data", "download", str(PEN), "--root", str(tmp_path / "a b")),
        *("--layout", "ted", "--episodes", ":3", "--force", "--raw-only", "--keep-raw"),
    ]
    found = resolve_settings(environ={"OFFLINE_DATA_HOME": str(tmp_path)})
    assert "--root" not in online_command(PEN, found, options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(), "d4rl:pen-human-v1 is not on this disk, and offline"),
        (Options(episodes=(2, None)), "Episodes 2: of d4rl:pen-human-v1 are not on this disk"),
        (Options(force=True), "cannot be fetched again from this disk"),
    ],
)
def test_the_message_is_true(options: Options, said: str, tmp_path: Path) -> None:
    with (
        pytest.raises(OfflineError, match=said) as caught,
        suggest_command(PEN, Settings(tmp_path), options),
    ):
        raise OfflineError("no socket")
    # A traceback shows this error alone.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_pass(tmp_path: Path) -> None:
    error = NetworkError("down")
    with (
        pytest.raises(NetworkError) as caught,
        suggest_command(PEN, Settings(tmp_path), Options()),
    ):
        raise error
    assert caught.value is error


def test_a_plan_names_it_too(settings: Settings) -> None:
    door = parse_id("minari:D4RL/door/human-v2")
    with pytest.raises(OfflineError, match="not on this disk") as caught:
        plan_download(door, replace(settings, offline=True), Options())
    assert f"online: `offline-data download {door}`" in str(caught.value.shell_hint)
    assert f"online: `offline_data.download('{door}')`" in str(caught.value.hint)
