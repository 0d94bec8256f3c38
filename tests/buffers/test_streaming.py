"""Streams: the rows of the converted dataset, each once an epoch, whoever reads and wherever it begins."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from offline_data.base.config import Settings, resolve_settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineError, UsageError
from offline_data.base.ids import parse_id
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.streaming import StreamingDataset
from offline_data.buffers.streaming.windows import Window
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.pipeline.ingest.stream import ShardReader
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.rows.derived import (
    action_chunk,
    frame_stack,
    n_step,
    normalize,
    relabel,
    return_to_go,
    timestep,
)
from offline_data.testing.toy import toy_batch, write_toy
from tests.refusals import Refusals
from tests.slow import slow_but
from tests.toys.rlds import write_toy_rlds
from tests.toys.servers import Fault, FileServer
from tests.toys.sharded import (
    PUBLISHED,
    served,
    shard_file,
    toy_length,
    write_toy_shards,
)
from tests.toys.webdataset import write_webdataset

from .conftest import PUBLIC

pytestmark = pytest.mark.usefixtures("shardtoy")

NAME = "sharded-6x3-lost3-images"
SHARD = 1 << 32
REFUSALS = Refusals(Path(__file__).with_name("streams.json"))
own_processes = pytest.mark.usefixtures("processes")


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer(served(NAME)) as running:
        yield running


@pytest.fixture
def settings(server: FileServer, tmp_path: Path) -> Settings:
    return Settings(tmp_path / "root", mirrors=((PUBLISHED, server.url),), minari_path=tmp_path)


Stream = Callable[..., StreamingDataset]


@pytest.fixture
def stream(server: FileServer, settings: Settings) -> Iterator[Stream]:
    """Make streams with windows of one or two of the source's batches; nothing of them is left.

    They are of files on the disk where `remote` is not set, which takes a tenth of the time.
    """
    made: list[StreamingDataset] = []
    folder = settings.root.parent / "raw"

    def make(
        batch_size: int | None = 4, name: str = NAME, *, remote: bool = False, **options: Any
    ) -> StreamingDataset:
        server.files.update(served(name))
        if not remote and not (folder / name).exists():
            write_toy_shards(folder / name, name)
        of = f"shardtoy:{name}" if remote else folder / name
        options = {"window_bytes": 300, "settings": settings, "source": "shardtoy", **options}
        made.append(StreamingDataset(of, batch_size, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    nothing_left(settings)


def nothing_left(settings: Settings) -> None:
    assert not list(settings.staging.glob("stream-*"))
    assert not [t for t in threading.enumerate() if "_make" in t.name]


@pytest.fixture
def converted(server: FileServer, settings: Settings) -> Dataset:
    options = Options(keep_raw=True)
    path = download(parse_id(f"shardtoy:{NAME}"), settings, options, executor=InProcess()).path
    return Dataset(path, decode_text=True)


def place(index: int) -> tuple[int, int]:
    return index // SHARD, index % SHARD


def codes(batches: Sequence[Any]) -> list[int]:
    """Return the number of each row, which its action has."""
    return [-int(code) for batch in batches for code in batch["action"][:, 0]]


def assert_same(found: Any, expected: Any) -> None:
    """Compare every leaf, dtype and shape; `index` and `episode` count in shards."""
    names = set(expected.keys(True, True))
    assert set(found.keys(True, True)) == names
    for key in names - {"index", "episode"}:
        one, other = found.get(key), expected.get(key)
        if isinstance(other, torch.Tensor):
            assert (one.dtype, one.shape) == (other.dtype, other.shape), key
            assert torch.equal(one, other), key
        else:
            assert one.tolist() == other.tolist(), key


def assert_epoch(batches: Iterable[Any], ds: Dataset) -> None:
    """Compare an epoch in order with the rows of the converted dataset that have a next one."""
    before = 0
    for batch in batches:
        assert_same(batch, ds[torch.as_tensor(ds.valid_rows[before : before + len(batch)])])
        before += len(batch)
    assert before == len(ds.valid_rows)


def test_without_shuffling_an_epoch_is_the_converted_dataset(
    stream: Stream, converted: Dataset
) -> None:
    batches = list(stream(4, shuffle=False))
    assert {len(batch) for batch in batches[:-1]} == {4}
    valid = converted.valid_rows
    found = torch.cat([batch["index"] for batch in batches])
    assert len(valid) < len(converted)
    assert_epoch(batches, converted)
    # rows and episodes count from 0 in each shard
    lengths = np.array([toy_length(n) for n in range(18)])
    rows = [s * SHARD + row for s in range(6) for row in range(lengths[3 * s : 3 * s + 3].sum())]
    assert found.tolist() == [rows[n] for n in valid]
    numbers = np.repeat([s * SHARD + e for s in range(6) for e in range(3)], lengths)
    assert torch.cat([batch["episode"] for batch in batches]).tolist() == numbers[valid].tolist()


@pytest.mark.parametrize("kind", ["rlds", "tars", "final steps"])
def test_robots(kind: str, tmp_path: Path, settings: Settings) -> None:
    """Open X-Embodiment streams what it converts: JPEG, 16 bits, ragged, nested actions, labels."""
    if kind == "tars":
        folder = write_webdataset(tmp_path / "raw", "toy", "bytes")
    else:
        folder = write_toy_rlds(tmp_path / "raw", final_step=kind == "final steps")
    split = None if kind == "tars" else "all"
    options = Options(split=split)
    path = convert(folder, "robots", settings, options, source="openx", executor=InProcess()).path
    ds = Dataset(path, decode_text=True)
    streamed = StreamingDataset(
        folder, 5, source="openx", shuffle=False, window_bytes=1, settings=settings, split=split
    )
    assert_epoch(streamed, ds)


def test_shuffling_gives_the_same_rows_in_another_order_each_epoch(stream: Stream) -> None:
    plain = codes(list(stream(4, shuffle=False)))
    shuffled = stream(4)
    first, second = codes(list(shuffled)), codes(list(shuffled))
    assert sorted(first) == sorted(second) == sorted(plain)
    assert first != second
    assert codes(list(stream(4))) == first
    assert codes(list(stream(4, seed=1))) != first
    other = stream(4)
    other.set_epoch(1)
    assert codes(list(other)) == second
    shards = [place(int(index))[0] for batch in stream(1) for index in batch["index"]]
    assert list(dict.fromkeys(shards)) != sorted(set(shards))  # not only rows in a window


def test_windows_are_shuffled_each_in_its_own_order(stream: Stream) -> None:
    orders: dict[int, list[int]] = {}
    one = stream(None)
    state = one.state_dict()
    for batch in one:
        before, state = state, one.state_dict()
        orders.setdefault(before["window"], []).append(int(batch["episode"][0]))
    pairs = [order for order in orders.values() if len(order) == 2]
    ascending = {a < b for a, b in pairs if place(a)[0] == place(b)[0]}
    assert len(pairs) > 3
    assert ascending == {False, True}


def test_slices_are_rows_of_one_episode(stream: Stream) -> None:
    batches = list(stream(6, num_slices=2, pad=True))
    assert [len(batch) for batch in batches] == [6] * 9
    episodes = []
    for batch in batches:
        for part in batch.reshape(2, 3):
            mask = part["collector", "mask"]
            steps = -part["action"][mask, 0]
            assert (steps.diff() == 1).all()
            assert len(part["episode"][mask].unique()) == 1
            end = part["next", "truncated"][mask][:, 0]
            assert end.tolist() == [False] * (len(end) - 1) + [True]
            assert part["next", "done"][mask][-1]
            assert not part["action"][~mask].any()
            assert not part["observation", "image"][~mask].any()
            assert part["observation", "mission"][-1] == (
                part["observation"]["mission"][-1] if mask.all() else None
            )
            episodes.append(int(part["episode"][0]))
            whole = toy_length(sum(np.array(place(episodes[-1])) * [3, 1]))
            assert mask.sum() == min(whole, 3)
    assert len(set(episodes)) == 18


def test_slices_begin_anywhere(stream: Stream) -> None:
    """TorchRL's never begin at the last row at which one fits."""
    one = stream(None, slice_len=3, strict_length=False)
    firsts = {
        int(-batch["action"][0, 0]) % 1000
        for _ in range(4)
        for batch in one
        if len(batch) == 3
        and toy_length(sum(np.array(place(int(batch["episode"][0]))) * [3, 1])) == 4
    }
    assert firsts == {1, 2}
    assert {len(batch) for batch in one} == {1, 2, 3}


