"""Every verb on a dataset whose texts control a terminal: what is printed contains none of it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer

from offline_data.reports.pages.browse import DatasetServer
from offline_data.store.library import entry_at
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter
from offline_data.testing.toy import toy_batch
from offline_data_cli import cartpole
from offline_data_cli.app import command_tree
from offline_data_cli.commands import demo
from tests.slow import slow_but
from tests.toys.minari import box, toy_episode, write_minari

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

EVIL = "\x1b]0;owned\x07 \x9b2J\x85 \x7f \u202eabc\u2066"
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

MODES: dict[str, tuple[str, ...]] = {
    "pipe": (),
    "table": ("--format", "table", "--color", "never"),
    "JSON": ("--json",),
    "quiet": ("-q",),
}

COMMANDS: dict[str, str] = {
    "browse": "--no-open",
    "cache dir": "",
    "cache ls": "",
    "cache prune": "--yes",
    "cache rm": "dataset --yes",
    "card": "local:evil",
    "check": "local:evil",
    "check (JSON)": "local:evil --output-format json",
    "check (JUnit)": "local:evil --output-format junit",
    "check (SARIF)": "local:evil --output-format sarif",
    "check (GitHub)": "local:evil --output-format github",
    "check (Markdown)": "local:evil --output-format markdown",
    "compare": "local:evil local:other --out both.html",
    "completion": "bash",
    "config edit": "",
    "config get": "",
    "config path": "",
    "config set": shlex.join(("root", EVIL)),
    "convert": "evil-v0 new",
    "cp": "local:evil new",
    "demo": "",
    "align": "local:evil",
    "diff": "local:evil local:other",
    "download": "local:evil",
    "env": "",
    "episodes": "local:evil",
    "explain": "RL001 clip",
    "filter": "local:evil length>1 --out new",
    "head": "local:evil",
    "info": "local:evil",
    "list": "",
    "lock": "",
    "merge": "local:evil local:other --out new",
    "open": "local:evil",
    "path": "local:evil",
    "plot": "local:evil",
    "preprocess": "local:evil --step clip:action,low=-1,high=1 --out new",
    "push": "local:evil pushed",
    "export": "local:evil out.hdf5 --to d4rl",
    "push (hub)": "local:evil hf://a/b --public",
    "rename": "local:evil new",
    "replay": "local:evil --env CartPole-v1",
    "report": "local:evil",
    "rm": "local:evil --yes",
    "rule": "RL001",
    "sample": "local:evil",
    "search": shlex.quote(EVIL),
    "sources": "",
    "split": "local:evil a=0.5 b=0.5",
    "stats": "local:evil --features --quantiles",
    "step": "clip",
    "sync": "",
    "tail": "local:evil",
    "verify": "--all",
    "version": "",
    "view": "local:evil 0",
    "worker": "--plan plan.json --rank 0 --world 1",
}
"""Arguments of each verb; a verb may occur again, with a remark in parentheses."""

SHOWING = {"cache ls", "card", "check", "diff", "head", "info", "sample", "stats", "tail", "verify"}
"""Commands that show texts of the dataset, among others."""


def _verbs(command: Any, name: str = "") -> list[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [name]
    shown = {word: below for word, below in inner.items() if not below.hidden}
    return [verb for word in shown for verb in _verbs(shown[word], f"{name} {word}".strip())]


def test_every_verb_has_a_command_here() -> None:
    assert {verb.partition(" (")[0] for verb in COMMANDS} == set(_verbs(command_tree()))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a root of two hostile datasets and a damaged one, and a hostile Minari folder."""
    folder: Path = tmp_path_factory.mktemp("evil")
    toy = toy_batch([3, 2], text=True, images=True)
    texts = np.array([f"{EVIL} {row % 2}" for row in range(7)], object)
    steps = {**toy.steps, ("next", EVIL): np.full((5, 1), np.nan)}
    action = steps.pop(("action",))
    for name in ("evil", "other", "damaged"):
        place = folder / "root" / "local" / name / "1"
        header = Manifest(f"local:{name}@1", EVIL, EVIL, EVIL, "compact", {}, {})
        with DatasetWriter(place, header, audit="all") as writer:
            values = {**steps, ("action", EVIL): action + len(name)}
            seen = {**toy.observations, ("observation", EVIL): texts}
            writer.append(replace(toy, steps=values, observations=seen))
            writer.finish()
        file = place / "manifest.json"
        manifest = json.loads(file.read_text())
        del manifest["sha256"]
        plain = dict.fromkeys(("created", "licence", "citation"), EVIL)
        objects = {name: {EVIL: EVIL} for name in ("spaces", "environment", "about", "audit")}
        manifest |= {**plain, **objects, "notes": [EVIL], "parents": [EVIL]}
        manifest["converter"] = {
            "name": EVIL,
            "version": EVIL,
            "options": {"recipe": [{"step": EVIL}]},
        }
        manifest["dropped"] = [{"key": EVIL, "reason": EVIL}]
        manifest["skipped"] = [{"where": EVIL, "reason": EVIL}]
        manifest["files"] = [{"path": EVIL, "url": EVIL, "size": 1, "failed": [EVIL]}]
        file.write_text(json.dumps(manifest))
        (place / f"foreign {EVIL}").touch()
    (place / "text.json").write_text("[]")
    wrong = folder / "root" / "local" / EVIL
    shutil.copytree(folder / "root" / "local" / "evil" / "1", wrong)
    (wrong / "manifest.json").write_text(json.dumps({**manifest, "id": EVIL}))
    metadata = dict.fromkeys(("author", "description", "dataset_id", EVIL), EVIL)
    episode = toy_episode(0, 3, info={EVIL: box(2)})
    write_minari(folder / "evil-v0", [episode], metadata=metadata)
    (folder / "datasets.toml").write_text('[datasets]\nmine = "local:evil"\n')
    return folder


@pytest.mark.parametrize(
    ("command", "mode"),
    slow_but(lambda command, mode: mode == "pipe" or command in SHOWING, COMMANDS, MODES),
)
def test_what_is_printed_controls_no_terminal(
    command: str,
    mode: str,
    prepared: Path,
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DatasetServer, "serve_forever", lambda _: None)
    monkeypatch.setattr(typer, "launch", lambda *_: 0)
    monkeypatch.setattr(
        demo, "record", lambda settings, _: entry_at(settings.root / "local" / "evil" / "1")
    )
    monkeypatch.setattr(cartpole, "train", lambda _: cartpole.Cloning(1, 1, 1, 0.0, 1.0))
    monkeypatch.setenv("EDITOR", "true")
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(tmp_path / "config.toml"))
    verb = command.partition(" (")[0]
    folder = tmp_path / mode
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(folder / "root"))
    if verb == "worker":
        cli("preprocess", *COMMANDS["preprocess"].split(), "--plan-only", "--plan", "plan.json")
    ran = cli(*verb.split(), *shlex.split(COMMANDS[command]), *MODES[mode])
    assert "Traceback" not in ran.err
    assert "unexpected" not in ran.err
    assert not FORBIDDEN.search(ran.out + ran.err)
    if mode == "JSON":
        assert ran.json is not None
    if mode in {"pipe", "table"} and command in SHOWING:
        assert "\ufffd" in ran.out + ran.err
