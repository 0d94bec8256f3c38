"""The executor on Ray: a cluster of two nodes, and what is asked of Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import offline_data
from offline_data.base.errors import (
    AuthError,
    MissingDependencyError,
    NetworkError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.progress import SILENT
from offline_data.pipeline.jobs import ray as ray_executor
from offline_data.pipeline.jobs.processes.protocol import dumps
from offline_data.pipeline.jobs.ray import RayExecutor, connect
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.jobs.executors.jobs import only_here, sleepers
from tests.pipeline.jobs.executors.ray_cluster import RayCluster, two_nodes
from tests.pipeline.jobs.processes.waiting import wait_for_end, wait_until
from tests.pipeline.preprocess.runs import Notes


def on_ray(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts a Ray, or connects to one."""
    for mark in (pytest.mark.ray, pytest.mark.slow):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with two_nodes() as started:
        yield started


@pytest.fixture
def connected(cluster: RayCluster) -> Iterator[Any]:
    """The package, in a process that is connected to the cluster."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@on_ray
def test_tasks_run_on_every_node(cluster: RayCluster, tmp_path: Path) -> None:
    offset = 100

    def job(task: int) -> tuple[int, str]:
        import time

        import ray

        node = ray.get_runtime_context().get_node_id()
        (tmp_path / node).touch()
        while len(list(tmp_path.iterdir())) < 2:  # a node keeps its CPU until both have a task
            time.sleep(0.01)
        return task * task + offset, node

    tasks = [3, 5, 7, 11, 13, 17, 19]
    answers = dict(RayExecutor(cluster.address).run(job, tasks, SILENT))
    assert {number: value for number, (value, _) in answers.items()} == {
        0: 109, 1: 125, 2: 149, 3: 221, 4: 269, 5: 389, 6: 461,
    }  # fmt: skip
    used = {node for _, node in answers.values()}
    assert used <= set(cluster.nodes)
    assert len(used) >= 2


@on_ray
def test_a_cluster_named_by_the_environment_is_used_and_twice(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    def job(task: int) -> tuple[int, str]:
        return -task, ray.get_runtime_context().gcs_address

    executor = RayExecutor()
    for tasks in ([4, 6], [8]):
        assert sorted(executor.run(job, tasks, SILENT)) == [
            (number, (-task, cluster.address)) for number, task in enumerate(tasks)
        ]
        assert not ray.is_initialized()


@on_ray
def test_modules_are_found_where_they_are_found_here(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_this_path.py").write_text("def triple(x):\n    return 3 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_on_this_path  # type: ignore[import-not-found]

    answers = RayExecutor(cluster.address).run(only_on_this_path.triple, [2, 9], SILENT)
    assert sorted(answers) == [(0, 6), (1, 27)]


@on_ray
def test_a_module_that_the_nodes_lack_is_named(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = only_here(monkeypatch, "only_in_this_process", "def f(x):\n    return x")
    with pytest.raises(MissingDependencyError, match="only_in_this_process") as raised:
        list(RayExecutor(cluster.address).run(module.f, [1], SILENT))
    assert raised.value.hint == "install the same packages on every node of the cluster"
    assert "in run_on_worker" in str(raised.value.__cause__)


@on_ray
def test_a_node_without_this_package_is_named(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def answer(function, request):\n    return b''"
    module = only_here(monkeypatch, "offline_data_is_not_there", code)
    monkeypatch.setattr(ray_executor, "answer_in_pool", module.answer)
    with pytest.raises(
        OfflineDataError, match=r"(?s)could not run task 1:.*is_not_there"
    ) as raised:
        list(RayExecutor(cluster.address).run(abs, [1], SILENT))
    assert raised.value.shell_hint == "offline-data must be installed on every node of the cluster"
    assert "\x1b" not in str(raised.value)


@on_ray
def test_closing_ends_what_is_under_way(connected: Any, tmp_path: Path) -> None:
    answers = RayExecutor().run(sleepers(tmp_path), range(9), SILENT)
    assert next(answers) == (0, 0)
    # Ray may let a task go on that is cancelled while it is sent to a worker.
    wait_until(lambda: len([*tmp_path.glob("[1-9].pid")]) == 2)
    answers.close()  # type: ignore[attr-defined]
    wait_until(lambda: connected.available_resources().get("CPU") == 2)
    started = set(tmp_path.glob("[1-9].pid"))
    assert started
    wait_for_end([int(path.read_text()) for path in started])
    time.sleep(1)  # nothing that was queued may start now
    assert set(tmp_path.glob("[1-9].pid")) == started


@on_ray
def test_a_ray_that_is_connected_is_used_and_left(connected: Any, cluster: RayCluster) -> None:
    def job(task: int) -> tuple[int, str]:
        import ray

        return task + 5, ray.get_runtime_context().get_job_id()

    here = connected.get_runtime_context().get_job_id()
    for address in (None, "auto", cluster.address):
        assert list(RayExecutor(address).run(job, [2], SILENT)) == [(0, (7, here))]
        assert connected.get_runtime_context().get_job_id() == here
    assert connected.get(connected.put(6)) == 6
    with pytest.raises(UsageError, match=f"connected to the Ray at {cluster.address}, and 'local'"):
        list(RayExecutor("local").run(job, [2], SILENT))


@on_ray
def test_workers_bound_what_is_under_way(connected: Any) -> None:
    def job(task: int) -> tuple[float, float]:
        import time

        begin = time.time()
        time.sleep(0.1)
        return begin, time.time()

    spans = sorted(span for _, span in RayExecutor(workers=1).run(job, range(6), SILENT))
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


@on_ray
def test_a_ray_is_started_and_ended_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    def job(task: int) -> tuple[int, int, str | None]:
        import os
        import signal
        from contextlib import suppress

        import ray

        os.write(1, b"from a worker")
        with suppress(FileExistsError):  # one of the two that run at once
            (tmp_path / "died").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        threads = os.environ.get("OMP_NUM_THREADS")
        return task * 3, int(ray.cluster_resources()["CPU"]), threads

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        progress = Notes()
        executor = RayExecutor("local", workers=2, worker_threads=3)
        assert sorted(executor.run(job, [5, 6, 7], progress)) == [
            (0, (15, 6, "3")), (1, (18, 6, "3")), (2, (21, 6, "3")),
        ]  # fmt: skip
        assert signal.getsignal(signal.SIGTERM) is on_sigterm
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(progress.notes) == 1
    assert not ray.is_initialized()
    told = capfd.readouterr()
    assert told.out == ""  # it is the program's, which may print JSON
    assert all(line.startswith("\x1b[33m(raylet)") for line in told.err.splitlines())


def on_sigterm(number: int, frame: object) -> None: ...


@pytest.mark.ray
@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("127.0.0.1:1", NetworkError, "No Ray cluster answers at 127.0.0.1:1: "),
        ("ray://127.0.0.1:1", NetworkError, "No Ray cluster answers at ray://127.0.0.1:1: "),
        ("127.0.0.1:99999", NetworkError, "No Ray cluster answers at 127.0.0.1:99999: "),
        ("nonsense", UsageError, "Ray cannot use the address 'nonsense'"),
    ],
)
def test_an_address_that_is_none(address: str, error: type[Exception], words: str) -> None:
    pytest.importorskip("ray")
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error, match=words):
        list(RayExecutor(address).run(abs, [1], SILENT))
    assert signal.getsignal(signal.SIGTERM) is handler


class TokenError(RuntimeError):
    """Ray's error for a wrong token, which older versions do not have."""


