"""`report`, `compare` and `browse` from the command line."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.conftest import RUN, Cli
from tests.toys.text import write_tokenizer


def test_report_writes_one_file(
    cli: Cli, toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("report", "toy", "--json")
    content = (tmp_path / "toy.html").read_bytes()
    assert ran.json == {
        "id": "local:toy@1",
        "path": str(tmp_path / "toy.html"),
        "bytes": len(content),
    }
    assert b"<title>local:toy@1</title>" in content
    again = cli("report", "toy")
    assert (again.code, "--force" in again.err) == (2, True)
    assert cli("report", "toy", "--force", "-q").out == f"{tmp_path / 'toy.html'}\n"
    other = cli("report", str(toy), "--out", str(tmp_path / "x.html"))
    assert (other.code, (tmp_path / "x.html").exists()) == (0, True)


def test_a_report_of_one_episode(cli: Cli, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.html"
    assert cli("report", "toy", "--episode", "1", "--out", str(out)).code == 0
    assert b"<title>local:toy@1</title>" in out.read_bytes()
    assert b'"listed":[1]' in out.read_bytes()


def test_a_report_of_some_parts(cli: Cli, toy: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.html", tmp_path / "some.html"
    assert cli("report", "toy", "--out", str(whole)).code == 0
    some = ("--only", "metadata", "--only", "features", "--out", str(out))
    assert cli("report", "toy", *some).code == 0
    assert re.findall(rb'<section id="(\w+)"', out.read_bytes()) == [b"features", b"metadata"]
    assert out.stat().st_size < whole.stat().st_size
    cli("cp", "toy", "copy")
    refused = {
        ("toy", "--only", "films"): "'films' is not one of episodes, features, findings, metadata",
        ("toy", "--only", "features", "--episodes", "0:1"): "--only leaves them out",
        ("toy", "--only", "episodes", "--episode", "0"): "--episode and --only exclude each other",
        ("toy", "copy", "--only", "features"): "--only and --tokenizer take one dataset",
        ("toy", "--card", "--only", "features"): "--card is Markdown",
    }
    for words, said in refused.items():
        ran = cli("report", *words, "--out", str(tmp_path / "x.html"))
        assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("same", [True, False])
def test_a_report_decodes_with_the_tokenizer_of_the_dataset(
    cli: Cli, tmp_path: Path, same: bool
) -> None:
    tokenizer = write_tokenizer(tmp_path)
    rows = tmp_path / "rows.txt"
    rows.write_text("a text that the page decodes\n")
    cli("convert", str(rows), "words", "--from", "text", "--tokenizer", str(tokenizer))
    out = tmp_path / "x.html"
    assert cli("report", "words", "--out", str(out)).code == 0
    assert b"a text that the page decodes" in out.read_bytes()  # it is remembered
    if not same:
        tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "normalizer": None,
                                         "added_tokens": []}))  # fmt: skip
    ran = cli("report", "words", "--out", str(out), "--force", "--tokenizer", str(tokenizer))
    assert ran.code == (0 if same else 2), ran.err
    if not same:
        assert cli("report", "words", "--out", str(out), "--force").code == 0
    assert (b"a text that the page decodes" in out.read_bytes()) == same


def test_a_report_of_a_read_only_root(cli: Cli, toy: Path, tmp_path: Path) -> None:
    folders = [toy, *(path for path in toy.rglob("*") if path.is_dir()), *toy.parents[:3]]
    before = sorted(toy.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert cli("report", "toy", "--out", str(tmp_path / "x.html")).code == 0
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(toy.rglob("*")) == before


def test_compare_takes_two_datasets_or_more(cli: Cli, toy: Path, tmp_path: Path) -> None:
    cli("cp", "toy", "copy")
    out = tmp_path / "both.html"
    ran = cli("compare", "toy", "copy", "--out", str(out), "--json")
    assert (ran.code, len(ran.json["id"])) == (0, 2)
    assert b"local:copy@" in out.read_bytes()


@pytest.mark.slow
def test_browse_serves_until_it_is_interrupted(toy: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-c", RUN, "browse", "--no-open"],
        env={**os.environ, "OFFLINE_DATA_HOME": str(toy.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Timer(60, started.kill)
    late.start()
    try:
        assert started.stderr is not None
        url = urlsplit(started.stderr.readline().split()[-1])
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
        connection.request("GET", url.path)
        answer = connection.getresponse()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
        answer.read()
        connection.request("GET", "/", headers={"Cookie": cookie})
        assert b"local:toy" in connection.getresponse().read()
        connection.close()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate()
    finally:
        late.cancel()
        started.kill()
    assert (started.returncode, out) == (0, "The server stopped.\n")
    assert "Traceback" not in err
