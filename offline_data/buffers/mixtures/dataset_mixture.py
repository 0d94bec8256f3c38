"""`DatasetMixture`: a mixture, and what a dataset has besides batches, of all members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.base.errors import UsageError
from offline_data.base.exact import first_changed
from offline_data.buffers.bridges.loader import DatasetLoader
from offline_data.buffers.described import Returns
from offline_data.buffers.mixtures.episodes import MixtureEpisodes, split_members
from offline_data.buffers.mixtures.epochs import MixtureBatches, MixtureRows
from offline_data.buffers.mixtures.leaves import SOURCE_KEY, rename_keys
from offline_data.buffers.mixtures.mixture import RowMixture
from offline_data.buffers.specs import Spaces, Specs, check_torchrl, spaces_of, specs_from
from offline_data.buffers.views.episode import Episode, read_episode
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers import Sampler
from offline_data.rows.samplers.base import ValidRows
from offline_data.store.arrays import Style

if TYPE_CHECKING:
    from typing_extensions import Self


class DatasetMixture(RowMixture):
    """Flat batches of any size, mixed row by row from several buffers.

    A `ReplayBufferEnsemble` stacks sub-batches of equal size; a mixture draws the member of each
    row: with `weights="steps"` rows are distributed as in the concatenation of all members.

    Each member draws with its own sampler, derives its features and applies its transforms; then
    its rows are placed in random order. `index` and `episode` are the member's; `source`, int64
    `[B]`, is its index in `sources`, where a nested mixture is replaced by its members.

    Drawing (`sample`, iteration, `dataloader`) follows the weights. If all members are datasets or
    views, `episodes`, `iter_episodes`, `to_numpy` and `split` have every episode of every member
    once, whatever the weights; an episode that two members share is there twice.

    A member's sampler draws its part of the batch. Slices need parts that are multiples of their
    length (`exact=True`, weights that divide the batch), and are contiguous with `shuffle=False`.

    Args:
        *members: Datasets, views, growing buffers or mixtures.
        weights: Share of each member: `"steps"`: its number of drawable rows; `"episodes"`: its
            number of episodes; `"equal"`; one number per member; or a mapping from member number or
            dataset id to a number. Only ratios matter. Shares that depend on the data follow a
            growing buffer, from no rows on.
        batch_size: Default number of rows in a batch.
        exact: False: each row's member is drawn independently. True: each batch has the proportions
            to the nearest row, and rounding errors are compensated in the next ones.
        keys: Features of batches (by the mixture's names), or parents of features; None: all, which
            must then be the same in all members.
        rename: For each member None, or `{key in the mixture: key in the member}`, of features or
            parents of features; also applied under `next`, unless that is renamed separately.
        cast: Whether dtypes may differ; they are promoted (`torch.promote_types`), and an integer
            that the common dtype does not hold is an error.
        derived: Functions that add features computed from other rows, applied to the rows of every
            member after its own, with the names of the member. `normalize` uses the joint
            statistics of all datasets, unless it was fitted.
        shuffle: False: the rows of a member stay together, in the order of the members.
        seed: Seed of the order and choice of members, not of the members' samplers; None: torch's
            global generator.
        prefetch: Number of batches to prepare ahead, and of threads; does not change rows or order.
        transform: Called with every batch; more can be appended.

    Raises:
        UsageError: Invalid argument; or, on the first batch or when a member gets its first rows,
            members whose features do not match.
    """

    def dataloader(
        self,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> DatasetLoader:
        """Return a `torch.utils.data.DataLoader` that draws by the weights, as `sample` does.

        An epoch has as many rows as all members with a share have `valid_rows` together. The
        members' samplers are not used: a member gives its rows each once, in an order that depends
        on `(seed, epoch)` alone, and then again in another. So an epoch of a mixture with
        `weights="steps"` and `exact=True` has every row once; with other weights it repeats rows of
        some members and has a part of others'. All ranks together have the proportions; a nested
        mixture counts by the shares of its members. With `shuffle=False` each member gives its rows
        in ascending order, and proportions are drawn at random unless `exact`. For the arguments, and
        what else is raised, see `Dataset.dataloader`.

        Raises:
            UsageError: Members that do not match, or one that is not a dataset or view.
        """
        sources = self._datasets("dataloader")
        for number, source in enumerate(sources):
            source._check_single_rows(f"member {number}: ")
        size = self.batch_size if batch_size is None else batch_size
        rows = MixtureRows(self, sources)
        batches = MixtureBatches(
            rows,
            ValidRows(len(rows)),
            size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world=world,
        )
        return DatasetLoader(batches, num_workers=num_workers, **options)

    @property
    def episodes(self) -> MixtureEpisodes:
        """Columns of the episodes of all members, each once, in order of `sources`.

        ```python
        row = mixture.episodes.first[batch["source"]] + batch["episode"]
        mixture.episodes["return"][row]
        ```

        Raises `UsageError` if a member is not a dataset or view.
        """
        return MixtureEpisodes([source.episodes for source in self._datasets("episodes")])

    def episode(self, number: int) -> Episode:
        """Return one episode, by row of `episodes`, with the features that the mixture's batches have.

        `metadata["source"]` is its member. Raises `IndexError`, and `UsageError` like `episodes`.
        """
        table = self.episodes
        source, own = table.place(number)
        found = read_episode(
            self.sources[source],
            own,
            lambda rows: self.batch_at(torch.full_like(rows, source), rows),
        )
        metadata = {**found.metadata, SOURCE_KEY[0]: source}
        return replace(found, number=int(table.first[source]) + own, metadata=metadata)

    def iter_episodes(self) -> Iterator[Episode]:
        """Yield the episodes of all members in order, each once, one in memory at a time."""
        return map(self.episode, range(len(self.episodes)))

    def to_numpy(
        self, style: Style = "transitions", *, observation_key: KeyLike | None = None
    ) -> dict[str, Any]:
        """Return the arrays of all members, one after the other, whatever their weights.

        Keys and features are those of the members, not renamed; see
        `Dataset.to_numpy` for them and the arguments.

        Raises:
            UsageError: Also, arrays of different names or shapes, or of different dtypes without
                `cast`; integers that the common dtype does not hold.
        """
        parts = [
            source.to_numpy(style, observation_key=observation_key)
            for source in self._datasets("to_numpy")
        ]
        forms = [
            {k: (a.shape[1:], None if self._cast else a.dtype) for k, a in p.items()} for p in parts
        ]
        for number, form in enumerate(forms):
            if form != forms[0]:
                differing = {**form, **forms[0]}.items() - (form.items() & forms[0].items())
                names = ", ".join(sorted(name for name, _ in differing))
                raise UsageError(
                    f"The arrays of members 0 and {number} differ in {names}",
                    hint="cast=True joins dtypes; mixture.sources[0].to_numpy() has one member's",
                )
        joined = {name: np.concatenate([part[name] for part in parts]) for name in forms[0]}
        for number, part in enumerate(parts):
            for name, array in part.items():
                if (value := first_changed(array, joined[name].dtype)) is not None:
                    raise UsageError(
                        f"{name!r} is {array.dtype} in member {number} and {joined[name].dtype} in all, "
                        f"which does not hold {value}",
                        hint="mixture.sources[0].to_numpy() has one member's arrays",
                    )
        return joined

    def normalized_score(self, returns: Returns) -> Returns:
        """Normalize returns by the reference scores that all members share.

        Raises `NotFoundError` if a member has none, and `UsageError` for different ones, or members
        that are not datasets.
        """
        sources = self._datasets("normalized_score")
        for number, source in enumerate(sources):
            if source.reference_scores() != sources[0].reference_scores():
                raise UsageError(
                    f"Members 0 and {number} have different reference scores",
                    hint="mixture.sources[0].normalized_score(returns) uses one member's",
                )
        scores: Returns = sources[0].normalized_score(returns)
        return scores

    @property
    def specs(self) -> Specs:
        """TorchRL specs that contain the batches of all members: the union of their bounds.

        They are of the features that all members have, by the mixture's names; see `ds.specs`.
        `origin` of a feature whose members differ in it is `data` if one is from the data.

        Raises:
            MissingDependencyError: torchrl is not installed.
            UsageError: Members whose shapes, or dtypes without `cast`, differ; or are not datasets.
        """
        self._datasets("specs")
        check_torchrl()
        return specs_from(self._spaces())

    def split(
        self,
        *,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
        **shares: float,
    ) -> dict[str, Self]:
        """Split the episodes of every member into mixtures: `parts = mixture.split(train=0.9, val=0.1)`.

        Each part has the mixture's weights, names and functions. Members of the same dataset are
        split together, so that no episode is in two parts. For the arguments see
        `Dataset.split`.

        Raises:
            UsageError: Invalid shares, a part without any episode of a member, or members that are
                not datasets.
        """
        sources = self._datasets("split")
        views = split_members(sources, shares, seed, sampler)
        return {name: self._of(iter(part), batch_size) for name, part in views.items()}

    def _datasets(self, method: str) -> tuple[Any, ...]:
        for number, source in enumerate(self.sources):
            if not hasattr(source, "episodes"):
                raise UsageError(
                    f"{method} needs members that are datasets or views; source {number} is a "
                    f"{type(source).__name__}"
                )
        return self.sources

    def _spaces(self) -> Spaces:
        parts = []
        for number, (member, rename) in enumerate(zip(self.members, self._renames, strict=True)):
            nested = isinstance(member, DatasetMixture)
            own = member._spaces() if nested else spaces_of(member._steps_storage.reader)
            new = rename_keys(own.leaves, rename, number)
            parts.append(own.rename(dict(zip(own.leaves, new, strict=True))))
        return Spaces.union(parts, keys=self._keys, cast=self._cast)
