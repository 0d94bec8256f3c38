"""`rename`, `cp`, `filter`, `merge` and `split`: renamed datasets, copies, selected and joined episodes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from offline_data.base.errors import UsageError
from offline_data.document.blocks import fields_of, table
from offline_data.store.layout import DEFAULT_AUDIT
from offline_data.store.library import Entry
from offline_data_cli.commands.download import stored_result
from offline_data_cli.conversion import Audit, Layout
from offline_data_cli.names import entry_named
from offline_data_cli.options import (
    Context,
    Dataset,
    Datasets,
    Force,
    NewName,
    Workers,
    argument,
    option,
)
from offline_data_cli.result import Result, combine

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.job import RunOptions

Out = Annotated[str, option("Write the dataset local:NAME.", metavar="NAME")]
OutOrView = Annotated[
    str, option("Write the dataset local:NAME, or the view NAME.", "--out", metavar="NAME")
]
AsView = Annotated[  # for `load_dataset(ID, view=NAME)` and `export --view NAME`
    bool, option("Save a view of ID, not a dataset. A view stores row numbers only.")
]


def rename(context: Context, dataset: Dataset, name: NewName, force: Force = False) -> Result:
    """Rename a dataset to local:NAME. Nothing is copied."""
    from offline_data.store.copies import rename_dataset

    old = entry_named(context, dataset, exact=True)
    new = rename_dataset(old, name, context.settings, context.progress, force=force)
    return _result(old, new)


def cp(context: Context, dataset: Dataset, name: NewName, force: Force = False) -> Result:
    """Copy a dataset to local:NAME, comparing every file with its checksum."""
    from offline_data.store.copies import copy_dataset

    old = entry_named(context, dataset)
    new = copy_dataset(old, name, context.settings, context.progress, force=force)
    return _result(old, new)


def _result(old: "Entry", new: "Entry") -> Result:
    data = {"id": str(new.id), "path": new.path, "from": str(old.id), "bytes": new.bytes}
    return Result(data, (fields_of(data, "id path from size=bytes:bytes"),), (str(new.id),))


def filter_(
    context: Context,
    dataset: Dataset,
    where: Annotated[
        str, argument("EXPRESSION", "Condition on episodes; `explain filter` lists its fields.")
    ],
    out: OutOrView,
    view: AsView = False,
    layout: Layout = None,
    workers: Workers = None,
    force: Force = False,
) -> Result:
    """Make a new dataset of the episodes that match an expression."""
    from offline_data.pipeline.preprocess.subsets import filter_dataset

    parent = entry_named(context, dataset).path
    if view:
        return save_views(context, parent, {out: [f"filter:{where}"]}, force=force)
    options = _options(layout, workers, force=force)
    return stored_result(
        filter_dataset(parent, where, out, context.settings, context.progress, options=options)
    )


def merge(
    context: Context,
    datasets: Datasets,
    out: Out,
    common_leaves: Annotated[
        bool, option("Drop features and columns that are not in all datasets.")
    ] = False,
    cast: Annotated[
        bool, option("Convert numbers to a type that holds all values, or fail.")
    ] = False,
    layout: Layout = None,
    audit: Audit = str(DEFAULT_AUDIT),
    force: Force = False,
) -> Result:
    """Make one dataset of the episodes of several.

    A column names the dataset that each episode comes from.
    """
    from offline_data import api
    from offline_data.store.layout import parse_audit

    paths = [entry_named(context, text).path for text in datasets]
    made = api.merge(
        *paths,
        name=out,
        common_leaves=common_leaves,
        cast=cast,
        layout=layout,
        audit=parse_audit(audit),
        force=force,
        settings=context.settings,
        progress=context.progress,
    )
    return stored_result(made)


def split(
    context: Context,
    dataset: Dataset,
    parts: Annotated[
        list[str],
        argument(
            "PART=SHARE...", "Name and share of each part, such as train=0.9. At most 1 in total."
        ),
    ],
    out: Annotated[
        str | None,
        option(
            "Prefix of the names, local:NAME-PART. (default: the name of ID; for views: none)",
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[int, option("Seed of the shuffle.", metavar="N")] = 0,
    view: AsView = False,
    layout: Layout = None,
    workers: Workers = None,
    force: Force = False,
) -> Result:
    """Split the episodes of a dataset at random into new datasets."""
    from offline_data.pipeline.preprocess.subsets import split_dataset, split_steps

    shares: dict[str, float] = {}
    for part in parts:
        found = re.fullmatch(r"([A-Za-z0-9._-]+)=([0-9]*\.?[0-9]+)", part)
        if found is None or found[1] in shares:
            raise UsageError(
                f"{part!r} has no share; expected PART=SHARE",
                hint="for example train=0.9 val=0.1",
            )
        shares[found[1]] = float(found[2])
    entry = entry_named(context, dataset)
    if view:
        steps = split_steps(shares, seed)
        named = {f"{out}-{part}" if out else part: [step] for part, step in steps.items()}
        return save_views(context, entry.path, named, force=force)
    stored_parts = split_dataset(
        entry.path,
        shares,
        out or entry.id.name.replace("://", "+"),
        context.settings,
        context.progress,
        seed=seed,
        options=_options(layout, workers, force=force),
    )
    results = list(map(stored_result, stored_parts.values()))
    data = [
        {"part": part, **result.data[0]} for part, result in zip(stored_parts, results, strict=True)
    ]
    return combine(data, results)


def save_views(
    context: Context, parent: Path, views: Mapping[str, Sequence[str]], *, force: bool
) -> Result:
    """Save views of a dataset directory by name, each of the rows that its steps select."""
    from offline_data.pipeline.preprocess.subsets import save_view

    made = [
        save_view(parent, steps, name, context.settings, context.progress, force=force)
        for name, steps in views.items()
    ]
    shown = table("view dataset steps=transitions:count episodes:count path:keep", made)
    return Result(made, (shown,), [view.view for view in made])


def _options(layout: Layout, workers: int | None, *, force: bool) -> "RunOptions":
    from offline_data.pipeline.preprocess.job import RunOptions

    return RunOptions(layout=layout, workers=workers, force=force)
