from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import offline_data
from offline_data import agilerl, torchrl
from offline_data_cli import verbs as verbs_

ROOT = Path(offline_data.__file__).parent


def test_every_public_name_is_there_and_sorted() -> None:
    for name in offline_data.__all__:
        assert getattr(offline_data, name) is not None
    assert offline_data.__all__ == sorted(offline_data.__all__) == dir(offline_data)


def test_names_of_torchrl_and_agilerl_are_in_their_modules_and_can_be_imported_from_here() -> None:
    theirs = {*torchrl.__all__, *agilerl.__all__} - {"to_transition"}
    assert len(theirs) > 50
    for name in theirs:
        where = torchrl if name in torchrl.__all__ else agilerl
        assert getattr(offline_data, name) is getattr(where, name) is not None
    own = {name for name in theirs if name in offline_data.__all__}
    assert own == {"ReplayDataset", *(name for name in theirs if name.endswith("Sampler"))} | {
        "SamplerWithoutReplacement",
        "SliceSamplerWithoutReplacement",
    }
    stub = (ROOT / "__init__.pyi").read_text(encoding="utf-8")
    assert {*re.findall(r"\bas (\w+)", stub)} == theirs | {*offline_data.__all__}
    with pytest.raises(AttributeError, match="LazyStorage"):
        _ = torchrl.LazyStorage  # type: ignore[attr-defined]


def test_the_stub_of_torchrl_has_its_names() -> None:
    stub = (ROOT / "torchrl" / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(r"from offline_data import (\w+) as (\w+)\n", stub)
    assert [name for name, _ in names] == [same for _, same in names] == dir(torchrl)
    for name in names:
        assert not isinstance(getattr(torchrl, name[0]), ModuleType)


def test_verbs_and_functions_are_not_modules() -> None:
    """A module of such a name would be what `offline_data.NAME` is, once anything imports it."""
    verbs = {name for panel in [*verbs_.VERBS.values(), verbs_.HIDDEN] for name in panel}
    names = {*offline_data.__all__, *torchrl.__all__, *verbs, *verbs_.GROUPS}
    modules = {path.stem for path in [*ROOT.iterdir(), *(ROOT / "torchrl").iterdir()]}
    assert modules & names == {"episodes", "sources"}  # deprecated


@pytest.mark.slow
def test_without_torchrl_its_names_are_not_public() -> None:
    stub = (ROOT / "__init__.pyi").read_text(encoding="utf-8")
    theirs = re.findall(r"from \.buffers\.bridges\.torchrl import (\w+)", stub)
    program = (
        "import sys; sys.modules['torchrl'] = None\n"
        "import offline_data.torchrl; print(*offline_data.torchrl.__all__)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert {*torchrl.__all__} - {*ran.stdout.decode().split()} == {*theirs}


def test_errors_are_there_without_an_import_of_their_own() -> None:
    program = "import offline_data; print(offline_data.errors.NotFoundError)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.decode().strip() == "<class 'offline_data.errors.NotFoundError'>"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="load_datasets"):
        _ = offline_data.load_datasets  # type: ignore[attr-defined]
