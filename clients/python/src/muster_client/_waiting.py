"""The few calls that differ between the client with `await` and the one without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


async def sleep_async(seconds: float) -> None:
    """Waits, and lets other tasks run."""
    await anyio.sleep(seconds)


def sleep_sync(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


async def call_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls what blocks, such as reading a file, beside the event loop."""
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs))


def call_here(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function."""
    return function(*args, **kwargs)
