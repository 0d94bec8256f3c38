"""What a function does while it is vectorised that may make it give something else there.

Under `torch.vmap` control flow cannot depend on values: asking for one raises. But a function may
catch that, read a tensor's text, or ask the clock; all of it happens for whatever rows it is given,
so that watching it once is enough.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import time
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_EACH = "_foreach_"
_TEXTS = {"__repr__", "__format__"}
_NOW = {"now", "today", "utcnow"}
_THREADS = {getattr(_thread, name, None) for name in ("start_new_thread", "start_joinable_thread")}


class Watch(TorchFunctionMode):
    """Notes what a function must not do under `torch.vmap`, and lets it do what it may.

    `torch._foreach_…`, of which tensordict makes its arithmetic and `clone`, has no rule there: it is
    done tensor by tensor.

    Example:
        >>> watch = Watch()
        >>> with watch:
        ...     _ = str(torch.ones(1))
        >>> watch.found
        'it reads the text of tensors'
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        """Why the function cannot be run so; empty: nothing was seen."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Call a function of torch's."""
        name = getattr(func, "__name__", "")
        if name in _TEXTS:
            self.found = self.found or "it reads the text of tensors"
        try:
            if name.startswith(_EACH):
                return _one_by_one(name, args, kwargs or {})
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.found = self.found or reason(error)
            raise


@contextmanager
def watched(found: list[str]) -> Iterator[None]:
    """Note what torch's functions do not tell.

    Calls that ask for the time, or for random numbers that nobody seeded; threads; errors of torch's
    compiled code, also where they are caught. Nothing is noted where a profiler, or a debugger, runs
    already.

    Args:
        found: Gets a sentence for each.

    Example:
        >>> with watched(found := []):
        ...     _ = time.time()
        >>> found
        ['it asks for the time']
    """

    def profile(_: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (why := _impure(called)):
            found.append(why)

    def trace(frame: FrameType, event: str, raised: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and issubclass(raised[0], RuntimeError):
            found.append(reason(raised[1]))
        return trace

    profiles, traces = sys.getprofile() is None, sys.gettrace() is None
    try:
        if profiles:
            sys.setprofile(profile)
        if traces:
            sys.settrace(trace)
        yield
    finally:
        if traces:
            sys.settrace(None)
        if profiles:
            sys.setprofile(None)


def reason(error: BaseException) -> str:
    """Say in few words why `vmap` refused.

    Example:
        >>> reason(RuntimeError("vmap: called random operation while in randomness error mode"))
        'it draws random numbers'
    """
    text = str(error)
    if "control flow" in text or ".item()" in text or "data-dependent" in text:
        return "it looks at values to decide what to do"
    if "dynamic" in text or "equal size" in text or "masked_select" in text:
        return "the shape of a result depends on values"
    if "randomness" in text:
        return "it draws random numbers"
    if "data pointer" in text or "storage" in text or "numpy" in text:
        return "it leaves torch, for example for numpy"
    first = text.strip().split("\n")[0].split(". ")[0]
    return f"torch.vmap refuses it: {type(error).__name__}: {first[:120]}"


def _impure(called: Any) -> str:
    owner = getattr(called, "__self__", None)
    if owner is time or (
        isinstance(owner, type) and issubclass(owner, date) and called.__name__ in _NOW
    ):
        return "it asks for the time"
    if called in _THREADS:
        return "it starts threads"
    if isinstance(owner, random.Random) or called in (os.urandom, getattr(os, "getrandom", None)):
        return "it draws random numbers"
    return ""


def _one_by_one(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do `torch._foreach_NAME` tensor by tensor; lists are gone through together."""
    base = name[len(_EACH) :]
    one: Callable[..., Any] = getattr(torch, base, None) or getattr(torch.Tensor, base)
    one = torch.linalg.vector_norm if base == "norm" else one
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))

    def at(value: Any, i: int) -> Any:
        return value[i] if isinstance(value, (list, tuple)) else value

    return [
        one(*(at(arg, i) for arg in args), **{key: at(arg, i) for key, arg in kwargs.items()})
        for i in range(count)
    ]
