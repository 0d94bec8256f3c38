from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import offline_data


def test_every_public_name_is_there_and_sorted() -> None:
    for name in offline_data.__all__:
        assert getattr(offline_data, name) is not None
    assert offline_data.__all__ == sorted(offline_data.__all__)
    assert [name for name in dir(offline_data) if not name.startswith("__")] == [
        name for name in offline_data.__all__ if name != "__version__"
    ]


def test_without_torchrl_its_names_are_not_public() -> None:
    stub = Path(offline_data.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    theirs = re.findall(r"from \.buffers\.bridges\.torchrl import (\w+)", stub)
    program = (
        "import sys; sys.modules['torchrl'] = None\n"
        "import offline_data; print(*offline_data.__all__)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert set(offline_data.__all__) - set(ran.stdout.decode().split()) == {*theirs}


def test_errors_are_there_without_an_import_of_their_own() -> None:
    program = "import offline_data; print(offline_data.errors.NotFoundError)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.decode().strip() == "<class 'offline_data.errors.NotFoundError'>"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="load_datasets"):
        _ = offline_data.load_datasets  # type: ignore[attr-defined]
