"""`register_dataset`: other people's prefixes of `load_dataset`, as in TorchRL."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from offline_data.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.ids import looks_like_path

if TYPE_CHECKING:
    from collections.abc import Callable

Factory: TypeAlias = "Callable[..., Any]"
"""Called as `factory(name, **options)` for the id `prefix:name`; returns a buffer."""

Loader = TypeVar("Loader", bound="Callable[..., Any]")

_FACTORIES: dict[str, Factory | str] = {}


def register_dataset(prefix: str, dataset: Factory | str, *, replace: bool = False) -> None:
    """Make `load_dataset("prefix:name", **options)` call `dataset("name", **options)`.

    TorchRL's function of that name, for this package; registering the same in TorchRL's registry
    is up to you. If TorchRL is installed (0.14 and newer have a registry), the prefix
    `offline_data` becomes known there: `torchrl.data.datasets.load_dataset("offline_data:" + id)`
    then loads whatever `load_dataset(id)` here does, see `torchrl_dataset`. That imports torchrl.

    An adapter that converts other people's data does not go here: see `offline_data.sources`.

    Args:
        prefix: Not empty, without `:`; lower and upper case are the same.
        dataset: Callable, or `"module:attribute"`, imported on first use.
        replace: Whether it may take the place of what was registered before, or of a source.

    Raises:
        UsageError: A prefix that is taken or cannot be; neither something to call nor a name.

    Example:
        >>> register_dataset("squares", lambda name, **options: int(name) ** 2, replace=True)
        >>> from offline_data.buffers.load import load_dataset
        >>> load_dataset("squares:7")
        49
    """
    name = _normal(prefix)
    _check(dataset)
    if not replace and (name in _FACTORIES or _is_source(name)):
        raise UsageError(f"The prefix {name!r} is taken", hint="choose another, or replace=True")
    _FACTORIES[name] = dataset
    _tell_torchrl()


def registered_first(load: Loader) -> Loader:
    """Let `load(id, …)` ask what was registered for the prefix of `id`, before anything else."""

    @functools.wraps(load)
    def loads(id: Any, *args: Any, **options: Any) -> Any:
        prefix, colon, name = id.partition(":") if isinstance(id, str) else ("", "", "")
        if colon and prefix.strip().lower() in _FACTORIES and not looks_like_path(id):
            return _factory(prefix)(name, *args, **options)
        return load(id, *args, **options)

    return cast("Loader", loads)


def _factory(prefix: str) -> Factory:
    found = _FACTORIES[_normal(prefix)]
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    try:
        return cast("Factory", getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise NotFoundError(
            f"{found!r}, registered for {prefix!r}, cannot be imported: {error}"
        ) from error


def _normal(prefix: str) -> str:
    name = prefix.strip().lower()
    if not name or ":" in name:
        raise UsageError(f"The prefix is {prefix!r}; expected a word without ':'")
    return name


def _check(dataset: Factory | str) -> None:
    module, colon, attribute = dataset.partition(":") if isinstance(dataset, str) else ("", "", "")
    if not callable(dataset) and not (colon and module and attribute):
        raise UsageError(
            f"{dataset!r} cannot load datasets; expected a callable, or 'module:attribute'"
        )


def _is_source(name: str) -> bool:
    from offline_data.ingest import known_names

    try:
        known_names(name)
    except NotFoundError:
        return False
    except MissingDependencyError:
        return True
    return True


def _tell_torchrl() -> None:
    """Register with TorchRL where it is installed, and can be imported, and has a registry."""
    if find_spec("torchrl") is None:
        return
    try:
        from offline_data.buffers.torchrl import register_in_torchrl

        register_in_torchrl()
    except ImportError:  # ours for a missing registry is one too
        return
