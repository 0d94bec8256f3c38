"""The table of sources: module, requirements and installation; imported on use."""

from __future__ import annotations

import importlib
import shlex
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from offline_data.base.errors import (
    AccessError,
    FormatError,
    MissingDependencyError,
    NotFoundError,
    UsageError,
)
from offline_data.base.ids import unknown
from offline_data.base.plurals import plural
from offline_data.formats.folders import MOST_ALIKE, entries, list_once
from offline_data.raw.hdf5 import is_hdf5

if TYPE_CHECKING:
    from offline_data.formats.base import Source
    from offline_data.formats.catalogues import Catalog

ENTRY_POINT_GROUP = "offline_data.sources"  # for adapters of other packages, by source name

_MOST_LISTED = 8  # names in a message
_MOST_FOUND = 200  # datasets searched for in a folder
_MOST_OTHERS = 300  # files that are not datasets, examined in all; see `MOST_ALIKE`

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_BUILT_IN = {
    "agilerl": "offline_data.formats.d4rl.agilerl:AgileRL",
    "aloha": "offline_data.formats.aloha:Aloha",
    "atari_dqn": "offline_data.formats.atari_dqn.source:AtariDQN",
    "calvin": "offline_data.formats.calvin:Calvin",
    "d3rlpy": "offline_data.formats.d3rlpy.source:D3rlpy",
    "d4rl": "offline_data.formats.d4rl.source:D4RL",
    "diffusion_policy": "offline_data.formats.zarr.source:DiffusionPolicy",
    "dsrl": "offline_data.formats.d4rl.dsrl:DSRL",
    "files": "offline_data.formats.files.source:Files",
    "gen_dgrl": "offline_data.formats.gen_dgrl:GenDGRL",
    "hf": "offline_data.text.source:HubText",
    "imitation": "offline_data.formats.imitation:Imitation",
    "katakomba": "offline_data.formats.katakomba:Katakomba",
    "lerobot": "offline_data.formats.lerobot.source:LeRobot",
    "libero": "offline_data.formats.robomimic.source:Libero",
    "local": "offline_data.formats.local:Local",
    "maniskill": "offline_data.formats.maniskill:ManiSkill",
    "mimicgen": "offline_data.formats.robomimic.source:MimicGen",
    "minari": "offline_data.formats.minari.source:Minari",
    "neorl": "offline_data.formats.d4rl.neorl:NeoRL",
    "ogbench": "offline_data.formats.ogbench.source:OGBench",
    "openml": "offline_data.formats.openml.source:OpenML",
    "openx": "offline_data.formats.rlds.source:OpenX",
    "robomimic": "offline_data.formats.robomimic.source:Robomimic",
    "roboset": "offline_data.formats.roboset.source:RoboSet",
    "shared": "offline_data.formats.shared:Shared",
    "text": "offline_data.text.source:TextFiles",
    "torchrl": "offline_data.formats.torchrl.source:TorchRL",
    "vd4rl": "offline_data.formats.vd4rl.source:VD4RL",
}

_CATALOGS = {
    "atari_dqn": "offline_data.formats.catalogues.games:AtariDQNCatalog",
    "d3rlpy": "offline_data.formats.catalogues.control:D3rlpyCatalog",
    "d4rl": "offline_data.formats.catalogues.d4rl:D4RLCatalog",
    "diffusion_policy": "offline_data.formats.catalogues.robots:DiffusionPolicyCatalog",
    "dsrl": "offline_data.formats.catalogues.control:DSRLCatalog",
    "gen_dgrl": "offline_data.formats.catalogues.games:GenDGRLCatalog",
    "hf": "offline_data.text.forms:HubTextCatalog",
    "katakomba": "offline_data.formats.catalogues.games:KatakombaCatalog",
    "lerobot": "offline_data.formats.catalogues.robots:LeRobotCatalog",
    "libero": "offline_data.formats.catalogues.robots:LiberoCatalog",
    "maniskill": "offline_data.formats.catalogues.robots:ManiSkillCatalog",
    "mimicgen": "offline_data.formats.catalogues.robots:MimicGenCatalog",
    "minari": "offline_data.formats.catalogues.minari:MinariCatalog",
    "neorl": "offline_data.formats.catalogues.control:NeoRLCatalog",
    "ogbench": "offline_data.formats.catalogues.control:OGBenchCatalog",
    "openml": "offline_data.formats.catalogues.openml:OpenMLCatalog",
    "openx": "offline_data.formats.catalogues.openx:OpenXCatalog",
    "robomimic": "offline_data.formats.catalogues.robots:RobomimicCatalog",
    "roboset": "offline_data.formats.catalogues.robots:RoboSetCatalog",
    "vd4rl": "offline_data.formats.catalogues.control:VD4RLCatalog",
}
"""Lists of published datasets; the other built-in sources publish none."""


