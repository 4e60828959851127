"""The JSON shapes of Gitea, for one version: who looks decides what is shown.

Source: deliveries and answers recorded from Gitea 1.22.6 and 1.27.0.
"""

import hashlib
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from adapters.simulated.gitea_git import Commit, GitRefusedError, GitStore
from adapters.simulated.gitea_state import Comment, GiteaState, Hook, Issue, Repo, Review, User, rank

JsonObject = dict[str, Any]

EPOCH = "1970-01-01T00:00:00Z"
NEVER = "0001-01-01T00:00:00Z"


def stamp(moment: datetime) -> str:
    """A time as Gitea writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def maybe(moment: datetime | None) -> str | None:
    """The same, or null."""
    return stamp(moment) if moment else None


class GiteaShapes:
    """Builds the objects that Gitea shows. ``old`` is the dialect of 1.22, else that of 1.27."""

    def __init__(self, state: GiteaState, git: GitStore, *, version: str) -> None:
        self.state = state
        self.git = git
        self.version = version
        self.old = version.startswith("1.22")
        self.base_url = ""
        self._mergeable: dict[tuple[int, str, str], bool] = {}

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
        signed = viewer if rank(state.access(repo, viewer)) > 0 else None
        known = owner if owner.is_org else signed and _someone_else(owner)
        parent = state.repos.get(repo.fork_of) if repo.fork_of is not None else None
        inner = self.repo(parent, viewer, permissions=rights) if parent else None
        issues = [i for i in state.issues.values() if i.repo_id == repo.id and i.state == "open"]
        html = f"{self.base_url}/{name}"
        shape: JsonObject = {
            "id": repo.id,
            "owner": self.user(owner, known),
            "name": repo.name,
            "full_name": name,
            "description": repo.description,
            "empty": not self.git.branches(repo.id),
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
            "branch_count": len(self.git.branches(repo.id)),
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
            "has_wiki": True,
            "has_pull_requests": True,
            "has_projects": True,
            "projects_mode": "all",
            "has_releases": True,
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

    # Issues and pull requests

    def issue_html(self, issue: Issue, *, as_issue: bool = False) -> str:
        """The web address of an issue or pull request."""
        repo = self.state.repos[issue.repo_id]
        kind = "pulls" if issue.pull and not as_issue else "issues"
        return f"{self.base_url}/{self.state.full_name(repo)}/{kind}/{issue.number}"

    def issue(self, issue: Issue, viewer: User | None, *, num_comments: int | None = None) -> JsonObject:
        """An issue, or a pull request seen as an issue."""
        repo = self.state.repos[issue.repo_id]
        html = self.issue_html(issue)
        pull = issue.pull
        shape: JsonObject = {
            "id": issue.id,
            "url": f"{self.base_url}/api/v1/repos/{self.state.full_name(repo)}/issues/{issue.number}",
            "html_url": html,
            "number": issue.number,
            "user": self.user(self.state.users[issue.poster_id], viewer),
            "original_author": "",
            "original_author_id": 0,
            "title": issue.title,
            "body": issue.body,
            "ref": "",
            "assets": [],
            "labels": [],
            "milestone": None,
            "projects": None,
            "assignee": None,
            "assignees": None,
            "state": issue.state,
            "is_locked": issue.locked,
            "comments": issue.num_comments if num_comments is None else num_comments,
            "created_at": stamp(issue.created),
            "updated_at": stamp(issue.updated),
            "closed_at": maybe(issue.closed),
            "due_date": None,
            "time_estimate": 0,
            "pull_request": {
                "merged": pull.merged_at is not None,
                "merged_at": maybe(pull.merged_at),
                "draft": False,
                "html_url": html,
            }
            if pull
            else None,
            "repository": self.repo_meta(repo),
            "pin_order": 0,
            "content_version": issue.content_version,
        }
        if self.old:
            for key in ("projects", "time_estimate", "content_version"):
                del shape[key]
        return shape

    def comment(self, comment: Comment) -> JsonObject:
        """A plain comment; its user is shown as everybody sees it."""
        issue = self.state.issues[comment.issue_id]
        html = self.issue_html(issue)
        return {
            "id": comment.id,
            "html_url": f"{html}#issuecomment-{comment.id}",
            "pull_request_url": html if issue.pull else "",
            "issue_url": "" if issue.pull else html,
            "user": self.user(self.state.users[comment.poster_id], None),
            "original_author": "",
            "original_author_id": 0,
            "body": comment.body,
            "assets": [],
            "created_at": stamp(comment.created),
            "updated_at": stamp(comment.updated),
        }

    def pull(self, issue: Issue, viewer: User | None, *, num_comments: int | None = None) -> JsonObject:
        """A pull request with both of its sides."""
        repo, pull = self.state.repos[issue.repo_id], issue.pull
        if pull is None:
            raise TypeError("not a pull request")
        html = self.issue_html(issue)
        nothing: list[JsonObject] | None = None if self.old else []
        asked = [self.user(self.state.users[i], None) for i in self._reviewers(issue)]
        head_repo = self.state.repos.get(pull.head_repo_id) if pull.head_repo_id is not None else None
        head_alive = head_repo is not None and pull.head_branch in self.git.branches(head_repo.id)
        base_sha = self.git.branches(repo.id).get(pull.base_branch, pull.merge_base)
        talks = len(self.state.comments_of(issue, ["review"]))
        shape: JsonObject = {
            "id": pull.id,
            "url": html,
            "number": issue.number,
            "user": self.user(self.state.users[issue.poster_id], viewer),
            "title": issue.title,
            "body": issue.body,
            "labels": [],
            "milestone": None,
            "assignee": None,
            "assignees": nothing,
            "requested_reviewers": asked or nothing,
            "requested_reviewers_teams": [],
            "state": issue.state,
            "draft": False,
            "is_locked": issue.locked,
            "comments": issue.num_comments if num_comments is None else num_comments,
            "review_comments": talks,
            **self._diff_size(repo, pull.merge_base, pull.head_sha, alive=head_alive),
            "html_url": html,
            "diff_url": f"{html}.diff",
            "patch_url": f"{html}.patch",
            "mergeable": self._can_merge(repo, base_sha, pull.head_sha),
            "merged": pull.merged_at is not None,
            "merged_at": maybe(pull.merged_at),
            "merge_commit_sha": pull.merge_commit,
            "merged_by": self.user(self.state.users[pull.merged_by], None) if pull.merged_by else None,
            "allow_maintainer_edit": not self.old,
            "base": {
                "label": pull.base_branch,
                "ref": pull.base_branch,
                "sha": base_sha,
                "repo_id": repo.id,
                "repo": self.repo(repo, viewer),
            },
            "head": {
                "label": pull.head_branch,
                "ref": pull.head_branch if head_alive else f"refs/pull/{issue.number}/head",
                "sha": pull.head_sha,
                "repo_id": head_repo.id if head_repo else -1,
                "repo": self.repo(head_repo, viewer) if head_repo else None,
            },
            "merge_base": pull.merge_base,
            "due_date": None,
            "created_at": stamp(issue.created),
            "updated_at": stamp(issue.updated),
            "closed_at": maybe(issue.closed),
            "pin_order": 0,
            "content_version": issue.content_version,
        }
        if self.old:
            del shape["requested_reviewers_teams"], shape["content_version"]
        elif not talks:
            del shape["review_comments"]
        return shape

    def _diff_size(self, repo: Repo, base: str, head: str, *, alive: bool) -> JsonObject:
        if not alive:
            return {"additions": 0, "deletions": 0, "changed_files": 0} if self.old else {}
        files = self.git.changes(repo.id, base, head)
        return {
            "additions": sum(f.additions for f in files),
            "deletions": sum(f.deletions for f in files),
            "changed_files": len(files),
        }

    def _reviewers(self, issue: Issue) -> list[int]:
        counted = {"APPROVED", "REQUEST_CHANGES"} | (set() if self.old else {"COMMENT"})
        latest: dict[int, int] = {}
        for review in self.state.reviews_of(issue):
            if review.state in counted and not review.dismissed:
                latest[review.reviewer_id] = review.id
        return sorted(latest, key=lambda user: latest[user])

    def _can_merge(self, repo: Repo, base: str, head: str) -> bool:
        key = (repo.id, base, head)
        if key not in self._mergeable:
            try:
                self._mergeable[key] = self.git.merge_tree(repo.id, base, head) is not None
            except GitRefusedError:
                self._mergeable[key] = False
        return self._mergeable[key]

    # Reviews, reactions, hooks

    def review(self, review: Review, viewer: User | None) -> JsonObject:
        """A review."""
        issue = self.state.issues[review.issue_id]
        html = self.issue_html(issue)
        code = [c for c in self.state.comments_of(issue, ["code"]) if c.review_id == review.id]
        return {
            "id": review.id,
            "user": self.user(self.state.users[review.reviewer_id], viewer),
            "team": None,
            "state": review.state,
            "body": review.body,
            "commit_id": review.commit_id,
            "stale": False,
            "official": review.official,
            "dismissed": review.dismissed,
            "comments_count": len(code),
            "submitted_at": stamp(review.submitted),
            "updated_at": stamp(review.updated),
            "html_url": f"{html}#issuecomment-{review.comment_id}",
            "pull_request_url": html,
        }

    def inline(self, comment: Comment, viewer: User | None) -> JsonObject:
        """An inline comment of a review."""
        html = self.issue_html(self.state.issues[comment.issue_id])
        return {
            "id": comment.id,
            "body": comment.body,
            "user": self.user(self.state.users[comment.poster_id], viewer),
            "resolver": None,
            "pull_request_review_id": comment.review_id,
            "created_at": stamp(comment.created),
            "updated_at": stamp(comment.updated),
            "path": comment.path,
            "commit_id": comment.commit_id,
            "original_commit_id": "",
            "diff_hunk": comment.diff_hunk,
            "position": max(comment.line, 0),
            "original_position": max(-comment.line, 0),
            "html_url": f"{html}#issuecomment-{comment.id}",
            "pull_request_url": html,
        }

    def timeline(self, comment: Comment) -> JsonObject:
        """An entry of a timeline."""
        plain = self.comment(comment)
        kept = ("id", "html_url", "pull_request_url", "issue_url", "user", "body", "created_at", "updated_at")
        return {key: plain[key] for key in kept[:1]} | {
            "type": comment.kind,
            **{key: plain[key] for key in kept[1:]},
            **_TIMELINE_REST,
            "review_id": comment.review_id,
        }

    def reaction(self, entry: tuple[int, str, datetime], viewer: User | None) -> JsonObject:
        """A reaction."""
        user, content, when = entry
        return {
            "user": self.user(self.state.users[user], viewer),
            "content": content,
            "created_at": stamp(when),
        }

    def hook(self, hook: Hook) -> JsonObject:
        """A hook without its secret."""
        shape: JsonObject = {
            "id": hook.id,
            "name": "",
            "type": "gitea",
            "branch_filter": hook.branch_filter,
            "config": {"content_type": hook.content_type, "url": hook.url},
            "events": sorted(hook.events),
            "authorization_header": "",
            "active": hook.active,
            "updated_at": stamp(hook.updated),
            "created_at": stamp(hook.created),
        }
        if self.old:
            del shape["name"]
        return shape


_ONLY_NEW_REPO = (
    "allow_merge_update",
    "allow_manual_merge",
    "autodetect_manual_merge",
    "default_update_style",
    "mirror_last_sync_at",
    "topics",
    "licenses",
)

_TIMELINE_REST: JsonObject = {
    "old_project_id": 0,
    "project_id": 0,
    "old_milestone": None,
    "milestone": None,
    "tracked_time": None,
    "old_title": "",
    "new_title": "",
    "old_ref": "",
    "new_ref": "",
    "ref_issue": None,
    "ref_comment": None,
    "ref_action": "none",
    "ref_commit_sha": "",
    "review_id": 0,
    "label": None,
    "assignee": None,
    "assignee_team": None,
    "removed_assignee": False,
    "resolve_doer": None,
    "dependent_issue": None,
}


def _someone_else(user: User) -> User:
    """A signed-in viewer who is neither the user nor an administrator: sees the address, nothing more."""
    return User(id=-1, login="", email="", created=user.created)
