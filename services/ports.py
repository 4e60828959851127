"""The ports: what the services need of the outside, as protocols. ``services.wiring`` fills them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from domain.log import Appended, AppendRequest, Fence, LeaseRow, QueueRow, Recorded
from domain.runs import Background, Boxed, Comment, LaidOut, Mirrored, Obstructed, Opened, Seen, TurnOutcome
from domain.tools import ToolCall, ToolResult, ToolSchema
from services.bridge_ports import ToolBackend

SeenSink = Callable[[Seen], Awaitable[None]]


class EventLog(Protocol):
    """The append-only log, with its leases, its queue and its erasable contents (see ``domain.log``)."""

    async def append(self, request: AppendRequest) -> Appended:
        """Commit ``request`` whole, or raise and change nothing.

        Raises ``VersionConflict``, ``LeaseStale``, ``LeaseExpired``, ``LeaseHeld``, or ``Unavailable`` when the
        database does not answer (the caller must not claim that anything was stored).
        """
        ...

    async def read_stream(self, stream: str, *, after: int = 0) -> Sequence[Recorded]:
        """All events of one stream after version ``after``, in order."""
        ...

    async def read_streams(self, streams: Iterable[str]) -> Mapping[str, Sequence[Recorded]]:
        """Several whole streams as of one moment; an absent one is empty."""
        ...

    async def read(self, *, after: int, limit: int) -> Sequence[Recorded]:
        """At most ``limit`` events after position ``after``, in order of position."""
        ...

    def tail(self, *, after: int, limit: int = 500) -> AsyncIterator[Sequence[Recorded]]:
        """Batches of events after position ``after``, for ever; waits where there is nothing. Misses nothing."""
        ...

    async def head(self) -> int:
        """The last position, 0 for an empty log."""
        ...

    async def now(self) -> datetime:
        """The database's clock, aware, UTC."""
        ...

    async def contents(self, ids: Iterable[str]) -> Mapping[str, str]:
        """Texts by content id; an erased one is absent."""
        ...

    async def renew_lease(self, fence: Fence, ttl_ms: int) -> datetime:
        """Prolong an unexpired lease and return its new end; ``LeaseStale`` or ``LeaseExpired`` else."""
        ...

    async def lease(self, scope: str) -> LeaseRow | None:
        """The lease row of a scope, None if it was never taken."""
        ...

    async def leases(self) -> Sequence[LeaseRow]:
        """All leases that somebody holds, expired ones too."""
        ...

    async def candidates(self, *, limit: int) -> Sequence[QueueRow]:
        """Tasks that may be claimed: per repository without a running lease, its first available task.

        A waiting task whose ``available_at`` lies ahead holds back only younger tasks of its own session.
        Ordered by position, read without locks.
        """
        ...

    async def next_available(self) -> datetime | None:
        """When the next waiting task becomes available, None if none waits for a time."""
        ...


class ToolHost(Protocol):
    """What is offered to the agent (``services.bridge.Bridge``)."""

    async def tools(self) -> Sequence[ToolSchema]:
        """The tools that the agent may use."""
        ...

    async def call(self, call: ToolCall) -> ToolResult:
        """Do one call, or say as a tool error why not."""
        ...

    async def drain(self) -> None:
        """Wait until every write at work has its result."""
        ...


class Run(Protocol):
    """The outside of one run: mirror, workspace, box, thread, turn. Every method may raise a ``Fault``.

    The runner writes an intent before each of them and a result after (``domain.effects``).
    """

    async def sync_mirror(self) -> Mirrored:
        """Clone or fetch the trusted mirror (``git_…``, ``disk_full``)."""
        ...

    async def lay_out(self) -> LaidOut | Obstructed:
        """Take the workspace's lock and lay out the session's files (``workspace_locked``)."""
        ...

    async def start_box(self, bridge: Callable[[ToolBackend], ToolHost]) -> Boxed:
        """Probe Gitea and gitea-mcp, then start the agent in its box.

        Raises ``gitea_…``, ``gitea_mcp_…`` (told apart), ``box_failed``, ``codex_too_old``.
        """
        ...

    async def open_thread(self, thread_id: str | None) -> Opened:
        """Start or resume the thread with every setting (``thread_not_found`` is proof, others are not)."""
        ...

    async def run_turn(
        self,
        *,
        turn_id: str,
        text: str,
        on_started: Callable[[str], Awaitable[None]],
        on_seen: SeenSink,
        on_interrupt: Callable[[str], Awaitable[None]],
    ) -> TurnOutcome:
        """Run one turn to its end.

        ``on_started`` gets Codex's turn id as soon as the turn is accepted, ``on_interrupt`` the cause (``stalled``,
        ``deadline``) before the turn is interrupted for it.
        """
        ...

    async def interrupt(self, cause: str) -> None:
        """Interrupt the running turn; ``run_turn`` then returns with this cause. Harmless without a turn."""
        ...

    async def end_box(self) -> None:
        """Kill the box and wait until it is dead. Harmless without a box."""
        ...

    async def record_workspace(self) -> Mapping[str, Any] | None:
        """What the workspace holds now, for the next run; None if this run never touched it."""
        ...

    async def close(self) -> None:
        """Give everything back: box, sockets, relay, lock."""
        ...


class GiteaSide(Protocol):
    """What the services themselves read from and write to Gitea."""

    async def comment(self, owner: str, name: str, comment_id: int) -> Comment | None:
        """One comment, None if it is gone."""
        ...

    async def comments(self, owner: str, name: str, number: int) -> Sequence[Comment]:
        """All plain comments of an issue or pull request, ascending."""
        ...

    async def create_comment(
        self, owner: str, name: str, number: int, body: str, *, repository_id: int | None = None
    ) -> Comment:
        """Post a comment; a ``Fault`` carries ``params["outcome"]``: ``not_sent``, ``unknown`` or ``refused``."""
        ...

    async def edit_comment(
        self, owner: str, name: str, comment_id: int, body: str, *, repository_id: int | None = None
    ) -> Comment:
        """Change a comment's text; the same text again is harmless."""
        ...

    async def background(self, owner: str, name: str, kind: str, number: int) -> Background:
        """Title, body, comments and changed files for the prompt."""
        ...

    async def version(self) -> str:
        """Gitea's version: the cheap probe of whether it is there. Raises a ``Fault`` if it is not."""
        ...

    async def names(self, repository_id: int) -> tuple[str, str]:
        """The present owner and name of a repository."""
        ...
