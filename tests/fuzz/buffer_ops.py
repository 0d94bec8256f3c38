"""Random operations on a growing buffer, beside a list of dicts that does the same.

`run(seed)` makes a buffer of a random kind and does to it what a training program does: write,
overwrite, sample, set priorities, save, restore, copy. After each operation every value that the
buffer gives is compared with the model's.
"""

from __future__ import annotations

import copy
import pickle
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.rows.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

STORAGES = (LazyTensorStorage, LazyMemmapStorage, ListStorage)
SLICES = (SliceSampler, SliceSamplerWithoutReplacement, PrioritizedSliceSampler)
SAMPLERS = (RandomSampler, SamplerWithoutReplacement, PrioritizedSampler, *SLICES)
BOUNDARIES: tuple[dict[str, Any], ...] = (
    {},
    {"traj_key": ("meta", "id")},
    {"end_key": ("next", "over")},
    {"end_keys": [("next", "over"), ("next", "absent")]},
)
EPS = 1e-8


def run(seed: int) -> None:
    """Do up to 40 random operations; raises `AssertionError` where buffer and model differ."""
    folder = Path(tempfile.mkdtemp(prefix="buffer-ops-"))
    try:
        ops = BufferOps(random.Random(seed), folder)
        for number in range(ops.chance.randint(5, 40)):
            name = ops.chance.choice(ops.operations)
            try:
                getattr(ops, name)()
                ops.check()
            except Exception as error:
                raise AssertionError(
                    f"seed {seed}, operation {number} ({name}) of {ops}: {error!r}"
                ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class BufferOps:
    """A buffer, and the model: one dict a row."""

    operations = (
        *("extend", "extend", "add", "sample", "sample", "sample", "assign", "read"),
        *("set_priorities", "set_batch_priorities", "epoch", "refused"),
        *("restore_state", "restore_files", "restore_pickle", "restore_copy", "empty"),
    )

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder
        self.size = chance.randint(1, 24)
        self.storage = chance.choice(STORAGES)
        self.sampler = chance.choice(SAMPLERS)
        self.seed = chance.randint(0, 9)
        self.length = chance.randint(1, 4)
        self.batch = self.length * chance.randint(1, 4)
        self.prefetch = chance.choice([None, None, 1, 3])
        self.strict = chance.random() < 0.5
        self.boundaries = chance.choice(BOUNDARIES)
        self.alpha, self.beta = chance.choice([(0.7, 0.5), (1.0, 1.0), (0.0, 0.4)])
        self.scaled = chance.random() < 0.3
        self.buffer = self.made()
        self.rows: list[dict[str, Any]] = []
        self.priorities: list[float] = []
        self.highest = 1.0
        self.cursor = self.serial = self.write_count = self.trajectory = self.restored = 0

    def __repr__(self) -> str:
        return (
            f"{self.storage.__name__}({self.size}) with {self.sampler.__name__}, batch "
            f"{self.batch} of {self.length}, prefetch={self.prefetch}, {self.boundaries}"
        )

    def made(self) -> TensorDictReplayBuffer:
        """Make an empty buffer of this kind; the same randomness each time."""
        options: dict[str, Any] = {"seed": self.seed}
        if self.sampler in SLICES:
            options |= {"slice_len": self.length, "strict_length": self.strict, **self.boundaries}
        if self.sampler in (PrioritizedSampler, PrioritizedSliceSampler):
            options |= {"max_capacity": self.size, "alpha": self.alpha, "beta": self.beta}
        return TensorDictReplayBuffer(
            storage=self.storage(self.size),
            sampler=self.sampler(**options),
            batch_size=self.batch,
            prefetch=self.prefetch,
            transform=(lambda batch: batch * 2) if self.scaled else None,
        )

    # -- operations -------------------------------------------------------------------------

    def extend(self) -> None:
        """Write up to three rings of rows, as one TensorDict or as a list of rows."""
        count = self.chance.randint(1, self.chance.choice([3, self.size, 3 * self.size]))
        new = [self.fresh() for _ in range(count)]
        data = tensors(new)
        given = list(data.unbind(0)) if self.chance.random() < 0.3 else data
        index = self.buffer.extend(given)
        assert index.tolist() == [(self.cursor + i) % self.size for i in range(count)]
        self.take(new)

    def add(self) -> None:
        """Write one row."""
        new = [self.fresh()]
        assert self.buffer.add(tensors(new)[0]) == self.cursor
        self.take(new)

    def assign(self) -> None:
        """Change values of rows that are there, and where their trajectories end."""
        if not self.rows:
            return
        wanted = sorted(
            self.chance.sample(range(len(self.rows)), self.chance.randint(1, len(self.rows)))
        )
        new = [self.fresh() for _ in wanted]
        index: Any = self.chance.choice([wanted, torch.tensor(wanted), np.array(wanted)])
        self.buffer[index] = tensors(new)
        for row, one in zip(wanted, new, strict=True):
            self.rows[row] = {**one, "written": self.rows[row]["written"]}

    def sample(self) -> None:
        """Draw a batch and look at every value of it."""
        batch = self.drawn(self.buffer.sample)
        if batch is not None:
            self.check_batch(batch)

    def epoch(self) -> None:
        """Go through an epoch: each row, or each trajectory, at most once."""
        if self.sampler not in (SamplerWithoutReplacement, SliceSamplerWithoutReplacement):
            return
        seen: list[int] = []
        batches = self.drawn(lambda: list(self.buffer))  # what is left of an epoch
        if batches is None:
            return
        batches = self.drawn(lambda: list(self.buffer))
        for batch in batches or []:
            self.check_batch(batch)
            seen += batch["index"].tolist()
        if self.sampler is SamplerWithoutReplacement and not self.prefetch:
            assert sorted(seen) == list(range(len(self.rows)))
        elif not self.prefetch:
            assert len(seen) == len(set(seen))

    def read(self) -> None:
        """Read rows by every form of an index."""
        count = len(self.rows)
        if not count:
            return
        low, high = sorted(self.chance.choices(range(-count, count), k=2))
        some = self.chance.choices(range(-count, count), k=5)
        mask = [self.chance.random() < 0.5 for _ in range(count)]
        forms: list[Any] = [
            slice(None),
            slice(low, high),
            slice(None, None, 2),
            some,
            np.array(some),
            mask,
        ]
        for index in forms:
            expected = np.arange(count)[index].tolist()
            if expected:
                self.check_rows(self.buffer[index], expected)
        one = self.chance.randrange(-count, count)
        found = self.buffer[one]
        self.check_leaves(found.unsqueeze(0), [one % count])
        for wrong in (count, -count - 1, [0, count]):
            refuses(IndexError, lambda wrong=wrong: self.buffer[wrong])

    def set_priorities(self) -> None:
        """Set priorities of rows, some of them twice: the greatest counts."""
        if not (self.priorities and self.prioritized):
            return
        rows = self.chance.choices(range(len(self.rows)), k=self.chance.randint(1, 9))
        values = [self.chance.choice([0.25, 0.5, 2.0, 3.5]) for _ in rows]
        self.buffer.update_priority(torch.tensor(rows), torch.tensor(values))
        self.took_priorities(rows, values)

    def set_batch_priorities(self) -> None:
        """Give a batch back with its TD errors."""
        batch = self.drawn(self.buffer.sample)
        if batch is None or not self.prioritized:
            return
        rows = batch["index"].tolist()
        values = [1.0 + self.serial_of(row) % 5 for row in rows]
        batch["td_error"] = torch.tensor(values)
        self.buffer.update_tensordict_priority(batch)
        self.took_priorities(rows, values)

    def refused(self) -> None:
        """Write what cannot be written; nothing changes."""
        if not self.rows or self.storage is ListStorage:
            return
        data = tensors([self.fresh(), self.fresh()])
        wrong = self.chance.choice(
            [
                data.exclude("value"),
                data.set("more", torch.ones(2)),
                data.set("value", torch.ones(2, 5)),
                data.set("serial", torch.ones(2)),
            ]
        )
        refuses(UsageError, lambda: self.buffer.extend(wrong))

    def restore_state(self) -> None:
        """Go on in another buffer from this one's state."""
        other = self.made()
        state = copy.deepcopy(self.buffer.state_dict())
        other.load_state_dict(state)
        self.go_on_with(other)

    def restore_files(self) -> None:
        """Go on in another buffer from files."""
        self.restored += 1
        self.buffer.dumps(self.folder / str(self.restored))
        other = self.made()
        other.loads(self.folder / str(self.restored))
        self.go_on_with(other)

    def restore_pickle(self) -> None:
        """Go on with a pickled copy, where its memory is its own."""
        if self.storage is LazyMemmapStorage or self.scaled:
            return
        self.go_on_with(pickle.loads(pickle.dumps(self.buffer)))  # noqa: S301

    def restore_copy(self) -> None:
        """Go on with a deep copy, where its memory is its own."""
        if self.storage is not LazyMemmapStorage:
            self.go_on_with(copy.deepcopy(self.buffer))

    def empty(self) -> None:
        """Begin again, now and then."""
        if self.chance.random() < 0.3:
            self.buffer.empty()
            self.rows, self.priorities, self.highest = [], [], 1.0
            self.cursor = self.write_count = 0

    # -- the model --------------------------------------------------------------------------

    @property
    def prioritized(self) -> bool:
        return self.sampler in (PrioritizedSampler, PrioritizedSliceSampler)

    def fresh(self) -> dict[str, Any]:
        """Make a transition whose every value says which one it is."""
        self.serial += 1
        over = self.chance.random() < 0.25
        row = {"serial": self.serial, "trajectory": self.trajectory, "over": over}
        self.trajectory += over
        return row

    def take(self, new: list[dict[str, Any]]) -> None:
        """Write rows to the ring."""
        for row in new:
            self.write_count += 1
            row["written"] = self.write_count
            if len(self.rows) < self.size:
                self.rows.append(row)
                self.priorities.append(0.0)
            self.rows[self.cursor] = row
            self.priorities[self.cursor] = self.highest
            self.cursor = (self.cursor + 1) % self.size

    def took_priorities(self, rows: list[int], values: list[float]) -> None:
        for row in set(rows):
            given = [value for one, value in zip(rows, values, strict=True) if one == row]
            self.priorities[row] = max(given)
        self.highest = max(self.highest, *values)

    def serial_of(self, row: int) -> int:
        serial: int = self.rows[row]["serial"]
        return serial

    def follows(self, row: int) -> bool:
        """Return True if a row goes on where the one before it in the ring ends."""
        if row == 0 and len(self.rows) < self.size:
            return False
        before, here = self.rows[row - 1], self.rows[row]
        if here["written"] != before["written"] + 1:
            return False
        by_id = "traj_key" in self.boundaries or not self.boundaries
        by_flag = "traj_key" not in self.boundaries
        same = here["trajectory"] == before["trajectory"]
        return (same or not by_id or not self.boundaries) and not (by_flag and before["over"])

    def starts(self) -> list[int]:
        """Return the rows at which a slice may begin."""
        runs: list[list[int]] = []
        in_time = sorted(range(len(self.rows)), key=lambda row: self.rows[row]["written"])
        for row in in_time:
            if not self.follows(row):
                runs.append([])
            runs[-1].append(row)
        found = []
        for one in runs:
            if len(one) >= self.length:
                found += one[: len(one) - self.length + 1]
            elif not self.strict:
                found.append(one[0])
        return found

    def drawn(self, draw: Any) -> Any:
        """Return what is drawn; None where nothing can be, which is said."""
        nothing = not self.starts() if self.sampler in SLICES else not self.rows
        if nothing:
            refuses(UsageError, draw)
            return None
        return draw()

    def go_on_with(self, other: TensorDictReplayBuffer) -> None:
        """Take another buffer from now on, which must give the batches that this one would."""
        for _ in range(2):
            one = self.drawn(self.buffer.sample)
            two = self.drawn(other.sample)
            if one is not None:
                assert (one["index"] == two["index"]).all()
                assert (one["serial"] == two["serial"]).all()
        self.buffer = other

    # -- comparisons ------------------------------------------------------------------------

    def check(self) -> None:
        """Compare counts and all rows."""
        assert len(self.buffer) == len(self.rows)
        assert self.buffer.write_count == self.write_count
        if self.rows:
            self.check_rows(self.buffer[:], list(range(len(self.rows))))

    def check_rows(self, batch: Any, rows: list[int]) -> None:
        assert batch["index"].tolist() == rows_mod(rows, len(self.rows))
        self.check_leaves(batch, rows_mod(rows, len(self.rows)))

    def check_leaves(self, batch: Any, rows: list[int]) -> None:
        factor = 2 if self.scaled else 1
        expected = tensors([self.rows[row] for row in rows])
        for key in ("serial", "value", ("meta", "id"), ("next", "reward")):
            np.testing.assert_array_equal(batch[key].numpy(), expected[key].numpy() * factor)

    def check_batch(self, batch: Any) -> None:
        rows = batch["index"].tolist()
        assert batch.batch_size == (len(rows),)
        self.check_leaves(batch, rows)
        if self.sampler in SLICES:
            self.check_slices(rows)
        if self.prioritized and not self.prefetch:
            self.check_weights(batch, rows)

    def check_slices(self, rows: list[int]) -> None:
        """Cut the batch into slices: each begins where one may, and goes on in its trajectory."""
        starts, position = set(self.starts()), 0
        while position < len(rows):
            assert self.prefetch or rows[position] in starts, (rows, starts)
            width = 1
            while width < self.length and position + width < len(rows):
                row = rows[position + width]
                if row != (rows[position] + width) % self.size or not self.follows(row):
                    break
                width += 1
            # Drawn ahead, it may be all there was of a trajectory that has gone on since.
            end = (rows[position] + width) % self.size
            short = self.prefetch or end == len(self.rows) or not self.follows(end)
            assert width == self.length or (not self.strict and short), rows
            position += width

    def check_weights(self, batch: Any, rows: list[int]) -> None:
        """Compare importance weights with their formula, over the rows that can be drawn."""
        weights = (np.array(self.priorities, np.float32) + np.float32(EPS)) ** np.float32(
            self.alpha
        )
        drawable, first = list(range(len(self.rows))), rows
        if self.sampler in SLICES:
            if not self.strict:
                return  # where a slice begins cannot be told from rows alone
            drawable = self.starts()
            first = np.repeat(rows[:: self.length], self.length).tolist()
        expected = (weights[first] / weights[drawable].min()) ** -self.beta
        np.testing.assert_allclose(batch["priority_weight"].numpy(), expected, rtol=1e-4)


def tensors(rows: list[dict[str, Any]]) -> TensorDict:
    """Make the transitions of the model's rows."""
    serial = torch.tensor([row["serial"] for row in rows])
    over = torch.tensor([row["over"] for row in rows])[:, None]
    return TensorDict(
        {
            "serial": serial,
            "value": serial[:, None] * torch.tensor([1.0, 0.5, -1.0]),
            "meta": {"id": torch.tensor([row["trajectory"] for row in rows])},
            "next": {"reward": serial[:, None] / 8, "done": over, "over": over.clone()},
        },
        batch_size=[len(rows)],
    )


def rows_mod(rows: list[int], count: int) -> list[int]:
    return [row % count for row in rows]


def refuses(kind: type[Exception], call: Any) -> None:
    """Assert that a call raises an error of a kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")
