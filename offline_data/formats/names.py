"""Names of datasets as users write them: an id, a path, or a name that one dataset has."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.files import is_file, is_folder
from offline_data.base.ids import did_you_mean, looks_like_path, offer, parse_id
from offline_data.store.library import has_manifest

Choose = Callable[[str, Sequence[str], str], str]  # (question, answers, hint) -> answer

_MOST_LISTED = 20


def resolve_name(
    text: str, settings: Settings, *, exact: bool = False, choose: Choose | None = None
) -> str:
    """Return the id or path that `text` means; ids and paths are returned unchanged.

    Args:
        text: An id, a path, or a name: `hopper-medium-v2`, `lerobot/pusht`, `local_name@revision`.
        settings: Datasets under its root come before those of catalogues.
        exact: Whether only whole names of datasets on this disk match, for what deletes datasets.
        choose: Asks which one is meant if several match; None: that is an error.

    Raises:
        NotFoundError: No dataset has this name; the hint has similar ones.
        InvalidIdError: It cannot be a name.
        UsageError: Several datasets match.

    Example:
        >>> resolve_name("pen-human-v1", Settings(Path("/data")))
        'd4rl:pen-human-v1'
    """
    found = find_ids(text, settings, catalogue=not exact)
    similar: Sequence[str] = ()
    if exact:
        similar, found = found, [one for one in found if text in {one, one.partition(":")[2]}]
    if not found:
        raise _unknown_name(text, settings, similar, exact=exact)
    if len(found) == 1:
        return found[0]
    listed = found[:_MOST_LISTED]
    more = f" and {len(found) - len(listed)} more" if len(listed) < len(found) else ""
    question = f"{len(found)} datasets are called {text!r}"
    hint = f"name one of {', '.join(listed)}{more}"
    if choose is None or exact:
        raise UsageError(question, hint=hint)
    return choose(question, listed, hint)


def find_ids(text: str, settings: Settings, *, catalogue: bool = True) -> list[str]:
    """Return the ids that a name without a source may refer to, datasets on this disk first.

    An id or path refers to itself. Otherwise the first non-empty of these is returned: datasets on
    this disk with this name, then in catalogues (unless `catalogue` is false); on this disk with it
    as the end or a part of the name, then in catalogues; `door` is a part of `D4RL/door/human-v2`.
    May be empty. A revision (`@…`) is kept.
    """
    if ":" in text or looks_like_path(text) or has_manifest(Path(text)):
        return [text]
    from offline_data.formats.search import ids_here, known_datasets

    wanted, at, revision = text.partition("@")
    here = sorted(ids_here(settings)) if wanted else []
    if f"local:{wanted}" in here:
        return [f"local:{text}"]
    listed = list(known_datasets(settings)) if catalogue and wanted else []

    def has_name(one: str) -> bool:
        return one.partition(":")[2] == wanted

    def has_part(one: str) -> bool:
        name = f"/{one.partition(':')[2]}"
        return name.endswith(f"/{wanted}") or f"/{wanted}/" in name

    for known, fits in ((here, has_name), (listed, has_name), (here, has_part), (listed, has_part)):
        if found := [one for one in known if fits(one)]:
            return [f"{one}{at}{revision}" for one in found]
    return []


def _unknown_name(
    text: str, settings: Settings, similar: Sequence[str], *, exact: bool
) -> NotFoundError:
    """Return the error for a name that no dataset has; raises `InvalidIdError` if it cannot be one."""
    from offline_data.formats.search import ids_here, known_datasets

    name = parse_id(f"local:{text}").name
    near = offer(similar[:3])
    for known in (ids_here(settings), () if exact else known_datasets(settings)):
        names = {one.partition(":")[2]: one for one in sorted(known)}
        near = near or did_you_mean(name, names, count=3, shown=names.__getitem__)
    search = f"`offline-data search {shlex.quote(name)}` finds ids"
    if is_file(Path(text)) or is_folder(Path(text)):
        search = f"`offline-data convert {shlex.quote(text)} NAME` makes a dataset of that path"
    listing = "`offline-data list` shows the datasets on this disk"
    return NotFoundError(
        f"No dataset is called {text!r}", hint=near or (listing if exact else search)
    )
