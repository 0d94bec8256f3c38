"""What families of hostile inputs share: generators, exit codes, ways to spoil a file, drivers."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from offline_data.base.errors import OfflineDataError
from tests.fuzz.harness import SECRET, Plan, plan_of, run_command
from tests.fuzz.mutations import spoil_bytes

DONE_OR_REFUSED = frozenset({0, 2, 3, 5})
"""Exit codes of a conversion of a local file: a dataset, or what is wrong with the file."""

ROOT = ("--root", "case/root")
VERIFY = ("verify", "local:x", *ROOT)
MADE_OR_NOT = frozenset({0, 3})
"""Exit codes of `VERIFY`, whether or not there is a dataset."""


def generator(kind: str, seed: int) -> Random:
    return Random(f"{kind}-{seed}")


def instead(random: Random, path: Path) -> None:
    """Put something in the place of a file that is none, or has no end."""
    path.unlink()
    kind = random.choice(("fifo", "folder", "loop", "/dev/zero", "/dev/full", "nowhere"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "loop" else kind)


def spoil_file(random: Random, path: Path) -> None:
    if not path.is_file():  # by an earlier change
        return
    kind = random.randrange(6)
    if kind == 0:
        path.unlink()
        path.mkdir()
    elif kind == 1:
        path.write_bytes(b"")
    elif kind == 2:
        path.write_bytes(b"<!DOCTYPE html><title>Not found</title>")
    else:
        path.write_bytes(spoil_bytes(random, path.read_bytes(), head=512))


def refused(error: OfflineDataError) -> int:
    """Show an error as a command would; returns an exit code."""
    from offline_data_cli.render import show_error

    show_error(error.code, error.message, error.hint, as_json=False)
    return 5


def run_quietly(folder: Path, number: int, line: tuple[str, ...]) -> int:
    """Run a command with one thread of torch."""
    one_thread()
    return run_command(folder, number, line)


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@contextmanager
def loopback_only() -> Iterator[None]:
    """Let no name of another host be looked up."""
    ask = socket.getaddrinfo

    def refuse(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in {"127.0.0.1", b"127.0.0.1", "localhost"}:
            raise socket.gaierror(socket.EAI_NONAME, "no such host, for the test")
        return ask(host, *rest, **more)

    socket.getaddrinfo = refuse
    try:
        yield
    finally:
        socket.getaddrinfo = ask


def plan_of_case(folder: Path) -> Plan:
    """Return the plan of the case that runs in a folder."""
    return plan_of(json.loads((folder / "prepare" / "value.json").read_text()))


def secret_hdf5(folder: Path) -> Path:
    """Write another HDF5 file, outside the case; returns the text file beside it."""
    import h5py

    path = folder.parent / "secret.txt"
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["secret"] = np.frombuffer(SECRET * 8, np.uint8).view("f4")[:1000]
    return path


def only_dataset(folder: Path) -> Path:
    (manifest,) = (
        path
        for path in (folder / "case" / "root").rglob("manifest.json")
        if ".staging" not in path.parts
    )
    return manifest.parent
