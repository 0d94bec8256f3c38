"""`info`, `head`, `sample` and `stats`: metadata and values of one dataset."""

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural, shorten
from offline_data_cli.names import dataset_id, entry_named
from offline_data_cli.options import AnyDataset, Context, Dataset, count, option
from offline_data_cli.render import format_nested, is_empty, number
from offline_data_cli.result import Field, Fields, Result, card, non_empty, table

if TYPE_CHECKING:
    from offline_data.analysis.info import DatasetInfo
    from offline_data.analysis.statistics import DatasetStats
    from offline_data.formats.search import CatalogDataset
    from offline_data.reports.pages.texts import Decode
    from offline_data.store.library import Entry
    from offline_data.store.reader import DatasetReader

_MOST_FILES, _MOST_ITEMS = 8, 6  # files, and items of an array, in the output; `--json` has all
_MOST = 1 << 24  # maximum batch size in transitions
# characters of a parameter's value, of decoded tokens; `--json` has all
_LONGEST, _LONGEST_TEXT = 60, 200

Rows = Annotated[int, count("Number of transitions.", "-n")]
Seed = Annotated[int | None, option("Seed of the random rows.", metavar="N", min=0)]
OneEpisode = Annotated[int | None, option("Only episode E, counted from 0.", metavar="E", min=0)]

_INTERNAL = ("recipe", "fingerprint", "next_too")  # options shown elsewhere, or of identity
_UNITS = {"fps": "Hz", "max_episode_steps": "steps"}
_QUANTILES = {"Q01": 0.01, "Q10": 0.1, "Q50": 0.5, "Q90": 0.9, "Q99": 0.99}  # `--json` has more


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
    steps = list(found.history)
    if view is not None:
        from offline_data.rows.saved import find_view
        from offline_data.store.reader import open_reader

        steps.append(find_view(open_reader(found.path), view)[1])
    blocks = [
        Fields(
            Field("made from", step.parents),
            Field("steps", recipe_lines(step.recipe)),
            Field("options", _list_options(step.options)),
            Field("version", step.version),
            Field("created", _format_time(step.created)),
            Field("manifest", step.sha256),
            title=f"{number}. {step.action} {step.id}",
        )
        for number, step in enumerate(steps, 1)
    ]
    return Result({"id": found.id, "path": found.path, "history": steps}, blocks, (found.id,))


def info_result(found: "DatasetInfo") -> Result:
    """Return the result for a dataset on this disk."""
    summary = card(
        found,
        "id path layout transitions:count valid_transitions=counts.valid_transitions:count "
        "episodes:count terminated=counts.terminated:count truncated=counts.truncated:count "
        "size=bytes:bytes",
    )

    def describe_type(leaf: Mapping[str, Any]) -> str:
        encoding = f" ({leaf['encoding']})" if "encoding" in leaf else ""
        return "text" if leaf["text"] else leaf["dtype"] + encoding

    schema = table(
        "leaf type shape rows_per_episode=rows",
        [{**leaf, "leaf": key} for key, leaf in found.schema.items()],
        type=describe_type,
        shape=lambda leaf: str(list(leaf["shape"])),
        rows=lambda leaf: "steps" if leaf["rows"] == "steps" else "steps + 1",
    )
    blocks = (summary, schema, _card_of_provenance(found))
    return Result({**vars(found), "remote": False}, blocks, (found.id,))


def _card_of_provenance(found: "DatasetInfo") -> Fields:
    from offline_data.analysis.info import compared_with_source, replay_line
    from offline_data.store.manifest import dropped_lines

    made_by, options = found.converter, found.converter.get("options", {})
    adapter = f"({made_by['adapter']})" if "adapter" in made_by else None
    converter = " ".join(filter(None, (made_by.get("name"), made_by.get("version"), adapter)))
    files = [
        f"{file.get('path')}, {human_bytes(file.get('size') or 0)}"
        + (f", from {file['url']}" if file.get("url") else "")
        + (f"; compared: {file['compared']}" if file.get("compared") else "")
        for file in found.files[:_MOST_FILES]
    ]
    if len(found.files) > _MOST_FILES:
        files.append(f"… and {len(found.files) - _MOST_FILES} more (all in --json)")
    values = [f"{k}: {v}" for k, v in found.values.items() if not v.endswith("not declared")]
    failed = dict.fromkeys(reason for file in found.files for reason in file.get("failed", ()))
    return Fields(
        Field("revision", found.revision),
        Field("created", _format_time(found.created)),
        Field("converter", converter),
        Field("options", _list_options(options)),
        Field("made from", found.parents),
        Field("made by", recipe_lines(options.get("recipe", ()))),
        Field("files", files),
        Field("failed hosts", list(failed)),
        Field("values", values),
        Field("environment", _compact(_with_units(found.environment))),
        *(Field(name, _format_about(v)) for name, v in _with_units(found.about).items()),
        *(Field(name, getattr(found, name)) for name in ("licence", "citation")),
        Field("compared with source", compared_with_source(found.audit)),
        Field("replayed", replay_line(found.replay, found.episodes)),
        Field("not finite", [f"{key}: {_compact(n)}" for key, n in found.non_finite.items()]),
        Field("dropped", dropped_lines(found.dropped)),
        Field("skipped", [f"{part['where']}: {part['reason']}" for part in found.skipped]),
        Field("notes", found.notes),
    )


