"""`demo`, run as a whole, and what it does not replace."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

import offline_data
from offline_data.base.errors import MissingDependencyError
from offline_data.testing.toy import toy_batch
from offline_data_cli import cartpole
from offline_data_cli.app import command_tree
from offline_data_cli.commands import demo
from offline_data_cli.verbs import VERBS
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.slow
def test_all_of_it_twice(cli: Cli, tmp_path: Path) -> None:
    found = cli("demo", "--json").json
    assert cli("list", "-q").out.split() == [found["id"]]
    assert found["verify"]["ok"] is True
    assert found["info"]["transitions"] == found["stats"]["transitions"] > 1000
    assert found["sample"]["leaves"]["observation/camera"]["shape"] == [cartpole.BATCH, 64, 96, 3]
    assert found["defect"]["shifts"] == {"action": 1}
    assert [one["code"] for one in found["defect"]["findings"]] == ["RL044"]
    assert found["training"]["return_after"] > 4 * found["training"]["return_before"]
    page = tmp_path / demo.PAGE
    assert found["page"] == str(page)
    assert b"data:image/" in page.read_bytes()
    _check_recorded()

    page.write_bytes(page.read_bytes() + b"<!-- earlier -->")
    ran = cli("demo", "--keep", "--format", "table")
    assert (ran.code, cli("list", "-q").out.split()) == (0, [found["id"]])
    assert b"earlier" not in page.read_bytes()
    assert max(map(len, (ran.out + ran.err).splitlines())) <= 80
    listed = {verb for panel in VERBS.values() for verb in panel}
    commands = re.findall(r"^ *(?:\$ )?offline-data (.*)$", ran.out, re.MULTILINE)
    assert {shlex.split(command)[0] for command in commands} < listed
    for command in demo.TO_TRY:
        assert command in commands
        if command != "browse":
            assert cli(*shlex.split(command)).code == 0
    assert "browse" in command_tree().commands


def _check_recorded() -> None:
    """Play the recorded actions in CartPole alone, and compare states and images."""
    states, images = (
        offline_data.load_arrays(f"local:{demo.NAME}", observation_key=f"observation/{leaf}")
        for leaf in ("state", "camera")
    )
    env, row = gymnasium.make("CartPole-v1"), 0
    for seed in range(demo.EPISODES):
        state, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            assert (states["observations"][row] == state).all()
            assert (images["observations"][row] == cartpole.draw(state[0], state[2])).all()
            state, _, terminated, truncated, _ = env.step(int(states["actions"][row]))
            assert (states["next_observations"][row] == state).all()
            ended, row = terminated or truncated, row + 1
    assert row == len(states["actions"])


def test_the_image_shows_the_state() -> None:
    """The cart is where its position says, and the pole points where its angle says."""
    for position, angle in ((0.0, 0.0), (-1.2, 0.2), (1.5, -0.2)):
        image = cartpole.draw(position, angle)
        _, columns = np.nonzero((image == cartpole._CART).all(-1))
        assert columns.mean() == pytest.approx(48 + 20 * position, abs=1)
        rows, columns = np.nonzero((image == cartpole._POLE).all(-1))
        top = rows == rows.min()
        assert columns[top].mean() == pytest.approx(48 + 20 * position + 32 * np.sin(angle), abs=1)


@pytest.mark.parametrize("played", [5, 300])
def test_an_interrupted_recording_leaves_no_dataset(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, played: int
) -> None:
    left = iter(range(played))
    lean = cartpole.lean

    def stopped(*seen: Any) -> int:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return lean(*seen)

    monkeypatch.setattr(cartpole, "lean", stopped)
    assert cli("demo").code == 130
    assert cli("list", "-q").out == ""


def test_an_interrupted_copy_is_not_to_be_resumed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offline_data.pipeline.preprocess.engine.preprocess", stopped)
    ran = cli("demo")
    assert (ran.code, ran.err.splitlines()[-1]) == (130, "error: interrupted; run the demo again")


def test_it_needs_its_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    ran = cli("demo", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, MissingDependencyError.code)
    assert ran.json["error"]["hint"] == "pip install 'offline-data[demo]'"


def test_it_replaces_only_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "record", lambda *_: pytest.fail("it records"))
    page = tmp_path / demo.PAGE
    page.write_text("<title>mine</title>")
    ran = cli("demo")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        f"error: {page} exists and is not a demo's page",
    )
    other = write_stored(tmp_path / "root", f"local:{demo.NAME}@1", toy_batch([3]))
    ran = cli("demo", "--force")
    assert (ran.code, page.read_text()) == (2, "<title>mine</title>")
    assert ran.err.splitlines() == [
        f"error: local:{demo.NAME} exists and is not a demo's ({other}); the demo replaces only its own",
        f"hint: offline-data rename local:{demo.NAME} NAME",
    ]
