"""The README's tour, run as written: against a hub and a host of this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data.fetch import gcs
from tests.stories.conftest import Shell
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.rlds import toy_record, write_rlds
from tests.toys.servers import FileServer, GcsServer, HubServer

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
TOUR = README.split("## A tour")[1].split("\n## ")[0]
D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"


def test_the_tour_works_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_minari(tmp_path / "repo/door/human-v2", [toy_episode(e, 45) for e in range(10)])
    write_d4rl_hdf5(tmp_path / "recorded.hdf5")
    pen = (tmp_path / "recorded.hdf5").read_bytes()
    blocks = re.findall(r"```(console|python)\n(.*?)```", TOUR, re.DOTALL)
    assert [kind for kind, _ in blocks] == [
        "console",
        *["python"] * 13,
        "console",
        "python",
        "console",
    ]
    (tmp_path / "scale.py").write_text(next(c for _, c in blocks if c.startswith("# scale.py")))
    records = [toy_record(episode, 20) for episode in range(30)]
    viola = write_rlds(tmp_path / "viola", {"train": [records[:20], records[20:]]}, name="viola")
    objects = {f"robotics/viola/0.1.0/{path.name}": path.read_bytes() for path in viola.iterdir()}
    with (
        GcsServer({"gresearch": objects}) as bucket,
        HubServer({"farama-minari/D4RL": tmp_path / "repo"}) as hub,
        FileServer({"/hand_dapg_v1/pen-human-v1.hdf5": pen}) as host,
    ):
        mirrors = f"{D4RL_HOST}={host.url}/;{gcs.HOST}={bucket.url}"
        shell = Shell(tmp_path, {"HF_ENDPOINT": hub.url, "OFFLINE_DATA_MIRRORS": mirrors})
        python = "\n".join(code for kind, code in blocks if kind == "python")
        for command in blocks[0][1].splitlines():
            run(shell, command)
        run(shell, "$ offline-data download d4rl:pen-human-v1 --allow-changed")  # it is small here
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", python],
            env=shell.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "450 transitions in 10 episodes" in done.stdout
        assert "450 transitions, each once" in done.stdout
        assert "torch.Size([256, 1]) torch.Size([256])" in done.stdout
        assert "tensor([128,  64,  64])" in done.stdout
        assert "450 transitions in /" in done.stdout
        assert "450 transitions scaled" in done.stdout
        assert "585 transitions streamed" in done.stdout  # of 600, 15 have no known next one
        monkeypatch.chdir(tmp_path)
        console = [code for kind, code in blocks[1:] if kind == "console"]
        for command in [line for code in console for line in code.splitlines()]:
            run(shell, command)


def run(shell: Shell, command: str) -> None:
    dollar, program, *arguments = shlex.split(command)
    assert (dollar, program) == ("$", "offline-data")
    assert shell.run(*arguments).stdout


def test_make_has_the_two_commands() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
