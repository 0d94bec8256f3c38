"""The compiled modules under AddressSanitizer and UBSan: no access beyond their memory is harmless."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    "offline_data.rows.gather._gather",
    "offline_data.rows.samplers._sum_tree",
    "offline_data.store._compare",
)
FLAGS = ["-shared", "-fPIC", "-g", "-O1", "-std=c11", "-D_POSIX_C_SOURCE=200809L"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]

PLUGIN = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
for name in {modules}:
    spec = spec_from_file_location(name, f"{folder}/{{name.rpartition('.')[2]}}.abi3.so")
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
"""


def library(name: str) -> str:
    """Return the path of a library of gcc; its name alone if there is none."""
    asked = [str(shutil.which("gcc")), f"-print-file-name={name}"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Build the modules; return variables with which a process loads them."""
    if shutil.which("gcc") is None or not Path(library("libasan.so")).is_absolute():
        pytest.skip("no gcc with AddressSanitizer")
    include = f"-I{sysconfig.get_paths()['include']}"
    for module in MODULES:
        source = ROOT / f"{module.replace('.', '/')}.c"
        out = tmp_path / f"{source.stem}.abi3.so"
        command = ["gcc", *FLAGS, *SANITIZE, include, str(source), "-o", str(out), "-lm"]
        subprocess.run(command, check=True)
    (tmp_path / "sanitized.py").write_text(PLUGIN.format(modules=MODULES, folder=tmp_path))
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(map(library, ("libasan.so", "libubsan.so"))),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "cli")]),
    }


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_their_tests_pass(environment: dict[str, str], tmp_path: Path) -> None:
    options = ["-p", "sanitized", "-p", "no:cacheprovider", "-s", "-n0", f"--basetemp={tmp_path}/t"]
    folders = [f"tests/rows/{name}" for name in ("gather", "samplers", "storage")]
    command = [sys.executable, "-m", "pytest", *options, *folders, "tests/store/test_audit.py"]
    done = run(command, environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_an_access_beyond_an_array_is_seen(environment: dict[str, str], tmp_path: Path) -> None:
    source = "#include <stdlib.h>\nint bad(int n) { char *p = malloc(n); return p[n]; }\n"
    (tmp_path / "bad.c").write_text(source)
    built = ["gcc", *FLAGS, *SANITIZE, str(tmp_path / "bad.c"), "-o", str(tmp_path / "bad.so")]
    subprocess.run(built, check=True)
    call = f"import ctypes; ctypes.CDLL({str(tmp_path / 'bad.so')!r}).bad(8)"
    done = run([sys.executable, "-c", call], environment)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
