"""Columns of the episodes of a dataset or view."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_data.base.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.base.ids import unknown
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.document.blocks import Table, TableColumn
from offline_data.document.html import render
from offline_data.episode.fields import Key, join_key
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.selection import SubsetStorage, end_to_end
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader, decode

if TYPE_CHECKING:
    from offline_data.analysis.episodes import EpisodeQuality


_ROWS = 10  # episodes that a notebook shows


@pickled_by_name
class EpisodeTable:
    """Columns of the `E` episodes of a dataset; `batch["episode"]` are row numbers of this table.

    The columns are `start`, `length`, `return`, `terminated`, `truncated`, `final_observation`, and
    others from the source (`id`, `seed`, options, …). A column is a tensor `[E, …]`, a copy read on
    first use; text is a list of `str` (or None).

    ```python
    ds.episodes.length[batch["episode"]]
    ds.episodes["return"]  # a Python keyword: by key, or as `ds.episodes.return_`
    ds.episodes["options/goal"]
    ds.episodes.to_pandas().sort_values("return")
    ```

    The columns of `quality()` have names here, too, and are computed on first use: `ds.episodes.jerk`,
    `ds.filter("idle < 0.5")`. They are not in `keys()`, and a stored column of such a name comes first.

    Marks of episodes are the columns `mark` (`good`, `bad`, `unsure`, or empty) and `note`, as they are
    on the disk now; `marks/mark` and `marks/note` if such a column is stored. They are in `keys()` if an
    episode has one.

    Iteration yields one dict of column values per episode; see also `ds.iter_episodes()`.
    """

    _marks_read: Any = ()  # version of the marks that `_read` has columns of

    def __init__(self, reader: DatasetReader) -> None:
        self._reader = reader
        self._read: dict[Key, Tensor | list[Any]] = {}

    def quality(self, leaf: str | None = None, *, similar: bool = False) -> EpisodeQuality:
        """Return length, return, idle steps, jerk and other columns as numpy arrays; see there.

        They describe whole episodes, also in a view that cuts them; outliers are the dataset's.

        Args:
            leaf: Continuous feature of `idle`, `jerk`, `velocity`; None: see `EpisodeQuality.leaf`.
            similar: Whether to add `nearest`, `distance` and `duplicate_of`, with episodes of the
                dataset; see `with_similar`. Takes time proportional to the square of their number.

        Raises:
            UnknownLeafError: There is no such feature, or it is not continuous.
        """
        from offline_data.analysis.episodes import episode_quality

        found = episode_quality(self._reader, leaf=leaf)
        if not similar:
            return found
        from offline_data.analysis.similar import with_similar

        return with_similar(self._reader, found)

    @cached_property
    def _quality_keys(self) -> list[Key]:
        from offline_data.analysis.episodes import quality_columns

        stored = self.columns
        return [key for name in quality_columns(self._reader) if (key := (name,)) not in stored]

    @property
    def _mark_keys(self) -> list[Key]:
        return [*self._reader.mark_keys.values()]

    def _marks_version(self) -> Any:
        return self._reader.marks_version

    def __len__(self) -> int:
        return self._reader.episode_count

    @property
    def columns(self) -> list[Key]:
        """Keys of all columns, as tuples; see `keys`."""
        marked = self._mark_keys if self._reader.marks.episodes else []
        return [*self._reader.episodes, *marked]

    def keys(self) -> list[str]:
        """Return the names of all columns: `length`, `return`, `options/goal`, …."""
        return list(map(join_key, self.columns))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.row, range(len(self)))

    def row(self, number: int) -> dict[str, Any]:
        """Return one episode's columns by name, as Python numbers, lists and strings."""
        place = self._place(number)
        return {name: _plain(self[name][place]) for name in self.keys()}

    def rows(self, number: int) -> Tensor:
        """Return the buffer's rows of one episode, int64 `[T]`, in the buffer's order.

        `number` is a row of this table; negative ones count from the end. Raises `IndexError`, and
        `UsageError` unless it is an integer.
        """
        place = self._place(number)
        start = int(self["start"][place])
        return torch.arange(start, start + int(self["length"][place]))

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row per episode; vectors become lists.

        Raises `MissingDependencyError` if pandas cannot be imported.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MissingDependencyError(
                f"to_pandas needs pandas, which cannot be imported: {error}",
                hint="pip install pandas",
            ) from error
        columns = ((name, self[name]) for name in self.keys())
        return DataFrame(
            {
                name: column.numpy() if getattr(column, "ndim", 0) == 1 else [*map(_plain, column)]
                for name, column in columns
            }
        )

    def where(self, text: str) -> NDArray[np.bool_]:
        """Return for which episodes an expression is true, bool `[E]`: `where("length > 7")`.

        For expressions see `offline-data filter`; `number` is the row of this table.

        Raises:
            UsageError: The expression cannot be parsed, or has an unsupported part.
            StepError: No such column, types that cannot be compared, or no episode is selected.
        """
        from offline_data.pipeline.preprocess.steps.episodes import Filter

        step = Filter(text)
        table: dict[Key, NDArray[Any]] = {("number",): np.arange(len(self))}
        words: dict[Key, list[Any]] = {}
        for key in step.columns([*table, *self._known]).values():
            column = table[key] if key in table else self[key]
            if isinstance(column, list):  # text, of which the step takes codes
                words[key] = [*dict.fromkeys(text for text in column if text is not None)]
                known = {text: code for code, text in enumerate(words[key])}
                column = [known.get(text, -1) for text in column]
            table[key] = np.asarray(column)
        return step.choose(table, words)

    def _place(self, number: int) -> int:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise UsageError(f"Episode number is {number!r}; expected an integer")
        place, count = operator.index(number), len(self)
        if not -count <= place < count:
            raise IndexError(f"There is no episode {place}: there are {count}, numbered from 0")
        return place % count

    @property
    def _known(self) -> list[Key]:
        return [*dict.fromkeys((*self.columns, *self._mark_keys, *self._quality_keys))]

    def __contains__(self, key: KeyLike) -> bool:
        return as_key(key) in self._known

    def __getitem__(self, key: KeyLike) -> Any:
        """Return one column; raises `NotFoundError`."""
        if hasattr(key, "__index__"):
            hint = f"ds.episodes.row({key}) has the columns of one, ds.episode({key}) its steps"
            raise UsageError(f"Expected the name of a column of episodes; found {key!r}", hint=hint)
        name = as_key(key)
        if name in self._read and name not in self._mark_keys:
            return self._read[name]
        if name not in self:
            known = [join_key(key) for key in self._known]
            raise unknown(NotFoundError, "Episodes have no column", join_key(name), known)
        if name in self._mark_keys and (version := self._marks_version()) != self._marks_read:
            self._marks_read = version
            for one in self._mark_keys:
                self._read.pop(one, None)
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def __getattr__(self, name: str) -> Any:
        """Return the column of that name, ignoring a trailing underscore (`return_`)."""
        if name.startswith("_") or (name.rstrip("_"),) not in self:
            known = f"; there are {', '.join(self.keys())}" if name[0] != "_" else ""
            raise AttributeError(f"Episodes have no column {name!r}{known}")
        return self[(name.rstrip("_"),)]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key[0] for key in self._known if len(key) == 1)]

    def __repr__(self) -> str:
        names = ", ".join(map(join_key, self.columns))
        return f"EpisodeTable({plural(len(self), 'episode')}: {names})"

    def _repr_html_(self) -> str:
        names, shown = self.keys(), min(len(self), _ROWS)
        columns = [list(map(_plain, self[name][:shown])) for name in names]
        numbers = [any(isinstance(value, float) for value in column) for column in columns]
        titles = [
            TableColumn(name, "number" if number else "text", clip=True)
            for name, number in zip(names, numbers, strict=True)
        ]
        rows = list(zip(range(shown), *columns, strict=True))
        titles.insert(0, TableColumn("episode", "count"))
        return render(Table(titles, rows, more=len(self) - shown), clip=True)

    def _load(self, key: Key) -> Tensor | list[Any]:
        if key in self._quality_keys:
            return torch.from_numpy(np.array(self.quality()[key[0]]))  # of a view, its episodes
        if key in self._mark_keys:
            return self._reader.mark_columns[key]
        values = self._reader.episodes[key]
        words = self._reader.vocabularies.get(EPISODES, {}).get(key)
        if words is not None:
            return list(decode(values, words).tolist())
        return torch.from_numpy(np.array(values))


