"""Record the terminal of the README: `PYTHONPATH=.:cli python docs/generate/terminal.py` writes two SVG files.

The commands run against a hub on this machine, with a dataset of the published shapes and counts whose
values are made up (`tests/toys/hosts.py`). The pictures name no font to fetch.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import h5py
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

from offline_data_cli.main import main
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.hosts import HOPPER, published

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
COMMANDS = (
    "search door human-v2",
    "download minari:D4RL/door/human-v2",
    "check minari:D4RL/door/human-v2",
    "convert recorded.hdf5 mine --from d4rl",
    "check local:mine",
)
WIDTH = 108
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}


def record(folder: Path) -> str:
    """Run the commands with their data in `folder`; returns what a terminal shows, in colour."""
    shown = []
    record_faults(folder / "recorded.hdf5")
    os.chdir(folder)
    with published(folder / "hosts") as hosts:
        here = {"OFFLINE_DATA_HOME": str(folder / "root"), "HF_HOME": str(folder / "hf")}
        for command in COMMANDS:
            out = io.StringIO()
            with (
                patch.dict(os.environ, {**hosts, **here, "COLUMNS": str(WIDTH)}),
                redirect_stdout(out),
                redirect_stderr(out),
            ):
                code = main([*command.split(), "--color=always", "--format=table", "--no-progress"])
            if code != (command == "check local:mine"):
                raise SystemExit(f"{command}: {out.getvalue()}")
            shown.append(f"\x1b[32m$\x1b[0m \x1b[1moffline-data {command}\x1b[0m\n{out.getvalue()}")
    return "\n".join(part.rstrip() + "\n" for part in shown)


def record_faults(path: Path) -> None:
    """Write a recording as D4RL's files are, with rewards that were never written and a NaN."""
    with h5py.File(write_d4rl_hdf5(path, HOPPER), "r+") as file:
        del file["infos"], file["metadata"]
        file["rewards"][:] = 0
        file["observations"][130, 2] = file["next_observations"][129, 2] = float("nan")


def draw(text: str, theme: TerminalTheme) -> str:
    """Return a terminal window with coloured text as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(text), soft_wrap=True)
    plain = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    plain = plain.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    drawn = console.export_svg(title="offline-data", theme=theme, code_format=plain, unique_id="t")
    return drawn.replace('stroke="rgba(255,255,255,0.35)"', 'stroke="#8c959f"')


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text = record(Path(folder))
    for name, theme in THEMES.items():
        (PICTURES / f"terminal-{name}.svg").write_text(draw(text, theme), encoding="utf-8")
