"""The process that owns one embedded server: started by ``embedded.start``, it outlives whoever started it.

Every user process holds a shared lock on ``users.lock``. This process stops the server once it could have had that
lock exclusively for as long as the server is to linger, which is when the last user is gone, be it by kill -9. No
list of process ids is kept, and no process is signalled but the server that this one started itself. If this process
dies, the kernel tells the server to shut down.

It runs by path, isolated, with nothing but the standard library: ``python -I supervisor.py <JSON of Plan>``. Exit
codes: 0 stopped, 3 another supervisor or server is (still) there: try again, 4 the server cannot be started.
"""

import ctypes
import dataclasses
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO

BUSY = 3
FAILED = 4
LOOK_EVERY_S = 0.5
STOP_WITHIN_S = 60.0
RESTART_AFTER_S = 0.5
RESTARTS = 5
REFUSED = 1
"""PostgreSQL's exit code when it cannot start at all (after a crash also while the old sessions still end)."""
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. ``uid`` and ``gid`` None: as the user that runs this process."""

    place: str
    sockets: str
    binaries: str
    initdb: list[str]
    settings: list[str]
    linger_s: float
    uid: int | None
    gid: int | None

    @property
    def data(self) -> Path:
        """The data directory: there whole, or not at all."""
        return Path(self.place) / "data"


def environment() -> dict[str, str]:
    """What the server's programs see of the environment: nothing of ours."""
    return {"PATH": "/usr/bin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def lowered(plan: Plan, *, dies_with_parent: bool) -> Callable[[], None]:
    """What a child does before it becomes a program: give up root for good, and arrange to end with its parent."""
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        os.umask(0o077)
        if plan.uid is not None and plan.gid is not None:
            os.setgroups([])
            os.setgid(plan.gid)
            os.setuid(plan.uid)
        if dies_with_parent:  # after setuid, which clears it; SIGINT is PostgreSQL's fast shutdown
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)

    return prepare


def create(plan: Plan, log: IO[bytes]) -> None:
    """Make the cluster beside its place and move it there when it is whole."""
    place = Path(plan.place)
    for half in place.glob("data.new.*"):  # an earlier initdb was killed half-way
        shutil.rmtree(half, ignore_errors=True)
    fresh = (
        place / f"data.new.{os.getpid()}"
    )  # a name of its own: an orphaned initdb may still write to the old one
    fresh.mkdir(mode=0o700)
    if plan.uid is not None and plan.gid is not None:
        os.chown(fresh, plan.uid, plan.gid, follow_symlinks=False)
    subprocess.run(
        [f"{plan.binaries}/initdb", "-D", str(fresh), *plan.initdb],
        check=True, env=environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        preexec_fn=lowered(plan, dies_with_parent=True),
    )  # fmt: skip
    fresh.rename(plan.data)


def left_running(plan: Plan) -> bool:
    """Whether a server of this data directory still runs. A pid file that names anything else is removed."""
    pid_file = plan.data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        command = b""
    if os.fsencode(plan.data) in command.split(b"\0"):
        return True
    pid_file.unlink(missing_ok=True)
    return False


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Return when a process has ended or the time is over, asleep meanwhile (``Popen.wait`` polls)."""
    try:
        watched = os.pidfd_open(process.pid)
    except OSError:  # it has ended, or the kernel is older than 5.3
        time.sleep(seconds)
        return
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(watched)


class Supervisor:
    """Runs the server until the last user has been gone for ``linger_s``."""

    def __init__(self, plan: Plan, users: IO[bytes], log: IO[bytes]) -> None:
        self.plan = plan
        self.users = users
        self.log = log
        self.stopping = False
        self.server: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server. It listens on a socket in a private directory, never on the network."""
        options = [option for setting in self.plan.settings for option in ("-c", setting)]
        return subprocess.Popen(
            [f"{self.plan.binaries}/postgres", "-D", str(self.plan.data), "-k", self.plan.sockets,
             "-c", "listen_addresses=", *options],
            env=environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            preexec_fn=lowered(self.plan, dies_with_parent=True),  # noqa: PLW1509 - this process has one thread
        )  # fmt: skip

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Fast shutdown: sessions end, what was committed stays."""
        self.stopping = True
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)

    def unused(self) -> bool:
        """Whether nobody holds the users' lock at this moment."""
        try:
            fcntl.flock(self.users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def run(self) -> int:
        """Until the server was stopped; a server that dies by itself is started again a few times."""
        self.server = self.start()
        restarts = 0
        idle_since: float | None = None
        while not self.stopping:
            if (code := self.server.poll()) is not None:
                if restarts == RESTARTS or (code == REFUSED and not restarts) or left_running(self.plan):
                    return FAILED
                restarts += 1
                time.sleep(RESTART_AFTER_S)
                self.server = self.start()
            if not self.unused():
                idle_since = None
            elif idle_since is None or time.monotonic() - idle_since < self.plan.linger_s:
                idle_since = idle_since or time.monotonic()
                if self.plan.linger_s > 0:  # free for newcomers while the server lingers
                    fcntl.flock(self.users, fcntl.LOCK_UN)
                else:
                    self.stop()
                    break
            else:
                self.stop()  # with the lock held: newcomers wait until the server is gone
                break
            wait(self.server, LOOK_EVERY_S)
        try:
            self.server.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.server.send_signal(signal.SIGQUIT)  # immediate: the next start recovers from the log
            self.server.wait()
        return 0


def main(argument: str) -> int:
    """Run one plan to its end and return the exit code."""
    plan = Plan(**json.loads(argument))
    place = Path(plan.place)
    os.umask(0o077)
    with (place / "supervisor.lock").open("ab") as lock, (place / "postgres.log").open("ab") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY
        if not plan.data.exists():
            create(plan, log)
        elif left_running(plan):
            return BUSY
        with (place / "users.lock").open("ab") as users:
            supervisor = Supervisor(plan, users, log)
            signal.signal(signal.SIGTERM, supervisor.stop)
            signal.signal(signal.SIGINT, supervisor.stop)
            return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
