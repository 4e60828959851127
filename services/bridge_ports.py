"""What the bridge needs of others, as protocols beside their user, and the values it works with."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, runtime_checkable

from domain.bridge_policy import Scope
from domain.effects import Operation
from domain.publications import PublishOrder, Signature
from domain.tools import ToolAnswer, ToolSchema

EffectStatus = Literal["succeeded", "failed", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActiveTurn:
    """The runner's active turn: our id, and Codex's ids as soon as they are known."""

    turn_id: str
    codex_turn_id: str | None = None
    thread_id: str | None = None


ActiveTurnSource = Callable[[], ActiveTurn | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeRun:
    """One run: its task, its issue or pull request ``number`` in ``scope``, the bot, and what must not leak."""

    task_id: str
    scope: Scope
    number: int
    bot_id: int
    bot_login: str
    secrets: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeSettings:
    """Limits. ``comment_limit``: characters of one comment, marker included; ``argument_bytes``: of one call."""

    comment_limit: int = 60_000
    question_limit: int = 10_000
    calls_per_run: int = 2_000
    argument_bytes: int = 1_000_000
    call_timeout_s: float = 60.0


class ToolBackend(Protocol):
    """gitea-mcp (``adapters.gitea.mcp.GiteaMcp``)."""

    async def tools(self) -> Sequence[ToolSchema]:
        """List its tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, object], timeout: float) -> ToolAnswer:  # noqa: ASYNC109 - a deadline per call
        """Call one, ``timeout`` in seconds. What went wrong stands in the answer."""
        ...


class EffectLedger(Protocol):
    """The bridge's part of the log, under the run's fence.

    ``operation`` is ``comment.create`` or ``comment.edit`` for final comments of the task, ``branch.publish`` for a
    push, ``mcp.write`` for every other write.
    """

    async def intend(
        self, *, operation: Operation, tool: str, target: str, key: str, body_hash: str | None, turn_id: str
    ) -> str:
        """Write the intent and return its id. After any fault nothing may be sent.

        ``LeaseStale``, ``LeaseExpired``, ``VersionConflict``: the run has lost its lease.
        """
        ...

    async def conclude(
        self,
        intent_id: str,
        *,
        status: EffectStatus,
        outside_id: str | None,
        error_code: str | None,
        http_status: int | None,
    ) -> None:
        """Write the result of an intent."""
        ...

    async def final_comments(self) -> Sequence[int]:
        """Ids of the final comments written for this task so far, of any turn, in the order of writing."""
        ...

    async def refused(self, *, tool: str, reason: str, turn_id: str | None) -> None:
        """Record that the agent asked for what it may not do. ``reason`` is a code."""
        ...

    async def ask(self, question: str) -> None:
        """Record a question to the people of the issue. A ``Fault`` (``not_available``) becomes a tool error."""
        ...


class Comments(Protocol):
    """Comments by REST, in the run's own repository, where gitea-mcp's dialect has no tool.

    ``NotFound``: there is no such comment. ``Unavailable``: no answer, a write may have happened. Other faults: Gitea
    refused, nothing happened.
    """

    async def edit(self, comment_id: int, body: str) -> None:
        """Replace the body."""
        ...

    async def create(self, number: int, body: str) -> int:
        """Comment on an issue or pull request, and return the comment's id."""
        ...

    async def author_of(self, comment_id: int) -> int:
        """Return the id of the user who wrote it."""
        ...

    async def body_of(self, comment_id: int) -> str:
        """Return its present text."""
        ...


class Publication(Protocol):
    """Commits that are ready to be pushed; ids are git's. ``present``: where the branch stands in Gitea."""

    head: str
    commits: int
    uncommitted: int
    present: str | None
    default_branch: str

    async def push(self) -> None:
        """Push. ``Unavailable``: it may or may not have happened; other faults: it has not."""
        ...


@runtime_checkable
class Publisher(Protocol):
    """Brings the commits of the run's workspace to Gitea (``adapters.run.BoxedRun``)."""

    def publication(self, order: PublishOrder) -> AbstractAsyncContextManager[Publication]:
        """Prepare a publication without writing outside; its faults say what the agent can do."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publishing:
    """Where and under whose names a run publishes. ``requester``: the co-author, None if unknown by now."""

    publisher: Publisher
    branch: str
    committer: Signature
    requester: Callable[[], Awaitable[Signature | None]]
    max_bytes: int = 100 * 1024 * 1024
    calls_per_run: int = 100
