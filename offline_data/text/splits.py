"""Files of a configuration and a split of a dataset on the hub: by its card, else by their names.

The card lists them as `configs`, see https://huggingface.co/docs/hub/datasets-manual-configuration:

```yaml
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
```
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import nearest
from offline_data.base.json import shown
from offline_data.formats.options import ALL_SPLITS
from offline_data.raw.rows import suffix_of

Splits: TypeAlias = Mapping[str, Sequence[str]]  # paths of the files of each split

_WORDS = {  # words in file names that mean a split; other splits have their own name only
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "validation": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}

# as `push_to_hub` writes them; others of the same split hold the same rows, most likely
_SHARD = re.compile(r"data/[^/]*-\d{5}-of-\d{5}[^/]*")

_METADATA = {  # files that `datasets` writes next to the data
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "state.json",
}

_MOST_SHOWN = 8


def data_files(paths: Iterable[str]) -> list[str]:
    """Return the paths of data: no hidden files, no metadata; plain text only if all is.

    As `datasets.load_dataset` leaves out what is called `.x`, `__x__`, or as its own metadata.
    """
    found = [
        path
        for path in paths
        if suffix_of(path)
        and path.rpartition("/")[2] not in _METADATA
        and not any(part.startswith((".", "__")) for part in path.split("/"))
    ]
    rich = [path for path in found if not suffix_of(path).startswith(".txt")]
    return rich or found


def files_of_config(
    paths: Sequence[str], card: Mapping[str, Any], config: str, where: str
) -> tuple[list[str], Splits | None]:
    """Return the files of a configuration among `paths`, and its splits if the card names them.

    Without a card it is a folder, or the beginning of the names of files. An empty `config` is the
    default one, or all files without a card. `where` is the dataset, for messages. Raises
    `NotFoundError` without such a configuration, or for several and no default, and `FormatError`
    if the card's `configs` are not of the form above.
    """
    configs = {one["config_name"]: one for one in _configs(card, where)}
    config = "" if config == "default" and not configs else config
    name = config or _default(configs, where)
    if name in configs:
        return _of_card(paths, configs[name], f"{where}, configuration {name!r},")
    if not config:
        return list(paths), None
    kept = [
        path
        for path in paths
        if config in path.split("/")[:-1] or path.startswith((f"{config}-", f"{config}."))
    ]
    if not kept:
        there = list(configs) or sorted({path.split("/")[0] for path in paths if "/" in path})
        raise NotFoundError(
            f"{where} has no configuration {config!r}",
            hint=f"it has {', '.join(there[:_MOST_SHOWN])}" if there else None,
        )
    return kept, None


def files_of_split(
    paths: Sequence[str], splits: Splits | None, split: str, where: str
) -> list[str]:
    """Return the files of a split; all, if it is empty or `all`, or nothing names any split.

    Raises `NotFoundError` if there is none, or the names of files do not say which it is.
    """
    named_so = split in (splits or {}) or any(_split_of(path) == split for path in paths)
    if not split or (split == ALL_SPLITS and not named_so):
        return list(paths)
    wanted = [split, *_WORDS.get(split, ())]
    if splits is None:
        return _by_names(paths, wanted, where)
    named = next((name for name in wanted if name in splits), None)
    if named is None:
        raise _no_split(split, splits, where)
    return list(splits[named])


def _configs(card: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    found = card.get("configs") or []
    for one in found if isinstance(found, list) else [found]:
        if not isinstance(one, dict) or not isinstance(one.get("config_name"), str):
            raise FormatError(
                f"The card of {where} lists {shown(one)} in configs; expected a config_name and "
                "data_files"
            )
    return found if isinstance(found, list) else [found]


def _default(configs: Mapping[str, dict[str, Any]], where: str) -> str:
    """Return the configuration that is meant if none is named; empty if there is none at all."""
    marked = [name for name, one in configs.items() if one.get("default") is True]
    usual = [*marked, *(name for name in configs if name == "default" or len(configs) == 1)]
    if configs and not usual:
        raise NotFoundError(
            f"{where} has {len(configs)} configurations: {', '.join([*configs][:_MOST_SHOWN])}",
            hint=f"choose one: {where}:{next(iter(configs))}",
        )
    return usual[0] if usual else ""


def _of_card(
    paths: Sequence[str], config: Mapping[str, Any], where: str
) -> tuple[list[str], Splits | None]:
    """Return the files of one of `configs`, and its splits if it names them."""
    folder = posixpath.normpath(str(config.get("data_dir") or "").strip("/"))
    inside = [path for path in paths if folder == "." or path.startswith(f"{folder}/")]
    splits: dict[str, list[str]] | None = None
    if config.get("data_files") is not None:
        splits = {}
        for split, pattern in _patterns_of(config["data_files"], where):
            wanted, known = posixpath.normpath(f"{folder}/{pattern}"), splits.setdefault(split, [])
            known += [path for path in inside if path not in known and _matches(path, wanted)]
        splits = {split: files for split, files in splits.items() if files}
        inside = sorted({path for files in splits.values() for path in files})
    if not inside:
        said = {name: config[name] for name in ("data_dir", "data_files") if name in config}
        raise NotFoundError(
            f"{where} names no Parquet, Arrow, JSON, CSV or text file: {shown(said)}"
        )
    return inside, splits


def _patterns_of(data: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield splits and patterns of paths in the order of the card; raises `FormatError`."""
    for one in data if isinstance(data, list) else [data]:
        match one:
            case {"split": str(split), "path": str() | list() as patterns}:
                pass
            case str(patterns):
                split = "train"  # as `datasets.load_dataset` takes files without a split
            case _:
                raise FormatError(
                    f"The card of {where} lists {shown(one)} in data_files; expected a split and "
                    "a path"
                )
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            yield split, str(pattern)


