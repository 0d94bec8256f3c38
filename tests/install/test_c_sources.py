"""The C sources compile without a warning, and so does what is compiled on other systems than Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.install.conftest import ROOT, setup_options
from tests.remedy import assert_none
from tests.slow import slow_but

COMPILER = os.environ.get("CC", "gcc")


@pytest.mark.skipif(not shutil.which(COMPILER.split()[0]), reason=f"there is no {COMPILER}")
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="here"),
        pytest.param(("-U__linux__",), id="elsewhere", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "number", slow_but(lambda number: number == 2, range(3)), ids=["gather", "sum_tree", "compare"]
)
def test_no_warnings(
    number: int, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = setup_options(ROOT, monkeypatch)["ext_modules"][number]
    options = [*module.extra_compile_args, "-Wall", "-Wextra", "-Werror", "-fPIC", *more]
    macros = [f"-D{name}={value}" for name, value in module.define_macros]
    (source,) = module.sources
    done = subprocess.run(
        [
            *COMPILER.split(),
            *(options + macros),
            f"-I{sysconfig.get_path('include')}",
            *("-c", ROOT / source, "-o", tmp_path / "object.o"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_source_and_header_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that setup.py does not name is not compiled again where it changes."""
    modules = setup_options(ROOT, monkeypatch)["ext_modules"]
    named = {file for module in modules for file in (*module.sources, *module.depends)}
    there = {str(path.relative_to(ROOT)) for path in ROOT.glob("offline_data/**/*.[ch]")}
    assert_none(named ^ there, "setup.py names each file as a source or in `depends`, and no other")
    assert all(module.optional and module.py_limited_api for module in modules)


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_a_change_of_any_source_or_header_installs_anew() -> None:
    show = "show: ; @echo $(BUILT_FROM)"
    command = ["make", "--no-print-directory", f"--eval={show}", "show"]
    named = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {str(path.relative_to(ROOT)) for path in ROOT.glob("offline_data/**/*.[ch]")}
    wanted = {"pyproject.toml", "setup.py", *there}
    assert_none(
        wanted ^ {*named.split()}, "BUILT_FROM of the Makefile names each file, and no other"
    )
