from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.base.errors import OfflineDataError
from offline_data.pipeline.ingest.reading import blaming
from offline_data_cli.main import EXIT_CODES
from tests.toys.minari import read_minari

Ran = Callable[..., tuple[int, str]]


@pytest.fixture
def parse() -> Ran:
    """Read in this process, and give what the command would: the exit code, and what is said."""

    def run(folder: Path) -> tuple[int, str]:
        try:
            with blaming(folder):
                read_minari(folder)
        except OfflineDataError as error:
            said = f"{error.message}\n{error.hint}"
            assert "unexpected" not in said
            return next(code for kind, code in EXIT_CODES if isinstance(error, kind)), said
        return 0, ""

    return run
