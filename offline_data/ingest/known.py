"""What can be asked for: the names of a source's catalogue, for rooms that know no sources."""

from __future__ import annotations

from offline_data.sources.registry import get_source


def known_names(source: str) -> list[str]:
    """List the dataset names in the catalogue of `source`, in its order; opens no socket.

    Raises:
        NotFoundError: No such source.

    Example:
        >>> "pen-human-v1" in known_names("d4rl")
        True
    """
    return [entry.name for entry in get_source(source).catalog()]
