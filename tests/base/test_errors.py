"""Every error has a code of its own and crosses processes whole."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback

import pytest

from offline_data import errors
from offline_data.base.errors import OfflineDataError


def family(kind: type[OfflineDataError]) -> list[type[OfflineDataError]]:
    """List the public tree: what a room keeps to itself is not among them."""
    children = [one for child in kind.__subclasses__() for one in family(child)]
    return [one for one in (kind, *children) if one.__module__ == errors.__name__]


def test_codes_are_distinct_words() -> None:
    kinds = set(family(OfflineDataError))
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(code.isidentifier() for code in codes)
    assert len(kinds) == sum(isinstance(value, type) for value in vars(errors).values())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks have no notes before 3.11")
def test_the_hint_stands_below_a_traceback() -> None:
    lines = traceback.format_exception_only(errors.UsageError("what", hint="do that"))
    assert lines == ["offline_data.errors.UsageError: what\n", "hint: do that\n"]
    plain = traceback.format_exception_only(errors.UsageError("what"))
    assert plain == ["offline_data.errors.UsageError: what\n"]


def test_message_and_hint_survive_pickling() -> None:
    for kind in family(OfflineDataError):
        back = pickle.loads(pickle.dumps(kind("what", hint="use --force")))  # noqa: S301
        assert (type(back), back.message, str(back)) == (kind, "what", "what")
        assert (back.hint, back.shell_hint) == ("use force=True", "use --force")


def test_long_words_are_shortened() -> None:
    """Names in a damaged file may be as long as the file."""
    name, path = "x" * 60_000, "/data/" + "p" * 400
    message = errors.FormatError(f"{path} has no {name!r} in it").message
    assert message.startswith(f"{path} has no 'xxx")
    assert message.endswith("xxx' in it")
    assert len(message) < len(path) + 530


def test_cloudpickle_names_errors_and_copies_none() -> None:
    """In a process that has imported nothing by its public name."""
    program = (
        "import cloudpickle; from offline_data.base.errors import StepError\n"
        "exec('def raises(): raise StepError(1)', globals())\n"
        "assert b'_make_skeleton_class' not in cloudpickle.dumps(raises)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