def source_names() -> list[str]:
    """Return the names of all sources, sorted, without importing any."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def get_source(name: str) -> Source:
    """Import and create the source named `name`.

    Raises:
        NotFoundError: No such source; the hint offers the nearest names.
        MissingDependencyError: Its module needs a package that is not installed.

    Example:
        >>> get_source("d4rl").name
        'd4rl'
    """
    if name in _BUILT_IN:
        return cast("Source", _create(_BUILT_IN[name]))
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return cast("Source", point.load()())
        except ImportError as error:
            raise MissingDependencyError(f"Source {name!r} cannot be imported: {error}") from error
    raise unknown(
        NotFoundError,
        "No source is called",
        name,
        source_names(),
        hint="`offline-data env` lists them",
    )


def get_catalog(name: str) -> Catalog:
    """Return the catalogue of a source, without its adapter if built in; raises as `get_source`."""
    return cast("Catalog", _create(_CATALOGS[name])) if name in _CATALOGS else get_source(name)


def iter_catalogs() -> Iterator[Catalog]:
    """Yield the list of every source that may have one, ordered by name."""
    for name in source_names():
        if name in _CATALOGS or name not in _BUILT_IN:
            yield get_catalog(name)


def _create(place: str) -> object:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def iter_sources() -> Iterator[Source]:
    """Yield every source, ordered by name."""
    for name in source_names():
        yield get_source(name)


def source_accepting(path: Path, *, inspecting: bool = False) -> Source:
    """Return the source that accepts a regular file or folder (see `check_plain`) by most names.

    `inspecting`: whether hints are for `--inspect`, which then is not advised.

    Raises:
        FormatError: No source accepts it (the message describes it), or it is damaged.
        UsageError: Several sources accept it alike; the hint names both with `--from`.
        AccessError: It cannot be read.
    """
    from offline_data.formats.unknown import describe_unknown
    from offline_data.raw.arrays import READ  # not needed for `--help`

    sources = list(iter_sources())
    with list_once():
        names = {source: int(source.accepts(path)) for source in sources}
        most = max(names.values())
        found = [source for source in sources if names[source] == most] if most else []
        if len(found) == 1:
            return found[0]
        if found:
            alike = " and ".join(source.name for source in found)
            choices = " or ".join(f"--from {source.name}" for source in found)
            raise UsageError(
                f"Cannot tell what {path} is: it looks like {alike} data", hint=f"add {choices}"
            )
        if path.is_dir() and (below := datasets_below(path, sources)):
            raise FolderOfDatasetsError(path, below)
        described, advice = describe_unknown(path, sources)
        commands = [*_suggest_commands(path)]
        every = " (`offline-data env` lists all)" if commands else f": {', '.join(source_names())}"
        hints = [*commands, f"name its format with --from{every}"]
        advised = READ if inspecting else "; or ".join(hints)
        raise FormatError(f"Cannot tell what {path} is: {described}", hint=advice or advised)


def _suggest_commands(path: Path) -> Iterator[str]:
    """Yield the commands that read files of the user's own: by a mapping, or as text."""
    from offline_data.raw.arrays import SUFFIXES
    from offline_data.raw.rows import suffix_of

    command = f"`offline-data convert {shlex.quote(str(path))}"
    names = [entry.name for entry in entries(path)] if path.is_dir() else [path.name]
    if path.is_dir() or path.name.lower().endswith((*SUFFIXES, ".zip")) or is_hdf5(path):
        yield f"{command} --inspect` lists its arrays and proposes a mapping for --mapping"
    if names and all(map(suffix_of, names)):
        yield f"{command} NAME --tokenizer gpt2` reads it as text"


class FolderOfDatasetsError(FormatError):
    """A folder that is not a dataset but contains some, `found`: path and source of each."""

    def __init__(self, path: Path, found: dict[Path, str]) -> None:
        self.path, self.found = path, found
        listed = [f"{one.relative_to(path)} ({name})" for one, name in found.items()]
        more = ", …" if len(listed) > _MOST_LISTED else ""
        one = shlex.quote(str(next(iter(found))))
        super().__init__(
            f"{path} is a folder of {plural(len(found), 'dataset')}: "
            f"{', '.join(listed[:_MOST_LISTED])}{more}",
            hint=("convert them one by one" if len(found) > 1 else "convert that")
            + f": `offline-data convert {one} NAME`",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.found)


def datasets_below(
    folder: Path, sources: Sequence[Source], depth: int = 3, others: Counter[str] | None = None
) -> dict[Path, str]:
    """Return the datasets in a folder with their source names, without looking inside them.

    Links are not followed. If several sources accept one, the first is returned. Of many other files
    the first ones with each suffix are examined; `others` counts these.
    """
    found: dict[Path, str] = {}
    others = Counter() if others is None else others
    for entry in entries(folder):
        is_folder, path = entry.is_dir(follow_symlinks=False), Path(entry.path)
        suffix = "/" if is_folder else path.suffix
        if others[suffix] >= MOST_ALIKE or others.total() >= _MOST_OTHERS:
            continue
        if not (is_folder or entry.is_file(follow_symlinks=False)):
            continue
        with suppress(AccessError):
            taker = next((source.name for source in sources if source.accepts(path)), None)
            if taker:
                found[path] = taker
            else:
                others[suffix] += 1
                if is_folder and depth > 1:
                    found |= datasets_below(path, sources, depth - 1, others)
        if len(found) > _MOST_FOUND:
            break
    return found


def check_plain(path: Path) -> None:
    """Raise `NotFoundError`, `AccessError`, or `FormatError` unless it is a file or a folder."""
    # Opening a named pipe, a device or a socket may block forever.
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"There is no file or folder {path}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AccessError(f"{path} cannot be read: {reason}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "a special file")
        raise FormatError(
            f"Cannot tell what {path} is: it is {kind}",
            hint="write the data to a regular file and convert that",
        )