def _format_about(value: Any) -> str | list[str] | None:
    """Format a list of names (authors, algorithms), or a line of each thing that is described."""
    if isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values()):
        return [f"{name} ({format_nested(one)})" for name, one in value.items()]
    names = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    return ", ".join(value) or None if names else _compact(value)


def _compact(value: Any) -> str | None:
    """Format nested values on one line; None if there are none."""
    return None if is_empty(value) else format_nested(value)


def _with_units(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values, numbers whose unit is known as text with it."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = _with_units(value)
        elif name in _UNITS and isinstance(value, (int, float)):
            value = f"{value:,} {_UNITS[name]}"
        found[name] = value
    return found


def _format_time(iso: str) -> str:
    """Format an ISO 8601 time in seconds: `2026-11-28 13:10:41 UTC`."""
    return re.sub(r"^([\d-]{10})T([\d:]{8})(\.\d+)?\+00:00$", r"\1 \2 UTC", iso)


def _list_options(recorded: Mapping[str, Any]) -> list[str]:
    """Return recorded options that are not the defaults, a line each, as the command line has them."""
    from offline_data.formats.options import Options, TextOptions, format_range, options_of

    text = recorded.get("text")
    others = {k: v for k, v in recorded.items() if k not in _INTERNAL and k != "text"}
    lines = []
    for kind, given in ((Options, others), (TextOptions, text or {})):
        known = options_of(kind)
        for name, value in given.items():
            usual = is_empty(value) or value in (False, "auto", getattr(kind, name, None))
            if usual or (kind is TextOptions and name not in known):
                continue
            flag = (known[name].flag if name in known else None) or f"--{name.replace('_', '-')}"
            if name in {"episodes", "checkpoints"}:
                value = format_range(tuple(value))
            shown = "" if value is True else format_nested(value)
            lines.append(f"{flag} {shown if len(shown) <= _LONGEST else '… (in --json)'}".rstrip())
    return lines


def _remote(found: "CatalogDataset") -> Result:
    fields = card(
        found,
        "id on_this_disk summary transitions:count episodes:count download=bytes:bytes licence "
        "citation notes command",
        on_this_disk="another revision" if found.here else "no",
    )
    data = {**asdict(found), "remote": True, "command": found.command}
    return Result(data, (fields,), (found.id,))


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


def recipe_lines(recipe: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each step: its parameters, or how its function was called."""
    lines = []
    for step in recipe:
        name = str(step["step"])
        if name == "fn" and ("run" in step or "by" in step):
            lines.append(f"{step.get('name', 'function')}: {how_run(step)}")
            continue
        usual = _defaults_of(name)
        given = {k: v for k, v in step.items() if k not in {"step", "error"} and not is_empty(v)}
        shown = [
            f"{key}={text}"
            for key, value in given.items()
            if value != usual.get(key) and len(text := format_nested(value)) <= _LONGEST
        ]
        if error := step.get("error"):
            shown.append(f"errors up to {error['max']} of 255, {error['mean']:.3g} on average")
        lines.append(f"{name}: {', '.join(shown)}" if shown else name)
    return lines


def _defaults_of(step: str) -> dict[str, Any]:
    """Return the defaults of the arguments of a step, if it is known here."""
    from offline_data.base.errors import NotFoundError
    from offline_data.pipeline.preprocess.steps.registry import describe_step

    try:
        return {each["name"]: each["default"] for each in describe_step(step)["arguments"]}
    except NotFoundError:
        return {}


def how_run(step: Mapping[str, Any]) -> str:
    """Return how a function of a recipe was called."""
    if step.get("by") == "episode":
        return "episode by episode"
    if step["run"] == "vectorised":
        left = step.get("by_rows")
        apart = (
            f", except {plural(left['rows'], 'row')}, run row by row: {left['why']}" if left else ""
        )
        return f"vectorised{apart}"
    if step["run"] == "blocks":
        return f"blocks of {plural(step['batched'], 'row')}"
    if not step["vectorize"]:
        return "row by row, as requested"
    return f"row by row, {step['why']}; use --batched N to pass blocks of rows"


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
    from offline_data.analysis.info import first_transitions, last_transitions, transitions_of
    from offline_data.analysis.sample import random_rows
    from offline_data.base.errors import UsageError
    from offline_data.store.reader import open_reader
    from offline_data_cli.commands.pages import find_decoder

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
    blocks = [
        Fields(
            *(
                Field(key, words(key, value) or brief(value))
                for key, value in transition["values"].items()
            ),
            title="episode {episode}, step {step}, index {index}".format(**transition),
        )
        for transition in transitions
    ]
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
    """Return the text of a leaf of tokens, shortened; None: another leaf, or nothing decodes it."""
    from offline_data.analysis.checks.tokens import token_leaves
    from offline_data.episode.fields import split_key

    if decode is None or split_key(key) not in token_leaves(reader):
        return None
    import numpy as np

    return repr(shorten(decode(np.asarray(value).ravel().tolist()), _LONGEST_TEXT))


def brief(value: Any) -> str:
    """Format the value of a leaf on one line: its first items, then its shape."""
    import numpy as np

    array = np.asarray(value)
    items = " ".join(
        f"{item:.6g}" if isinstance(item, float) else format_nested(item)
        for item in array.ravel()[:_MOST_ITEMS].tolist()
    )
    return items if array.size <= _MOST_ITEMS else f"{items} … {array.dtype} {list(array.shape)}"


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
    """Sample a random batch and show its leaves."""
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
    """Sample one batch of a dataset and return its leaves as a result."""
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
        "leaf type shape min:number max:number",
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
    features: Annotated[bool, option("Also show each element, such as action[0].")] = False,
    quantiles: Annotated[
        bool, option("Also show 1, 10, 50, 90 and 99 % quantiles of elements.")
    ] = False,
    chunk: Annotated[
        int | None, count("Also describe all action chunks of N rows.", max=_MOST)
    ] = None,
    relative_to: Annotated[
        str | None,
        option("Also describe actions minus this observation.", metavar="LEAF"),
    ] = None,
    absolute: Annotated[
        list[int] | None,
        option(
            "Action element to leave absolute; may be repeated.",
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
            metavar="LEAF",
        ),
    ] = None,
    force: Annotated[bool, option("Replace FILE if it exists.")] = False,
) -> Result:
    """Show statistics of every leaf and of the episodes."""
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
    """Return the statistics of a dataset as a result; its JSON always has those of each feature."""
    counts = card(
        found,
        "id transitions:count episodes:count terminated=per_episode.terminated:share "
        "truncated=per_episode.truncated:share "
        "no_final_observation=per_episode.without_final_observation:count",
    )
    figures = "min:number max:number mean:number std:number"
    places = [0, *(1 + found.quantile_levels.index(level) for level in _QUANTILES.values())]
    leaves = [*found.leaves, *([found.actions] if found.actions else [])]
    tables = [
        table(f"leaf=key type=kind {figures} nan:number inf:number", leaves),
        table(
            f"feature finite:count {figures}",
            [row for leaf in leaves for row in (leaf.feature_rows() if features else ())],
        ),
        table(
            f"quantiles_of {' '.join(f'{title}:number' for title in _QUANTILES)}",
            [
                tuple(row[place] for place in places)
                for leaf in leaves
                for row in (leaf.quantile_rows() if quantiles else ())
            ],
        ),
        table(
            "text=key distinct:count missing:count common",
            found.texts,
            common=lambda text: ", ".join(f"{word!r} {n}" for word, n in text.most_common),
        ),
    ]
    spreads = {"length": found.per_episode.length, "return": found.per_episode.returns}
    episodes = table(
        "episodes min:number median:number mean:number max:number",
        [{"episodes": name, **vars(spread)} for name, spread in spreads.items() if spread],
    )
    error = max((one.features.rank_error for one in leaves if one.features), default=0)
    note = f"quantiles are at most {100 * error:.2g} % of the rows off in rank"
    notes = (note,) if quantiles and error else ()
    return Result(found, (counts, tables[0], *non_empty(*tables[1:]), episodes), (found.id,), notes)
