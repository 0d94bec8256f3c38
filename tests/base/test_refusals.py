"""What settings, schemas, ids and JSON refuse: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings, check_mirror, resolve_settings
from offline_data.base.decode import decode
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.json import count_of, parse_json, read_json
from tests.base.test_decode import Described, nested
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def variable(name: str, value: object) -> Settings:
    return resolve_settings(environ={name: str(value)})


def config(folder: Path, text: str) -> Settings:
    path = folder / "config.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    return variable("OFFLINE_DATA_CONFIG", path)


def described(fields: dict[str, Any], **options: Any) -> Described:
    return decode(Described, {"id": "d4rl:a", **fields}, "f", **options)


def special(folder: Path, kind: str) -> Path:
    """Make what is no plain file, or no small one."""
    path = folder / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind in {"device", "ring"}:
        path.symlink_to("/dev/zero" if kind == "device" else "ring")
    else:
        path.write_text("[12345]")
        os.truncate(path, 7 if kind == "seven bytes" else 1 << 40)
    return path


NAMES: dict[str, Any] = {
    call.__name__: call
    for call in (
        *(variable, resolve_settings, check_mirror, described, decode, Described),
        *(DatasetId, parse_id, parse_json, nested, count_of, read_json),
    )
}


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path) -> None:
    made_here = {made.__name__: partial(made, tmp_path) for made in (config, special)}
    names = {**NAMES, **made_here, "here": tmp_path}
    REFUSALS.check(kind, text, lambda: eval(text, names), {tmp_path: "FOLDER"})  # noqa: S307


def test_no_refusal_shows_a_password() -> None:
    told = str([*REFUSALS.known["passwords"].values()])
    assert "***" in told
    assert "hush" not in told
    assert "sesame" not in told
