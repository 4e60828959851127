"""What a box uses as a whole, looked at while it runs: processes, what it writes, and what is left of the disk.

The kernel limits each process alone (rlimits), and a service that runs as root can't even limit their number. So
each box is looked at twice a second, and ended whole where it uses more than ``Limits`` allow. Between two looks it
can use more. Everything that a box starts descends from its root, and a file's change time can't be set by who
writes it; so neither count can be talked down. Files that are open but have no name are not found; ``free_bytes``
bounds those.
"""

import asyncio
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from adapters.box_identity import Identity
from adapters.box_spec import Limits

INTERVAL = 0.5
"""Seconds between two looks."""
_CLOCK_SLACK = 0.1
"""Seconds: a file's time is the kernel's last tick, which may lie a little before ours."""


def tasks_below(pid: int, most: int) -> int:
    """Processes and threads of ``pid`` and all its descendants; counting stops once there are more than ``most``."""
    count = 0
    waiting = [str(pid)]
    while waiting and count <= most:
        folder = f"/proc/{waiting.pop()}/task"
        with suppress(OSError):
            for thread in os.listdir(folder):  # noqa: PTH208 - a thousand times a second, where a box is hostile
                count += 1
                with open(f"{folder}/{thread}/children", encoding="ascii") as children:  # noqa: PTH123 - the same
                    waiting += children.read().split()
    return count


def _files_below(folder: str) -> Iterator[os.stat_result]:
    """Every file and folder below ``folder``, links not followed, whatever vanishes meanwhile left out."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    yield found
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)


def written_since(folders: Sequence[Path], moment: float, most: int) -> int:
    """Bytes on the disk of all files changed since ``moment``; counting stops beyond ``most``."""
    total = 0
    for folder in folders:
        for found in _files_below(str(folder)):
            if found.st_ctime >= moment:
                total += found.st_blocks * 512
                if total > most:
                    return total
    return total


class Watch:
    """Looks at one box. ``folders``: what it may write on a disk. ``started``: seconds since the epoch."""

    def __init__(self, root: Identity, limits: Limits, folders: Sequence[Path], started: float) -> None:
        self._root = root
        self._limits = limits
        self._folders = folders
        self._started = started - _CLOCK_SLACK
        self._high = self._left() or 0

    async def overrun(self) -> str:
        """Look until the box uses too much; in words what of. Runs until it is cancelled, if need be."""
        while True:
            await asyncio.sleep(INTERVAL)
            if said := self._processes() or await self._disk():
                return said

    def _processes(self) -> str:
        most = self._limits.processes
        if most is not None and tasks_below(self._root.pid, most) > most:
            return f"it ran more than {most} processes and threads"
        return ""

    async def _disk(self) -> str:
        """What is left is asked each time; the folders are read only after the disk has lost a good part."""
        most, floor, left = self._limits.written_bytes, self._limits.free_bytes, self._left()
        if left is None:
            return ""
        if floor is not None and left < floor:
            return f"fewer than {floor} bytes were left on the disk"
        self._high = max(self._high, left)
        if most is not None and self._high - left >= most // 4:
            self._high = left
            if await asyncio.to_thread(written_since, self._folders, self._started, most) > most:
                return f"it wrote more than {most} bytes"
        return ""

    def _left(self) -> int | None:
        """Free bytes of the fullest of the disks; None where there is none to look at."""
        found = []
        for folder in self._folders:
            with suppress(OSError):
                found.append(shutil.disk_usage(folder).free)
        return min(found, default=None)
