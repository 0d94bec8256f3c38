"""`offline_data.plugins`: its names, and a package with a source, a rule and a step that imports nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from offline_data import plugins
from tests.stories.conftest import Shell
from tests.test_write_a_source import BLOCKS as SOURCE_BLOCKS
from tests.test_write_a_source import recorded

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")
RULES = (ROOT / "docs" / "datasets-in-ci.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
LINES = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE))
"""What the page says of each name."""
MODULES: dict[str, str] = vars(plugins)["_MODULES"]
PUBLIC = re.compile(r"offline_data(\.(plugins|torchrl|agilerl|testing(\.\w+)?))?")
IMPORT = re.compile(r"^\s*(?:from|import) (offline_data[.\w]*)", re.MULTILINE)


def test_the_stub_has_the_same_names_in_the_same_modules() -> None:
    stub = (ROOT / "offline_data" / "plugins.pyi").read_text("utf-8")
    pattern = r"from (\S+) import (?:\(\s+)?(\w+) as (\w+)"
    assert {(name, place) for place, name, same in re.findall(pattern, stub) if name == same} == {
        *MODULES.items()
    }
    assert len(re.findall(r" import ", stub)) == len(plugins.__all__)


def test_every_name_is_there_with_a_docstring_and_a_line_on_the_page() -> None:
    assert LINES.keys() == {*plugins.__all__} == {*dir(plugins)}
    assert plugins.__all__ == sorted(plugins.__all__)
    for name in plugins.__all__:
        found = getattr(plugins, name)
        if name in {"Key", "UNVERSIONED"}:  # values
            source = inspect.getsource(sys.modules[MODULES[name]])
            (text,) = re.findall(rf'^{name}\b.*\n"""(.*)"""', source, re.MULTILINE)
        else:
            assert found.__module__ == MODULES[name]
            text = (found.__doc__ or "").partition("\n\n")[0].strip()
        assert LINES[name] == " ".join(text.split()), name


def test_an_unknown_name_is_an_error_with_a_similar_one() -> None:
    with pytest.raises(AttributeError, match=r"did you mean offline_data\.plugins\.EpisodeBatch\?"):
        _ = plugins.EpisodBatch  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        ("import offline_data.plugins as p; dir(p), p.__all__", {"numpy", "typing_extensions"}),
        ("from offline_data.plugins import FormatError, Source, RemoteFile", {"numpy"}),
        ("from offline_data.plugins import *; EpisodeBatch, Rule, Step, open_hdf5", set()),
    ],
)
def test_what_an_import_loads(line: str, absent: set[str]) -> None:
    program = f"import sys\n{line}\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    heavy = {"torch", "tensordict", "torchrl", "h5py", "pyarrow", "PIL", "httpx", "huggingface_hub"}
    assert {name.partition(".")[0] for name in ran.stdout.split()} & (heavy | absent) == set()


def test_pages_import_public_modules_only() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found = {
        (path.name, module)
        for path in pages
        for module in IMPORT.findall(path.read_text(encoding="utf-8"))
    }
    assert ("write-a-source.md", "offline_data.plugins") in found
    assert {(page, module) for page, module in found if not PUBLIC.fullmatch(module)} == set()


@pytest.mark.slow  # by default, the page of sources is run, and steps and rules of other packages
def test_a_package_with_a_source_a_rule_and_a_step(tmp_path: Path) -> None:
    (rule,) = re.findall(r"```python\n([^`]*class NoSeed.*?)```", RULES, re.DOTALL)
    python = [body for kind, body in [*SOURCE_BLOCKS, *BLOCKS] if kind == "python"]
    files = {body.split("\n", 1)[0].removeprefix("# "): body for body in python}
    for name, body in {**files, "lab_rules.py": rule}.items():
        assert all(map(PUBLIC.fullmatch, IMPORT.findall(body))), name
        (tmp_path / name).write_text(body, "utf-8")
    (toml,) = [body for kind, body in BLOCKS if kind == "toml"]
    points = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", toml).replace('"', "")
    info = tmp_path / "lab_datasets-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: lab-datasets\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "reach-v1.jsonl").write_bytes(recorded(5))
    shell = Shell(tmp_path, {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'cli'}"})
    shell.run("convert", str(tmp_path / "reach-v1.jsonl"), "reach")
    assert "LAB001" in shell.run("check", "local:reach", "--select", "LAB", "--json").stdout
    shell.run("preprocess", "local:reach", "--step", "negate:action", "--out", "negated")
    shown = shell.run("preprocess", "local:reach", "--step", "negate:act", "--out", "no", code=1)
    assert "Step 'negate' finds no feature 'act'" in shown.stderr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lab_steps.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)


EARLIER = (
    *("checks", "episodes", "episodes.joining", "sources.base", "sources.fingerprint"),
    "strict_json",
)


@pytest.mark.parametrize("name", EARLIER)
def test_earlier_names_warn(name: str) -> None:
    """Pages of earlier versions imported from these."""
    module = f"offline_data.{name}"
    for loaded in (
        module,
        "offline_data.episodes",
    ):  # importing a module imports its package, which warns, too
        sys.modules.pop(loaded, None)
    with pytest.warns(DeprecationWarning, match=f"{module} is now offline_data.plugins"):
        found = importlib.import_module(module)
    assert found.__all__
    assert all(getattr(found, one) is getattr(plugins, one) for one in found.__all__)
