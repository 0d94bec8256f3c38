"""What an installation does without torch: `python tour.py RESULT` writes what each command did.

Run by the Python of an environment that may lack torch, tests and compilers, in a folder with
`recorded.hdf5` and `double.py`. Without RESULT it only loads the compiled parts, and needs no package.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

PROJECT = '[datasets]\ndoor = "minari:D4RL/door/human-v2"\npen = "d4rl:pen-human-v1"\n'

WITHOUT_TORCH = """
search pen human
download minari:D4RL/door/human-v2
download d4rl:pen-human-v1 --allow-changed
convert recorded.hdf5 mine --from d4rl
convert recorded.hdf5 ted --from d4rl --layout ted
list
info mine
head mine
sample mine --batch 4
stats mine
check --all --fail-on never
check --files --all
report mine --out report.html
report mine ted --out both.html
report mine --card
plot mine
diff mine ted
filter mine 'length > 3' --out long
split mine train=0.5 val=0.5
merge mine ted --out merged
preprocess mine --step clip:action,low=-1,high=1 --out clipped
preprocess local:mine --step normalize:observation --out scaled
export mine mine.hdf5 --to d4rl
export mine mine.npz --to npz
export mine d3rlpy.h5 --to d3rlpy
export mine ogbench.npz --to ogbench
export mine robomimic.hdf5 --to robomimic
export mine rlds --to rlds
export mine zarr --to zarr
export mine written --to ted
push mine pushed
download ./pushed
lock
sync --locked
sync --locked --offline
env
cache dir
cp mine copy
rm copy --yes
"""
NEEDS_PILLOW = "export mine mine-v0 --to minari"
NEED_TORCH = """
preprocess mine --fn double.py:double --out doubled
split mine a=0.5 b=0.5 --view
export mine part.npz --to npz --view a
"""


def run(command: str) -> dict[str, Any]:
    """Run a command line in this process; returns its exit code and what it printed."""
    from offline_data_cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(command))
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def names() -> dict[str, str | None]:
    """Return, of each public name, the error that it raises, with its hint."""
    import offline_data

    found: dict[str, str | None] = {}
    for name in vars(offline_data)["_names"]:
        try:
            found[name] = getattr(offline_data, name) and None
        except Exception as error:  # noqa: BLE001 - it is the result
            found[name] = f"{type(error).__name__}: {error}; {getattr(error, 'hint', None)}"
    return found


def resize() -> str | None:
    """Resize an image by the step that needs torch; returns its error."""
    import numpy as np

    from offline_data.pipeline.preprocess.steps.images import Resize
    from offline_data.testing.chunks import toy_chunk

    rows = np.arange(1, 193, dtype=np.uint8).reshape(3, 8, 8)
    chunk = toy_chunk([2]).having(observations={("pixels",): rows})
    try:
        Resize(2).apply(chunk)
    except ImportError as error:
        return type(error).__name__
    return None


def arrays() -> dict[str, list[int]]:
    """Return the shapes of `load_arrays`."""
    import offline_data

    return {
        name: list(array.shape) for name, array in offline_data.load_arrays("local:mine").items()
    }


def compiled() -> list[str]:
    """Load the compiled parts, which need no torch themselves; returns their paths in the package."""
    package = Path(str(find_spec("offline_data").origin)).parent  # type: ignore[union-attr]
    found = []
    for name in ("rows/gather/_gather", "rows/samplers/_sum_tree", "store/_compare"):
        (file,) = package.glob(f"{name}.*so")
        loader = ExtensionFileLoader(file.name.partition(".")[0], str(file))
        spec = ModuleSpec(loader.name, loader, origin=str(file))
        loader.exec_module(module_from_spec(spec))
        found.append(str(file.relative_to(package.parent)))
    return found


def main() -> None:
    """Do all, in order."""
    if not sys.argv[1:]:
        compiled()
        return
    Path("datasets.toml").write_text(PROJECT, encoding="utf-8")
    lines = [line for line in (WITHOUT_TORCH + NEEDS_PILLOW + NEED_TORCH).splitlines() if line]
    done = {line: run(line) for line in lines}
    result = {
        "commands": done,
        "names": names(),
        "arrays": arrays(),
        "resize": resize(),
        "compiled": compiled(),
        "loaded": [name for name in ("torch", "tensordict") if sys.modules.get(name)],
    }
    Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
