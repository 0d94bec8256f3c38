from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.parse import check_finite, read_arguments, read_pairs, scalar


@dataclass(frozen=True)
class Every(Step):
    """A step with a field of every kind."""

    name: ClassVar[str] = "every"
    example: ClassVar[str] = "every:3,a,b,low=0.5"

    count: int
    keys: tuple[str, ...] = field(metadata={"many": True})
    low: float | None = None
    flag: bool = False
    mode: str = "plain"
    other: Any = None
    learnt: float = field(default=0.0, metadata={"state": True})


@dataclass(frozen=True)
class Two(Step):
    name: ClassVar[str] = "two"

    a: int = 1
    b: str | None = "x"


@dataclass(frozen=True)
class Nothing(Step):
    name: ClassVar[str] = "nothing"


def test_values_in_order_then_all_that_are_left() -> None:
    assert read_arguments(Every, "3,a,b") == {"count": 3, "keys": ("a", "b")}
    assert read_arguments(Every, " 3 , a.b , c/d ,, ") == {"count": 3, "keys": ("a.b", "c/d")}
    assert read_arguments(Two, "5,y") == {"a": 5, "b": "y"}
    assert read_arguments(Two, "") == {}


def test_values_by_name_stand_anywhere() -> None:
    wanted = {"count": 3, "keys": ("a", "b"), "low": 0.5, "flag": True}
    for text in ("3,a,b,low=0.5,flag=true", "low=0.5,a,flag = true ,b,count=3"):
        assert read_arguments(Every, text) == wanted
    assert read_arguments(Two, "b=y,5") == {"a": 5, "b": "y"}
    assert read_arguments(Every, "3,keys=a,b") == {"count": 3, "keys": ("a", "b")}
    assert read_arguments(Every, "keys=a,keys=b,count=3") == {"count": 3, "keys": ("a", "b")}


def test_values_are_what_the_field_is() -> None:
    assert read_arguments(Every, "3,true,1e3,007")["keys"] == ("true", "1e3", "007")
    assert read_arguments(Every, "3,a,mode=1")["mode"] == "1"
    assert read_arguments(Every, "3,a,mode=true")["mode"] == "true"
    assert read_arguments(Every, "3,a,low=null")["low"] is None
    assert read_arguments(Every, "3,a,low=2")["low"] == 2
    assert read_arguments(Every, "3,a,other=2.5")["other"] == 2.5
    assert read_arguments(Two, "1,null")["b"] is None
    assert read_arguments(Two, "1,1")["b"] == "1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Step 'every' needs count"),
        ("3", "Step 'every' needs keys"),
        ("a", "Step 'every' has count=a; expected a whole number"),
        ("3.5,a", "Step 'every' has count=3.5; expected a whole number"),
        ("true,a", "Step 'every' has count=true; expected a whole number"),
        ("3,a,low=much", "Step 'every' has low=much; expected a number or null"),
        ("3,a,low=true", "Step 'every' has low=true; expected a number or null"),
        ("3,a,low=NaN", "Step 'every' has low=NaN; expected a number or null"),
        ("3,a,low=1e999", "Step 'every' has low=1e999; expected a number or null"),
        ("3,a,flag=1", "Step 'every' has flag=1; expected true or false"),
        ("3,a,flag=yes", "Step 'every' has flag=yes; expected true or false"),
        ("3,a,low=", "Step 'every' has low=; expected a number or null"),
        ("3,a,low=1,low=2", "Step 'every' is given low twice"),
        ("3,a,loww=1", "Step 'every' has no 'loww'; did you mean 'low'?"),
        ("3,a,learnt=1", "Step 'every' has no 'learnt'; there are count, low, flag, mode, other"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_arguments(Every, text)
    assert caught.value.message.startswith(message)
    assert caught.value.hint == "for example --step every:3,a,b,low=0.5"


def test_too_many_values() -> None:
    with pytest.raises(UsageError, match="Step 'two' has no use for 'z', 'w'") as caught:
        read_arguments(Two, "5,y,z,w")
    assert caught.value.hint is None
    with pytest.raises(UsageError, match="Step 'two' has no use for 'y'"):
        read_arguments(Two, "a=5,b=x,y")
    with pytest.raises(UsageError, match="has no use for 'x'"):
        read_arguments(Nothing, "x")
    with pytest.raises(UsageError, match=r"Step 'nothing' has no 'x'\Z"):
        read_arguments(Nothing, "x=1")


def test_pairs() -> None:
    assert read_pairs(Every, "a.b=c, d = e/f,") == (("a.b", "c"), ("d", "e/f"))


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b=c", "a=b,c"])
def test_what_is_no_pair(text: str) -> None:
    with pytest.raises(UsageError, match=r"takes pairs like a=b, and '.*' is none") as caught:
        read_pairs(Every, text)
    assert repr(text.rpartition(",")[2]) in caught.value.message
    assert "every:3,a,b" in str(caught.value.hint)


def test_no_pair_at_all() -> None:
    with pytest.raises(UsageError, match="needs a pair"):
        read_pairs(Every, " , ")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-1.5e3", -1500.0), ("false", False), ("null", None), ("[1]", "[1]"), ("", "")],
)
def test_scalars(text: str, value: Any) -> None:
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", '"a"', "{}", "obs"])
def test_other_json_is_text(text: str) -> None:
    assert scalar(text) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", None, 1j, 10**400])
def test_what_is_no_finite_number(value: Any) -> None:
    with pytest.raises(UsageError, match=r"has low=.*; expected a finite number"):
        check_finite(Every, "low", value)
    check_finite(Every, "low", 1)
    check_finite(Every, "low", -0.5)
