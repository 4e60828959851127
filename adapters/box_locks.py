"""Locks on files beside a folder: a lock lives exactly as long as whoever inherited its descriptor.

Fences do not protect files (architecture, "Leases"): whoever takes over a repository first needs the workspace's
lock. It is a ``flock``, so it belongs to the open file, which the box's init keeps open; closing our own
descriptor does not release it while the box lives, and nothing has to be cleaned up after a crash. A service that
has started a box gives up its own share (``close``), so that a holder that hangs can be taken over by killing its
box; it takes the lock again for what it does afterwards.
"""

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from adapters.box_identity import Identity, kill_recorded
from domain.faults import Conflict

_POLL_SECONDS = 0.05


class WorkspaceLock:
    """A held lock. ``fileno()`` is what a box inherits; ``close()`` gives up our own share of it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The open descriptor; raises ``ValueError`` after ``close``."""
        if self._descriptor < 0:
            raise ValueError("the lock was given up")
        return self._descriptor

    def close(self) -> None:
        """Give up our share; a box that inherited the lock keeps it until it ends."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_file(path: Path) -> Path:
    """Where the lock of a folder lies: beside it, so that nobody who works inside can reach it."""
    return path.parent / f".{path.name}.lock"


async def lock_workspace(path: Path, timeout: float = 10.0) -> WorkspaceLock:  # noqa: ASYNC109 - tries, then says who
    """Take the lock of the folder ``path`` (which need not exist yet), waiting up to ``timeout`` seconds.

    Raises ``Conflict`` (``workspace_locked``) if somebody else keeps it.
    """
    beside = lock_file(path)
    beside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return WorkspaceLock(beside, descriptor)
            if loop.time() >= end:
                raise Conflict(  # noqa: TRY301 - the descriptor is closed for every way out
                    "Another run, or a box that a former run left behind, still works in this folder.",
                    code="workspace_locked",
                )
            await asyncio.sleep(_POLL_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise


async def takeover(path: Path, former: Identity | None, timeout: float = 10.0) -> WorkspaceLock:  # noqa: ASYNC109 - see above
    """Kill the recorded box of a former holder, if it still lives, and take the folder's lock.

    Raises ``Conflict`` (``workspace_locked``) where the box can't be proved to be the recorded one, or outlives it.
    """
    if former is not None:
        await kill_recorded(former, timeout=timeout)
    return await lock_workspace(path, timeout)
