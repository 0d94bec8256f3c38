"""A real Ray of two nodes on this machine, for tests of whatever runs on it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

# Ray 2.60 asks for tokens by default, and writes one to the user's home. A process reads the mode
# once: nodes that it starts in another mode refuse it.
os.environ["RAY_AUTH_MODE"] = "disabled"

OBJECT_STORE = 80 << 20
"""Bytes of shared memory a node: about the least that Ray accepts."""


@dataclass(frozen=True)
class RayCluster:
    """Nodes that this process has started, and is not connected to."""

    address: str
    """For `RayExecutor`."""
    nodes: tuple[str, ...]
    """Ids of the nodes, as `ray.get_runtime_context().get_node_id()` gives them there."""
    handle: Any
    """The `ray.cluster_utils.Cluster`."""

    @contextmanager
    def another_node(self) -> Iterator[RayNode]:
        """One node more, until the end or until it is lost."""
        added = RayNode(self.handle, _add_node(self.handle, **_size(1)))
        try:
            yield added
        finally:
            added.lose()


class RayNode:
    """A node that can be lost as a machine is: all its processes at once."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.id = str(node.node_id)
        self._cluster = cluster
        self._node = node

    def lose(self) -> None:
        if self._node in self._cluster.worker_nodes:
            self._cluster.remove_node(self._node, allow_graceful=False)


@contextmanager
def two_nodes(cpus: int = 1) -> Iterator[RayCluster]:
    """Start two nodes of `cpus` CPUs each; a test without the ray package is skipped."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # Sockets lie in there: their names must be shorter than pytest's own folders are.
    folder = tempfile.mkdtemp(prefix="ray-")
    head = {"include_dashboard": False, "temp_dir": folder, **_size(cpus)}
    cluster = Cluster()
    try:
        _add_node(cluster, **head)
        _add_node(cluster, **_size(cpus))
        nodes = tuple(node.node_id for node in cluster.list_all_nodes())
        yield RayCluster(cluster.address, nodes, cluster)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _add_node(cluster: Any, **options: Any) -> Any:
    """Start a node; Ray gives one 30 seconds, which are too few on a busy machine."""
    for _ in range(2):
        with suppress(Exception):
            node = cluster.add_node(wait=False, **options)
            break
    else:
        node = cluster.add_node(wait=False, **options)
    cluster.wait_for_nodes(timeout=120)
    return node


def _size(cpus: int) -> dict[str, int]:
    return {"num_cpus": cpus, "object_store_memory": OBJECT_STORE}
