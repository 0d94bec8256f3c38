"""Offline as a user meets it: what is here works, what is not names its command, no socket opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.base.config import resolve_settings
from tests.stories.conftest import D4RL_HOST, DOOR, PEN, PEN_FILE, Shell
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.servers import FileServer, HubServer

pytestmark = pytest.mark.slow

ABSENT = ("minari:D4RL/pen/human-v2", "d4rl:door-human-v1")
SWITCHES = ("OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE")

GUARD = """
import os, sys
def guard(event, arguments):
    if event in {"socket.__new__", "socket.getaddrinfo", "socket.gethostbyname"}:
        os.write(2, f"{event}{arguments}".encode())
        os._exit(99)
sys.addaudithook(guard)
"""
"""Runs at the start of every Python of a guarded shell; nothing can catch how it ends."""

EVERY = """
import functools, json, shlex, sys
import typer
from offline_data_cli.main import main
typer.main.get_command = functools.cache(typer.main.get_command)
verbs = json.loads(sys.argv[1])
ended = {verb: main([*shlex.split(verb), "--quiet"]) for verb in verbs}
print({verb: code for verb, code in ended.items() if code != verbs[verb]})
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, pen: bytes) -> Shell:
    """A root with a dataset of each source, in a shell whose programs end at a socket."""
    folder: Path = tmp_path_factory.mktemp("offline")
    write_minari(folder / "repo" / "door" / "human-v2", [toy_episode(0, 7), toy_episode(1, 3)])
    with (
        HubServer({"farama-minari/D4RL": folder / "repo"}) as hub,
        FileServer({PEN_FILE: pen}) as host,
    ):
        hosts = {"HF_ENDPOINT": hub.url, "OFFLINE_DATA_MIRRORS": f"{D4RL_HOST}={host.url}/"}
        Shell(folder, hosts).run("download", DOOR, "--keep-raw")
        Shell(folder, hosts).run("download", PEN, "--allow-changed")  # a small file in its place
    (folder / "guard").mkdir()
    (folder / "guard" / "sitecustomize.py").write_text(GUARD)
    return Shell(folder, {"PYTHONPATH": str(folder / "guard")})


def python(shell: Shell, code: str, *arguments: str, **extra: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**shell.environ, **extra},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr + done.stdout


def test_the_guard_sees_a_socket(guarded: Shell) -> None:
    assert "socket." in guarded.run("download", ABSENT[0], code=99).stderr


PYTHON = f"""
import offline_data
from offline_data.base.errors import OfflineError
for dataset in ({DOOR!r}, {PEN!r}):
    print(offline_data.load_dataset(dataset, batch_size=4).sample().shape)
name = {DOOR.partition(":")[2]!r}
print(len(offline_data.MinariExperienceReplay(name, 4, load_from_local_minari=True)))
for dataset in {ABSENT!r}:
    try:
        offline_data.load_dataset(dataset, root=sys.argv[2])
    except OfflineError as error:
        print(error, error.hint, sep=": ")
"""


def test_every_verb_and_python_work_on_what_is_here(guarded: Shell, tmp_path: Path) -> None:
    write_minari(tmp_path / "mine", [toy_episode(0, 4)])
    reads = ("info", "head", "stats", "verify", "sample --batch 4")
    verbs = {
        **{f"{verb} {dataset}": 0 for verb in reads for dataset in (DOOR, PEN)},
        **dict.fromkeys(("list", "list --remote", "list minari", "search door human"), 0),
        **dict.fromkeys((f"info {dataset}" for dataset in ABSENT), 0),
        **dict.fromkeys(("sources", "env", "cache dir", "cache ls"), 0),
        **dict.fromkeys(("cache prune --dry-run", "cache rm download --dry-run"), 0),
        f"download {DOOR}": 0,
        f"download {DOOR} --dry-run": 0,
        f"download {DOOR} {PEN} --layout ted": 0,
        f"convert {tmp_path / 'mine'} mine": 0,
        "rm local:mine --yes": 0,
        "info minari:nobody/knows-v0": 3,
        f"head {ABSENT[0]}": 3,
        f"download {ABSENT[0]}": 6,
        f"download {ABSENT[1]}": 6,
        f"download {ABSENT[0]} --dry-run": 6,
        f"download {ABSENT[1]} --raw-only": 6,
        f"download {DOOR} --force": 6,
    }
    root = tmp_path / "my root"
    code, said = python(
        guarded, EVERY + PYTHON, json.dumps(verbs), str(root), OFFLINE_DATA_OFFLINE="1"
    )
    assert code == 0, said
    *_, others, shape, same, count, first, second = said.splitlines()
    assert (others, shape, same, count) == ("{}", "torch.Size([4])", "torch.Size([4])", "10"), said
    for dataset, message in zip(ABSENT, (first, second), strict=True):
        assert message.startswith(
            f"{dataset} is not on this disk, and offline mode is on: "
            f"online: `offline_data.download({dataset!r}, root={str(root)!r})`; "
        )


@pytest.mark.parametrize("switch", ["--offline", *SWITCHES, " and ".join(SWITCHES), "config.toml"])
def test_the_command_line_says_the_command_and_what_decided(
    guarded: Shell, switch: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("offline = true")
    extra = {name: "1" for name in SWITCHES if name in switch}
    if switch == "config.toml":
        extra["OFFLINE_DATA_CONFIG"] = str(tmp_path / switch)
    user = Shell(guarded.folder, extra)
    verb = ("download", ABSENT[1], "--episodes", "0:2")
    error = user.json(*verb, *["--offline"] * (switch == "--offline"), code=6)["error"]
    assert error["code"] == "offline"
    assert error["hint"].startswith(f"online: `offline-data {' '.join(verb)}`; ")
    assert switch in error["hint"]
    if switch != "--offline":
        words = [word.partition("=") for word in error["hint"].split() if word.endswith("=0")]
        assignments = {name: value for name, _, value in words}
        assert resolve_settings(environ=user.environ).offline
        assert not resolve_settings(environ={**user.environ, **assignments}).offline


def test_a_misspelt_name_and_a_packaged_list_say_so(guarded: Shell) -> None:
    user = Shell(guarded.folder)
    error = user.json("--offline", "download", "minari:D4RL/dor/human-v2", code=6)["error"]
    assert error["hint"].startswith(f"did you mean {DOOR}")
    said = user.run("--offline", "list", "minari", "--remote").stderr
    assert said == "minari: offline, this is the catalogue that comes with the package\n"


def test_raw_files_on_a_mirror_of_this_machine_need_no_socket(
    guarded: Shell, tmp_path: Path
) -> None:
    mirror = tmp_path / "mirror" / "hand_dapg_v1"
    mirror.mkdir(parents=True)
    write_d4rl_hdf5(mirror / "door-human-v1.hdf5")
    (tmp_path / "config.toml").write_text(
        f"offline = true\n[mirrors]\n'{D4RL_HOST}' = ['{mirror.parent}']\n"
    )
    named = {"OFFLINE_DATA_CONFIG": str(tmp_path / "config.toml")}
    user = Shell(tmp_path, {**guarded.extra, **named})
    user.run("download", ABSENT[1], "--allow-changed")
    (file,) = user.json("info", ABSENT[1])["files"]
    assert file["url"] == (mirror / "door-human-v1.hdf5").as_uri()
