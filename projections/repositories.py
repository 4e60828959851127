"""Repositories, one document each (seed §4.2), by repository key."""

from domain.log import Recorded
from domain.repositories import (
    MirrorFetched,
    Repository,
    RepositoryBlocked,
    RepositoryDisabled,
    RepositoryEnabled,
    RepositoryRegistered,
    RepositoryRenamed,
    RepositoryUnblocked,
)
from projections.view import Document, Documents, stamp


class Repositories:
    """``workspacePath`` is the path under the workspace root, which itself is nobody's business."""

    name = "repositories"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """Its repository."""
        match recorded.event:
            case (
                RepositoryRegistered()
                | RepositoryRenamed()
                | RepositoryDisabled()
                | RepositoryEnabled()
                | RepositoryBlocked()
                | RepositoryUnblocked()
                | MirrorFetched()
            ) as event:
                return event.repo_key
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """One document, the repository's."""
        event = recorded.event
        if isinstance(event, RepositoryRegistered):
            return {event.repo_key: _registered(event, recorded)}
        change: Document
        match event:
            case RepositoryRenamed():
                change = {
                    "owner": event.owner,
                    "name": event.name,
                    "cloneUrl": event.clone_url,
                    "defaultBranch": event.default_branch,
                }
            case RepositoryDisabled():
                change = {"_disabled": True, "statusReason": event.reason}
            case RepositoryEnabled():
                change = {"_disabled": False, "statusReason": None}
            case RepositoryBlocked():
                change = {"blockedBy": event.task_id}
            case RepositoryUnblocked():
                change = {"blockedBy": None}
            case MirrorFetched():
                change = {"lastFetchAt": event.at, "defaultBranch": event.default_branch}
            case _:
                return {}
        before = rows.get(event.repo_key)
        if before is None:
            return {}
        after = {**before, **change, "updatedAt": stamp(recorded.recorded_at)}
        after["status"] = Repository(disabled=after["_disabled"], blocked_by=after["blockedBy"]).status
        if recorded.stream == f"repo:{event.repo_key}":
            after["version"] = recorded.version
        return {event.repo_key: after}


def _registered(event: RepositoryRegistered, recorded: Recorded) -> Document:
    at = stamp(recorded.recorded_at)
    return {
        "repoKey": event.repo_key,
        "repositoryId": event.repository_id,
        "instanceId": event.repo_key.partition(":")[0],
        "owner": event.owner,
        "name": event.name,
        "cloneUrl": event.clone_url,
        "workspacePath": "/workspace/" + event.repo_key.replace(":", "/", 1),
        "defaultBranch": event.default_branch,
        "private": event.private,
        "status": "active",
        "statusReason": None,
        "blockedBy": None,
        "_disabled": False,
        "registeredAt": at,
        "lastFetchAt": None,
        "createdAt": at,
        "updatedAt": at,
        "version": recorded.version,
    }
