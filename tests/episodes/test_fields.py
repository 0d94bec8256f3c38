"""Names of leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.episodes.fields import check_key, join_key, next_of, split_key
from offline_data.errors import FormatError

parts = st.lists(st.text("abc_0", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


@settings(max_examples=40, deadline=None)
@given(parts)
def test_text_form_comes_back(key: tuple[str, ...]) -> None:
    assert split_key(join_key(key)) == key
    assert split_key(".".join(key)) == key
    assert check_key(key) == key
    assert check_key(("...", "a b", "ä", "-", "a.b", "~")) == ("...", "a b", "ä", "-", "a.b", "~")
    assert next_of(key) == ("next", *key)


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "/etc", "a\\b", "a\0b", "a\nb"], ids=repr)
def test_parts_that_cannot_be_file_names_are_refused(part: str) -> None:
    with pytest.raises(FormatError, match="cannot be a file name") as caught:
        check_key(("info", part))
    assert repr(part) in caught.value.message
