"""Mirrors: text for text where both are URLs, a folder as the URL of its files, else refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.config_mirrors import check_mirror, parse_mirrors
from offline_data.errors import UsageError
from offline_data.fetch.local import path_of_url
from offline_data.fetch.mirrors import with_mirrors


@pytest.mark.parametrize(
    ("prefix", "replacement"),
    [
        ("http://a/", "http://b/"),
        ("http://a", "https://b"),
        ("http://a/data/", "http://b/get?path="),
        ("http://a/data/", "file:///c/"),
        ("https://huggingface.co/", "https://u:p@hub.example:8080/x/"),
        ("hf://datasets/u/n@", "https://mirror.example/n/"),
        ("http://", "http://cache.example/"),
    ],
)
def test_urls_stay_as_they_are(prefix: str, replacement: str) -> None:
    assert check_mirror(prefix, replacement, "here") == (prefix, replacement)


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_folder_s_files_are_found(slash: str, tmp_path: Path) -> None:
    folder = tmp_path / "50% of it, é"
    mirror = check_mirror("http://a.example/data/", f"{folder}{slash}", "here")
    place, _ = with_mirrors(["http://a.example/data/door/x%20y.hdf5"], [mirror])
    assert path_of_url(place) == folder / "door" / "x y.hdf5"


@pytest.mark.parametrize(
    ("prefix", "replacement", "said"),
    [
        ("a.org/data/", "http://b/", "here: a mirror is for 'a.org/data/'; expected how a URL"),
        ("", "http://b/", "a mirror is for ''"),
        ("http://a b/", "http://b/", "a mirror is for 'http://a b/'"),
        ("http://a/", "b.org/", r"http://a/ is 'b.org/'; expected an http\(s\)://, file:///"),
        ("http://a/", "data/", "is 'data/'"),
        ("http://a/", "ftp://b/", "is 'ftp://b/'"),
        ("http://a/", "file://b/", "is 'file://b/'"),
        ("http://a/", "http:///x/", "is 'http:///x/'"),
        ("http://a/", "http://b/ http://c/", "is 'http://b/ http://c/'"),
        ("http://a/", "", "is ''"),
        ("http://a/", "http://b", "is http://b, without the trailing slash"),
        ("http://a/", "file:///data", "is file:///data, without the trailing slash"),
    ],
)
def test_what_cannot_be_meant_is_named(prefix: str, replacement: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        check_mirror(prefix, replacement, "here")
    assert caught.value.hint


def test_a_list_as_a_variable_has_it() -> None:
    text = " http://a/ = http://b/?path= ;;http://a/=/c d; "
    assert parse_mirrors(text, "V") == (
        ("http://a/", "http://b/?path="),
        ("http://a/", "file:///c%20d/"),
    )


@pytest.mark.parametrize("text", ["http://a", "=x", "http://a/=", "http://a/=http://b/;x"])
def test_a_list_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"V has '.*'; expected PREFIX=REPLACEMENT, several"):
        parse_mirrors(text, "V")
