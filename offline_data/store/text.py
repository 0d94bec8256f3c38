"""Text leaves: words become codes while writing, and the words go into `text.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import Key, join_key
from offline_data.errors import FormatError
from offline_data.store.layout import TEXT_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class Vocabularies:
    """The words of every text leaf met so far, each in order of first appearance.

    Memory grows with the number of distinct texts, not with rows.
    """

    def __init__(self) -> None:
        self._codes: dict[tuple[str, Key], dict[str | None, int]] = {}

    def know(self, table: str, key: Key, words: Iterable[str]) -> None:
        """Take over the words of a leaf whose codes have been written already."""
        self._codes[table, key] = {None: -1, **{word: code for code, word in enumerate(words)}}

    def encode(self, table: str, key: Key, values: NDArray[np.object_]) -> NDArray[np.int32]:
        """Turn texts of any shape into codes; None becomes -1.

        Raises:
            FormatError: A value that is neither `str` nor None.
        """
        codes = self._codes.setdefault((table, key), {None: -1})
        flat = values.ravel()
        out = np.fromiter((self._code(codes, v, key) for v in flat), TEXT_DTYPE, flat.size)
        return out.reshape(values.shape)

    @staticmethod
    def _code(codes: dict[str | None, int], value: Any, key: Key) -> int:
        code = codes.get(value) if isinstance(value, str | None) else _refuse(key, value)
        if code is None:
            code = codes[value] = len(codes) - 1
        return code

    def words(self, table: str, key: Key) -> list[str]:
        """Return the words of a leaf; a code is an index into them."""
        return [word for word in self._codes.get((table, key), {}) if word is not None]

    def by_table(self) -> dict[str, dict[Key, list[str]]]:
        """Return a copy of all vocabularies so far: `{table: {key: words}}`."""
        tables: dict[str, dict[Key, list[str]]] = {}
        for table, key in self._codes:
            tables.setdefault(table, {})[key] = self.words(table, key)
        return tables

    def dump(self) -> str | None:
        """Write all vocabularies as the text of `text.json`, or None where there are none."""
        if not self._codes:
            return None
        entries = [
            {"table": table, "key": list(key), "words": words}
            for table, leaves in self.by_table().items()
            for key, words in leaves.items()
        ]
        return json.dumps(entries, ensure_ascii=True, indent=0) + "\n"


def _refuse(key: Key, value: object) -> int:
    raise FormatError(
        f"Text leaf {join_key(key)!r} has a value of type {type(value).__name__}, expected str"
    )
