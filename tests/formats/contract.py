"""The contract of sources, where what is said of damaged data is a line of `golden/` beside the test."""

from __future__ import annotations

import sys

import pytest

from offline_data.testing.sources import Damage, SourceCase, SourceContract, read_all
from tests.refusals import Refusals


class Contract(SourceContract):
    """A module with a table of damages has `REFUSALS`, of which the class's name is a kind."""

    @pytest.fixture(autouse=True)
    def _lines_are_those_of_the_cases(self, request: pytest.FixtureRequest) -> None:
        if request.node.originalname == "test_bad_data_are_named_or_skipped":
            case: SourceCase = request.getfixturevalue("case")
            if case.bad:
                self.refusals.keep(type(self).__name__, case.bad)

    @property
    def refusals(self) -> Refusals:
        """Return the lines of the module."""
        found: Refusals = sys.modules[type(self).__module__].REFUSALS
        return found

    def assert_refused(self, name: str, damage: Damage, case: SourceCase) -> None:  # noqa: ARG002 -- all words are in the line
        """Compare the whole error with the line."""
        names: dict[object, str] = {case.raw: "RAW", case.raw.parent: "FOLDER"}
        self.refusals.check(type(self).__name__, name, lambda: read_all(case), names)
