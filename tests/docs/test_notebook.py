"""The notebook of the site: its outputs are those of its cells, in the page and in a kernel of Jupyter."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from docs.generate import notebook

AGAIN = "write it again: `PYTHONPATH=.:cli python docs/generate/notebook.py`"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(notebook.NOTEBOOK.read_text("utf-8"))
    return found


def by_pixels(cells: Any) -> Any:
    """Return cells with a digest of its pixels for each picture: how PNG packs them depends on zlib."""

    def digest(found: re.Match[str]) -> str:
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))
        return f"{image.shape} {hashlib.sha256(image.tobytes()).hexdigest()}"

    return json.loads(re.sub(r"data:image/png;base64,([\w+/=]+)", digest, json.dumps(cells)))


@pytest.mark.slow
def test_the_outputs_are_those_of_the_cells(recorded: dict[str, Any], tmp_path: Path) -> None:
    made = notebook.run(tmp_path)
    assert by_pixels(made) == by_pixels(recorded), AGAIN
    kinds = [one["cell_type"] for one in recorded["cells"]]
    assert kinds.count("code") > 10 < kinds.count("markdown") + kinds.count("code")


def test_the_page_has_every_cell_and_output(recorded: dict[str, Any]) -> None:
    page = notebook.page()
    at = 0
    for cell in recorded["cells"]:
        source = "".join(cell["source"])
        at = page.index(source, at)
        for output in cell.get("outputs", ()):
            shown = "".join(output["data"].get("text/html", ()))
            at = page.index(re.sub(r"\n\s*\n", "\n", shown) or '<div class="output"><pre>', at)
    assert page.count("<img ") == 8
    assert page.count("<table>") >= 8
    blocks = [one for one in page.split("\n\n") if one.startswith('<div class="output">')]
    assert len(blocks) == sum(len(cell.get("outputs", ())) for cell in recorded["cells"])
    assert all(one.count("<div") == one.count("</div>") for one in blocks)
    assert str(Path.home()) not in page.replace(notebook.HOME, "")


def test_a_kernel_shows_the_same(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nbclient and ipykernel, where they are installed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "datasets"))
    cells = nbformat.read(notebook.NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        cells, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    root = notebook.NOTEBOOK.parents[1]
    paths = os.pathsep.join([str(root), str(root / "cli"), os.environ.get("PYTHONPATH", "")])
    client.execute(env={**os.environ, "PYTHONPATH": paths})
    for made, cell in zip(cells["cells"], recorded["cells"], strict=True):
        for one, other in zip(made.get("outputs", ()), cell.get("outputs", ()), strict=True):
            assert one["data"].keys() == other["data"].keys()
            for kind, text in one["data"].items():
                shown = text.replace(str(tmp_path), notebook.HOME)
                assert by_pixels(shown) == by_pixels("".join(other["data"][kind]))
