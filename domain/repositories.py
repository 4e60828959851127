"""Repositories: registered on first sight, disabled by people, blocked by a workspace that needs one.

Streams ``repository-id:default:<id>`` (which key a repository id has, for ever), ``repo:<repoKey>`` (the aggregate),
``mirror:<repoKey>`` and ``workspace:<repoKey>`` (what the runner saw, kept apart so that intake never waits for it).
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from domain.events import Event, derived, fact

Status = Literal["active", "disabled", "blocked"]


@derived
class RepositoryKeyClaimed(Event):
    """A repository id got its key, which it keeps through renames."""

    repository_id: int
    repo_key: str


@derived
class RepositoryRegistered(Event):
    """First signed sight of a repository (seed §4.2). ``clone_url`` holds no credential."""

    repo_key: str
    repository_id: int
    owner: str
    name: str
    clone_url: str
    default_branch: str
    private: bool


@derived
class RepositoryRenamed(Event):
    """A later delivery names the same repository id otherwise. The key stays."""

    repo_key: str
    owner: str
    name: str
    clone_url: str
    default_branch: str


@fact
class RepositoryDisabled(Event):
    """An operator's act: no new tasks, queued ones stay unclaimed."""

    repo_key: str
    actor: str
    reason: str
    request_id: str


@fact
class RepositoryEnabled(Event):
    """An operator's act: tasks are taken again."""

    repo_key: str
    actor: str
    reason: str
    request_id: str


@derived
class RepositoryBlocked(Event):
    """A workspace holds what nobody may overwrite: the repository's tasks wait for a person."""

    repo_key: str
    task_id: str


@derived
class RepositoryUnblocked(Event):
    """The task that blocked it was unblocked or cancelled."""

    repo_key: str
    task_id: str


@fact
class MirrorFetched(Event):
    """The trusted mirror was brought up to date. ``heads`` names what was asked for."""

    repo_key: str
    task_id: str
    default_branch: str
    heads: dict[str, str | None]
    at: str


@fact
class WorkspaceRecorded(Event):
    """What a run left: the session, the head and a digest of everything that is not in it."""

    repo_key: str
    task_id: str
    left: dict[str, Any]


@fact
class LeftoversParked(Event):
    """Another session's leftovers were kept under ``ref`` before this session's files were laid out."""

    repo_key: str
    task_id: str
    parked: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """The fold of ``repo:<repoKey>``."""

    registered: RepositoryRegistered | None = None
    owner: str = ""
    name: str = ""
    clone_url: str = ""
    default_branch: str = ""
    disabled: bool = False
    blocked_by: str | None = None

    @property
    def status(self) -> Status:
        """Disabled by an operator beats blocked by a workspace."""
        if self.disabled:
            return "disabled"
        return "blocked" if self.blocked_by else "active"


def evolve(repository: Repository, event: Event) -> Repository:
    """Apply one event."""
    match event:
        case RepositoryRegistered():
            return dataclasses.replace(
                repository,
                registered=event,
                owner=event.owner,
                name=event.name,
                clone_url=event.clone_url,
                default_branch=event.default_branch,
            )
        case RepositoryRenamed():
            return dataclasses.replace(
                repository,
                owner=event.owner,
                name=event.name,
                clone_url=event.clone_url,
                default_branch=event.default_branch,
            )
        case RepositoryDisabled():
            return dataclasses.replace(repository, disabled=True)
        case RepositoryEnabled():
            return dataclasses.replace(repository, disabled=False)
        case RepositoryBlocked():
            return dataclasses.replace(repository, blocked_by=event.task_id)
        case RepositoryUnblocked():
            return dataclasses.replace(repository, blocked_by=None)
        case _:
            return repository


def fold(events: Iterable[Event]) -> Repository:
    """Rebuild a repository from its events."""
    repository = Repository()
    for event in events:
        repository = evolve(repository, event)
    return repository


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workspace:
    """The fold of ``workspace:<repoKey>``: what the last run left."""

    left: dict[str, Any] | None = None


def fold_workspace(events: Iterable[Event]) -> Workspace:
    """Rebuild what is known of a workspace."""
    workspace = Workspace()
    for event in events:
        if isinstance(event, WorkspaceRecorded):
            workspace = Workspace(left=event.left)
    return workspace
