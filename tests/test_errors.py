"""Every error has a code of its own and crosses processes whole."""

from __future__ import annotations

import pickle

from offline_data import errors
from offline_data.errors import OfflineDataError


def family(kind: type[OfflineDataError]) -> list[type[OfflineDataError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in family(child))]


def test_codes_are_distinct_words() -> None:
    kinds = set(family(OfflineDataError))
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() for code in codes)
    assert {kind.__module__ for kind in kinds} == {errors.__name__}


def test_message_and_hint_survive_pickling() -> None:
    for kind in family(OfflineDataError):
        back = pickle.loads(pickle.dumps(kind("what", hint="next")))  # noqa: S301
        assert (type(back), back.message, back.hint, str(back)) == (kind, "what", "next", "what")
