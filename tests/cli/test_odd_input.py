"""Arguments and variables that cannot be meant: a documented exit code and a sentence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

BIG, HUGE, BYTES = "9" * 30, "9" * 5000, os.fsdecode(b"\xff")

ARGUMENTS: dict[str, tuple[tuple[str, ...], set[int]]] = {
    "head -1": (("head", "local:toy", "-n", "-1"), {2}),
    "head big": (("head", "local:toy", "-n", BIG), {0}),
    "head huge": (("head", "local:toy", "-n", HUGE), {2}),
    "head episode": (("head", "local:toy", "--episode", BIG), {2, 3}),
    "sample big": (("sample", "local:toy", "--batch", BIG), {2}),
    "sample slices": (("sample", "local:toy", "--slices", BIG), {2}),
    "episodes huge": (("download", "d4rl:pen-human-v1", "--episodes", f"{HUGE}:"), {2}),
    "episodes, other digits": (("download", "d4rl:pen-human-v1", "--episodes", "1:\u0663"), {2}),
    "audit nan": (("download", "d4rl:pen-human-v1", "--audit", "nan"), {2}),
    "audit bytes": (("download", "d4rl:pen-human-v1", "--audit", BYTES), {2}),
    "older than huge": (("cache", "prune", "--older-than", HUGE, "-y"), {2}),
    "id of bytes": (("info", f"local:{BYTES}"), {2, 3}),
    "empty id": (("info", ""), {2, 3}),
    "prefix of bytes": (("list", "--prefix", BYTES), {0}),
    "search bytes": (("search", BYTES), {0}),
    "search nothing": (("search", ""), {0}),
    "no verb": (("",), {2}),
    "verb of bytes": ((BYTES,), {2}),
    "root without a user": (("list", "--root", "~nosuchuser/x"), {2}),
    "dataset without a user": (("info", "~nosuchuser/x"), {2}),
    "folder without a user": (
        ("preprocess", "~nosuchuser/x", "--step", "reward_clip:high=1", "--out", "y"),
        {2},
    ),
    "path without a user": (("convert", "~nosuchuser/x", "y"), {2}),
    "destination without a user": (
        ("preprocess", "local:toy", "--step", "reward_clip:high=1", "--dest", "~nosuchuser/x"),
        {2},
    ),
    "function without a user": (
        ("preprocess", "local:toy", "--fn", "~nosuchuser/x.py:f", "--out", "y"),
        {2},
    ),
    "plan without a user": (("worker", "--plan", "~nosuchuser/x", "--rank", "0"), {2}),
    "cache rm without a user": (("cache", "rm", "~nosuchuser/x", "-y"), {2}),
    "root of a long name": (("list", "--root", f"/srv/{'a' * 300}"), {2}),
    "root of half a letter": (("list", "--root", "/srv/\ud800"), {2}),
    "cache rm bytes": (("cache", "rm", BYTES, "-y"), {3}),
}


def test_odd_arguments(cli: Cli, toy: Path) -> None:
    for case, (arguments, codes) in ARGUMENTS.items():
        ran = cli(*arguments, "--offline")
        assert ran.code in codes, (case, ran.err)
        for word in ("unexpected", "Traceback"):
            assert word not in ran.err, case
