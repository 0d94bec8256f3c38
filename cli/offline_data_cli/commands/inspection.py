"""`info`, `head`, `sample` and `stats`: metadata and values of one dataset."""

import json
import shlex
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.plurals import plural, shorten
from offline_data.document.blocks import table
from offline_data.document.values import number
from offline_data_cli.names import dataset_id, entry_named
from offline_data_cli.options import AnyDataset, Context, Dataset, count, option
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.analysis.figures import DatasetStats
    from offline_data.analysis.info import DatasetInfo
    from offline_data.formats.search import CatalogDataset
    from offline_data.reports.pages.texts import Decode
    from offline_data.store.library import Entry
    from offline_data.store.reader import DatasetReader

_MOST = 1 << 24  # maximum batch size in transitions
_LONGEST_TEXT = 200  # characters of decoded tokens; `--json` has all

Rows = Annotated[int, count("Number of transitions.", "-n")]
Seed = Annotated[int | None, option("Seed of the random rows.", metavar="N", min=0)]
OneEpisode = Annotated[int | None, option("Only episode E, counted from 0.", metavar="E", min=0)]


def info(
    context: Context,
    dataset: AnyDataset,
    history: Annotated[
        bool, option("Show the steps from the source to this dataset instead.")
    ] = False,
    view: Annotated[
        str | None, option("With --history: the steps to this saved view.", metavar="NAME")
    ] = None,
) -> Result:
    """Show schema, counts, provenance and licence of a dataset."""
    from offline_data import api
    from offline_data.analysis.info import DatasetInfo
    from offline_data.base.errors import UsageError

    if view is not None and not history:
        raise UsageError("--view requires --history", hint="add --history")
    found = api.info(dataset_id(context, dataset), settings=context.settings)
    if not isinstance(found, DatasetInfo):
        return _remote(found)
    return _history_result(found, view) if history else info_result(found)


def _history_result(found: "DatasetInfo", view: str | None) -> Result:
    from offline_data.analysis.info import history_blocks

    steps = list(found.history)
    if view is not None:
        from offline_data.rows.saved import find_view
        from offline_data.store.reader import open_reader

        steps.append(find_view(open_reader(found.path), view)[1])
    return Result(
        {"id": found.id, "path": found.path, "history": steps}, history_blocks(steps), (found.id,)
    )


def info_result(found: "DatasetInfo") -> Result:
    """Return the result for a dataset on this disk."""
    return Result({**vars(found), "remote": False}, found.blocks(), (found.id,))


def _remote(found: "CatalogDataset") -> Result:
    data = {**asdict(found), "remote": True, "command": found.command}
    return Result(data, found.blocks(), (found.id,))


def path(context: Context, dataset: Dataset) -> Result:
    """Print the directory of a dataset."""
    entry = entry_named(context, dataset)
    return Result({"id": str(entry.id), "path": entry.path}, (str(entry.path),), (str(entry.path),))


def open_(context: Context, dataset: Dataset) -> Result:
    """Open the directory of a dataset in the file manager."""
    import typer

    from offline_data.base.errors import MissingDependencyError

    entry = entry_named(context, dataset)
    try:
        failed = typer.launch(str(entry.path)) != 0
    except OSError:
        failed = True
    if failed:
        raise MissingDependencyError(
            f"No program opens folders here; the dataset is in {entry.path}",
            hint=f"cd {shlex.quote(str(entry.path))}",
        )
    return Result({"id": str(entry.id), "path": entry.path}, (str(entry.path),), (str(entry.path),))


def head(
    context: Context,
    dataset: Dataset,
    rows: Rows = 5,
    episode: OneEpisode = None,
    tail: Annotated[bool, option("Show the last transitions instead.")] = False,
    random: Annotated[
        int | None, count("Show N transitions drawn at random instead.", max=_MOST)
    ] = None,
    seed: Seed = None,
) -> Result:
    """Show transitions: the first, the last, or random ones."""
    from offline_data.analysis.sample import random_rows
    from offline_data.analysis.transitions import (
        first_transitions,
        last_transitions,
        transition_blocks,
        transitions_of,
    )
    from offline_data.base.errors import UsageError
    from offline_data.store.reader import open_reader
    from offline_data.text.decoder import find_decoder

    if random is not None and (tail or episode is not None):
        raise UsageError("--random draws from the whole dataset; remove --tail or --episode")
    entry = entry_named(context, dataset)
    reader = open_reader(entry.path)
    if random is not None:
        transitions = transitions_of(reader, random_rows(reader, random, seed=seed))
    else:
        read = last_transitions if tail else first_transitions
        transitions = read(reader, rows, episode)
    words = partial(words_of, find_decoder(context.settings.root, entry.manifest), reader)
    blocks = transition_blocks(transitions, words)
    return Result(transitions, blocks, (str(entry.id),))


def tail(
    context: Context,
    dataset: Dataset,
    rows: Rows = 5,
    episode: OneEpisode = None,
) -> Result:
    """Show the last transitions of a dataset or of one episode."""
    return head(context, dataset, rows, episode, tail=True)


