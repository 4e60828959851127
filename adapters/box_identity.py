"""Who a process is, beyond its number: the identity that the log keeps of a box or of a lease's holder.

A process number alone is reused. Boot id, pid namespace, number and start time together name one process of one
machine for ever (architecture, "Leases"); only what matches in all four is ever killed.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MARK = "TURNKEEPER_BOX"
"""Environment variable by which members of an unisolated run are recognised."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process: ``start_time`` in clock ticks since boot; ``mark`` is empty for anything but unisolated runs."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_time: int
    mark: str = ""

    def as_json(self) -> dict[str, object]:
        """The shape stored in the log: ``{boot_id, pid_namespace, pid, start_time, mark}``."""
        return asdict(self)

    @staticmethod
    def of_json(value: Mapping[str, object]) -> "Identity":
        """Read what ``as_json`` wrote; raises ``ValueError`` for anything else."""
        pid, start = value.get("pid"), value.get("start_time")
        boot, namespace, mark = value.get("boot_id"), value.get("pid_namespace"), value.get("mark", "")
        if not (isinstance(pid, int) and isinstance(start, int) and pid > 1):
            raise ValueError("not the identity of a process")
        if not (isinstance(boot, str) and isinstance(namespace, str) and isinstance(mark, str)):
            raise ValueError("not the identity of a process")  # noqa: TRY004 - one error for one unreadable value
        return Identity(boot_id=boot, pid_namespace=namespace, pid=pid, start_time=start, mark=mark)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> str:
    """The namespace in which process numbers of this process mean something, as ``pid:[…]``."""
    return str(Path("/proc/self/ns/pid").readlink())


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` after the command's name (field 3 is index 0); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of ``pid``; None if there is none, or only its corpse."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def identity_of(pid: int, *, mark: str = "") -> Identity | None:
    """The identity of a living process of our namespace."""
    started = start_time(pid)
    if started is None:
        return None
    return Identity(boot_id=boot_id(), pid_namespace=pid_namespace(), pid=pid, start_time=started, mark=mark)


def self_identity() -> Identity:
    """The identity of this process, for leases."""
    found = identity_of(os.getpid())
    if found is None:  # pragma: no cover - a running process has a start time
        raise RuntimeError("this process has no entry in /proc")
    return found


def children_of(pid: int) -> list[int]:
    """Direct children of ``pid``, as far as they can be seen."""
    return [child for child in _pids() if (fields := _stat(child)) is not None and int(fields[1]) == pid]


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def marked(mark: str) -> list[Identity]:
    """Living processes whose environment at their start carried ``mark``; only our own user's can be read."""
    if not mark:
        return []
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _pids():
        identity = identity_of(pid, mark=mark)  # taken first: a reused number then fails the later comparison
        if identity is None or pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(identity)
    return found


def provably_dead(identity: Identity) -> bool:
    """Whether the process can't be alive: another boot, or this namespace without it.

    A process of another pid namespace of this boot can't be judged from here: not *provably* dead.
    """
    if identity.boot_id != boot_id():
        return True
    if identity.pid_namespace != pid_namespace():
        return False
    return start_time(identity.pid) != identity.start_time and not marked(identity.mark)


def _open_if_same(identity: Identity) -> int | None:
    """A pidfd of exactly this process, None if it is another or gone."""
    if identity.boot_id != boot_id() or identity.pid_namespace != pid_namespace():
        return None
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return None
    if start_time(identity.pid) != identity.start_time:  # compared after opening: the pidfd can't be reused
        os.close(descriptor)
        return None
    return descriptor


def signal_exactly(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False if it is gone, another, or not ours to signal."""
    descriptor = _open_if_same(identity)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


async def wait_gone(identity: Identity, *, timeout: float) -> bool:  # noqa: ASYNC109 - answers, does not raise
    """Wait until the process has ended (its corpse may remain); False if it still runs after ``timeout`` seconds."""
    descriptor = _open_if_same(identity)
    if descriptor is None:
        return True
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def readable() -> None:
        loop.remove_reader(descriptor)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, readable)
    try:
        await asyncio.wait_for(ended, timeout)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return True


async def kill_recorded(identity: Identity, *, timeout: float = 10.0) -> bool:  # noqa: ASYNC109 - the same
    """Kill the box of a former holder and wait for its death; True if nothing of it lives afterwards.

    For a bubblewrap box the recorded process is the init of its pid namespace, so everything inside dies with it.
    For an unisolated run it is the keeper; members left behind are found by their mark. A process that does not
    match in boot, namespace, number and start time is never touched.
    """
    if identity.boot_id != boot_id():
        return True
    if identity.pid_namespace != pid_namespace():
        return False
    if identity.mark and signal_exactly(identity, signal.SIGTERM):  # the keeper then ends its descendants
        await wait_gone(identity, timeout=min(timeout, 3.0))
    signal_exactly(identity, signal.SIGKILL)
    gone = await wait_gone(identity, timeout=timeout)
    for _ in range(20):  # a member may have forked while the list was read
        members = marked(identity.mark)
        if not members:
            break
        for member in members:
            signal_exactly(member, signal.SIGKILL)
            await wait_gone(member, timeout=timeout)
    return gone and provably_dead(identity)
