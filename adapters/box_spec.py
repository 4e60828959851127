"""What a box is to be: its command, what it sees, what it may use. Plain data, the same for every isolation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from adapters.box_locks import WorkspaceLock
from domain.faults import Invalid

WORKSPACE = "/workspace"
CODEX_HOME = "/codex-home"
BRIDGE = "/bridge"
HOME = "/home/agent"
CODEX_HOME_PARTS = ("sessions", "thread-writer-locks")
"""What of a repository's CODEX_HOME outlives a box (workflow page, "Box, session, thread, turn")."""

STREAM_LIMIT = 16 * 1024 * 1024
"""Longest line a box may send, bytes: Codex writes lines of tens of kilobytes, tools more."""


@dataclass(frozen=True, kw_only=True)
class Bind:
    """A file or folder of the host under another name in the box, read-only unless ``writable``."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class BoxFile:
    """A file made for the box only; the agent may change its copy, which ends with the box."""

    target: str
    content: bytes
    mode: int = 0o600


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a box may use, None for no limit. A box that uses more of what is watched is ended whole.

    The kernel's, per process: ``cpu_seconds``, ``memory_bytes``, ``file_bytes`` (of one file), ``open_files``.
    Watched, of the whole box (``adapters.box_watch``): ``processes`` and their threads (also the kernel's, where it
    counts them per user namespace and the service is not root), ``written_bytes`` on a disk, and ``free_bytes`` that
    must be left on it. ``tmpfs_bytes`` bounds each memory-backed folder. Memory as a whole is not bounded here; where
    it runs out, the kernel ends processes of boxes first.
    """

    cpu_seconds: int | None = None
    memory_bytes: int | None = None
    processes: int | None = 2000
    file_bytes: int | None = None
    open_files: int | None = None
    tmpfs_bytes: int = 1024 * 1024 * 1024
    written_bytes: int | None = None
    free_bytes: int | None = 256 * 1024 * 1024


AGENT_LIMITS = Limits(file_bytes=1024 * 1024 * 1024, written_bytes=4 * 1024 * 1024 * 1024)
"""For a box that an agent works in; git's own may have to take in larger repositories."""


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """One box. Paths in ``argv``, ``env``, ``cwd`` and targets are the box's own (``/workspace``, …).

    ``codex_home``: a folder of which only ``sessions/`` and ``thread-writer-locks/`` are seen, in a memory-backed
    ``/codex-home``. ``bridge``: a folder seen read-only at ``/bridge``. ``lock``: inherited, held until the end.
    """

    argv: tuple[str, ...]
    workspace: Path | None = None
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    codex_home: Path | None = None
    bridge: Path | None = None
    binds: tuple[Bind, ...] = ()
    files: tuple[BoxFile, ...] = ()
    lock: WorkspaceLock | None = None
    limits: Limits | None = None
    keep_stdin: bool = False

    def bounds(self) -> Limits:
        """The limits that hold: unless they were given, an agent's where the bridge is seen, else a command's."""
        return self.limits or (AGENT_LIMITS if self.bridge is not None else Limits())

    def all_binds(self) -> tuple[Bind, ...]:
        """Every bind that the named folders stand for, then the additional ones."""
        found: list[Bind] = []
        if self.workspace is not None:
            found.append(Bind(source=self.workspace, target=WORKSPACE, writable=True))
        if self.bridge is not None:
            found.append(Bind(source=self.bridge, target=BRIDGE))
        if self.codex_home is not None:
            found += [
                Bind(source=self.codex_home / part, target=f"{CODEX_HOME}/{part}", writable=True)
                for part in CODEX_HOME_PARTS
            ]
        return (*found, *self.binds)

    def working_folder(self) -> str:
        """Where the command starts, as the box names it."""
        return self.cwd or (WORKSPACE if self.workspace is not None else HOME)

    def environment(self) -> dict[str, str]:
        """The whole environment of the command: nothing of the service's own is inherited."""
        base = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "HOME": HOME,
            "USER": "agent",
            "LOGNAME": "agent",
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",  # noqa: S108 - the box's own
            "TERM": "dumb",
        }
        if self.codex_home is not None:
            base["CODEX_HOME"] = CODEX_HOME
        return base | dict(self.env)

    def checked(self) -> "BoxSpec":
        """Itself; raises ``Invalid`` (``box_invalid``) where a path is relative, climbs, or does not exist."""
        if not self.argv:
            raise Invalid("A box needs a command.", code="box_invalid")
        for target in [bind.target for bind in self.all_binds()] + [file.target for file in self.files]:
            if not target.startswith("/") or ".." in target.split("/") or target == "/":
                raise Invalid(
                    "A box's own paths are absolute and do not climb.",
                    code="box_invalid",
                    params={"target": target},
                )
        for bind in self.all_binds():
            if not bind.source.exists() or (bind.writable and bind.source.is_symlink()):
                raise Invalid(
                    "A folder that the box is to see is missing, or is a symbolic link to be written through.",
                    code="box_invalid",
                    params={"target": bind.target},
                )
        return self


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended: return code (negative: signal), bounded output, whether output was cut."""

    rc: int
    out: bytes
    err: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """The output as text, undecodable bytes replaced."""
        return self.out.decode("utf-8", errors="replace")
