"""The JSON shapes of Gitea's users, repositories and hooks, for one version: who looks decides what is shown.

Source: deliveries and answers recorded from Gitea 1.22.6 and 1.27.0.
"""

import hashlib
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from adapters.simulated.gitea_git import Commit, GitStore
from adapters.simulated.gitea_state import GiteaState, Hook, Repo, User, rank

JsonObject = dict[str, Any]

EPOCH = "1970-01-01T00:00:00Z"
NEVER = "0001-01-01T00:00:00Z"


def stamp(moment: datetime) -> str:
    """A time as Gitea writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def maybe(moment: datetime | None) -> str | None:
    """The same, or null."""
    return stamp(moment) if moment else None


class RepoShapes:
    """Users, repositories, branches and hooks. ``old`` is the dialect of 1.22, else that of 1.27."""

    def __init__(self, state: GiteaState, git: GitStore, *, version: str) -> None:
        self.state = state
        self.git = git
        self.version = version
        self.old = version.startswith("1.22")
        self.base_url = ""

    # People

    def user(self, user: User, viewer: User | None) -> JsonObject:
        """A user as ``viewer`` sees it (None: as everybody does)."""
        inside = viewer is not None and (viewer.is_admin or viewer.id == user.id)
        digest = hashlib.md5(user.login.lower().encode(), usedforsecurity=False).hexdigest()
        return {
            "id": user.id,
            "login": user.login,
            "login_name": "",
            "source_id": 0,
            "full_name": user.full_name,
            "email": user.email if viewer is not None or user.is_org else self.placeholder_email(user),
            "avatar_url": f"{self.base_url}/avatars/{digest}",
            "html_url": f"{self.base_url}/{user.login}",
            "language": "",
            "is_admin": user.is_admin if inside else False,
            "last_login": EPOCH if inside else NEVER,
            "created": stamp(user.created),
            "restricted": False,
            "active": inside,
            "prohibit_login": False,
            "location": "",
            "website": "",
            "description": "",
            "visibility": "public",
            "followers_count": 0,
            "following_count": 0,
            "starred_repos_count": 0,
            "username": user.login,
        }

    def placeholder_email(self, user: User) -> str:
        """The address that stands for a hidden one."""
        name = user.login.lower() if self.old else f"{user.id}+{user.login.lower()}"
        return f"{name}@noreply.{urlsplit(self.base_url).hostname or 'localhost'}"

    # Repositories

    def permissions(self, repo: Repo, viewer: User | None) -> JsonObject:
        """What ``viewer`` may do with the code."""
        code = rank(self.state.access(repo, viewer))
        return {"admin": self.state.is_repo_admin(repo, viewer), "push": code >= 2, "pull": code >= 1}

    def repo(self, repo: Repo, viewer: User | None, *, permissions: JsonObject | None = None) -> JsonObject:
        """A repository as ``viewer`` sees it. A fork's parent carries the fork's own permissions, as in Gitea."""
        state = self.state
        name = state.full_name(repo)
        owner = state.users[repo.owner_id]
        rights = permissions if permissions is not None else self.permissions(repo, viewer)
        known = _someone_else(owner) if rank(state.access(repo, viewer)) > 0 else None
        parent = state.repos.get(repo.fork_of) if repo.fork_of is not None else None
        inner = self.repo(parent, viewer, permissions=rights) if parent else None
        issues = [i for i in state.issues.values() if i.repo_id == repo.id and i.state == "open"]
        html = f"{self.base_url}/{name}"
        branches = self.git.branches(repo.id)
        shape: JsonObject = {
            "id": repo.id,
            "owner": self.user(owner, known),
            "name": repo.name,
            "full_name": name,
            "description": repo.description,
            "empty": not branches,
            "private": repo.private,
            "fork": repo.fork_of is not None,
            "template": False,
            "parent": inner,
            "mirror": False,
            "size": self.git.size_kib(repo.id),
            "language": "",
            "languages_url": f"{self.base_url}/api/v1/repos/{name}/languages",
            "html_url": html,
            "url": f"{self.base_url}/api/v1/repos/{name}",
            "link": "",
            "ssh_url": f"git@{urlsplit(self.base_url).hostname}:{name}.git",
            "clone_url": f"{html}.git",
            "original_url": "",
            "website": "",
            "stars_count": 0,
            "forks_count": sum(other.fork_of == repo.id for other in state.repos.values()),
            "watchers_count": 1,
            "branch_count": len(branches),
            "open_issues_count": sum(i.pull is None for i in issues),
            "open_pr_counter": sum(i.pull is not None for i in issues),
            "release_counter": 0,
            "default_branch": repo.default_branch,
            "archived": repo.archived,
            "created_at": stamp(repo.created),
            "updated_at": stamp(repo.updated),
            "archived_at": stamp(repo.updated) if repo.archived else EPOCH,
            "permissions": rights,
            "has_code": True,
            "has_issues": repo.has_issues,
        }
        if repo.has_issues:
            shape["internal_tracker"] = {
                "enable_time_tracker": True,
                "allow_only_contributors_to_track_time": True,
                "enable_issue_dependencies": True,
            }
        shape |= self._repo_settings(repo)
        if self.old:
            for key in ("has_code", "branch_count", *_ONLY_NEW_REPO):
                shape.pop(key, None)
            shape["repo_transfer"] = None
        elif inner is None:
            del shape["parent"]
        return shape

    def _repo_settings(self, repo: Repo) -> JsonObject:
        return {
            "has_wiki": repo.has_extras,
            "has_pull_requests": True,
            "has_projects": repo.has_extras,
            "projects_mode": "all",
            "has_releases": repo.has_extras,
            "has_packages": False,
            "has_actions": False,
            "ignore_whitespace_conflicts": False,
            "allow_merge_commits": True,
            "allow_rebase": True,
            "allow_rebase_explicit": True,
            "allow_squash_merge": True,
            "allow_fast_forward_only_merge": True,
            "allow_merge_update": True,
            "allow_rebase_update": True,
            "allow_manual_merge": False,
            "autodetect_manual_merge": False,
            "default_delete_branch_after_merge": False,
            "default_merge_style": "merge",
            "default_update_style": "merge",
            "default_allow_maintainer_edit": not self.old,
            "avatar_url": "",
            "internal": False,
            "mirror_interval": "",
            "object_format_name": "sha1",
            "mirror_updated": NEVER,
            "mirror_last_sync_at": NEVER,
            "topics": list(repo.topics),
            "licenses": [],
        }

    def repo_meta(self, repo: Repo) -> JsonObject:
        """The short form inside an issue; ``owner`` is a string there."""
        return {
            "id": repo.id,
            "name": repo.name,
            "owner": self.state.users[repo.owner_id].login,
            "full_name": self.state.full_name(repo),
        }

    def branch(self, repo: Repo, name: str, sha: str, viewer: User | None) -> JsonObject:
        """A branch with its last commit."""
        commit = self.git.commits(repo.id, sha, limit=1)[0]
        protected = name in repo.protected
        may_push = self.state.may_write(repo, viewer) and not protected
        return {
            "name": name,
            "commit": self.payload_commit(repo, commit),
            "protected": protected,
            "required_approvals": 0,
            "enable_status_check": False,
            "status_check_contexts": [],
            "user_can_push": may_push,
            "user_can_merge": self.state.may_write(repo, viewer),
            "effective_branch_protection_name": name if protected else "",
        }

    def payload_commit(self, repo: Repo, commit: Commit) -> JsonObject:
        """A commit as pushes and branches carry it."""

        def person(who: tuple[str, str, str]) -> JsonObject:
            match = next((u for u in self.state.users.values() if u.email == who[1] and u.email), None)
            return {"name": who[0], "email": who[1], "username": match.login if match else ""}

        return {
            "id": commit.sha,
            "message": commit.message,
            "url": f"{self.base_url}/{self.state.full_name(repo)}/commit/{commit.sha}",
            "author": person(commit.author),
            "committer": person(commit.committer),
            "verification": None,
            "timestamp": commit.author[2],
            "added": None,
            "removed": None,
            "modified": None,
        }

    def hook(self, hook: Hook) -> JsonObject:
        """A hook without its secret."""
        shape: JsonObject = {
            "id": hook.id,
            "name": "",
            "type": "gitea",
            "branch_filter": hook.branch_filter,
            "config": {"content_type": hook.content_type, "url": hook.url},
            "events": self._events(hook),
            "authorization_header": "",
            "active": hook.active,
            "updated_at": stamp(hook.updated),
            "created_at": stamp(hook.created),
        }
        if self.old:
            del shape["name"]
        return shape

    def _events(self, hook: Hook) -> list[str]:
        review = "pull_request_review"
        if not self.old or review not in hook.events:
            return sorted(hook.events)
        kinds = (f"{review}_{kind}" for kind in ("approved", "rejected", "comment"))
        return sorted({*hook.events, *kinds} - {review})


_ONLY_NEW_REPO = (
    "allow_merge_update",
    "allow_manual_merge",
    "autodetect_manual_merge",
    "default_update_style",
    "mirror_last_sync_at",
    "topics",
    "licenses",
)


def _someone_else(user: User) -> User:
    """A signed-in viewer who is neither the user nor an administrator: sees the address, nothing more."""
    return User(id=-1, login="", email="", created=user.created)
