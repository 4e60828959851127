"""The embedded server: shared, private, and gone with its last user."""

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adapters.postgres import embedded, migrations
from adapters.postgres.embedded import Embedded, start, start_blocking
from adapters.postgres.log import PostgresLog
from domain.faults import Unavailable
from tests.conformance.conftest import request
from tests.conftest import FAST, STATEMENTS

ROOT = Path(__file__).parents[2]
USER = """
import json, sys
from pathlib import Path
from typing import Any
from adapters.postgres.embedded import start_blocking
server = start_blocking(Path(sys.argv[1]), settings={"fsync": "off"}, linger_s=float(sys.argv[2]))
print(json.dumps({"url": server.url, "place": str(server.place)}), flush=True)
sys.stdin.read()
"""


USERS: list[Callable[[], object]] = []
"""How to end each use of a server that the running test has begun."""


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory that the server's account can reach; the server is gone when the test is over."""
    above = Path(tempfile.mkdtemp(prefix="turnkeeper-embedded-"))
    above.chmod(0o711)
    yield above / "state"
    while USERS:  # a test that failed on its way has left some
        USERS.pop()()
    for lock in above.glob("state*/postgres/supervisor.lock"):
        wait_until_gone(lock.parent)
    shutil.rmtree(above)


def wait_until_gone(place: Path) -> None:
    """Return when no supervisor is there any more."""
    with (place / "supervisor.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def begin(state: Path, linger_s: float = 0) -> Embedded:
    server = start_blocking(state, settings=FAST, linger_s=linger_s)
    USERS.append(server.close)
    return server


def use(state: Path, linger_s: float = 0, **how: Any) -> tuple["subprocess.Popen[str]", dict[str, str]]:
    """Another process that uses the server until its input ends."""
    process: subprocess.Popen[str] = subprocess.Popen(
        [how.pop("python", sys.executable), "-c", USER, str(state), str(linger_s)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}, **how,
    )  # fmt: skip

    def end() -> None:
        process.kill()
        process.communicate()

    USERS.append(end)
    assert process.stdout is not None
    for line in process.stdout:  # logs may come first
        if line.startswith("{"):
            return process, json.loads(line)
    raise AssertionError("the other process ended without using the server")


def server_pid(place: Path) -> int:
    """The server's own process, as it says itself."""
    return int((place / "data" / "postmaster.pid").read_text().split()[0])


def supervisor_pid(place: Path) -> int:
    """The parent of the server."""
    text = Path(f"/proc/{server_pid(place)}/stat").read_text()
    return int(text.rsplit(")", 1)[1].split()[1])


def answer(url: str, statement: str, **params: object) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(STATEMENTS[statement], params or None)
        return cursor.fetchone() if cursor.description else None


def ends(pid: int) -> bool:
    """Whether a process has ended, or does within ten seconds (a zombie has)."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(10_000))
    finally:
        os.close(process)


def test_processes_share_one_server(state: Path) -> None:
    """Whoever comes later finds the server that runs; it stays until the last of them has gone."""
    server = begin(state)
    pid = server_pid(server.place)
    process, other = use(state)
    assert (other["url"], server_pid(server.place)) == (server.url, pid)
    server.close()
    assert answer(other["url"], "one") == (1,)
    process.communicate()
    wait_until_gone(server.place)
    assert ends(pid)


def test_a_killed_user_leaves_no_orphan(state: Path) -> None:
    """After kill -9 of its only user the server stops by itself."""
    process, other = use(state)
    place = Path(other["place"])
    pid, supervisor = server_pid(place), supervisor_pid(place)
    process.kill()
    process.communicate()
    wait_until_gone(place)
    assert ends(pid)
    assert ends(supervisor)
    with pytest.raises(psycopg.OperationalError):
        answer(other["url"], "one")


def test_a_server_lingers_for_the_next_user(state: Path) -> None:
    """A command that follows soon finds the server still there."""
    server = begin(state, linger_s=60)
    pid = server_pid(server.place)
    server.close()
    again = begin(state)
    assert server_pid(again.place) == pid
    os.kill(supervisor_pid(again.place), signal.SIGTERM)  # a minute is too long for a test
    again.close()


def test_data_outlives_the_server(state: Path) -> None:
    """What was written is there after the next start."""
    first = begin(state)
    answer(first.url, "remember")
    first.close()
    wait_until_gone(first.place)
    second = begin(state)
    assert answer(second.url, "recall") == (7,)
    second.close()


def test_a_killed_supervisor_takes_the_server_with_it(state: Path) -> None:
    """The kernel tells the server; the next start works."""
    first = begin(state)
    answer(first.url, "remember")
    pid = server_pid(first.place)
    os.kill(supervisor_pid(first.place), signal.SIGKILL)
    second = begin(state)
    assert server_pid(second.place) != pid
    assert answer(second.url, "recall") == (7,)
    first.close()
    second.close()


def test_a_server_that_dies_is_started_again(state: Path) -> None:
    """As long as somebody uses it, the supervisor brings it back."""
    server = begin(state)
    pid = server_pid(server.place)
    os.kill(pid, signal.SIGKILL)
    again = begin(state)  # waits until it answers
    assert server_pid(again.place) != pid
    again.close()
    server.close()


def test_a_stale_pid_file_harms_nobody(state: Path) -> None:
    """A pid that was given to somebody else meanwhile is neither believed nor signalled."""
    first = begin(state)
    first.close()
    wait_until_gone(first.place)
    foreign = subprocess.Popen(["sleep", "300"])
    (first.place / "data" / "postmaster.pid").write_text(f"{foreign.pid}\n{first.place}/data\n")
    second = begin(state)
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()
    second.close()


def test_a_half_made_cluster_is_made_again(state: Path) -> None:
    """An initdb that was killed leaves a directory under another name, which goes."""
    state.mkdir(mode=0o711)
    half = state / "postgres" / "data.new.1"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    (state / "postgres").chmod(0o711)
    server = begin(state)
    assert not half.exists()
    server.close()


def test_only_its_own_directories_are_touched(state: Path) -> None:
    """The state directory keeps its mode, and what the server uses is private to its account."""
    state.mkdir()
    state.chmod(0o755)
    above = state.parent.stat()
    server = begin(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o755
    assert state.parent.stat().st_mode == above.st_mode
    for private in ("data", "run"):
        found = (server.place / private).stat()
        assert stat.S_IMODE(found.st_mode) == 0o700
        assert found.st_uid == pwd.getpwnam(embedded._account().pw_name).pw_uid
    for file in ("postgres.log", "supervisor.log", "users.lock"):
        assert stat.S_IMODE((server.place / file).stat().st_mode) == 0o600
    server.close()


def test_a_foreign_place_is_refused(state: Path) -> None:
    """A link or a file where the server would live is not followed."""
    state.mkdir(mode=0o711)
    (state / "postgres").symlink_to("/tmp")
    with pytest.raises(Unavailable) as caught:
        begin(state)
    assert caught.value.code == "embedded_start_failed"
    assert "DATABASE_URL" in caught.value.message


def test_a_server_that_cannot_start_says_what_to_do(state: Path) -> None:
    """A setting that PostgreSQL refuses ends in a fault, not in a wait."""
    with pytest.raises(Unavailable) as caught:
        start_blocking(state, settings={"no_such_setting": "1"}, linger_s=0)
    assert caught.value.code == "embedded_start_failed"
    assert "postgres.log" in caught.value.message


def test_a_long_path_gets_its_socket_elsewhere(state: Path) -> None:
    """Sockets have short paths; the directory is private there too."""
    deep = state.with_name("state-" + "x" * 120)
    server = begin(deep)
    sockets = Path(psycopg.conninfo.conninfo_to_dict(server.url)["host"])  # type: ignore[arg-type]
    assert not sockets.is_relative_to(deep)
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    server.close()
    wait_until_gone(server.place)
    shutil.rmtree(sockets)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs under another account")
def test_a_state_directory_that_the_account_cannot_reach(state: Path) -> None:
    """Root's private state directory stays private: the server lives in /var/lib instead, and stays there."""
    state.mkdir(mode=0o700)
    server = begin(state)
    assert server.place.is_relative_to("/var/lib/turnkeeper")
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    server.close()
    wait_until_gone(server.place)
    state.chmod(0o711)
    again = begin(state)
    assert again.place == server.place
    again.close()
    wait_until_gone(again.place)
    shutil.rmtree(again.place)


def ordinary() -> tuple[pwd.struct_passwd, str]:
    """An ordinary user and a Python that it can run with our libraries."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()), sys.executable
    user = pwd.getpwnam("nobody")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")):
        if python is None:
            continue
        path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
        try:
            tried = subprocess.run(
                [python, "-c", "import adapters.postgres.embedded"],
                check=False, user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/",
                env={"PYTHONPATH": path}, capture_output=True,
            )  # fmt: skip
        except PermissionError:
            continue
        if tried.returncode == 0:
            return user, python
    pytest.skip("no Python with our libraries that an ordinary user can run")


def test_an_ordinary_user_has_a_server_too(state: Path) -> None:
    """Without root the server runs as the user itself, and nobody else can reach it."""
    user, python = ordinary()
    state.mkdir(mode=0o700)
    how: dict[str, Any] = {"python": python}
    if os.geteuid() == 0:
        os.chown(state, user.pw_uid, user.pw_gid)
        how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    process, other = use(state, **how)
    place = Path(other["place"])
    assert place == state / "postgres"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    pid = server_pid(place)
    assert Path(f"/proc/{pid}").stat().st_uid == user.pw_uid
    assert answer(other["url"], "one") == (1,)
    process.kill()
    process.communicate()
    wait_until_gone(place)
    assert ends(pid)


async def test_starting_does_not_hold_up_the_loop(state: Path) -> None:
    """The asynchronous way in is the same server."""
    server = await start(state, settings=FAST, linger_s=0)
    assert answer(server.url, "one") == (1,)
    server.close()


async def test_a_log_outlives_its_server(state: Path) -> None:
    """While the server is gone nothing is stored or read; when it is back, all goes on, the tail too."""
    first = begin(state)
    migrations.migrate(first.url)
    log = await PostgresLog.open(first.url)
    seen: list[int] = []

    async def follow() -> None:
        async with contextlib.aclosing(log.tail(after=0)) as batches:
            async for batch in batches:
                seen.extend(recorded.position for recorded in batch)
                if seen[-1] == 2:
                    return

    following = asyncio.create_task(follow())
    await log.append(request("s", 1))
    pid = server_pid(first.place)
    os.kill(supervisor_pid(first.place), signal.SIGKILL)
    assert ends(pid)
    with pytest.raises(Unavailable):
        await log.append(request("s", 2, expect=1))
    with pytest.raises(Unavailable):
        await log.head()
    second = begin(state)
    await log.append(request("s", 2, expect=1))
    await following
    assert seen == [1, 2]
    await log.close()
    first.close()
    second.close()
