"""Gymnasium spaces and environments from the descriptions in a manifest, and these descriptions.

No module named by a manifest is imported, and only registered environments are made: a dataset
directory may be hostile, and an environment spec contains entry points.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from offline_data.base.errors import FormatError, MissingDependencyError, NotFoundError, UsageError
from offline_data.base.json import shown
from offline_data.episode.fields import Key, check_key
from offline_data.store.layout import EPISODE, LeafSpec
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader
from offline_data.store.spaces import observed_leaves

NOTHING: Mapping[str, Any] = MappingProxyType({})

_MOST_NUMBERS = 1 << 26  # elements of a `Box`, whose two bounds are arrays of its shape

_LISTED = 256  # elements of a `Box` up to which even equal bounds are written one by one

_KINDS = ("Dict", "Tuple", "Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text")

_OF_VECTORS = {"num_envs", "vectorization_mode"}
_PARTS_OF_ID = {"namespace", "name", "version"}

_IMPORTS_BY_ID = {"GymV21Environment-v0", "GymV26Environment-v0"}
"""Registered environments that import another one, given as the keyword `module:id`."""


def space_of(reader: DatasetReader, root: str) -> Any:
    """Return the Gymnasium space of `observation` or `action`.

    It is the declared space; if the source declares none, a `Box` with the shape and the limits of
    the stored dtype (a `Dict` of these for several features). Text features are strings in a declared
    space, and codes otherwise.

    Raises:
        MissingDependencyError: gymnasium cannot be imported.
        FormatError: The declared space cannot be read.
        NotFoundError: The dataset has neither the feature nor its space.
    """
    spaces = import_gymnasium(f"{root}_space").spaces
    declared = reader.manifest.spaces.get(root)
    if isinstance(declared, dict) and "type" in declared:
        try:
            return _space_of_json(spaces, declared)
        except (
            ArithmeticError,  # an integer beyond int64
            AssertionError,  # Gymnasium's own checks
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise FormatError(
                f"The {root} space of {reader.manifest.id} cannot be read: "
                f"{type(error).__name__} {shown(str(error), 200)}"
            ) from error
    known = reader.leaves.items()
    leaves = {key[1:]: leaf for key, leaf in known if key[0] == root and key != EPISODE}
    if root == "observation":  # where the source has other names: `pixels`
        leaves = leaves or observed_leaves(reader)
    if not leaves:
        raise NotFoundError(f"{reader.manifest.id} has no {root}, nor a space of it")
    return _space_of_leaves(spaces, leaves)


def _space_of_json(spaces: ModuleType, space: Mapping[str, Any]) -> Any:
    """Return a space from Minari's serialized form; bounds and `start` may be absent."""
    kind = space["type"]
    if kind == "Dict":
        return spaces.Dict(
            {name: _space_of_json(spaces, s) for name, s in space["subspaces"].items()}
        )
    if kind == "Tuple":
        return spaces.Tuple([_space_of_json(spaces, part) for part in space["subspaces"]])
    if kind == "Box":
        return _box(spaces, space["shape"], space["dtype"], space.get("low"), space.get("high"))
    if kind == "Discrete":
        return spaces.Discrete(int(space["n"]), start=int(space.get("start", 0)))
    if kind == "MultiDiscrete":
        numbers = np.array(space["nvec"], np.int64)
        start = np.array(space.get("start", np.zeros_like(numbers)), np.int64)
        return spaces.MultiDiscrete(numbers, dtype=space.get("dtype", "int64"), start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(space["n"])
    if kind == "Text":
        lengths = {name: space[name] for name in ("max_length", "min_length") if name in space}
        return spaces.Text(**lengths, charset=space.get("charset", spaces.text.alphanumeric))
    raise ValueError(f"a space of type {shown(kind)}")


def _box(spaces: ModuleType, shape: Sequence[int], dtype: str, low: Any, high: Any) -> Any:
    """Make a `Box`; a bound that is None is the dtype's."""
    kind = np.dtype(dtype)
    if kind.kind not in "fiu" or prod(shape) > _MOST_NUMBERS:
        raise ValueError(f"a Box {shown(list(shape))} of {kind.name}")
    limits = (-np.inf, np.inf)
    if kind.kind != "f":
        limits = (np.iinfo(kind).min, np.iinfo(kind).max)
    bounds = (
        np.broadcast_to(np.array(limit if bound is None else bound, kind), shape)
        for bound, limit in zip((low, high), limits, strict=True)
    )
    return spaces.Box(*bounds, tuple(shape), kind.type)


def space_to_json(space: Any) -> dict[str, Any]:
    """Return a space in the form of Minari's `serialize_space`; bounds that all elements share are one.

    Raises `UsageError` for a space without fixed features, such as `Sequence` or `Graph`.

    Example:
        >>> import gymnasium
        >>> space_to_json(gymnasium.spaces.Discrete(3))
        {'type': 'Discrete', 'dtype': 'int64', 'start': 0, 'n': 3}
    """
    kind = next((name for base in type(space).__mro__ if (name := base.__name__) in _KINDS), None)
    if kind == "Dict":
        parts = {check_key((name,))[0]: space_to_json(part) for name, part in space.spaces.items()}
        return {"type": kind, "subspaces": parts}
    if kind == "Tuple":
        return {"type": kind, "subspaces": [space_to_json(part) for part in space.spaces]}
    if kind == "Box":
        low, high = (
            bound.flat[0].item()
            if bound.size > _LISTED and (bound == bound.flat[0]).all()
            else bound.tolist()
            for bound in (space.low, space.high)
        )
        return {
            "type": kind,
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": low,
            "high": high,
        }
    if kind == "Discrete":
        numbers = {"start": int(space.start), "n": int(space.n)}
        return {"type": kind, "dtype": str(np.dtype(space.dtype)), **numbers}
    if kind == "MultiDiscrete":
        numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": kind, "dtype": str(space.dtype), **numbers}
    if kind == "MultiBinary":
        return {
            "type": kind,
            "n": int(space.n) if isinstance(space.n, (int, np.integer)) else [*map(int, space.n)],
        }
    if kind == "Text":
        lengths = {"max_length": space.max_length, "min_length": space.min_length}
        return {"type": kind, **lengths, "charset": space.characters}
    raise UsageError(
        f"A {type(space).__name__} space cannot be recorded; expected {', '.join(_KINDS)}",
        hint="wrap the environment so that its spaces consist of these",
    )


def spec_to_json(spec: Any) -> tuple[dict[str, Any], list[str]]:
    """Return an environment spec as Gymnasium's `to_json` does, and the names of fields left out.

    Left out is what JSON cannot hold, such as an object among the keywords, and keywords of vector
    environments, which `gymnasium.make` does not take. Without a spec, both are empty.
    """
    if spec is None:
        return {}, []
    fields = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    fields["additional_wrappers"] = [dataclasses.asdict(one) for one in spec.additional_wrappers]
    words = {k: v for k, v in fields.pop("kwargs").items() if k not in _OF_VECTORS}
    kept = {k: v for k, v in fields.items() if k not in _PARTS_OF_ID and _is_json(v)}
    kept["kwargs"] = {k: v for k, v in words.items() if _is_json(v)}
    left = [k for k in fields if k not in {*kept, *_PARTS_OF_ID}]
    return kept, [*left, *(f"kwargs/{k}" for k in words if k not in kept["kwargs"])]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _space_of_leaves(spaces: ModuleType, leaves: Mapping[Key, LeafSpec]) -> Any:
    """Return the space of leaves, by the rest of their keys, from dtypes and shapes."""
    leaf = leaves.get(())
    if leaf is None:
        names = sorted({key[0] for key in leaves})
        parts = ({k[1:]: leaf for k, leaf in leaves.items() if k[0] == name} for name in names)
        return spaces.Dict(
            {n: _space_of_leaves(spaces, p) for n, p in zip(names, parts, strict=True)}
        )
    if leaf.dtype == "bool":
        return _box(spaces, leaf.shape, "uint8", 0, 1)
    if np.dtype(leaf.dtype).kind not in "fiu":
        raise NotFoundError(f"Gymnasium has no space of {leaf.dtype}")
    return _box(spaces, leaf.shape, leaf.dtype, None, None)


def environment_of(manifest: Manifest, *, evaluation: bool = False) -> Mapping[str, Any]:
    """Return the spec of the recorded environment; empty if there is none.

    With `evaluation`, the spec of the evaluation environment, if the source has one.
    """
    other = manifest.about.get("eval_env_spec")
    return other if evaluation and isinstance(other, dict) else manifest.environment


def make_environment(
    spec: Mapping[str, Any], options: Mapping[str, Any] = NOTHING, requires: Any = ()
) -> Any:
    """Make a registered environment by the id, keywords and limit of steps of a spec.

    Its entry points and wrappers are ignored; the registered ones are used. An environment of D4RL is
    replaced by its successor, with a warning that says how they differ.

    `spec` has JSON values, as Gymnasium writes it; `options` are keywords for `gymnasium.make` that
    go before those of the spec; `requires` packages that the source lists as required, for a hint.

    Raises:
        MissingDependencyError: gymnasium, or what the environment needs, cannot be imported.
        NotFoundError: No environment is registered under the id, or the spec has none.
        FormatError: The spec is none.
        UsageError: The environment does not take these keywords, or cannot be made.
    """
    from offline_data.formats.d4rl.environments import (
        successor_of,
    )  # which readers of data do without

    gymnasium = import_gymnasium("make_env")
    name = spec.get("id")
    if name is None:
        raise NotFoundError(
            "The dataset does not say which environment it was recorded in",
            hint='name it: make_env(id="Hopper-v5")',
        )
    known = isinstance(name, str) and name in gymnasium.registry
    successor = None if known else successor_of(name)
    if successor:
        env = make_environment(successor.spec, options, [successor.package])
        warnings.warn(
            f"{name} of D4RL is {successor.spec['id']} now: {successor.difference}",
            UserWarning,
            stacklevel=3,
        )
        return env
    stored, limit = spec.get("kwargs") or {}, spec.get("max_episode_steps")
    if not known:
        names = isinstance(requires, (list, tuple)) and [shown(name) for name in requires[:5]]
        packages = f" ({', '.join(names)})" if names else ""
        raise NotFoundError(
            f"No environment {shown(name)} is registered with gymnasium",
            hint=f"import the package that registers it{packages} first: names from a dataset are "
            "never imported automatically",
        )
    if name in _IMPORTS_BY_ID:
        raise FormatError(f"{name} imports the environment that its keywords name: it is not made")
    if not isinstance(stored, dict):
        raise FormatError(f"The keywords of {name} are {shown(stored)}; expected its own, by name")
    if limit is not None and (type(limit) is not int or (limit < 1 and limit != -1)):
        raise FormatError(f"The limit of steps of {name} is {shown(limit)}; expected 1 or more")
    if wrappers := spec.get("additional_wrappers"):
        warnings.warn(
            f"{name} is made without the wrappers that it was recorded with: {shown(wrappers, 300)}",
            UserWarning,
            stacklevel=3,
        )
    try:
        return gymnasium.make(name, **{**stored, "max_episode_steps": limit, **options})
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingDependencyError(f"{name} cannot be made: {error}") from error
    except Exception as error:  # an environment's own code, with keywords from elsewhere
        raise UsageError(f"{name} cannot be made: {str(error) or type(error).__name__}") from error


def import_gymnasium(what: str) -> Any:
    """Return gymnasium; raises `MissingDependencyError`, which says that `what` needs it."""
    try:
        import gymnasium
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs gymnasium, which cannot be imported: {error}",
            hint="pip install 'offline-data[envs]'",
        ) from error
    return gymnasium