def test_padding_has_the_value_that_is_asked_for(stream: Stream) -> None:
    [batch, *_] = stream(None, slice_len=9, pad=-1.0, shuffle=False)
    padding = ~batch["collector", "mask"]
    assert padding.tolist() == [False] + [True] * 8
    assert (batch["action"][padding] == -1).all()
    assert not batch["next", "done"][padding].any()
    assert not batch["observation", "image"][padding].any()


def test_whole_episodes_and_samples(stream: Stream) -> None:
    episodes = stream(None, shuffle=False)
    assert [len(batch) for batch in episodes] == [toy_length(n) for n in range(18)]
    sampled = stream(None, num_slices=2, pad=True)
    assert sampled.sample(6).shape == (6,)
    assert sampled.sample().shape == (6,)
    with pytest.raises(UsageError, match="batches of 6"):
        sampled.sample(4)
    endless = stream(8, drop_last=True)
    assert len({endless.sample()["index"].numpy().tobytes() for _ in range(20)}) == 20


def test_ranks_of_a_launcher_divide_the_rows(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torchrun sets them; `torch.distributed` comes first, and `ds.dataloader` does the same."""
    whole = sorted(codes(list(stream(4))))
    write_toy(tmp_path / "toy", [toy_batch([5, 4])])
    ds = Dataset(tmp_path / "toy")
    streams = [stream(4, equal=False) for _ in range(3)]
    parts, rows, of_group = [], [], []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank, one in enumerate(streams):
        monkeypatch.setenv("RANK", str(rank))
        assert (one.rank, one.world) == (rank, 3)
        sent = pickle.loads(pickle.dumps(one))  # noqa: S301 - as to a spawned worker
        parts.append(codes(list(one)))
        rows += [row for batch in ds.dataloader(2) for row in batch["index"].tolist()]
        with monkeypatch.context() as patch:
            patch.setattr(distributed, "is_initialized", lambda: True)
            patch.setattr(distributed, "get_rank", lambda: 1)
            patch.setattr(distributed, "get_world_size", lambda: 2)
            of_group.append((one.rank, one.world))
            assert (sent.rank, sent.world) == (rank, 3)
    assert all(parts)
    assert sorted(code for part in parts for code in part) == whole
    assert sorted(rows) == list(range(9))
    assert of_group == [(1, 2)] * 3
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(UsageError, match="RANK is '3' and WORLD_SIZE '3'"):
        next(iter(streams[0]))
    assert sorted(codes(list(stream(4, rank=0, world=1)))) == whole
    monkeypatch.delenv("RANK")
    assert sorted(codes(list(streams[0]))) == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*use of fork")
def test_surplus_workers_idle(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    expected = sorted(codes(list(stream(4))))
    loaders = [
        DataLoader(
            stream(4, rank=rank, world=2, equal=False),
            batch_size=None,
            num_workers=4,
            multiprocessing_context="fork",
            collate_fn=torch.nn.Identity(),
            worker_init_fn=warn_always,
        )
        for rank in range(2)
    ]
    for _ in range(2):
        parts = [codes(list(loader)) for loader in loaders]
        assert sorted(code for part in parts for code in part) == expected
        assert min(map(len, parts)) > len(expected) // 3
    said = capfd.readouterr().err
    assert said.count("6 shards: 3 of 4 workers read them") == 1


def warn_always(_worker: int) -> None:
    """Print warnings, which pytest records in the process that warns."""

    def show(message: Any, *_: Any) -> None:
        os.write(2, str(message).encode())

    warnings.simplefilter("always")
    warnings.showwarning = show  # type: ignore[assignment]


def test_some_leaves_images_as_bytes_and_a_transform(stream: Stream, converted: Dataset) -> None:
    keys: list[Any] = [("observation", "image"), "action", ("next", "observation", "image")]
    raw = Dataset(converted.data_path, keys=keys, decode=False)
    rows = torch.as_tensor(converted.valid_rows[:4])
    [batch, *_] = stream(4, shuffle=False, keys=keys, decode=False)
    assert_same(batch, raw[rows])
    assert batch["observation", "image"][0].startswith(b"\x89PNG")
    [batch, *_] = stream(4, keys=["action"], transform=lambda one: one["action"])
    assert batch.shape == (4, 1)


DERIVED: dict[str, Callable[[], Any]] = {
    "n_step": lambda: n_step(2, 0.5),
    "several": lambda: [n_step(3, 0.5), action_chunk(2), return_to_go(gamma=0.9), timestep()],
    "frames": lambda: frame_stack("observation.image", 3, cat_dim=0),
    "goals": lambda: relabel("final", 1, goal_key="goal", achieved_key="observation.image"),
    "normalize": lambda: normalize(["action"], {"action": ([3.0], [2.0])}, eps=0),
}


@pytest.mark.parametrize("name", slow_but({"several"}.__contains__, DERIVED))
def test_derived_leaves_are_those_of_the_converted_dataset(
    stream: Stream, converted: Dataset, name: str
) -> None:
    """Also for batches of two windows, for text, and for slices and what pads them."""
    on_disk = Dataset(converted.data_path, decode_text=True, derived=DERIVED[name]())
    assert_epoch(stream(4, shuffle=False, derived=DERIVED[name]()), on_disk)
    rows = {code: row for row, code in enumerate(codes([converted[:]]))}
    keys = set(on_disk[:1].keys(True, True)) - {"index", "episode"}
    slices = stream(6, num_slices=2, pad=-1.0, derived=DERIVED[name]())
    plain = stream(6, num_slices=2, pad=-1.0)
    for batch, same in zip(slices, plain, strict=True):
        mask = batch["collector", "mask"]
        assert mask.tolist() == same["collector", "mask"].tolist()
        own = on_disk[torch.tensor([rows[code] for code in codes([same[mask]])])]
        ends = {("next", "truncated"), ("next", "done")}  # of the slices
        for key in keys - ends:
            found, want = batch[key][mask], own[key]
            assert torch.equal(found, want) if isinstance(want, torch.Tensor) else found == want, (
                key
            )
        for key, leaf in batch[~mask].items(True, True):
            signed = leaf.dtype.is_signed and leaf.dtype != torch.bool
            assert (leaf == (-1 if signed else 0)).all(), key


def windows_in_memory() -> int:
    gc.collect()
    return sum(type(one) is Window for one in gc.get_objects())


def test_windows_are_freed_after_use(stream: Stream) -> None:
    """Also by functions that remember what they know of a storage."""
    derived, before = n_step(2, 0.5), windows_in_memory()
    assert len(list(stream(4, derived=derived))) > 3
    assert windows_in_memory() == before


def test_statistics_of_the_converted_dataset(stream: Stream, converted: Dataset) -> None:
    batch = next(iter(stream(4, shuffle=False, derived=normalize("action").fit(converted))))
    column = converted[:]["action"].double()
    scaled = (converted[:4]["action"].double() - column.mean(0)) / (column.std(0, False) + 1e-3)
    assert torch.allclose(batch["action"].double(), scaled, atol=1e-5)


@REFUSALS.cases
def test_refusals(kind: str, text: str, stream: Stream, settings: Settings, tmp_path: Path) -> None:
    def altered(state: dict[str, Any], **options: Any) -> None:
        stream(4, **options).load_state_dict(state)

    names = {"stream": stream, "settings": settings, "altered": altered, **PUBLIC}
    REFUSALS.check(kind, text, lambda: eval(text, names), {tmp_path: "FOLDER"})  # noqa: S307


def test_raw_files_of_two_shards_at_most_are_on_the_disk(
    stream: Stream, settings: Settings
) -> None:
    seen = [
        # Unlike the method, the function accepts folders that disappear meanwhile.
        {Path(name).name for name in glob(f"{settings.staging}/stream-*/raw/data-*")}  # noqa: PTH207
        for _ in stream(1, window_bytes=1, remote=True)
    ]
    assert {len(names) for names in seen} <= {0, 1, 2}
    assert len(set().union(*seen)) > 2
    assert not list(settings.downloads.rglob("*"))


def test_raw_files_that_are_here_are_read_and_stay(
    stream: Stream,
    server: FileServer,
    settings: Settings,
    converted: Dataset,
) -> None:
    before = sorted(settings.downloads.rglob("*"))
    asked = len(server.requests)
    assert sorted(codes(list(stream(4, remote=True)))) == sorted(codes(list(stream(4))))
    assert len(server.requests) == asked
    assert sorted(settings.downloads.rglob("*")) == before


def test_bad_episodes_are_left_out(stream: Stream) -> None:
    skipping = stream(4, "sharded-6x3-bad4", skip_bad_episodes=True)
    numbers = {code // 1000 - 1 for code in codes(list(skipping))}
    assert numbers == set(range(18)) - {13}
    assert [one.where for one in skipping.skipped] == [f"{shard_file(4, 6)}, line 2"]


@pytest.mark.parametrize(
    "name", ["sharded-6x3-empty4", "sharded-6x3-unknown", "sharded-6x3-overlap"]
)
def test_other_shards(stream: Stream, name: str) -> None:
    streamed = stream(4, name, remote="overlap" in name)
    numbers = {code // 1000 - 1 for code in codes(list(streamed))}
    assert numbers == set(range(18)) - ({12, 13, 14} if "empty" in name else set())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sharded-6x3-torn4", "Shard 'part 4'"),
        ("sharded-6x3-short4", "Shard 'part 4': it has 2 episodes, and 3 are stated"),
        ("sharded-6x3-wider4", "Shard 'part 4': .*expected"),
    ],
)
def test_damage_names_the_shard_after_what_came_before(
    stream: Stream, name: str, said: str
) -> None:
    batches = iter(stream(1, name, shuffle=False, window_bytes=1))
    got: list[Any] = []
    with pytest.raises(FormatError, match=said):
        got.extend(batches)  # which keeps what came
    assert len(codes(got)) >= sum(map(toy_length, range(11)))


@own_processes
@pytest.mark.slow
def test_a_crash_of_the_parser_names_the_shard(stream: Stream) -> None:
    with pytest.raises(FormatError, match=r"Shard 'part 4': .*SIGSEGV"):
        list(stream(4, "sharded-6x3-crash4", window_bytes=1 << 20))


def test_a_broken_connection_is_tried_again(stream: Stream, server: FileServer) -> None:
    server.script(f"/{NAME}/{shard_file(2, 6)}", Fault(cut_after=20))
    found = codes(list(stream(4, shuffle=False, remote=True)))
    assert found == codes(list(stream(4, shuffle=False)))
    names = [request.path for request in server.requests if shard_file(2, 6) in request.path]
    assert len(names) == 2


def child_processes() -> set[str]:
    """Return the numbers of this process's children, where the system lists them."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return set(children.read_text().split()) if children.exists() else set()


@own_processes
@pytest.mark.slow
def test_closing_ends_processes_threads_and_files(
    stream: Stream, server: FileServer, settings: Settings
) -> None:
    """Also while a host sends nothing more, and where the iteration is only forgotten."""
    before = child_processes()
    one = stream(1, window_bytes=1, remote=True)
    kept, dropped = iter(one), iter(one)
    next(kept)
    next(dropped)
    assert len(list(settings.staging.glob("stream-*"))) == 2
    del dropped
    gc.collect()
    assert len(list(settings.staging.glob("stream-*"))) == 1
    one.close()
    nothing_left(settings)
    with pytest.raises(UsageError, match="closed"):
        list(kept)
    server.always(f"/{NAME}/{shard_file(1, 6)}", Fault(stall_after=10))
    stalled = stream(1, shuffle=False, window_bytes=1, remote=True)
    next(iter(stalled))
    stalled.close()
    nothing_left(settings)
    assert child_processes() <= before


_PROGRAM = """
import sys
from pathlib import Path
from offline_data.base.ahead import Ahead
from offline_data.base.config import Settings
from offline_data.pipeline.ingest.stream import ShardReader, plan_stream
root, url, name = sys.argv[1:]
settings = Settings(Path(root), mirrors=(("http://toy.invalid/shards", url),))
pieces = Ahead(ShardReader(plan_stream(f"shardtoy:{name}", settings), settings).pieces(range(6)))
print(next(pieces).shard, flush=True)
if sys.stdin.readline() != "leave\\n":
    list(pieces)
"""


@own_processes
@pytest.mark.slow
def test_a_program_that_ends_leaves_nothing(
    stream: Stream, server: FileServer, settings: Settings
) -> None:
    name = "sharded-6x3-slow100"
    server.files.update(served(name))
    command = [sys.executable, "-c", _PROGRAM, str(settings.root), server.url, name]
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    programs: list[Any] = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]
    for program in programs:
        assert program.stdout.readline() == "0\n"
    left, interrupted, killed = programs
    interrupted.send_signal(signal.SIGINT)
    killed.kill()
    for program, said in [(left, "leave\n"), (interrupted, ""), (killed, "")]:
        program.communicate(said)
    assert left.returncode == 0
    assert len(list(settings.staging.glob("stream-*"))) == 1
    stream(4, remote=True)  # which deletes what the killed one left
    nothing_left(settings)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_divide_the_rows_and_epochs_differ(
    stream: Stream, settings: Settings, start: str
) -> None:
    one = stream(4)
    expected = sorted(codes(list(one)))
    assert pickle.loads(pickle.dumps(one)).epoch == 1  # noqa: S301 - our own
    assert len(pickle.dumps(stream(4, derived=DERIVED["several"]()))) < 100_000
    loader: DataLoader[Any] = DataLoader(
        stream(4),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=start,
        collate_fn=torch.nn.Identity(),
    )
    first, second = (codes(list(loader)) for _ in range(2))
    assert sorted(first) == sorted(second) == expected
    assert first != second
    nothing_left(settings)


