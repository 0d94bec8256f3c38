"""Tables of refusals: a JSON file beside the tests, from what is tried to the error, its message and its hint.

A test that uses a table is one function, and a case is one line of the table::

    REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


    @REFUSALS.cases
    def test_refusals(kind: str, text: str, tmp_path: Path) -> None:
        REFUSALS.check(kind, text, lambda: eval(text, names(tmp_path)), {tmp_path: "FOLDER"})

A new case is a line whose value is null: `OFFLINE_DATA_FREEZE=1 pytest` on the test writes what is
found, to be read before it is committed. `<…>` in a line stands for any text, as for that of another package,
and is kept where the line still fits.

Cases that are no text are a table of the test's own, whose names are those of the lines of a kind::

    @REFUSALS.of("rows", ROWS)
    def test_rows(name: str) -> None:
        REFUSALS.check("rows", name, lambda: read(ROWS[name]))
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from offline_data.base.errors import OfflineDataError

REFUSED = (OfflineDataError, AttributeError, LookupError, TypeError, ValueError)


class Refusals:
    """Refusals by kind: `{kind: {text: "error: message | hint"}}`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, dict[str, str | None]] = {}
        if file.exists():
            self.known = json.loads(file.read_text("utf-8"))

    @classmethod
    def beside(cls, test: str) -> Refusals:
        """Return those of a test file: `golden/test_x.json` beside `test_x.py`."""
        return cls(Path(test).parent / "golden" / f"{Path(test).stem}.json")

    @property
    def cases(self) -> pytest.MarkDecorator:
        """Parametrize a test by `kind` and `text`."""
        cases = [(kind, text) for kind, texts in self.known.items() for text in texts]
        return pytest.mark.parametrize(("kind", "text"), cases)

    def of(self, kind: str, names: Collection[str]) -> pytest.MarkDecorator:
        """Parametrize a test by the `name` of the cases of one kind, which are all of its lines."""
        self.keep(kind, names)
        return pytest.mark.parametrize("name", [*names])

    def keep(self, kind: str, names: Collection[str]) -> None:
        """Fail for lines of a kind that no case has any more, or drop them where lines are recorded."""
        stale = self.known.get(kind, {}).keys() - {*names}
        if os.environ.get("OFFLINE_DATA_FREEZE"):
            for name in stale:
                del self.known[kind][name]
        else:
            assert not stale, f"{self.file} has lines of no case: {kind}, {sorted(stale)}"

    def check(
        self,
        kind: str,
        text: str,
        call: Callable[[], object],
        names: Mapping[object, str] | None = None,
    ) -> None:
        """Check that a call is refused in the words of the table.

        Args:
            kind: The case's kind.
            text: The case.
            call: What raises.
            names: What differs between runs, or is long, and what the table has in its place.
        """
        with pytest.raises(REFUSED) as caught:
            call()
        error = caught.value
        found = f"{type(error).__name__}: {error}"
        if isinstance(error, OfflineDataError):
            found = f"{type(error).__name__}: {error.message} | {error.shell_hint}"
        for value, name in (names or {}).items():
            found = found.replace(str(value), name)
        self.compare(kind, text, found)

    def compare(self, kind: str, text: str, found: str) -> None:
        """Compare what was found in a case with the table, or record it there."""
        known = self.known.setdefault(kind, {}).get(text) or ""
        if not _fits(found, known) and os.environ.get("OFFLINE_DATA_FREEZE"):
            self.known[kind][text] = known = found
            self.file.parent.mkdir(exist_ok=True)
            self.file.write_text(
                json.dumps(self.known, indent=1, ensure_ascii=False) + "\n", "utf-8"
            )
        assert _fits(found, known), f"{kind}, {text}: found {found!r}, expected {known!r}"


def _fits(found: str, known: str) -> bool:
    pattern = ".*".join(map(re.escape, known.split("<…>")))
    return re.fullmatch(pattern, found, re.DOTALL) is not None
