"""Tokenizers, trained once, and a function that converts text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import offline_data
from offline_data.formats.options import TextOptions
from offline_data.pipeline.ingest import Stored
from offline_data.store.reader import DatasetReader
from tests.analysis.checks.conftest import write
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.rows.conftest import _one_thread
from tests.toys.text import write_chat_tokenizer, write_tokenizer

__all__ = ["_one_thread", "conversions_start_no_process", "processes", "write"]

Convert: TypeAlias = Callable[..., DatasetReader]
"""`convert(path, form=…, **text options)` returns a reader of the dataset."""


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_tokenizer(tmp_path_factory.mktemp("chat"))


@pytest.fixture
def convert(tmp_path: Path, tokenizer_file: Path) -> Convert:
    number = 0

    def converted(path: Path, tokenizer: Path = tokenizer_file, **options: Any) -> DatasetReader:
        nonlocal number
        number += 1
        more = {
            name: options.pop(name) for name in ("skip_bad_episodes", "layout") if name in options
        }
        stored: Stored = offline_data.convert(
            path,
            f"set{number}",
            source="text",
            text=TextOptions(str(tokenizer), **options),
            root=tmp_path / "root",
            audit="all",
            progress=False,
            **more,
        )
        return DatasetReader(stored.path)

    return converted
