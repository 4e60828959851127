"""What a run tells of the outside, as plain data: the language between the runner and its boxes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from domain.turns import Status


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """One run of one task. ``head_ref``: what is checked out, a full ref of the base repository.

    ``unblocked``: a person has just confirmed the workspace.
    """

    task_id: str
    session_key: str
    repo_key: str
    owner: str
    name: str
    repository_id: int
    kind: Literal["issue", "pull_request"]
    number: int
    default_branch: str
    base_ref: str
    head_ref: str
    unblocked: bool = False
    left: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mirrored:
    """The mirror after a fetch: its default branch, and commit ids by full ref (None: there is no such ref)."""

    default_branch: str
    heads: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaidOut:
    """The workspace is ready. ``parked``: another session's leftovers that were kept, and under which ref."""

    head: str
    continued: bool
    behind: bool
    parked: Mapping[str, Any] | None
    left: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Obstructed:
    """The workspace holds what nobody may overwrite."""

    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boxed:
    """A box runs the agent."""

    identity: Mapping[str, Any]
    isolation: str
    agent: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """A thread stands and its tools are ready. ``deviations``: settings that did not take effect."""

    thread_id: str
    resumed: bool
    deviations: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """One event of a turn, numbered from 1. ``summary`` is bounded."""

    seq: int
    method: str
    item_type: str | None
    item_id: str | None
    summary: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnOutcome:
    """How a turn ended. ``cause``: why we ended it, where we did.

    ``unsolicited``: Codex's ids of turns that it began by itself meanwhile, and that were interrupted.
    """

    status: Status
    codex_turn_id: str
    events: int
    cause: Literal["stalled", "deadline", "drain", "abort", "agent_exited"] | None = None
    error_code: str | None = None
    error: str | None = None
    message: str | None = None
    usage: Mapping[str, int] | None = None
    downgrades: tuple[str, ...] = ()
    unsolicited: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comment:
    """A comment as Gitea lists it."""

    id: int
    author_id: int
    author: str
    body: str
    created_at: str
    updated_at: str
    url: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Background:
    """What the prompt tells of the issue or pull request, as untrusted data."""

    title: str
    body: str
    url: str
    comments: tuple[Comment, ...] = ()
    changed_files: tuple[str, ...] = ()
