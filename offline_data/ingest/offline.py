"""What is said where something is not here and may not be fetched: the command that brings it."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offline_data.config import ARGUMENT, CONFIG_FILE
from offline_data.errors import OfflineError
from offline_data.ids import nearest
from offline_data.ingest.known import known_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.ingest.options import Options


@contextmanager
def naming_the_command(
    dataset: DatasetId, settings: Settings, options: Options, *, raw_only: bool = False
) -> Iterator[None]:
    """Let an `OfflineError` of the block name the dataset, and the command to run online.

    Args:
        dataset: What was asked for.
        settings: Root, and what decided that there is no network.
        options: What else was asked for.
        raw_only: Whether only the raw files were asked for.
    """
    try:
        yield
    except OfflineError as error:
        command = online_command(dataset, settings, options, raw_only=raw_only)
        raise OfflineError(
            f"{_missing(dataset, options)}, and offline mode is on; online, run: {command}",
            hint=_meant(dataset) or _advice(settings),
        ) from error


def online_command(
    dataset: DatasetId, settings: Settings, options: Options, *, raw_only: bool = False
) -> str:
    """Return the command line that brings a dataset here as asked for, to be pasted in a shell.

    Example:
        >>> from offline_data.config import Settings
        >>> from offline_data.ids import parse_id
        >>> from offline_data.ingest.options import Options
        >>> options = Options(episodes=(0, 10))
        >>> online_command(parse_id("d4rl:pen-human-v1"), Settings("/data"), options)
        'offline-data download d4rl:pen-human-v1 --episodes 0:10'
    """
    words = ["offline-data", "download", str(dataset)]
    if settings.origins.get("root") == ARGUMENT:
        words += ["--root", str(settings.root)]
    if options.layout:
        words += ["--layout", options.layout]
    if options.episodes:
        words += ["--episodes", _range(options.episodes)]
    flags = {
        "--force": options.force,
        "--keep-episodes": options.keep_episodes,
        "--keep-raw": options.keep_raw,
        "--raw-only": raw_only,
    }
    return shlex.join([*words, *(flag for flag, given in flags.items() if given)])


def _missing(dataset: DatasetId, options: Options) -> str:
    if options.force:
        return f"{dataset} cannot be fetched again from this disk"
    if options.episodes:
        return f"Episodes {_range(options.episodes)} of {dataset} are not on this disk"
    return f"{dataset} is not on this disk"


def _range(episodes: tuple[int | None, int | None]) -> str:
    return ":".join("" if end is None else str(end) for end in episodes)


def _meant(dataset: DatasetId) -> str | None:
    """Offer the names most like one that is in no catalogue: online it might not be found either."""
    known = known_names(dataset.source)
    near = [] if dataset.name in known else nearest(dataset.name, known)
    names = " or ".join(f"{dataset.source}:{name}" for name in near)
    return f"did you mean {names}?" if near else None


def _advice(settings: Settings) -> str:
    origin = settings.origins.get("offline", ARGUMENT)
    if origin == ARGUMENT:
        return "leave out --offline where there is a network"
    if origin == CONFIG_FILE:
        place, switches = f"`offline` in {settings.config}", "OFFLINE_DATA_OFFLINE=0"
    else:
        place, switches = origin, " ".join(f"{name}=0" for name in origin.split(" and "))
    return f"{place} says so; {switches} before the command says otherwise for once"
