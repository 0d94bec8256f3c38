"""`head`: the first transitions, value by value."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from offline_data_cli.call import Call
from offline_data_cli.options import Dataset
from offline_data_cli.result import Field, Fields, Result

if TYPE_CHECKING:
    from offline_data.reports.info import TransitionRow

SHOWN = 6
"""Items of an array that people see; `--json` has them all."""


def head(
    call: Call,
    dataset: Dataset,
    count: Annotated[
        int, typer.Option("-n", metavar="N", min=1, help="Number of transitions.")
    ] = 5,
    episode: Annotated[
        int | None, typer.Option(metavar="E", min=0, help="Of this episode, from 0.")
    ] = None,
) -> Result:
    """Show the first transitions, of all or of one episode."""
    from offline_data.reports.info import first_transitions
    from offline_data.store.library import locate
    from offline_data.store.reader import open_reader

    entry = locate(dataset, call.settings)
    reader = open_reader(entry.path)
    transitions = first_transitions(reader, count, episode)
    return Result(transitions, tuple(map(_fields, transitions)), (str(entry.id),))


def _fields(transition: "TransitionRow") -> Fields:
    return Fields(
        tuple(Field(key, brief(value)) for key, value in transition.values.items()),
        f"episode {transition.episode}, step {transition.step}, index {transition.index}",
    )


def brief(value: Any) -> str:
    """Write the value of a leaf on one line: its first items, then its shape.

    Example:
        >>> import numpy as np
        >>> brief(np.array([0.5, 2.0])), brief(np.zeros((2, 4), "u1"))
        ('0.5 2', '0 0 0 0 0 0 … uint8 [2, 4]')
    """
    import numpy as np

    array = np.asarray(value)
    items = " ".join(_item(item) for item in array.ravel()[:SHOWN].tolist())
    if array.size <= SHOWN:
        return items
    return f"{items} … {array.dtype} {list(array.shape)}"


def _item(item: Any) -> str:
    return f"{item:.6g}" if isinstance(item, float) else str(item)
