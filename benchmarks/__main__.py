"""Run benchmarks by name and print their tables: `python -m benchmarks sampling --threads 1`."""

from __future__ import annotations

import argparse
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.timing import table

NAMES = (
    "archives",
    "conversion",
    "comparing",
    "fetching",
    "sampling",
    "slices",
    "prioritized",
    "ensemble",
    "cold",
    "listing",
    "recorder",
    "preprocess",
    "workers",
    "decode",
    "checks",
    "align",
    "rlds",
    "lerobot",
    "video",
    "export",
    "streaming",
    "tokenizing",
    "tokens",
    "training",
    "viewer",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all if none")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the data (1.0)")
    parser.add_argument("--threads", type=int, help="torch threads; torch's own choice if absent")
    parser.add_argument(
        "--tensorflow", metavar="PYTHON", help="interpreter with TensorFlow and TFDS, for rlds"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    for name in options.names or NAMES:
        with tempfile.TemporaryDirectory(prefix="offline-data-bench-") as folder:
            run = import_module(f"benchmarks.{name}").run
            more = {"tensorflow": options.tensorflow} if name == "rlds" else {}
            print(table(run(Path(folder), repeats=options.repeats, scale=options.scale, **more)))


if __name__ == "__main__":
    main()
