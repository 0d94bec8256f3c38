"""What a step may call leaves and which it may not take away: what every dataset has stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.episodes.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    check_key,
    join_key,
    next_of,
)
from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

REQUIRED = (REWARD, TERMINATED, TRUNCATED)
"""Step leaves of every dataset; besides, one or more whose key begins with `action`."""


def check_required(steps: Collection[Key], step: str) -> None:
    """Check that a step leaves what every dataset has.

    Args:
        steps: Keys of the step columns there would be.
        step: Name of the step, for the message.

    Raises:
        StepError: Reward, a flag, or every action leaf would be missing; says which.
    """
    missing = [join_key(key) for key in REQUIRED if key not in steps]
    if not any(key[0] == "action" for key in steps):
        missing.insert(0, "action")
    if missing:
        raise StepError(
            f"Step {step!r} would leave no {', no '.join(missing)}; every dataset has an action, "
            f"{', '.join(map(join_key, REQUIRED))}"
        )


def check_names(
    new: Iterable[Key], steps: Collection[Key], observations: Collection[Key], step: str
) -> None:
    """Check names that a step gives against all the names there would be.

    Args:
        new: Keys the step gives; each is in `steps` or `observations`.
        steps: Keys of all step columns there would be; one that is there twice is a clash.
        observations: Keys of all observation columns there would be.
        step: Name of the step, for the messages.

    Raises:
        StepError: A name that cannot be a file name, that has a meaning of its own, that two
            leaves would have, or that another leaf's name begins with.
    """
    taken = [*steps, *observations, *map(next_of, observations)]
    for key in new:
        _check_meaning(key, key in observations, step)
        for here in (key, next_of(key)) if key in observations else (key,):
            if taken.count(here) > 1:
                raise StepError(f"Step {step!r} would give two leaves the name {join_key(here)!r}")
            for other in taken:
                _check_branch(here, other, step)


def _check_meaning(key: Key, observed: bool, step: str) -> None:
    try:
        check_key(key)
    except FormatError as error:
        raise StepError(f"Step {step!r} cannot call a leaf so: {error.message}") from error
    reserved = RESERVED_ROOTS | {"action"} if observed else RESERVED_ROOTS - {"next"}
    if key[0] in reserved or key in {("next",), DONE}:
        what = "an observation leaf" if observed else "a step leaf"
        raise StepError(f"Step {step!r} cannot call {what} {join_key(key)!r}: the name is reserved")


def _check_branch(key: Key, other: Key, step: str) -> None:
    short, long = sorted((key, other), key=len)
    if len(short) < len(long) and long[: len(short)] == short:
        raise StepError(
            f"Step {step!r} would make {join_key(short)!r} a leaf, and {join_key(long)!r} is "
            "below it"
        )
