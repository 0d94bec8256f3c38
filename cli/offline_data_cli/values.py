"""Values of options and arguments, parsed by the types of a function's parameters.

Typer parses them by pydantic, whose import takes longer than most verbs, and whose messages speak of
values and assertions.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import EnumMeta
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Value:
    """Parser of one option or argument."""

    kind: Callable[[Any], Any]
    many: bool
    bounds: tuple[float | None, float | None]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of the type, as typer asks for it; raises `BadParameter`."""
        try:
            if self.many:
                return [self._parse(item) for item in value or ()]
            return None if value is None else self._parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _parse(self, value: Any) -> Any:
        if get_origin(self.kind) is Literal:
            known = list(get_args(self.kind))
        elif isinstance(self.kind, EnumMeta) and not isinstance(value, self.kind):
            known = [choice.value for choice in self.kind]  # type: ignore[var-annotated]
        else:
            known = [value]
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        if get_origin(self.kind) is Literal:
            return value
        try:
            parsed = self.kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {_KINDS[self.kind]}") from None
        low, high = self.bounds
        if not ((low is None or parsed >= low) and (high is None or parsed <= high)):  # NaN, too
            limits = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"{value} is out of range; expected {limits}")
        return parsed


def parse_values(command: Any, function: Callable[..., Any]) -> Any:
    """Make a command of typer's parse its values by the annotations of a function; return it."""
    parameters = inspect.signature(function).parameters
    for param in command.params:
        kind, _ = get_args(parameters[param.name].annotation)
        parse_value(param, kind)
    return command


def parse_value(param: Any, kind: Any) -> Any:
    """Make a parameter of typer's parse its value as this type; return it."""
    if NoneType in get_args(kind):  # optional
        kind = get_args(kind)[0]
    many = get_origin(kind) is list
    bounds = getattr(param, "min", None), getattr(param, "max", None)
    value = Value(get_args(kind)[0] if many else kind, many, bounds)
    param.get_runtime_param = lambda: value
    return param
