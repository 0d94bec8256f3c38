"""Hostile states: checkpoints of buffers, of mixtures and ensembles, and states of samplers."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

from offline_data.base.json import as_unicode
from tests.fuzz.cases import generator, instead, one_thread, refused, spoil_file
from tests.fuzz.described_kinds import rewritten
from tests.fuzz.harness import Kind, Plan
from tests.fuzz.mutations import spoil_bytes, spoil_json

COMBINED = ("ensemble", "mixture")
FILES = ("state.json", "state.bin")


def prepare_state(seed: int, _folder: Path) -> Plan:
    """Nothing but the seed: states are made and changed by the driver."""
    return Plan(((str(seed),),), (frozenset({0, 5}),), publishes=False)


def run_checkpoint(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Load a changed checkpoint of a buffer."""
    from tests.buffers.test_damaged_checkpoints import BUFFERS

    kinds = [kind for kind in BUFFERS if kind not in COMBINED]
    return _run_files("checkpoint", kinds, int(line[0]), folder)


def run_mixture(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Load a changed checkpoint of a mixture or an ensemble."""
    return _run_files("mixture", COMBINED, int(line[0]), folder)


def _run_files(name: str, kinds: Any, seed: int, folder: Path) -> int:
    from tests.buffers.test_damaged_checkpoints import filled, sealed

    one_thread()
    random = generator(name, seed)
    kind = random.choice(kinds)
    state = folder / "case" / "root" / "state"
    state.parent.mkdir(exist_ok=True)
    filled(kind, 18, 0).dumps(state)
    path = state / random.choice(FILES)
    before = path.read_bytes()
    how = random.choice(("none", "bytes", "bytes", "file", "values", "values", "rewritten"))
    text = state / "state.json"
    if how == "bytes":
        path.write_bytes(spoil_bytes(random, before, head=400))
    elif how == "file":
        (instead if random.random() < 0.5 else spoil_file)(random, path)
    elif how in {"values", "rewritten"}:
        value = json.loads(text.read_text())
        value = spoil_json(random, value) if how == "values" else value
        value = value if isinstance(value, dict) else {"tree": value}
        value = json.loads(as_unicode(json.dumps(value, ensure_ascii=False)))
        text.write_bytes(sealed(value) if how == "values" else _formed(random, value))
    same = how in {"none", "rewritten"} or (path.is_file() and path.read_bytes() == before)
    must = "load" if same and how != "values" else "" if how == "values" else "refuse"
    return _load(random, kind, must, lambda buffer: buffer.loads(state))


def _formed(random: Random, value: dict[str, Any]) -> bytes:
    """Return the text of the same state in another form, with the digest that it should have."""
    value["sha256"] = "0" * 64
    text = rewritten(random, value, [value])
    while not text.endswith('0"}'):  # where the digest stands is part of the format
        text = rewritten(random, value)
    data = text.encode()
    return data[:-66] + hashlib.sha256(data).hexdigest().encode() + data[-2:]


def run_sampler(_folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Give a buffer a changed state of its sampler, or of any other part."""
    from tests.buffers.test_damaged_checkpoints import BUFFERS, filled, spoiled

    one_thread()
    random = generator("sampler", int(line[0]))
    kind = random.choice([*BUFFERS])
    state = copy.deepcopy(filled(kind, 18, 0).state_dict())
    changes = random.choice((0, 1, 1, 1, 2, 3))
    for _ in range(changes):
        state = spoiled(state, random)
    return _load(random, kind, "" if changes else "load", lambda b: b.load_state_dict(state))


def _load(random: Random, kind: str, must: str, load: Any) -> int:
    """Load into a buffer of other rows: all of it, or none of it with a sentence."""
    from offline_data.base.errors import OfflineDataError
    from tests.buffers.test_damaged_checkpoints import BUFFERS, batches, content, filled

    empty = random.random() < 0.3
    target, untouched = (BUFFERS[kind]() if empty else filled(kind, 12, 100) for _ in range(2))
    right = filled(kind, 18, 0)
    try:
        load(target)
    except OfflineDataError as error:
        if must == "load":
            raise
        if not empty:
            assert content(target) == content(untouched), "it was changed"
            assert batches(target) == batches(untouched), "it draws other batches"
        return refused(error)
    assert must != "refuse", "a damaged state was loaded"
    if must == "load":
        assert content(target) == content(right), "the rows are others"
        assert batches(target) == batches(right), "the batches are others"
        return 0
    try:
        for _ in range(4):  # an empty buffer has the leaves that a state says
            target.sample()
    except OfflineDataError as error:
        return refused(error)
    return 0


def run_recording(folder: Path, _number: int, line: tuple[str, ...]) -> int:
    """Continue a recording whose log was changed: episodes that were played, or an error."""
    from offline_data import Recorder
    from offline_data.base.errors import OfflineDataError
    from offline_data.store.reader import open_reader
    from tests.pipeline.record.games import Game, ended

    random = generator("recording", int(line[0]))
    root = folder / "case" / "root"
    games = Game(), Game(first=7)
    env = Recorder(games[0], "x", root=root, progress=False)
    for number in range(5):
        env.reset(seed=number)
        while not any(env.step(number % 3)[2:4]):
            pass
        env.mark(won=number == 2, word="é")
    env._held.close()  # as at a kill
    (log,) = (root / ".recordings").glob("*.log")
    before = log.read_bytes()
    how = random.choice(("none", "bytes", "bytes", "file", "values", "values", "values"))
    if how == "bytes":
        log.write_bytes(spoil_bytes(random, before, head=1200))
    elif how == "file":
        (instead if random.random() < 0.5 else spoil_file)(random, log)
    elif how == "values":
        records = before.split(_MAGIC)[1:]
        place = random.randrange(len(records))
        records[place] = _spoil_record(random, records[place])
        log.write_bytes(b"".join(_MAGIC + record for record in records))
    try:
        with Recorder(games[1], "x", root=root, resume=True, progress=False) as env:
            env.reset()
            while not any(env.step(0)[2:4]):
                pass
    except OfflineDataError as error:
        if how == "none":
            raise
        return refused(error)
    if how != "values":
        rewards = [game.rewards for game in ended(*games)]
        reader = open_reader(env.stored.path)
        batches = (reader.episode_batch(n, n + 1) for n in range(reader.episode_count))
        found = [batch.steps["next", "reward"][:, 0].tolist() for batch in batches]
        kept = iter(rewards)
        assert all(one in kept for one in found), "it has other episodes"
        assert how != "none" or found == rewards
    return 0


_MAGIC = b"\x93odrec\r\n"


def _spoil_record(random: Random, record: bytes) -> bytes:
    """Return a record of a log with another head or body, and the checksum that it should have."""
    head, _, body = record[12:].partition(b"\n")
    if random.random() < 0.8:
        value = spoil_json(random, json.loads(head))
        head = json.dumps(value).encode() if random.random() < 0.95 else b"[" * 100_000
    else:
        body = spoil_bytes(random, body or b"x")
    data = struct.pack("<Q", len(head) + 1 + len(body)) + head + b"\n" + body
    return struct.pack("<I", zlib.crc32(data)) + data


STATE_KINDS = (
    Kind("checkpoint", prepare_state, run=run_checkpoint, batch=20),
    Kind("mixture", prepare_state, run=run_mixture, batch=20),
    Kind("sampler", prepare_state, run=run_sampler, batch=20),
    Kind("recording", prepare_state, run=run_recording, batch=20),
)
