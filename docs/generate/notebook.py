"""Run the notebook of the site: `PYTHONPATH=.:cli python docs/generate/notebook.py` writes docs/notebook.ipynb.

The cells are here. Each is run as Jupyter runs it: what it prints and the value of its last line are its
outputs, as HTML and as text. `page` makes the notebook a page of the site, which needs no torch.
"""

from __future__ import annotations

import ast
import html
import io
import json
import os
import re
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebook.ipynb"
HOME = "/home/me"
"""Folder that stands for the one where the cells were run."""
CELLS = (
    """\
# A notebook

Every result shows itself as a table where it is the last line of a cell, and `repr` is the same as text. Here a dataset with a camera is
recorded, looked at, checked and sampled, and a file of one's own is converted. Nothing is downloaded.""",
    '''\
import numpy as np
import offline_data

numbers = np.random.default_rng(0)


def episode(length):
    """A dot that an arm pushes over a grid of 24 x 24 pixels, to the right."""
    at = np.minimum(np.cumsum(numbers.integers(0, 3, size=(length + 1, 2)), axis=0), 21)
    frames = np.full((length + 1, 24, 24, 3), 235, np.uint8)
    for frame, (row, column) in zip(frames, at):
        frame[row : row + 3, column : column + 3] = (0, 121, 107)
    actions = np.diff(at, axis=0).astype(np.float32)
    return {
        "observations": {"camera": frames, "position": at.astype(np.float32)},
        "actions": actions,
        "rewards": actions.sum(axis=1),
        "truncations": True,
    }


episodes = [episode(length) for length in (14, 9, 12, 1, 11)]
episodes[2]["actions"][5, 1] = np.nan  # a sensor that failed
offline_data.convert(episodes, "dots").transitions''',
    "What is on this disk:",
    "offline_data.list_datasets()",
    "The dataset, and its episodes:",
    '''\
ds = offline_data.load_dataset("local:dots", batch_size=8)
ds''',
    "ds.episodes",
    "An episode of pixels shows frames, here of the one with the highest return:",
    'ds.episode(int(ds.episodes["return"].argmax()))',
    "`check` returns a list of findings, which shows itself as a report:",
    '''\
found = ds.check()
found''',
    "found[0].code, found[0].leaf, found[0].row",
    "The first step, statistics, and what a batch has:",
    "ds.head(1)",
    'ds.stats()',
    '''\
batch = ds.sample()
batch["observation", "camera"].shape, batch["next", "reward"].shape''',
    '''\
A file of one's own: `inspect_files` lists its arrays, and asks what they do not tell. `answer` gives the mapping for `convert`.''',
    '''\
trial = np.repeat([3, 4, 7], [5, 4, 3])
np.savez("lab.npz", obs=numbers.normal(size=(12, 2)), act=np.ones((12, 1)), trial=trial)
inspected = offline_data.inspect_files("lab.npz")
inspected''',
    '''\
mapping = inspected.answer(final_observation="missing", episode="trial", ends="truncated")
offline_data.convert("lab.npz", "lab", mapping=mapping)
offline_data.load_dataset("local:lab").episodes["length"]''',
)  # fmt: skip
"""Cells in their order; those that are no Python are Markdown."""


def run(folder: Path) -> dict[str, Any]:
    """Return the notebook with its outputs, run in an empty folder."""
    names: dict[str, Any] = {}
    cells: list[dict[str, Any]] = []
    root = {"OFFLINE_DATA_HOME": str(folder / "datasets")}
    with _inside(folder), patch.dict(os.environ, root):
        for place, source in enumerate(CELLS):
            cell = {
                "id": f"cell-{place}",
                "metadata": {},
                "source": source.splitlines(keepends=True),
            }
            try:
                tree = ast.parse(source)
            except SyntaxError:
                cells.append({"cell_type": "markdown", **cell})
                continue
            number = sum(one["cell_type"] == "code" for one in cells) + 1
            outputs = [_relocate(one, folder) for one in _run_cell(tree, names, number)]
            cells.append(
                {"cell_type": "code", **cell, "execution_count": number, "outputs": outputs}
            )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run_cell(tree: ast.Module, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    last = tree.body[-1]
    out, err, value = io.StringIO(), io.StringIO(), None
    with redirect_stdout(out), redirect_stderr(err):
        rest = tree.body[:-1] if isinstance(last, ast.Expr) else tree.body
        code = ast.Module(rest, [])
        exec(compile(code, f"cell {number}", "exec"), names)  # noqa: S102 - the cells are above
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    streams = {"stdout": out.getvalue(), "stderr": err.getvalue()}
    outputs: list[dict[str, Any]] = [
        {"name": name, "output_type": "stream", "text": text.splitlines(keepends=True)}
        for name, text in streams.items()
        if text
    ]
    if value is not None:
        data = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
        data["text/plain"] = repr(value)
        lines = {kind: text.splitlines(keepends=True) for kind, text in data.items()}
        result = {"data": lines, "execution_count": number, "metadata": {}}
        outputs.append({**result, "output_type": "execute_result"})
    return outputs


def _relocate(output: dict[str, Any], folder: Path) -> dict[str, Any]:
    relocated: dict[str, Any] = json.loads(json.dumps(output).replace(str(folder), HOME))
    return relocated


def page() -> str:
    """Return the notebook as Markdown, with its outputs as HTML."""
    parts = []
    for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text")})
            shown = "".join(data.get("text/html", ()))
            shown = shown or f"<pre>{html.escape(''.join(data['text/plain']), quote=False)}</pre>"
            block = re.sub(r"\n\s*\n", "\n", shown)  # an empty line would end it
            parts.append(f'<div class="output">{block}</div>')
    parts.insert(1, "[Download it](notebook.ipynb) to run it.")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the cells and write the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = run(Path(folder))
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
