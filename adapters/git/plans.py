"""What a run wants of a workspace, what it finds, and what it leaves: plain data that the caller's log can keep."""

from dataclasses import dataclass
from pathlib import Path

from adapters.git.parking import Parked
from adapters.git.snapshots import Finding


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a run left; the caller's log keeps it. ``branch`` is a full ref, empty when detached."""

    session_key: str
    task_id: str
    head: str
    branch: str
    digest: str
    dirty: bool


@dataclass(frozen=True, kw_only=True)
class WorkspacePlan:
    """A run to prepare for. Issue: both refs are the default branch; pull request: ``refs/pull/N/head``, its base.

    ``previous``: what the last run in this workspace left, of whatever session. ``unblocked``: somebody has looked
    since the workspace was blocked, so a *clean* tree is believed even where it is not what was recorded; commits
    found in it are kept. (To accept changes as a session's own, ``record`` them for it instead.)
    """

    repo_key: str
    session_key: str
    task_id: str
    base_ref: str
    head_ref: str
    previous: Left | None = None
    unblocked: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workspace that is ready.

    ``continued``: the session finds its former state. ``behind``: upstream has moved, and the session's own work
    was left where it is. ``base``, ``upstream``: commits of the plan's refs.
    """

    path: Path
    head: str
    branch: str
    base: str | None
    upstream: str
    continued: bool
    behind: bool
    parked: Parked | None = None


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """Somebody must look: nothing was changed. ``reasons`` say what was found."""

    reasons: tuple[Finding, ...]
