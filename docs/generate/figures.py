"""Give SVG figures of Matplotlib dark colours: `python docs/generate/figures.py docs/pictures/NAME.svg …`.

An image on a page has the page's colour scheme, which GitHub and the site set. A figure drawn anew by
`offline-data … --out` goes through here once; one that has the colours already is left alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

DARK = {"#ffffff": "#1e2129", "#000000": "#d7dae0", "#2b6cb0": "#7fb2ea", "#a9c6e6": "#3f6288"}
"""Colours of `plot` on light pages, and what they become; orange is seen on both."""
QUERY = "@media (prefers-color-scheme: dark)"


def dark(svg: str) -> str:
    """Return a figure that follows the colour scheme; text is what has no colour of its own."""
    if QUERY in svg:
        return svg
    rules = [f"svg {{ fill: {DARK['#000000']} }}"]
    for kind in ("fill", "stroke"):
        rules += [
            f'[style*="{kind}: {light}"] {{ {kind}: {instead} !important }}'
            for light, instead in DARK.items()
        ]
    style = f'<style type="text/css">{QUERY} {{ {" ".join(rules)} }}</style>\n </defs>'
    return svg.replace("</defs>", style, 1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(dark(path.read_text("utf-8")), "utf-8")
