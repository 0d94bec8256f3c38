"""`sample`: one random batch of transitions or of slices of episodes, as training code gets it."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offline_data_cli.call import Call
from offline_data_cli.cells import number
from offline_data_cli.options import Dataset
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from offline_data.store.library import Entry

_COLUMNS = (
    Column("LEAF"),
    Column("TYPE"),
    Column("SHAPE"),
    Column("MIN", "number"),
    Column("MAX", "number"),
)

_MOST = 1 << 24
"""Transitions of one batch that is only looked at."""


def sample(
    call: Call,
    dataset: Dataset,
    batch: Annotated[
        int,
        typer.Option("--batch", metavar="N", min=1, max=_MOST, help="Transitions in the batch."),
    ] = 256,
    slices: Annotated[
        int | None,
        typer.Option(
            "--slices", metavar="L", min=1, max=_MOST, help="Slices of L steps of an episode each."
        ),
    ] = None,
) -> Result:
    """Sample a random batch and show what is in it."""
    from offline_data.store.library import locate

    return sample_result(locate(dataset, call.settings), batch, slices)


def sample_result(entry: "Entry", batch: int, slices: int | None = None) -> Result:
    """Sample one batch of a dataset and lay out its leaves."""
    import offline_data

    sampler = None if slices is None else offline_data.SliceSampler(slice_len=slices)
    buffer = offline_data.open_dataset(entry.path, batch_size=batch, sampler=sampler)
    begin = time.perf_counter()
    drawn = buffer.sample()
    seconds = time.perf_counter() - begin
    leaves = _leaves(drawn)
    data = {
        "id": str(entry.id),
        "batch": batch,
        "slices": slices,
        "seconds": seconds,
        "leaves": leaves,
    }
    of = f" in slices of {slices}" if slices else ""
    note = f"{batch} transitions{of} in {number(1000 * seconds)} ms, the first batch"
    return Result(data, (_table(leaves),), (str(entry.id),), (note,))


def _leaves(batch: Any) -> dict[str, dict[str, Any]]:
    """Describe the leaves of a TensorDict by key, parts joined by `/`."""
    items = batch.items(include_nested=True, leaves_only=True)
    named = {key if isinstance(key, str) else "/".join(key): value for key, value in items}
    return {key: _leaf(named[key]) for key in sorted(named)}


def _table(leaves: dict[str, dict[str, Any]]) -> Table:
    rows = tuple(
        (key, leaf["dtype"], str(leaf["shape"]), leaf["min"], leaf["max"])
        for key, leaf in leaves.items()
    )
    return Table(_COLUMNS, rows)


def _leaf(tensor: Any) -> dict[str, Any]:
    ordered = tensor.numel() > 0 and not tensor.is_complex()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "min": tensor.min().item() if ordered else None,
        "max": tensor.max().item() if ordered else None,
    }
