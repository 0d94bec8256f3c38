"""Minari: the folder of a dataset, written by Minari's own storage, which `minari.load_dataset` opens.

```
ROOT/[namespace/]NAME-vN/data/metadata.json, main_data.hdf5
    episode_0/observations, infos         T + 1 rows
    episode_0/actions, rewards, terminations, truncations
    attributes of episode_0: seed, options/…, and others, which are metadata
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.base.files import is_file
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, join_key
from offline_data.formats.base import Release
from offline_data.formats.catalogues.minari import METADATA
from offline_data.formats.environments import import_gymnasium, space_of
from offline_data.formats.minari.metadata import plain
from offline_data.formats.registry import get_source
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import ExportedEpisodes, Leaf, each_episode
from offline_data.formats.writing.plan import place_at, plan_export, stored_batch
from offline_data.raw.hdf5 import h5

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_FIXED = {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*-v[0-9]+")
_ABOUT = (  # that Minari has a place for, whatever wrote them
    *("algorithm_name", "author", "author_email", "code_permalink", "description", "requirements"),
    *("ref_min_score", "ref_max_score"),
)
_OWN = frozenset({"data_format", "dataset_id", "dataset_size", "jpeg_encoding", "minari_version"})
"""Entries of Minari's metadata that describe the new files."""
_SETS = ("author", "author_email")  # sets to Minari, in an order that depends on the process
_NAMESPACE = "namespace_metadata.json"
_TEXTS = ("options", "metadata")
_ATTRIBUTE_BYTES = 60_000  # bytes of an array for which an attribute of HDF5 has room


class MinariTarget(ExportTarget):
    """A dataset of Minari in HDF5."""

    name = "minari"
    title = "Minari's HDF5"
    contained = True
    holds = Holds(
        final_observation=True,
        flags="rows",
        rewards="required",
        extra=False,
        episodes=frozenset({"id", "seed", *_TEXTS}),
    )
    added = frozenset(("episodes", (name,)) for name in ("id", "seed", "options"))

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        key = leaf.key
        if key == REWARD and leaf.dtype[0] in "biu":  # read as float64
            return LeafPlace(leaf, "rewards", "float64", key, leaf.table)
        if key in _FIXED:
            return place_at(leaf, _FIXED[key], self.holds)
        if leaf.table == "episodes":
            wanted = "text" if key[0] in _TEXTS else "int64"
            if leaf.dtype != wanted or leaf.shape or key[1:]:
                return f"Minari has {key[0]} of {wanted}"
            return replace(place_at(leaf, key[0], self.holds), missing=True)
        if key[:2] == ("next", "info"):
            return place_at(leaf, join_key(("infos", *key[2:])), self.holds)
        sections = {"observation": "observations", "action": "actions", "info": "infos"}
        steps = leaf.table == "steps"
        if key[0] not in sections or steps != (key[0] == "action"):
            return "Minari has no place for it"
        if leaf.dtype == "text" and key[0] == "info":
            return "infos of text are not read by Minari"
        return place_at(leaf, join_key((sections[key[0]], *key[1:])), self.holds)

    def differs(self, leaf: Leaf, episodes: ExportedEpisodes) -> str:
        column = episodes.column(leaf.key)
        if leaf.key == ("id",):
            same = np.array_equal(column, np.arange(len(column)))
            return "" if same else "episodes are numbered anew"
        if leaf.key[0] in _TEXTS and not all(text is None or _is_kept(text) for text in column):
            return "Minari has attributes of HDF5 there, which cannot have all of it"
        return ""

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        if not _NAME.fullmatch(path.name):
            raise UsageError(
                f"{path.name} is not a name of Minari; expected NAME-vN",
                hint=f"for example {re.sub(r'[^A-Za-z0-9_-]', '-', path.name)}-v0",
            )
        (path / "data").mkdir()
        spaces = (_space_of(job, root) for root in ("observation", "action"))
        minari = import_minari()
        kind = minari.dataset.minari_storage.MinariStorage
        storage = kind.new(path / "data", *spaces, **_raw(kind.new))
        about = _metadata_of(job, minari.__version__)
        storage.update_metadata({name: about[name] for name in about.keys() - {*_SETS}})
        noted: dict[int, dict[str, Any]] = {}
        storage.update_episodes(_buffers(batches, job, storage, noted))
        if noted:
            storage.update_episode_metadata([*noted.values()], [*noted])
        file = path / "data" / METADATA
        file.write_text(json.dumps({**json.loads(file.read_text()), **about}))

    def read(self, path: Path, job: ExportJob) -> RawDataset:  # noqa: ARG002
        return get_source("minari").open(Release(path.name, "1", local=path), path)


