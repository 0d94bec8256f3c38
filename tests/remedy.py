"""Failures of tests about the repository itself: each names what is wrong, and what mends it."""

from __future__ import annotations

from collections.abc import Iterable


def assert_none(wrong: Iterable[object], remedy: str) -> None:
    """Fail if there is anything wrong: with each on a line, and the command or edit that mends it."""
    found = [str(one) for one in wrong]
    assert not found, "\n  ".join([f"{remedy}:", *found])
