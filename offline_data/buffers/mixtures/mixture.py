"""Batches of rows from several buffers in given proportions: drawn, gathered and resumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.buffers.arguments import as_derived
from offline_data.buffers.buffer import Buffer
from offline_data.buffers.mixtures.allocation import (
    Weights,
    count_of,
    draw_members,
    fixed_weights,
    sources_of,
)
from offline_data.buffers.mixtures.leaves import (
    INDEX_KEY,
    SOURCE_KEY,
    Agreement,
    Rename,
    check_texts,
    vocabularies,
)
from offline_data.buffers.mixtures.members import (
    GatherMany,
    dataset_of,
    is_plain,
    put,
    update_priorities,
)
from offline_data.buffers.prefetch import DRAWS, Draw, Prefetcher
from offline_data.episode import Key
from offline_data.rows import fields
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.normalize import Normalizer
from offline_data.rows.fields import GENERATOR, GLOBAL, OWN
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, as_keys
from offline_data.rows.samplers.base import make_generator
from offline_data.rows.state import PART, Saves
from offline_data.rows.transforms import LABELS, Chain, Transform, apply_transforms

if TYPE_CHECKING:
    from typing_extensions import Self


@pickled_by_name
class MixtureDraw(NamedTuple):
    """Rows drawn for one batch of a mixture."""

    source: torch.Tensor  # member of each row, int64 `[B]`
    draws: tuple[tuple[int, Any], ...]  # members, and their draws; several if an epoch ended
    by_number: bool = False  # whether rows were chosen so, without features of samplers

    def state_dict(self) -> dict[str, Any]:
        parts = [{"member": member, "draw": draw.state_dict()} for member, draw in self.draws]
        return {"source": self.source, "parts": parts}


class RowMixture(Saves):
    """Batches mixed row by row from several buffers; see `DatasetMixture`."""

    STATE: ClassVar = {
        "members": PART,
        "dealing": fields.TABLE.at(None),
        OWN: replace(fields.or_none(GENERATOR), optional=False),
        GLOBAL: GENERATOR,
        "transforms": PART.at("_chain"),
        "draws": DRAWS,
    }
    _lock: ClassVar[AbstractContextManager[None]] = nullcontext()
    """Members have their own locks if they need them."""

    def __init__(
        self,
        *members: Buffer | RowMixture,
        weights: Weights = "steps",
        batch_size: int = 256,
        exact: bool = False,
        keys: Iterable[KeyLike] | None = None,
        rename: Sequence[Rename | None] | None = None,
        cast: bool = False,
        derived: Derived | Iterable[Derived] = (),
        shuffle: bool = True,
        seed: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        if not members:
            raise UsageError("A mixture needs at least one member")
        if len(members) == 1 and isinstance(members[0], list | tuple):
            raise UsageError(
                f"The members of a mixture are arguments of their own, not a {type(members[0]).__name__}",
                hint=f"{type(self).__name__}(a, b), or {type(self).__name__}(*members)",
            )
        for number, member in enumerate(members):
            if not isinstance(member, Buffer | RowMixture):
                raise UsageError(
                    f"Member {number} is a {type(member).__name__}; expected a buffer of this "
                    "package: of a dataset, a view of one, a ReplayBuffer or a mixture"
                )
        self.members: tuple[Any, ...] = members
        self.weights = weights
        self._fixed = fixed_weights(weights, members)
        self._batch_size = positive(batch_size, "batch_size")
        self._owed: list[float] | None = [] if exact else None
        own = (INDEX_KEY, SOURCE_KEY)
        self._keys = None if keys is None else [k for k in as_keys(keys) if k not in own]
        self._renames = tuple(rename or [None] * len(members))
        if len(self._renames) != len(members):
            raise UsageError(
                f"rename has {plural(len(self._renames), 'item')} for "
                f"{plural(len(members), 'member')}"
            )
        self._cast, self._shuffle = cast, shuffle
        self._generator = make_generator(seed)
        self._prefetch = positive(prefetch, "prefetch") if prefetch else None
        self._ahead: Any = Prefetcher(self._prefetch or 0)
        self._agreements: dict[bool, Agreement] = {}  # of rows drawn, and of rows by number
        self._many = GatherMany()
        self._chain = Chain()
        self._derived: tuple[Derived, ...] = ()
        self._derive(as_derived(derived))
        if transform is not None:
            self.append_transform(transform)

    @property
    def batch_size(self) -> int:
        """Default number of rows in a batch."""
        return self._batch_size

    @property
    def sources(self) -> tuple[Any, ...]:
        """The buffers that rows are drawn from; the feature `source` is an index into it."""
        return tuple(source for member in self.members for source in sources_of(member))

    @property
    def shares(self) -> tuple[float, ...]:
        """The current probability of each member."""
        weights = self._weights()
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def exact(self) -> bool:
        """Whether each batch has the proportions to the nearest row."""
        return self._owed is not None

    @property
    def shuffle(self) -> bool:
        """Whether the rows of the members are mixed within a batch."""
        return self._shuffle

    def source_shares(self) -> tuple[float, ...]:
        """Return the current probability of each of `sources`."""
        parts = [
            member.source_shares() if isinstance(member, RowMixture) else (1.0,)
            for member in self.members
        ]
        pairs = zip(self.shares, parts, strict=True)
        return tuple(share * inner for share, part in pairs for inner in part)

    def __len__(self) -> int:
        return sum(map(len, self.members))

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Return a random batch `[B]`, newly allocated, across ends of the members' epochs.

        Args:
            batch_size: Number of rows, `B`; None: the mixture's `batch_size`.
            return_info: Whether to return `(batch, info)`, with the member of each row in
                `info["source"]`.

        Raises:
            UsageError: Members that do not match or have nothing to sample; a size other than that
                of prefetched batches.
        """
        size = self._batch_size if batch_size is None else positive(batch_size, "batch_size")
        if size == self._batch_size:
            draw, future = self._ahead.take(lambda: self._draw(size), self._make)
        elif self._prefetch:
            raise UsageError(
                f"Batch size is {size}, but batches of {self._batch_size} are prefetched"
            )
        else:
            draw, future = self._draw(size), None
        batch = self._make(draw) if future is None else future.result()
        return (batch, {"source": draw.source}) if return_info else batch

    def batch_at(self, source: Tensor, index: Tensor) -> Any:
        """Return the batch of rows chosen by number, transformed like others.

        `source` (positions in `sources`) and `index` (rows there) are int64 `[B]`. Raises
        `UsageError` for members that do not match, and `IndexError` for no such source or row.
        """
        if len(source) and not 0 <= int(source.min()) <= int(source.max()) < len(self.sources):
            raise IndexError(f"Sources are 0 to {len(self.sources) - 1}; found {source.tolist()}")
        return self._make(self._draw_rows(source, index))

    def __iter__(self) -> Self:
        """Return the mixture, an infinite iterator of batches."""
        return self

    def __next__(self) -> Any:
        return self.sample()

    def append_transform(self, transform: Transform) -> Self:
        """Append a transform, called with every batch; returns the mixture."""
        self._chain = self._chain.insert(len(self._chain.links), transform, invert=False)
        return self

    def update_priority(self, batch: Any, priority: Tensor | float) -> None:
        """Update the priority of each row of a batch, or one for all, in prioritized samplers.

        `batch` is a mapping with `batch["source"]` and `batch["index"]`.
        """
        update_priorities(self.sources, batch["source"], batch["index"], priority)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, and the members'; see `ReplayBuffer.state_dict`."""
        dealing = {} if self._owed is None else {"owed": [*self._owed]}
        return {**super().state_dict(), "dealing": dealing}

    def _rules(self, state: Any, above: Any) -> Iterator[fields.Rule]:  # noqa: ARG002
        if (state[OWN] is None) != (self._generator is None):
            raise UsageError(
                "The state is of a mixture with a seed and this has none, or vice versa"
            )
        if self._owed is not None:
            if "owed" not in state["dealing"]:
                raise UsageError("The state is of a mixture whose proportions were not exact")
            owed = state["dealing"]["owed"]
            fits = isinstance(owed, list) and len(owed) in (0, len(self.members))
            fits = fits and all(isinstance(rows, float) and abs(rows) < 2**31 for rows in owed)
            yield "dealing", fits, "rows owed to each member"

    def _draw_of(self, draw: Any, state: Any) -> MixtureDraw:
        whose, count = "a prefetched batch", len(self.members)
        fields.check(draw, whose, {"source": fields.row_numbers(count), "parts": fields.LIST})
        draws = []
        for part in draw["parts"]:
            fields.check(part, whose, {"member": fields.integer(0, count - 1), "draw": fields.ANY})
            number = part["member"]
            its_own = self.members[number]._draw_of(part["draw"], state["members"][number])
            draws.append((number, its_own))
        counts = [sum(len(its_own[0]) for of, its_own in draws if of == n) for n in range(count)]
        expected = torch.bincount(draw["source"], minlength=count).tolist()
        if counts != expected:
            raise fields.wrong(draw, whose, "parts", f"{expected} rows of the members")
        return MixtureDraw(draw["source"].clone(), tuple(draws))

    def _set_state(self, state: dict[str, Any]) -> None:
        if self._owed is not None:
            self._owed = [*state["dealing"]["owed"]]
        super()._set_state(state)

    def _restore(self, draws: list[MixtureDraw]) -> None:
        if draws:
            self._agree_again()
        self._ahead.restore(draws, self._make)

    def __repr__(self) -> str:
        members = ", ".join(type(member).__name__ for member in self.members)
        return (
            f"{type(self).__name__}({plural(len(self), 'row')} of {members}, weights={self.weights!r}, "
            f"batch_size={self._batch_size})"
        )

    @property
    def _words(self) -> dict[Key, list[str]]:
        return vocabularies(self.members, self._renames)[0]

    def _with(self, members: Iterable[Any]) -> Self:
        other = copy(self)
        other.members = tuple(members)
        other._ahead, other._many = Prefetcher(self._prefetch or 0), GatherMany()
        other._agreements = {}
        return other

    def _of(self, views: Iterator[Any], batch_size: int | None) -> Self:
        """Return the same mixture of other buffers, one for each of `sources`."""
        part = self._with(
            member._of(views, None) if isinstance(member, RowMixture) else next(views)
            for member in self.members
        )
        if batch_size is not None:
            part._batch_size = positive(batch_size, "batch_size")
        part._owed = None if self._owed is None else []
        if self._generator is not None:
            part._generator = self._generator.clone_state()
        return part

    def _derive(self, derived: tuple[Derived, ...]) -> None:
        if derived and any(getattr(source.storage, "ndim", 1) > 1 for source in self.sources):
            raise UsageError("derived=… needs members whose storage has ndim=1")
        fixed = [source.storage for source in self.sources if not source._grows]
        for function in derived:
            if isinstance(function, Normalizer) and fixed:
                function.bind(*fixed)
        self._derived += derived
        members = []
        for member in self.members:
            if derived and isinstance(member, RowMixture):  # the given one stays as it was
                member = member._with(member.members)
                member._derive(derived)
            members.append(member)
        self.members = tuple(members)

    def _functions(self) -> list[tuple[str, Derived]]:
        found = [("the mixture", function) for function in self._derived]
        for number, member in enumerate(self.members):
            nested = isinstance(member, RowMixture)
            own = [function for _, function in member._functions()] if nested else member._derived
            found += [(f"member {number}", function) for function in own]
        return found

    def _check_statistics(self) -> None:
        functions = ((whose, f) for whose, f in self._functions() if isinstance(f, Normalizer))
        own = {id(function): whose for whose, function in functions if function.own}
        if len(own) > 1:
            raise UsageError(
                f"Of {' and '.join(own.values())}, each has a normalize with statistics of its own",
                hint="give one to all of them: scale = normalize(…), and scale.fit(a, b) or "
                "scale.fit(mixture) for joint statistics",
            )

    def _weights(self) -> tuple[float, ...]:
        if self._fixed is not None:
            return self._fixed
        unit: Any = self.weights
        weights = tuple(count_of(member, unit) for member in self.members)
        if not any(weights):
            raise UsageError("No member of the mixture has any rows to sample")
        return weights

    def _draw(self, size: int) -> MixtureDraw:
        weights = self._weights()
        self._agree([number for number, weight in enumerate(weights) if weight])
        source = draw_members(weights, size, self._generator, self._owed, mixed=self._shuffle)
        counts = torch.bincount(source, minlength=len(weights)).tolist()
        draws = []
        for number, (member, missing) in enumerate(zip(self.members, counts, strict=True)):
            while missing > 0:  # an epoch of the member's sampler may end in the batch
                with member._lock:
                    draw = member._draw(missing)
                drawn = len(draw[0])  # rows, or sources
                if not 0 < drawn <= missing:
                    raise UsageError(
                        f"{member!r} drew {plural(drawn, 'row')}; expected 1 to {missing}"
                    )
                draws.append((number, draw))
                missing -= drawn
        return MixtureDraw(source, tuple(draws))

    def _agree_again(self) -> None:
        for member in self.members:
            if isinstance(member, RowMixture):
                member._agree_again()
        self._agreements.clear()
        self._agree([number for number, weight in enumerate(self._weights()) if weight])

    def _agree(self, present: Sequence[int], *, by_number: bool = False) -> None:
        """Compute the common features of members, unless known, from batches that are discarded."""
        known = self._agreements.get(by_number)
        if known is not None and known.members.keys() >= {*present}:
            return
        probes, row = {}, torch.zeros(1, dtype=torch.int64)
        with torch.random.fork_rng(devices=[]):
            for number in present:
                member = self.members[number]
                if by_number:
                    draw = _draw_at(member, row, row)
                else:
                    member = _copy_with_own_sampler(member)
                    with member._lock:
                        draw = member._draw(self._batch_size)
                probes[number] = self._batch_of(member, draw)
        self._check_statistics()
        agreement = Agreement(
            probes,
            keys=self._keys,
            renames=self._renames,
            firsts=self._firsts(),
            nested=frozenset(m for m in probes if isinstance(self.members[m], RowMixture)),
            cast=self._cast,
        )
        check_texts(vocabularies(self.members, self._renames)[1], agreement.keys)
        self._agreements[by_number] = agreement

    def _draw_rows(self, source: Tensor, index: Tensor) -> MixtureDraw:
        self._agree([m for m, member in enumerate(self.members) if len(member)], by_number=True)
        firsts = torch.tensor(self._firsts())
        members = torch.searchsorted(firsts, source, right=True) - 1
        draws = []
        for number in torch.unique(members).tolist():
            own = members == number
            chosen = _draw_at(self.members[number], source[own] - firsts[number], index[own])
            draws.append((number, chosen))
        return MixtureDraw(members, tuple(draws), by_number=True)

    def _firsts(self) -> list[int]:
        """Return the number in `sources` of each member's first buffer, and of an end."""
        return [0, *accumulate(len(sources_of(member)) for member in self.members)]

    def _make(self, draw: MixtureDraw) -> Any:
        agreement = self._agreements[draw.by_number]
        places = None
        if self._shuffle or draw.by_number:  # numpy uses radix sort for 16 bits
            order = draw.source.numpy().astype(np.uint16).argsort(kind="stable")
            places = torch.from_numpy(order)
        leaves = self._gather_at_once(agreement, draw, places)
        if leaves is None:
            parts = [self._part(agreement, *part) for part in draw.draws]
            leaves = list(map(torch.cat, zip(*parts, strict=True)))
            if places is not None:
                rows = put(torch.arange(len(places)), places).to(parts[0][0].device)
                leaves = [leaf.index_select(0, rows) for leaf in leaves]
        batch = agreement.assemble(leaves, draw.source)
        return apply_transforms(self._chain.outward, batch, names=(*LABELS, "source"))

    def _gather_at_once(
        self, agreement: Agreement, draw: MixtureDraw, places: Tensor | None
    ) -> list[Tensor] | None:
        """Gather all features at once; None if some rows are changed after gathering."""
        same = all(agreement.members[m].dtypes == agreement.dtypes for m, _ in draw.draws)
        if agreement.nested or not same or not all(self._is_stored(*part) for part in draw.draws):
            return None
        storages = [getattr(member, "storage", None) for member in self.members]
        numbers = [number for number, _ in draw.draws]
        rows = [part.rows for _, part in draw.draws]
        found = self._many(storages, numbers, rows, draw.source, places)
        return None if found is None else agreement.of_stored(numbers[0], *found[:2])

    def _part(self, agreement: Agreement, number: int, draw: Any) -> list[Tensor]:
        """Return a member's part of a batch as the mixture's features, each `[n, …]`."""
        member = self.members[number]
        if self._is_stored(number, draw) and dataset_of(member.storage) is not None:
            storage = member.storage
            return agreement.of_stored(number, storage.leaves(draw.rows), storage.slots)
        return agreement.of_batch(number, self._batch_of(member, draw), len(draw[0]))

    def _batch_of(self, member: Any, draw: Draw | MixtureDraw) -> Any:
        if isinstance(draw, MixtureDraw):
            return member._make(draw)
        with member._lock:
            batch = member._gather(draw.rows)
            if self._derived:
                batch = member._with_derived(self._derived, batch, draw.rows)
        return member._finish(draw, batch)

    def _is_stored(self, number: int, draw: Any) -> bool:
        """Return True if a draw's batch is what the member's storage gathers, unchanged."""
        plain = isinstance(draw, Draw) and not (draw.info or self._derived)
        return plain and is_plain(self.members[number])


def _draw_at(member: Any, source: Tensor, index: Tensor) -> Draw | MixtureDraw:
    if isinstance(member, RowMixture):
        return member._draw_rows(source, index)
    return Draw(index, {}, last=False)


def _copy_with_own_sampler(member: Any) -> Any:
    if isinstance(member, RowMixture):
        mixture = member._with(map(_copy_with_own_sampler, member.members))
        mixture._owed, mixture._generator = deepcopy(member._owed), None
        return mixture
    other = copy(member)
    other._sampler = deepcopy(member.sampler)
    return other
