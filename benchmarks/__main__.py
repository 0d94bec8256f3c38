"""Run benchmarks by name: `python -m benchmarks sampling --threads 1`."""

from __future__ import annotations

import argparse
import tempfile
from importlib import import_module
from pathlib import Path


def main() -> None:
    here = Path(__file__).parent
    names = sorted(path.stem for path in here.glob("[a-z]*.py") if path.stem != "timing")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's own choice")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats, at least 5")
    parser.add_argument("--small", action="store_true", help="a tenth of the rows, to try it")
    options = parser.parse_args()
    for name in options.names:
        if name not in names:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(names)}")
        with tempfile.TemporaryDirectory(prefix="offline-data-bench-") as folder:
            import_module(f"benchmarks.{name}").run(Path(folder), options)


if __name__ == "__main__":
    main()
