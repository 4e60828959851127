"""Boxes: where everything runs that a repository, or an agent, can influence.

Default is bubblewrap; ``none`` must be asked for and is a plain process group with the same interface and no
protection beyond a minimal environment. No box outlives its service: bubblewrap dies with the thread that started
it (so boxes are started from the main thread only) and takes its pid namespace along; an unisolated run has a
keeper that does the same for its descendants.

Honest limits: the host's network is shared (abstract unix sockets too); what a box uses as a whole is looked at
twice a second (``adapters.box_watch``), not held by the kernel; a service killed within the millisecond between
starting bubblewrap and bubblewrap's own request to die with it leaves a box that ends only with its command (its
input is closed, and it keeps the workspace's lock until then).
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from adapters import box_keeper
from adapters.box_bubblewrap import Descriptors, command
from adapters.box_identity import (
    MARK,
    Identity,
    children_of,
    identity_of,
    kill_recorded,
    provably_dead,
    self_identity,
    signal_exactly,
)
from adapters.box_locks import WorkspaceLock, lock_file, lock_workspace, takeover
from adapters.box_processes import first_words, kill, limit, read_info, spawn
from adapters.box_spec import (
    BRIDGE,
    CODEX_HOME,
    CODEX_HOME_PARTS,
    HOME,
    WORKSPACE,
    Bind,
    BoxFile,
    BoxSpec,
    Completed,
    Limits,
)
from adapters.box_watch import Watch
from domain.faults import Fault, Unavailable

__all__ = [
    "BRIDGE",
    "CODEX_HOME",
    "CODEX_HOME_PARTS",
    "HOME",
    "WORKSPACE",
    "Bind",
    "Box",
    "BoxCheck",
    "BoxFile",
    "BoxSpec",
    "Boxes",
    "Completed",
    "Identity",
    "Isolation",
    "Limits",
    "WorkspaceLock",
    "box_python",
    "kill_recorded",
    "lock_file",
    "lock_workspace",
    "provably_dead",
    "self_identity",
    "takeover",
]

Isolation = Literal["bubblewrap", "none"]
_TAIL = 64 * 1024
_log = structlog.get_logger(__name__)
_KEEPER = str(Path(box_keeper.__file__).resolve())


@dataclass(frozen=True, kw_only=True)
class BoxCheck:
    """Whether boxes work here: ``version`` of the program, and in one sentence why not."""

    ok: bool
    version: str
    reason: str = ""


def box_python() -> tuple[str, tuple[Bind, ...]]:
    """A Python that runs inside a box, and what must be bound for it: the system's, else this one's prefix."""
    if Path("/usr/bin/python3").exists():
        return "/usr/bin/python3", ()
    prefix = Path(sys.base_prefix).resolve()
    name = f"bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return str(prefix / name), (Bind(source=prefix, target=str(prefix)),)


class Box:
    """A running box. ``pid`` and ``identity`` name its root: whoever kills that one, kills all of it."""

    def __init__(
        self, process: asyncio.subprocess.Process, identity: Identity, *, private: Path | None = None
    ) -> None:
        if process.stdout is None or process.stderr is None:  # pragma: no cover - always piped
            raise RuntimeError("a box has pipes")
        self._process = process
        self._private = private
        self._tail = bytearray()
        self._overrun = ""
        self._watch: asyncio.Task[None] | None = None
        self.identity = identity
        self.pid = identity.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._drain = asyncio.create_task(self._drain_stderr(process.stderr), name=f"box-stderr-{self.pid}")

    async def _drain_stderr(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(8192):
            self._tail += chunk
            del self._tail[:-_TAIL]

    def watch(self, watch: Watch) -> None:
        """Have the box looked at, and ended whole where it uses too much."""
        self._watch = asyncio.create_task(self._end_for(watch), name=f"box-watch-{self.pid}")

    async def _end_for(self, watch: Watch) -> None:
        self._overrun = await watch.overrun()
        _log.warning("box_ended_for_its_limits", box=self.pid, reason=self._overrun)
        await kill_recorded(self.identity)

    @property
    def overrun(self) -> str:
        """In words what the box used too much of, if it was ended for that; else empty."""
        return self._overrun

    @property
    def stderr(self) -> bytes:
        """The last 64 KiB that the box wrote to its standard error, and then why we ended it, where we did."""
        told = f"\nthe box was ended by its limits: {self._overrun}\n" if self._overrun else ""
        return bytes(self._tail) + told.encode()

    @property
    def returncode(self) -> int | None:
        """The command's return code once ``wait`` has returned; 128 + signal where a signal ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end of the box and everything in it; its return code."""
        code = await self._process.wait()
        if (
            not self.identity.mark
        ):  # bubblewrap ends with its command; what that left behind dies a moment later
            await kill_recorded(self.identity)
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._drain), 5)
        self._drain.cancel()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
        return code

    def terminate(self) -> None:
        """Ask the command (not its root, which has no handler) to end."""
        for child in children_of(self.pid):
            found = identity_of(child)
            if found is not None:
                signal_exactly(found, signal.SIGTERM)

    async def kill(self, grace: float = 5.0) -> int:
        """Ask, wait up to ``grace`` seconds, then kill the box whole; returns when nothing of it lives."""
        if self._process.returncode is None and grace > 0:
            if self.stdin is not None:
                self.stdin.close()
            self.terminate()
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(self.wait()), grace)
        await kill_recorded(self.identity)
        return await self.wait()  # what started the root ends with it


