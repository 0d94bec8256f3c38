from __future__ import annotations

import pytest

from offline_data.buffers.keys import select_keys
from offline_data.errors import UsageError

KNOWN = [("action",), ("observation", "a"), ("observation", "b"), ("next", "observation", "a")]


def test_all_forms_of_a_key_and_parents() -> None:
    assert select_keys(KNOWN, ["action"]) == KNOWN[:1]
    assert select_keys(KNOWN, ["observation"]) == KNOWN[1:3]
    assert select_keys(KNOWN, ["next.observation.a", ("observation", "b")]) == [KNOWN[2], KNOWN[3]]
    assert select_keys(KNOWN, ["next/observation", "next"]) == KNOWN[3:]
    assert select_keys(KNOWN, []) == []


@pytest.mark.parametrize("key", ["observation/c", "obs", ("next", "action"), "action/x", ""])
def test_an_unknown_key_is_an_error_that_lists_the_known(key: str | tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="there are action, observation/a"):
        select_keys(KNOWN, [key])
