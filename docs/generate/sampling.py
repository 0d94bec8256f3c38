"""Measure and draw the bars of the README: `PYTHONPATH=. python docs/generate/sampling.py [--measure]`.

`--measure` runs `benchmarks.sampling` and keeps its figures in docs/pictures/sampling.json, from which the two
pictures are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from html import escape
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
FIGURES = PICTURES / "sampling.json"
CASES = {
    "D4RL-like, 12 features, 182 B, batch 32": "32 rows of 12 features",
    "D4RL-like, 12 features, 182 B, batch 1024": "1,024 rows of 12 features",
    "D4RL-like, 12 features, 182 B, batch 4096": "4,096 rows of 12 features",
    "images 84 x 84 x 3, before and after, batch 256": "256 pairs of images, 84 × 84",
}
"""Cases of the benchmark that are drawn, and their names in the picture."""
JOBS = {
    "offline-data": "offline-data",
    "numpy, a take for each column": "numpy, one take per column",
    "TorchRL": "TorchRL, memory-mapped",
}
COLOURS: dict[str, dict[str, Any]] = {
    "light": {"text": "#1f2328", "soft": "#59636e", "bars": ("#00796b", "#8c959f", "#c4622d")},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "bars": ("#4db6ac", "#6e7681", "#e08a57")},
}
WIDTH, LEFT, BAR, GAP = 760, 190, 15, 18


def measure() -> dict[str, Any]:
    """Return microseconds per batch by case and job, and the versions that they depend on."""
    import torch

    from benchmarks import sampling

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = list(sampling.run(Path(folder)))
    found: dict[str, dict[str, float]] = {case: {} for case in CASES}
    for row in rows:
        if row.case in CASES and row.job in JOBS:
            found[row.case][row.job] = float(re.match(r"[\d.]+", row.note)[0])  # type: ignore[index]
    return {
        "setting": f"torch {torch.__version__}, 1 thread, {os.cpu_count()} shared cores",
        "microseconds": found,
    }


def draw(figures: dict[str, Any], theme: str) -> str:
    """Return the bars as SVG: a group for each case, whose longest bar has the same length."""
    colours = COLOURS[theme]
    parts, top = [], 34
    for number, (name, colour) in enumerate(zip(JOBS.values(), colours["bars"], strict=True)):
        at = LEFT + (0, 120, 330)[number]
        parts.append(f'<rect x="{at}" y="8" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(at + 17, 18, name, colours["text"]))
    for case, title in CASES.items():
        times = figures["microseconds"][case]
        parts.append(_text(LEFT - 12, top + 2 * BAR - 3, title, colours["text"], "end"))
        for job, colour in zip(JOBS, colours["bars"], strict=True):
            length = (WIDTH - LEFT - 125) * times[job] / max(times.values())
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 3}" fill="{colour}"/>'
            )
            ratio = times[job] / times["offline-data"]
            label = f"{times[job]:,.0f} µs" + (f" · {ratio:.1f}×" if ratio != 1 else "")
            parts.append(_text(LEFT + length + 6, top + BAR - 4, label, colours["soft"]))
            top += BAR
        top += GAP
    parts.append(_text(LEFT, top, f"time per batch; {figures['setting']}", colours["soft"]))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 12}" font-size="12" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Microseconds per batch">'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the benchmark first")
    if parser.parse_args().measure:
        FIGURES.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    for theme in COLOURS:
        (PICTURES / f"sampling-{theme}.svg").write_text(draw(figures, theme), encoding="utf-8")