def words_of(decode: "Decode | None", reader: "DatasetReader", key: str, value: Any) -> str | None:
    """Return the text of a token feature, shortened; None: another feature, or nothing decodes it."""
    from offline_data.analysis.checks.tokens import token_leaves
    from offline_data.episode.fields import split_key

    if decode is None or split_key(key) not in token_leaves(reader):
        return None
    import numpy as np

    return repr(shorten(decode(np.asarray(value).ravel().tolist()), _LONGEST_TEXT))


def sample(
    context: Context,
    dataset: Dataset,
    batch: Annotated[int, count("Transitions in the batch.", max=_MOST)] = 256,
    slices: Annotated[
        int | None,
        option(
            "Sample slices of L consecutive steps, not single transitions.",
            metavar="L",
            min=1,
            max=_MOST,
        ),
    ] = None,
    seed: Seed = None,
) -> Result:
    """Sample a random batch and show its features."""
    from offline_data.base.errors import UsageError

    if slices and batch % slices:
        fitting = max(batch // slices, 1) * slices
        raise UsageError(
            f"--batch {batch} must be a multiple of --slices {slices}",
            hint=f"try --batch {fitting}",
        )
    return sample_result(entry_named(context, dataset), batch, slices, seed)


def sample_result(
    entry: "Entry", batch: int, slices: int | None = None, seed: int | None = None
) -> Result:
    """Sample one batch of a dataset and return its features as a result."""
    from offline_data.analysis.info import NO_REWARDS
    from offline_data.analysis.sample import random_rows, sampled_leaves
    from offline_data.episode.fields import REWARD
    from offline_data.store.reader import open_reader

    reader = open_reader(entry.path)
    begin = time.perf_counter()
    leaves = sampled_leaves(reader, random_rows(reader, batch, slices, seed), slices)
    seconds = time.perf_counter() - begin
    data = {"id": str(entry.id), "batch": batch, "slices": slices, "seed": seed}
    data |= {"seconds": seconds, "leaves": leaves}
    shown = table(
        "feature=leaf type shape min:number max:number",
        [(key, v.dtype, str(list(v.shape)), v.min, v.max) for key, v in leaves.items()],
    )
    of = f" in slices of {slices}" if slices else ""
    note = f"{plural(batch, 'transition')}{of} sampled in {number(1000 * seconds)} ms (first batch)"
    acts = any(key[0] == "action" for key in reader.step_leaves)
    unrewarded = acts and REWARD not in reader.step_leaves
    notes = (note, NO_REWARDS) if unrewarded else (note,)
    return Result(data, (shown,), (str(entry.id),), notes)


def stats(
    context: Context,
    dataset: Dataset,
    features: Annotated[bool, option("Also show each dimension, such as action[0].")] = False,
    quantiles: Annotated[
        bool, option("Also show 1, 10, 50, 90 and 99 % quantiles of dimensions.")
    ] = False,
    chunk: Annotated[
        int | None, count("Also describe all action chunks of N rows.", max=_MOST)
    ] = None,
    relative_to: Annotated[
        str | None,
        option("Also describe actions minus this observation.", metavar="KEY"),
    ] = None,
    absolute: Annotated[
        list[int] | None,
        option(
            "Action dimension to leave absolute; may be repeated.",
            metavar="I",
            min=0,
        ),
    ] = None,
    openpi: Annotated[
        str | None, option("Also write openpi's norm_stats.json to FILE.", metavar="FILE")
    ] = None,
    state: Annotated[
        str | None,
        option(
            "With --openpi: the robot's state. (default: --relative-to, else observation/state)",
            metavar="KEY",
        ),
    ] = None,
    force: Annotated[bool, option("Replace FILE if it exists.")] = False,
) -> Result:
    """Show statistics of every feature and of the episodes."""
    from offline_data import api
    from offline_data.base.errors import UsageError
    from offline_data.base.files import write_user_file
    from offline_data_cli.commands.pages import new_file

    if openpi is None and state is not None:
        raise UsageError("--state requires --openpi", hint="add --openpi FILE")
    file = new_file(openpi, force, "--openpi") if openpi is not None else None
    path = entry_named(context, dataset).path
    found = api.stats(
        path,
        chunk=chunk,
        relative_to=relative_to,
        absolute=absolute or (),
        settings=context.settings,
        progress=context.progress,
    )
    shown = stats_result(found, features, quantiles)
    if file is None:
        return shown
    content = found.norm_stats(state or relative_to)
    write_user_file(file, json.dumps(content, indent=2).encode())
    return replace(shown, notes=(*shown.notes, f"{file} written"))


def stats_result(found: "DatasetStats", features: bool = False, quantiles: bool = False) -> Result:
    """Return the statistics of a dataset as a result; its JSON always has those of each dimension."""
    from offline_data.analysis.figures import stats_blocks

    blocks = stats_blocks(found, features=features, quantiles=quantiles)
    leaves = [*found.leaves, *([found.actions] if found.actions else [])]
    error = max((one.features.rank_error for one in leaves if one.features), default=0)
    note = f"quantiles are at most {100 * error:.2g} % of the rows off in rank"
    notes = (note,) if quantiles and error else ()
    return Result(found, blocks, (found.id,), notes)