UNREACHABLE = "Ray cannot be reached or started, address 'auto': it said so"


@pytest.mark.parametrize(
    ("raised", "kinds", "error", "told"),
    [
        (OSError, {}, NetworkError, UNREACHABLE),
        (RuntimeError, {"AuthenticationError": TokenError}, NetworkError, UNREACHABLE),
        (TokenError, {}, NetworkError, UNREACHABLE),
        (
            *(TokenError, {"AuthenticationError": TokenError}, AuthError),
            "The Ray cluster at 'auto' refused authentication: it said so",
        ),
    ],
)
def test_a_cluster_that_cannot_be_used(
    raised: type[Exception], kinds: Any, error: type[OfflineDataError], told: str
) -> None:
    def init(**options: object) -> None:
        assert (options["address"], options["namespace"]) == ("auto", "ours")
        raise raised("it said so")

    ray = SimpleNamespace(
        is_initialized=lambda: False, init=init, exceptions=SimpleNamespace(**kinds)
    )
    with pytest.raises(error) as caught, connect(ray, "auto", cpus=None, namespace="ours"):
        pass
    assert caught.value.message == told


@pytest.mark.ray
def test_without_tasks_nothing_is_started() -> None:
    ray = pytest.importorskip("ray")
    assert list(RayExecutor("127.0.0.1:1").run(abs, [], SILENT)) == []
    assert not ray.is_initialized()