class Boxes:
    """Starts boxes of one isolation. ``program`` is bubblewrap's name or path."""

    def __init__(self, isolation: Isolation = "bubblewrap", *, program: str = "bwrap") -> None:
        self.isolation = isolation
        self._program = program
        self._nested: bool | None = None

    async def check(self) -> BoxCheck:
        """Run a real box and look whether it is one; never raises for a machine that can't."""
        if self.isolation == "none":
            return BoxCheck(ok=True, version="none", reason="Runs are not isolated, as configured.")
        if shutil.which(self._program) is None:
            return BoxCheck(ok=False, version="", reason="bubblewrap (bwrap) is not installed.")
        version = await asyncio.create_subprocess_exec(
            self._program, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        text = (await version.communicate())[0].decode(errors="replace").strip().removeprefix("bubblewrap ")
        try:
            done = await self.run(BoxSpec(argv=("/bin/sh", "-c", "id -u; ls -d /proc/[0-9]* | wc -l")), 20)
        except Fault as fault:
            return BoxCheck(ok=False, version=text, reason=fault.message)
        if done.rc != 0 or done.text.split()[:1] != ["1000"]:
            reason = done.err.decode(errors="replace").strip().splitlines()[-1:] or ["it ended at once"]
            return BoxCheck(ok=False, version=text, reason=f"A box could not be started: {reason[0]}")
        return BoxCheck(ok=True, version=text)

    async def start(self, spec: BoxSpec) -> Box:
        """Start a box; it is identified and limited before its command runs.

        Raises ``Invalid`` (``box_invalid``) for an impossible specification, ``Unavailable`` (``box_failed``)
        where the machine does not let us.
        """
        spec = spec.checked()
        if threading.current_thread() is not threading.main_thread():
            raise Fault(
                "Boxes are started from the main thread: they die with the thread that started them.",
                code="box_failed",
            )
        starting = asyncio.create_task(
            self._start_plain(spec) if self.isolation == "none" else self._start_boxed(spec)
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # a start can't be given up half-way without losing sight of a process
            with contextlib.suppress(Fault):
                await (await starting).kill(0)
            raise

    async def run(self, spec: BoxSpec, deadline: float, *, max_output: int = 16 * 1024 * 1024) -> Completed:
        """Run a short command to its end; ``Unavailable`` (``box_timeout``) after ``deadline`` seconds."""
        box = await self.start(spec)
        out = bytearray()
        cut = False
        try:
            async with asyncio.timeout(deadline):
                while chunk := await box.stdout.read(65536):
                    cut = cut or len(out) + len(chunk) > max_output
                    out += chunk[: max_output - len(out)]
                code = await box.wait()
        except TimeoutError:
            raise Unavailable("A command in a box took too long and was ended.", code="box_timeout") from None
        finally:
            if box.returncode is None:
                await asyncio.shield(box.kill(0))
                while await box.stdout.read(65536):  # to the end, so that the pipe closes
                    pass
        return Completed(rc=code, out=bytes(out), err=box.stderr, truncated=cut)

    async def _start_boxed(self, spec: BoxSpec) -> Box:
        descriptors = Descriptors()
        process = None
        try:
            info, info_box = descriptors.pipe()
            block_box, block = descriptors.pipe()
            nested = await self._lets_nest()
            line = command(self._program, spec, descriptors, info=info_box, block=block_box, nested=nested)
            inherited = set(descriptors.all()) - {info, block}
            process = await spawn(spec, line, inherited, cwd="/")
            descriptors.close_one(info_box)
            told = await read_info(info)
            return await _released(process, told, spec, block)
        except BaseException:
            kill(process)  # before its descriptors close: a closed block would let the command go
            raise
        finally:
            descriptors.close()

    async def _lets_nest(self) -> bool:
        """Whether this bubblewrap is too old (before 0.8) to forbid user namespaces inside; asked once."""
        if self._nested is None:
            try:
                asked = await asyncio.create_subprocess_exec(
                    self._program, "--help", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
                )
            except OSError as error:
                raise Unavailable(
                    f"A box could not be started: {error.strerror}", code="box_failed"
                ) from None
            self._nested = b"--disable-userns" not in (await asked.communicate())[0]
        return self._nested

    async def _start_plain(self, spec: BoxSpec) -> Box:
        private = Path(tempfile.mkdtemp(prefix="turnkeeper-run-"))
        descriptors = Descriptors()
        process = None
        try:
            paths = _plain_paths(spec, private)
            mark = uuid.uuid4().hex
            environment = {name: _mapped(value, paths) for name, value in spec.environment().items()}
            environment["PATH"] = spec.env.get("PATH") or os.environ.get("PATH", os.defpath)
            environment["HOME"] = environment["TMPDIR"] = str(private)
            environment[MARK] = mark
            block_box, block = descriptors.pipe()
            keeper = [sys.executable, "-I", "-S", _KEEPER, str(block_box)]
            line = [*keeper, *(_mapped(part, paths) for part in spec.argv)]
            cwd = _mapped(spec.working_folder(), paths)
            process = await spawn(spec, line, {block_box}, cwd=cwd, environment=environment)
            return await _released(process, process.pid, spec, block, mark=mark, private=private)
        except BaseException:
            kill(process)
            shutil.rmtree(private, ignore_errors=True)
            raise
        finally:
            descriptors.close()

    def path(self, spec: BoxSpec, inside: str) -> str:
        """What a path of the box (``/workspace/…``) is called by the command; the same unless unisolated."""
        if self.isolation == "bubblewrap":
            return inside
        return _mapped(inside, {bind.target: str(bind.source) for bind in spec.all_binds()})


def _plain_paths(spec: BoxSpec, private: Path) -> dict[str, str]:
    """Where the box's own names lie in an unisolated run; files and CODEX_HOME are made under ``private``."""
    paths = {HOME: str(private)}
    if spec.codex_home is not None:
        home = private / "codex-home"
        home.mkdir(mode=0o700)
        for part in CODEX_HOME_PARTS:
            (home / part).symlink_to((spec.codex_home / part).absolute())
        paths[CODEX_HOME] = str(home)
    paths |= {
        bind.target: str(bind.source.absolute())
        for bind in spec.all_binds()
        if not bind.target.startswith(CODEX_HOME + "/")
    }
    for file in spec.files:
        target = Path(_mapped(file.target, paths))
        if str(target) == file.target:
            target = private / "files" / file.target.lstrip("/")
            paths[file.target] = str(target)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    return paths


def _mapped(value: str, paths: dict[str, str]) -> str:
    """``value`` with a leading name of the box replaced by the real one, the longest name first."""
    for target in sorted(paths, key=len, reverse=True):
        if value == target or value.startswith(target + "/"):
            return paths[target] + value[len(target) :]
    return value


async def _released(
    process: asyncio.subprocess.Process,
    root: int | None,
    spec: BoxSpec,
    block: int,
    *,
    mark: str = "",
    private: Path | None = None,
) -> Box:
    """Identify and limit what was started, then let its command go."""
    identity = identity_of(root, mark=mark) if root is not None else None
    if identity is None:
        raise Unavailable(f"A box could not be started: {await first_words(process)}", code="box_failed")
    bounds = spec.bounds()
    limit(
        identity.pid, replace(bounds, processes=None) if mark else bounds
    )  # else counted with all of the user
    box = Box(process, identity, private=private)
    folders = [bind.source for bind in spec.all_binds() if bind.writable]
    box.watch(Watch(identity, bounds, folders, time.time()))
    with contextlib.suppress(BrokenPipeError):
        os.write(block, b"!")
    return box