def _matches(path: str, pattern: str) -> bool:
    """Return True if a path matches a glob, in which `**` stands for any number of folders.

    Example:
        >>> _matches("a/b/train-0.csv", "**/train-*"), _matches("a/b/c.csv", "a/*")
        (True, False)
    """
    parts = path.split("/")
    reached = {0}  # how many parts the pattern so far can stand for
    for part in pattern.split("/"):
        if part == "**":
            reached = {end for end in range(len(parts) + 1) if reached and end >= min(reached)}
        else:
            reached = {n + 1 for n in reached if n < len(parts) and fnmatchcase(parts[n], part)}
    return len(parts) in reached


def _by_names(paths: Sequence[str], wanted: Sequence[str], where: str) -> list[str]:
    """Return the files called as the split, or in a folder called so; else with it in their names."""
    split = wanted[0]
    called = [p for p in paths if {_split_of(p), *p.split("/")[:-1]} & {*wanted}]
    called = [path for path in called if _SHARD.match(path)] or called
    formats = sorted({suffix_of(path) for path in called})
    if len(formats) > 1:
        folders = any("/" in path for path in called)
        raise NotFoundError(
            f"{where} has split {split!r} as {' and as '.join(formats)}: probably the same rows",
            hint=f"choose a folder, as a configuration: {where}:FOLDER" if folders else None,
        )
    if called:
        return called
    known = {word for words in _WORDS.values() for word in words} | {split}
    named = [path for path in paths if _words(path) & known]
    kept = [path for path in named if _words(path) & {*wanted}]
    splits = sorted({_split_of(path) for path in kept})
    if len(splits) > 1:
        raise NotFoundError(
            f"{where} has several splits called {split!r}: {', '.join(splits[:_MOST_SHOWN])}",
            hint=f"choose one: --split {splits[0]}; or all files: --split {ALL_SPLITS}",
        )
    if not kept and (named or split != "train"):
        raise _no_split(split, {_split_of(path) for path in paths}, where)
    return kept or list(paths)


def _split_of(path: str) -> str:
    """Return the name of a file without suffix and number, which is its split on most hubs.

    Example:
        >>> _split_of("data/train_sft-00000-of-00003-a3ecf92756993583.parquet")
        'train_sft'
    """
    name = path.rpartition("/")[2].lower()
    return re.sub(r"[-_.]?\d+([-_.]of[-_.]\d+.*)?$", "", name.removesuffix(suffix_of(name)))


def _words(path: str) -> set[str]:
    return {*re.split(r"[^A-Za-z0-9]+", path.lower()), *re.split(r"[/.-]", path)}


def _no_split(split: str, there: Iterable[str], where: str) -> NotFoundError:
    names = sorted(there)
    near = nearest(split, names)
    return NotFoundError(
        f"{where} has no split {split!r}; it has {', '.join(names[:_MOST_SHOWN])}",
        hint=f"choose one: --split {(near or names)[0]}",
    )
