"""Katakomba: NetHack played by the bot AutoAscend, an HDF5 file for each character.

```
<number of the game>/         rows
    tty_chars, tty_colors     T         the screen before the action, [24, 80]; tty_cursor [2]
    actions                   T         numbers of NLE's `ACTIONS`
    rewards                   T         what the action added to the score; of the last row, as of the one before
    dones                     T         1 in the last row
```

Attributes of a game are what NLD-AA knows of it. Source: `scripts/generate_small_dataset.py` and
`katakomba/utils/datasets/small_scale.py` of https://github.com/corl-team/katakomba.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import REWARD, Key, check_key
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import CatalogSource, Release
from offline_data.formats.catalogues.games import KatakombaCatalog
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.groups import GroupEpisodes, names_in_first
from offline_data.formats.recognition import ArrayNames
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import MAGIC, open_hdf5

REPOSITORY, FOLDER = "Howuhh/katakomba", "data/"

ENDS = (
    "The last row of a game is terminated, as dones says; NLD-AA does not say which games the bot lost. The "
    "observation after it is not in the file, and its reward is a copy of the one before."
)
_SCREENS = ("tty_chars", "tty_colors", "tty_cursor")
_STEPS: dict[str, Key] = {"actions": ("action",), "rewards": REWARD}
NAMES = ArrayNames((*_SCREENS, *_STEPS))


class Katakomba(KatakombaCatalog, CatalogSource):
    """The published files, and the user's that its script writes."""

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Find the file of a character at a commit on the hub."""
        if name not in self.rows:
            raise self.not_found(name, self.rows)
        listing = list_hub(REPOSITORY, FOLDER, revision, settings)
        path = f"data-{name}-any.hdf5"
        files = [one for one in listing.files if one.path == FOLDER + path]
        if not files:
            raise NotFoundError(f"The hub's {REPOSITORY} has no {FOLDER}{path} at {listing.commit}")
        file = replace(files[0], path=path, magic=MAGIC)
        return Release(name, listing.commit, (file,), licence=listing.licence or self.licence)

    def has_format(self, path: Path) -> int:
        """Count the arrays of a game in a numbered group of an HDF5 file."""
        return NAMES.count_in(names_in_first(path, Games.name)) if is_file(path) else 0

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a file of the user."""
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> Games:
        """Open it: reads which games there are."""
        path = release.file_in(raw)
        with open_hdf5(path) as file:
            names = [name for name, _ in hdf5_tree.members(file.id)]
        games = {name for name in names if name.isdecimal()}
        if not games:
            raise FormatError(f"{path} has no games: expected groups with numbers as names")
        facts: dict[str, Any] = {}
        if self.published(release):
            score = float(self.rows[release.name]["mean_score"])
            about = {"ref_min_score": 0.0, "ref_max_score": score}
            environment = {"id": "NetHackChallenge-v0", "character": release.name}
            facts = {"about": about, "environment": environment}
            if not release.options.skip_bad_episodes:
                facts["transitions"] = int(self.rows[release.name]["transitions"])
        info = self.describe(release, ENDS, **facts)
        licence = release.licence if self.published(release) else None
        count = None if release.options.skip_bad_episodes else len(games)
        others = [Dropped(name, "It is not a game.") for name in names if name not in games]
        info = replace(info, licence=licence, episodes=count, dropped=tuple(others))
        return Games(path.parent, (path.name,), info, release.options.skip_bad_episodes)


class Games(GroupEpisodes):
    """The games of a file, ordered by number."""

    name, place = re.compile(r"(\d+)"), "{path} game {name}"

    def read_group(self, group: Any, number: int, file: str) -> EpisodeBatch:  # noqa: ARG002
        found = {"/".join(path): dataset for path, dataset in hdf5_tree.walk(group)}
        return _read_episode(found, _facts_of(number, hdf5_tree.read_attributes(group)))


def _read_episode(found: dict[str, Any], facts: dict[Key, NDArray[Any]]) -> EpisodeBatch:
    """Return a game, given its datasets; raises `FormatError`."""
    if missing := [name for name in (*_SCREENS, *_STEPS, "dones") if name not in found]:
        raise FormatError(f"it has no {' and no '.join(missing)}; it has {', '.join(found)}")
    rows = hdf5_tree.describe(found["actions"]).rows or 0
    if not rows:
        raise FormatError("it has no actions")
    columns = {}
    for name, dataset in found.items():
        leaf = hdf5_tree.describe(dataset)
        if leaf.form != "array" or leaf.rows != rows:
            shape = list(dataset.shape)
            raise FormatError(
                f"its {name!r} is {dataset.dtype} {shape}, expected {plural(rows, 'row')} of numbers"
            )
        columns[name] = hdf5_tree.read_numbers(dataset)
    ends = columns.pop("dones") != 0
    if ends.shape != (rows,) or columns["rewards"].shape != (rows,):
        raise FormatError(f"its rewards or dones have another shape than [{rows}]")
    if early := int(ends[:-1].sum()):
        raise FormatError(f"its dones are set in {early} of the rows before the last")
    columns["rewards"] = columns["rewards"][:, None]
    screens: dict[Key, NDArray[Any]] = {
        ("observation", name): columns.pop(name) for name in _SCREENS
    }
    steps = {_STEPS.get(name) or check_key(("extra", name)): one for name, one in columns.items()}
    return assemble(np.array([rows]), steps, screens, terminated=ends, episodes=facts)


def _facts_of(number: int, attributes: dict[str, Any]) -> dict[Key, NDArray[Any]]:
    """Return the number and the attributes of a game, `[1]`: numbers and text."""
    facts: dict[Key, NDArray[Any]] = {("game",): np.array([number])}
    for key, value in attributes.items():
        single = np.asarray(value, object if isinstance(value, str) else None)
        if single.shape or single.dtype.kind not in "biufO":
            raise FormatError(f"its attribute {key!r} is {single.dtype} {list(single.shape)}")
        facts[check_key((key,))] = single[None]
    return facts
