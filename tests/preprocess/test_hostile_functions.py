"""Whatever a function does, the command ends with one error that names it, and leaves nothing half made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.executors.local import LocalProcesses
from offline_data.testing.toy import toy_batch, write_toy


class Odd(BaseException):
    """Neither an Exception nor an exit."""


class Speechless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no text")


def raises(error: BaseException) -> Callable[[Any], Any]:
    def fn(_: Any) -> Any:
        raise error

    return fn


def endless(td: Any) -> Any:
    return endless(td)


def holds_itself(_: Any) -> Any:
    out: dict[str, Any] = {}
    out["self"] = out
    return out


FIRST = r"row 0 \(episode 0, step 0\)"

HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "os._exit": (lambda _: os._exit(0), rf"failed on {FIRST}: SystemExit: it calls os._exit\(0\)"),
    "late os._exit": (
        lambda td: os._exit(0) if td["index"].item() == 14 else td,
        r"failed on row 14 \(episode 3, step 2\): SystemExit: it calls os._exit\(0\)",
    ),
    "SystemExit": (raises(SystemExit(3)), f"failed on {FIRST}: SystemExit: 3"),
    "GeneratorExit": (raises(GeneratorExit()), f"failed on {FIRST}: GeneratorExit"),
    "BaseException": (raises(Odd("odd")), f"failed on {FIRST}: Odd: odd"),
    "without text": (raises(Speechless()), f"failed on {FIRST}: Speechless"),
    "MemoryError": (raises(MemoryError()), f"failed on {FIRST}: MemoryError"),
    "recursion": (endless, f"failed on {FIRST}: RecursionError"),
    "holds itself": (holds_itself, f"result for {FIRST} is nested without end"),
    "nested tensor": (
        lambda td: {"z": torch.nested.nested_tensor([td["action"], td["action"][:0]])},
        f"'z' for {FIRST} on device cpu.*: its values cannot be read",
    ),
    "huge": (
        lambda _: {"z": torch.zeros(1).expand(1 << 46)},
        rf"'z' as \[70368744177664\] for {FIRST}: .* rows of that do not fit into memory",
    ),
    "no text": (lambda td: {"\ud800": td["action"]}, rf"a leaf \('\\ud800',\) for {FIRST}"),
    "generator": (lambda td: (x for x in [td]), f"returned a generator for {FIRST}"),
    "ragged": (
        lambda td: {"z": torch.zeros(int(td["index"]) // 9 + 1)},
        r"'z' as float32 \[2\] for row 9 .*, and as float32 \[1\] before",
    ),
}


@pytest.fixture
def ds(tmp_path: Path) -> Any:
    write_toy(tmp_path / "toy", [toy_batch([4] * 4)])
    return offline_data.open_dataset(tmp_path / "toy")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("vectorize", ["auto", False])
@pytest.mark.parametrize("name", HOSTILE)
def test_one_error_that_names_the_row(ds: Any, tmp_path: Path, name: str, vectorize: Any) -> None:
    fn, message = HOSTILE[name]
    with pytest.raises(StepError, match=message) as error:
        ds.preprocess(fn, dest=tmp_path / "out", vectorize=vectorize)
    assert len(error.value.message.splitlines()) < 80
    assert not (tmp_path / "out").exists()
    assert os._exit.__name__ == "_exit", "it is as it was"


def test_in_a_process(ds: Any, tmp_path: Path) -> None:
    fn, message = HOSTILE["late os._exit"]
    with pytest.raises(StepError, match=message):
        ds.preprocess(fn, dest=tmp_path / "out", engine=LocalProcesses(2), chunksize=4)
    assert not (tmp_path / "out").exists()


def test_a_child_that_a_function_forks_may_end_so(ds: Any, tmp_path: Path) -> None:
    def fn(td: Any) -> Any:
        if td["index"].item() == 3:
            child = os.fork()
            if not child:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        return td

    ds.preprocess(fn, dest=tmp_path / "out", num_frames=4)
    assert len(offline_data.open_dataset(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    "fn",
    [
        lambda td: td.set("z", td["action"].as_subclass(type("Sub", (torch.Tensor,), {}))),
        lambda td: td.set("z", td["action"].clone().requires_grad_(True)),
        lambda td: td.set("z", torch.enable_grad()(lambda x: x.requires_grad_(True) * 1)(td["action"].clone())),
    ],
    ids=["subclass", "leaf", "graph"],
)  # fmt: skip
def test_odd_tensors_are_their_values(ds: Any, tmp_path: Path, fn: Any) -> None:
    ds.preprocess(fn, dest=tmp_path / "out")
    made = offline_data.open_dataset(tmp_path / "out")[:]
    assert torch.equal(made["z"], made["action"])