@pytest.mark.ray
def test_a_job_that_cannot_be_sent_is_refused() -> None:
    pytest.importorskip("ray")
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        RayExecutor().run(lambda task: (lock, task), [1], SILENT)


class CountingRay:
    """Ray's interface as far as tasks need it; runs each when it is waited for."""

    def __init__(self, cpus: int, errors: dict[bytes, list[Exception]] | None = None) -> None:
        self.cpus = cpus
        self.errors = errors or {}
        self.most = 0
        self.ended: list[object] = []
        self.missed: list[object] = []
        kinds = ("RayError", *ray_executor._LOSSES)
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in kinds})

    def remote(self, **options: object) -> Callable[[Any], Any]:
        self.options = options
        return lambda function: SimpleNamespace(remote=partial(partial, function))

    def put(self, value: object) -> object:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def is_initialized(self) -> bool:
        return True

    def cancel(self, sent: object, *, force: bool) -> None:
        self.ended.append(("cancel", sent, force))

    def wait(self, sent: list[Any], num_returns: int = 1, timeout: float | None = None) -> Any:
        if timeout is not None:
            self.ended.append(("wait", *sent, num_returns))
            missed, self.missed = self.missed, []
            return [x for x in sent if x not in missed], missed
        self.most = max(self.most, len(sent))
        return sent[-1:], sent[:-1]  # in an order that is not that of the tasks

    def get(self, sent: partial[object]) -> object:
        waiting = self.errors.get(sent.args[1])
        if waiting:
            raise waiting.pop()
        return sent()


def flight(ray: CountingRay, tasks: list[int], cpus: int = 1, retries: int = 1) -> Any:
    function = dumps(lambda task: task + 0.5)
    return ray_executor._RayRun(ray, function, tasks, cpus=cpus, retries=retries)


@pytest.mark.parametrize(("cpus", "each", "most"), [(3, 1, 6), (8, 2, 8), (0, 1, 2)])
def test_twice_as_many_tasks_are_under_way_as_can_run(cpus: int, each: int, most: int) -> None:
    ray = CountingRay(cpus)
    answers = list(flight(ray, list(range(1, 21)), cpus=each).answers(None, SILENT))
    assert sorted(answers) == [(n, n + 1.5) for n in range(20)]
    assert ray.most == most
    assert ray.options == {"num_cpus": each, "max_retries": 0, "scheduling_strategy": "SPREAD"}


