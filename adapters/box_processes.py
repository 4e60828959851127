"""Starting a box's first process, and what is done to it before its command may run."""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

import structlog

from adapters.box_spec import STREAM_LIMIT, BoxSpec, Limits
from domain.faults import Unavailable

_START_SECONDS = 20.0
_log = structlog.get_logger(__name__)


async def spawn(
    spec: BoxSpec,
    line: Sequence[str],
    inherited: set[int],
    *,
    cwd: str,
    environment: dict[str, str] | None = None,
) -> asyncio.subprocess.Process:
    """Start a program with pipes, a session of its own and nothing of our environment, or raise ``box_failed``."""
    try:
        return await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.PIPE if spec.keep_stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=STREAM_LIMIT,
            pass_fds=(*inherited, *([spec.lock.fileno()] if spec.lock is not None else [])),
            cwd=cwd,
            env=environment if environment is not None else {"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
    except OSError as error:
        raise Unavailable(f"A box could not be started: {error.strerror}", code="box_failed") from None


def kill(process: asyncio.subprocess.Process | None) -> None:
    """Kill what was started, if it was."""
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # the library's own kill() would take the return code away


async def read_info(descriptor: int) -> int | None:
    """The process number that bubblewrap reports for the box's init; None if it ended without one."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    told = b""
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(_START_SECONDS):
            while not told.rstrip().endswith(b"}"):
                await ready.wait()
                ready.clear()
                try:
                    chunk = os.read(descriptor, 4096)
                except BlockingIOError:
                    continue
                if not chunk:
                    return None
                told += chunk
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(descriptor)
    pid = json.loads(told).get("child-pid")
    return pid if isinstance(pid, int) else None


async def first_words(process: asyncio.subprocess.Process) -> str:
    """What a program that did not start says about it."""
    kill(process)
    _, err = await process.communicate()
    words = err.decode(errors="replace").strip().splitlines()
    return words[-1][:300] if words else "it ended at once"


def _counts_per_box() -> bool:
    """Whether the kernel counts processes per user namespace (5.14 and later), so that a box is charged alone."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


def limit(pid: int, limits: Limits) -> None:
    """Set what was asked for on the box's root, before its command runs; children inherit it."""
    with contextlib.suppress(OSError):  # where memory runs out, a box goes first
        Path(f"/proc/{pid}/oom_score_adj").write_text("800", encoding="ascii")
    wanted = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.processes if _counts_per_box() else None),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
    )
    for kind, value in wanted:
        if value is None:
            continue
        try:
            resource.prlimit(pid, kind, (value, value))
        except (ProcessLookupError, PermissionError, ValueError) as error:
            _log.warning("box_limit_not_set", kind=kind, reason=str(error))
