"""Arguments that make no sense: a documented exit code and a sentence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

BIG, HUGE, BYTES = "9" * 30, "9" * 5000, os.fsdecode(b"\xff")
DOWNLOAD, CLIP = "download d4rl:pen-human-v1", "--step reward_clip:high=1"

LINES = {
    "head local:toy -n -1": {2},
    f"head local:toy -n {BIG}": {0},
    f"head local:toy -n {HUGE}": {2},
    f"head local:toy --episode {BIG}": {2, 3},
    f"sample local:toy --batch {BIG}": {2},
    f"sample local:toy --slices {BIG}": {2},
    f"{DOWNLOAD} --episodes {HUGE}:": {2},
    f"{DOWNLOAD} --episodes 1:\u0663": {2},
    f"{DOWNLOAD} --audit nan": {2},
    f"{DOWNLOAD} --audit {BYTES}": {2},
    f"cache prune --older-than {HUGE} -y": {2},
    f"info local:{BYTES}": {2, 3},
    "info ": {2, 3},
    f"list --prefix {BYTES}": {0},
    f"search {BYTES}": {0},
    "search ": {0},
    "": {2},
    BYTES: {2},
    "list --root ~nosuchuser/x": {2},
    "info ~nosuchuser/x": {2},
    f"preprocess ~nosuchuser/x {CLIP} --out y": {2},
    "convert ~nosuchuser/x y": {2},
    f"preprocess local:toy {CLIP} --dest ~nosuchuser/x": {2},
    "preprocess local:toy --fn ~nosuchuser/x.py:f --out y": {2},
    "worker --plan ~nosuchuser/x --rank 0": {2},
    "cache rm ~nosuchuser/x -y": {2},
    f"list --root /srv/{'a' * 300}": {2},
    "list --root /srv/\ud800": {2},
    f"cache rm {BYTES} -y": {3},
}


def test_odd_arguments(cli: Cli, toy: Path) -> None:
    for line, codes in LINES.items():
        ran = cli(*line.split(" "), "--offline")
        assert ran.code in codes, (line, ran.err)
        for word in ("unexpected", "Traceback"):
            assert word not in ran.err, line
