from __future__ import annotations

import ast
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


def test_type_checkers_know_the_same_names() -> None:
    tree = ast.parse(Path(offline_data.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname for node in imports for alias in node.names if alias.asname}
    assert {*typed, "__version__"} == set(offline_data.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_datasets'"):
        _ = offline_data.load_datasets