def import_minari() -> Any:
    """Return Minari; raises `MissingDependencyError`."""
    try:
        import minari
        import minari.dataset.minari_storage
        import PIL.Image  # noqa: F401 # its storages import it, and it does not require it
    except ImportError as error:
        raise MissingDependencyError(
            f"Minari cannot be imported: {error}", hint="pip install 'offline-data[minari]'"
        ) from error
    return minari


def _raw(make: Callable[..., Any]) -> dict[str, bool]:
    """Return the argument by which images stay as they are; older versions have no other way."""
    return {"jpeg_encoding": False} if "jpeg_encoding" in signature(make).parameters else {}


def _metadata_of(job: ExportJob, version: str) -> dict[str, Any]:
    """Return what Minari keeps of a dataset besides its episodes."""
    manifest = job.episodes.reader.manifest
    about = manifest.about
    kept = about.keys() - _OWN if "minari_version" in about else about.keys() & {*_ABOUT}
    found: dict[str, Any] = {name: about[name] for name in about if name in kept}
    for name in _SETS:
        if name in found:
            listed = found[name] if isinstance(found[name], (list, tuple)) else [found[name]]
            found[name] = [*map(str, listed)]
    if isinstance(spec := found.get("eval_env_spec"), Mapping):
        found["eval_env_spec"] = json.dumps(spec)
    known = {"id", "entry_point", "additional_wrappers"} <= manifest.environment.keys()
    if known or ("minari_version" in about and manifest.environment):
        found["env_spec"] = json.dumps(dict(manifest.environment))
    return {"dataset_id": _id_of(job, about), "minari_version": version, **found}


def _id_of(job: ExportJob, about: Mapping[str, Any]) -> str:
    """Return the name with its namespace.

    That is the one the dataset had, if the folders are named so, else those marked by Minari.
    """
    inside: list[str] = []
    for folder in (job.folder, *job.folder.parents):
        if not is_file(folder / _NAMESPACE):
            break
        inside.insert(0, folder.name)
    spaces = PurePosixPath(str(about.get("dataset_id", ""))).parent.parts
    if spaces and job.folder.parts[-len(spaces) :] == spaces:
        inside = [*spaces]
    return "/".join((*inside, job.name))