def test_what_is_cancelled_is_waited_for() -> None:
    ray = CountingRay(2)
    cancelled = flight(ray, list(range(1, 21)))
    assert next(cancelled.answers(None, SILENT)) == (3, 4.5)
    pending = list(cancelled._under_way)
    assert len(pending) == 3
    ray.missed = pending[1:2]
    cancelled.cancel()
    assert ray.ended == [
        *(("cancel", sent, True) for sent in pending),
        ("wait", *pending, 3),
        ("cancel", pending[1], True),
        ("wait", pending[1], 1),
    ]
    cancelled.cancel()
    assert len(ray.ended) == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WorkerCrashedError", "a Ray worker died"),
        ("OutOfMemoryError", "a Ray worker was ended, because memory was short,"),
        ("NodeDiedError", "a Ray node was lost"),
        ("ObjectLostError", "a Ray node was lost"),
        ("LocalRayletDiedError", "a Ray node was lost"),
    ],
)
def test_it_is_said_what_was_lost(name: str, words: str) -> None:
    ray = CountingRay(1)
    ray.errors = {dumps(41): [getattr(ray.exceptions, name)()]}
    progress = Notes()
    answers = list(flight(ray, [40, 41, 42]).answers(None, progress))
    assert sorted(answers) == [(0, 40.5), (1, 41.5), (2, 42.5)]
    assert progress.notes == [f"{words} while it ran task 2 of 3; running it again"]


LENGTHS = [7, 3, 12, 1, 9, 5, 8, 4] * 3


def doubling(home: Path, lost: str | None = None, *, dies: bool = False) -> Callable[[Any], Any]:
    """Make a function of a row that says where it ran.

    If it `dies`, it ends its process once; on the node `lost` it never returns, and elsewhere it waits
    until that node has a task.
    """
    driver = os.getpid()

    def fn(td: Any) -> Any:
        (home / f"ran-{os.getpid()}").touch()
        ended = home / "ended"
        if dies and int(td["index"]) == 60 and not ended.exists():
            ended.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if lost is not None and os.getpid() != driver and not ended.exists():
            import ray

            if ray.get_runtime_context().get_node_id() == lost:
                ended.touch()
                time.sleep(600)
            while not ended.exists():
                time.sleep(0.01)
        td["next", "reward"] = td["next", "reward"] * 2
        td["action"] = td["action"] + 1
        return td

    return fn


@on_ray
@pytest.mark.parametrize("loss", ["worker", "node"])
def test_a_recipe_on_nodes_gives_the_same_bytes_whatever_is_lost(tmp_path: Path, loss: str) -> None:
    parent = tmp_path / "parent"
    write_toy(parent, [toy_batch(LENGTHS, text=True, images=True, unknown_final=(1,))])
    dataset = offline_data.open_dataset(parent)
    here, there = tmp_path / "here", tmp_path / "there"
    for home in (here, there):
        home.mkdir()
    dataset.preprocess(doubling(here), dest=tmp_path / "a", root=tmp_path)
    notes = Notes()
    with two_nodes() as cluster, cluster.another_node() as added, ThreadPoolExecutor(1) as pool:

        def lose_node() -> None:
            if loss == "node":
                wait_until((there / "ended").exists)
                added.lose()

        losing = pool.submit(lose_node)
        dataset.preprocess(
            doubling(there, added.id if loss == "node" else None, dies=loss == "worker"),
            dest=tmp_path / "b",
            root=tmp_path,
            vectorize=False,
            num_chunks=8,
            engine=RayExecutor(cluster.address),
            progress=notes,
        )
        losing.result()
    assert (there / "ended").exists()
    assert any(f"a Ray {loss}" in note for note in notes.notes), notes.notes
    workers = {path.name for path in there.glob("ran-*")} - {f"ran-{os.getpid()}"}
    assert len(workers) >= 2  # the one that was lost, and others; not this process
    one, manifest = (open_reader(tmp_path / name).manifest for name in "ab")
    assert one.digests == manifest.digests
    assert verify(tmp_path / "b") == ()
    assert manifest.counts["transitions"] == sum(LENGTHS)