class ViewEpisodes(EpisodeTable):
    """The episodes that occur in a view, each once, in order of first occurrence.

    `start` and `length` are the view's: the view's first row of the episode, and its number of rows
    in the view. In a view of whole episodes, `view[start : start + length]` is the episode. Other
    columns (`return`, flags, `id`, …) describe the whole episode, as in the dataset: of an episode
    that the view cuts, `view.episode(i).return_` is the return of the view's rows, and
    `view.episode(i).whole_return` is `view.episodes["return"][i]`.

    Attributes:
        numbers: Episode numbers in the dataset, int64 `[E]`, as in `batch["dataset_episode"]`.
    """

    def __init__(self, storage: SubsetStorage) -> None:
        super().__init__(storage.steps.reader)
        self.numbers = storage.episodes
        self._storage = storage

    def __len__(self) -> int:
        return len(self.numbers)

    def quality(self, leaf: str | None = None, *, similar: bool = False) -> EpisodeQuality:
        return super().quality(leaf, similar=similar).take(self.numbers.numpy())

    def rows(self, number: int) -> Tensor:
        """Return the view's rows of one episode, in its order, which may have gaps and repeats."""
        place, (order, ends) = self._place(number), self._pieces
        starts, lengths = self._storage.transitions.starts[:-1], self._storage.transitions.lengths
        own = order[ends[place - 1] if place else 0 : ends[place]]
        return end_to_end(starts[own], lengths[own])

    @cached_property
    def _pieces(self) -> tuple[Tensor, Tensor]:
        """Numbers of the pieces ordered by episode, and for each episode the end of its range."""
        sorted_, order = self._episode_of_pieces().sort(stable=True)
        return order, torch.searchsorted(sorted_, torch.arange(len(self)), right=True)

    def _episode_of_pieces(self) -> Tensor:
        runs = self._storage.steps.runs()
        return self._storage.episode_rows(runs.of(self._storage.transitions.first)).cpu()

    def _load(self, key: Key) -> Tensor | list[Any]:
        pieces, episode = self._storage.transitions, self._episode_of_pieces()
        if key == ("length",):
            return torch.zeros_like(self.numbers).scatter_add_(0, episode, pieces.lengths)
        if key == ("start",):
            most = torch.full_like(self.numbers, pieces.count)
            return most.scatter_reduce_(0, episode, pieces.starts[:-1], "amin")
        if key in self._quality_keys:
            return super()._load(key)
        whole = super()._load(key)
        if isinstance(whole, list):
            return [whole[number] for number in self.numbers.tolist()]
        return whole[self.numbers]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