@pytest.mark.parametrize("kind", ["raw files", "dataset"])
def test_what_is_on_this_disk(
    stream: Stream, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By each way of naming it; a path that exists comes before a name."""
    write_toy_shards(tmp_path / "out" / "toy", NAME)
    made = convert(tmp_path / "out" / "toy", "mine", settings, Options(), source="shardtoy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(settings.root))
    ways: list[Any] = ["out/toy", "./out/toy", Path("out/toy"), str(tmp_path / "out/toy")]
    if kind == "dataset":
        relative = made.path.relative_to(tmp_path)
        ways = ["local:mine", str(made.id), "mine", made.path, str(relative), relative]
    found = []
    for way in ways:
        source = "shardtoy" if kind == "raw files" else None
        with StreamingDataset(way, 3, settings=settings, source=source) as one:
            found.append(sorted(codes(list(one))))
    assert found == [sorted(codes(list(stream(4))))] * len(ways)
    with pytest.raises(NotFoundError, match="local:nine is not on this disk") as error:
        StreamingDataset("local:nine", 3, settings=settings)
    assert "local:mine" in str(error.value.hint)


@pytest.mark.parametrize("switch", ["OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE", "offline=True"])
def test_folders_that_are_mirrors_are_read_offline(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    write_toy_shards(tmp_path / "mirror" / NAME, NAME)
    monkeypatch.setenv("OFFLINE_DATA_MIRRORS", f"{PUBLISHED}={(tmp_path / 'mirror').as_uri()}")
    if switch != "offline=True":
        monkeypatch.setenv(switch, "1")
    offline = resolve_settings(root=tmp_path / "root", offline=switch == "offline=True" or None)
    assert offline.offline
    found = codes(list(stream(4, remote=True, settings=offline)))
    assert sorted(found) == sorted(codes(list(stream(4))))


def test_offline(stream: Stream, settings: Settings) -> None:
    """One error, without those that led to it, for the id that was given."""
    offline = replace(settings, offline=True)
    made = stream(4, remote=True)
    for read, hint in (
        (lambda: stream(4, remote=True, settings=offline), "did you mean shardtoy:sharded-6x3?"),
        (
            lambda: list(ShardReader(made.plan, offline).pieces([0])),
            "leave out offline=True where there is a network",
        ),
    ):
        with pytest.raises(OfflineError) as caught:
            read()
        assert caught.value.message == (
            f"{made.plan.id.partition('@')[0]} cannot be streamed in offline mode: its files are "
            "not on this disk"
        )
        assert caught.value.hint == hint
        assert caught.value.__suppress_context__