def view_as_minari(episodes: ExportedEpisodes) -> Any:
    """Return a `minari.MinariDataset` whose episodes are read from these when they are requested.

    Raises:
        MissingDependencyError: Minari cannot be imported.
        UsageError: See `plan_export`.
    """
    minari = import_minari()
    kind: Any = minari.dataset.minari_storage.MinariStorage
    job, _ = plan_export(episodes, MinariTarget(), ExportOptions(), Path("view-v0"))
    holds, wheres = MinariTarget.holds, list(episodes.places())

    class View(kind):  # type: ignore[misc]
        FORMAT = "offline-data"

        @property
        def metadata(self) -> dict[str, Any]:
            spaces = {
                "observation_space": self.observation_space,
                "action_space": self.action_space,
            }
            counts = {"total_episodes": len(wheres), "total_steps": episodes.transitions}
            about = _metadata_of(job, minari.__version__)
            about |= {name: set(about[name]) for name in _SETS if name in about}
            return {**about, **spaces, **counts}

        def get_episodes(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
            for number in map(int, episode_indices):
                member, at = wheres[number]
                episode = stored_batch(member.read(at, at + 1), job, holds)
                found = _sections(episode, job, self)
                flat = {name: found[name].reshape(-1) for name in _FIXED.values()}
                yield {"id": number, "infos": {}, **found, **flat}

        def get_episode_metadata(self, episode_indices: Iterable[int]) -> Iterator[dict[str, Any]]:
            for number in map(int, episode_indices):
                member, at = wheres[number]
                seeds = member.read(at, at + 1).episodes.get(("seed",), np.array([-1]))
                seed, length = _seed_of(int(seeds[0])), int(member.chosen.lengths[at])
                known = {} if seed is None else {"seed": seed}
                yield {"id": number, "total_steps": length, **known}

        def update_episodes(self, episodes: Any) -> None:  # noqa: ARG002
            raise UsageError("This is a view of a dataset, which is read-only")

        update_episode_metadata = update_episodes

        @classmethod
        def _create(cls, *_: Any, **__: Any) -> Any:
            raise UsageError("This is a view of a dataset, which is read-only")

    spaces = (_space_of(job, root) for root in ("observation", "action"))
    return minari.MinariDataset(View(episodes.reader.path, *spaces, **_raw(kind.__init__)))


def _space_of(job: ExportJob, root: str) -> Any:
    """Return the declared space, else that of dtypes, of text, and of single whole numbers in the data."""
    spaces = import_gymnasium("an export to Minari").spaces
    reader = job.episodes.reader
    space = space_of(reader, root)
    if root in reader.manifest.spaces:
        return space
    leaves = [p.leaf for p in job.places if p.leaf.key[0] == root and p.leaf.table != "episodes"]
    integer = bool(leaves) and not leaves[0].shape and leaves[0].dtype in {"int32", "int64"}
    if integer and leaves[0].key == (root,):
        column = [getattr(b, leaves[0].table)[leaves[0].key] for b in job.episodes.batches()]
        low, high = min(int(c.min()) for c in column), max(int(c.max()) for c in column)
        return spaces.Discrete(high - low + 1, start=low)
    for leaf in leaves:
        if leaf.dtype != "text":
            continue
        words = reader.words(leaf.key) or [""]
        letters = "".join(sorted({*"".join(words)})) or " "
        text = spaces.Text(max(1, *map(len, words)), min_length=0, charset=letters)
        if not leaf.key[1:]:
            return text
        group = space
        for parent in leaf.key[1:-1]:
            group = group.spaces[parent]
        group.spaces[leaf.key[-1]] = text
    return space


def _seed_of(stored: int) -> int | None:
    """Return a seed of Minari: -1 is none, and others below 0 are those of 2**63 and more."""
    return None if stored == -1 else stored % 2**64


def _buffers(
    batches: Iterable[EpisodeBatch], job: ExportJob, storage: Any, noted: dict[int, dict[str, Any]]
) -> Any:
    """Yield the episodes as Minari takes them; other attributes of each are put into `noted`."""
    from minari.data_collector import EpisodeBuffer

    for number, episode in enumerate(each_episode(batches)):
        sections = _sections(episode, job, storage)
        facts = {key[0]: column[0] for key, column in episode.episodes.items()}
        if facts.get("metadata") is not None:
            noted[number] = _attributes_of(facts["metadata"])
        seed, options = facts.get("seed"), facts.get("options")
        yield EpisodeBuffer(
            id=number,
            seed=None if seed is None else _seed_of(int(seed)),
            options=None if options is None else _attributes_of(options),
            observations=sections["observations"],
            actions=sections["actions"],
            rewards=sections["rewards"].reshape(-1),
            terminations=sections["terminations"].reshape(-1),
            truncations=sections["truncations"].reshape(-1),
            infos=sections.get("infos"),
        )


def _attributes_of(text: str) -> dict[str, Any]:
    """Return a JSON object as attributes by path; null is an attribute without a value."""
    found: dict[str, Any] = {}

    def add(value: Any, *names: str) -> None:
        if isinstance(value, dict) and (value or not names):
            for name, part in value.items():
                add(part, *names, name)
        else:
            found["/".join(names)] = h5().Empty("f4") if value is None else value

    add(json.loads(text))
    return found


def _is_kept(text: str) -> bool:
    """Return True if attributes of HDF5 have all of a JSON object, as the reader of Minari says it."""
    tree: dict[str, Any] = {}
    try:
        for path, value in _attributes_of(text).items():
            *above, last = path.split("/")
            branch = tree
            for name in above:
                branch = branch.setdefault(name, {})
            values = np.asarray(value)
            if values.dtype == object and value is not None and not isinstance(value, h5().Empty):
                return False  # numbers beyond 64 bits
            if values.ndim and 16 * values.size > _ATTRIBUTE_BYTES:
                return False
            branch[last] = plain(values) if isinstance(value, list) else plain(value)
    except (AttributeError, TypeError, ValueError):
        return False
    return bool(tree) and "\\u0000" not in text and json.dumps(tree, sort_keys=True) == text


def _sections(episode: EpisodeBatch, job: ExportJob, storage: Any) -> dict[str, Any]:
    """Return the leaves of one episode as nested dictionaries and tuples, by their paths."""
    found: dict[str, Any] = {}
    for place in job.places:
        if place.leaf.table == "episodes":
            continue
        group: Any = found
        *parents, name = place.path.split("/")
        for parent in parents:
            group = group.setdefault(parent, {})
        column = getattr(episode, place.leaf.table)[place.leaf.key]
        group[name] = np.asarray(column)
    for name in ("observation", "action"):
        space = getattr(storage, f"{name}_space")
        found[f"{name}s"] = _as_space(found[f"{name}s"], space)
    return found


def _as_space(value: Any, space: Any) -> Any:
    """Return a nested dictionary with tuples where the space has these."""
    kind = type(space).__name__
    if kind == "Tuple":
        return tuple(_as_space(value[str(n)], part) for n, part in enumerate(space.spaces))
    if kind == "Dict":
        return {name: _as_space(part, space.spaces[name]) for name, part in value.items()}
    return value
