"""Names of leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.base.errors import FormatError
from offline_data.episode.fields import check_key, join_key, next_of, split_key

part = st.text(st.sampled_from('ab.0_ "=<~ä'), min_size=1, max_size=4)
keys = st.lists(part.filter(lambda one: one not in {".", ".."}), min_size=1, max_size=4).map(tuple)


@settings(max_examples=200, deadline=None)
@given(keys)
def test_text_form_comes_back(key: tuple[str, ...]) -> None:
    assert check_key(key) == key
    assert split_key(join_key(key)) == key
    assert next_of(key) == ("next", *key)


def test_dots_separate_where_no_slash_does() -> None:
    assert split_key("next.info.x") == split_key("next/info/x") == ("next", "info", "x")


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "/etc", "a\\b", "a\0b", "a\nb"], ids=repr)
def test_parts_that_cannot_be_file_names_are_refused(part: str) -> None:
    with pytest.raises(FormatError, match="cannot be a file name") as caught:
        check_key(("info", part))
    assert repr(part) in caught.value.message
