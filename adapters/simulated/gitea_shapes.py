"""The JSON shapes of Gitea, for one version: who looks decides what is shown.

Source: deliveries and answers recorded from Gitea 1.22.6 and 1.27.0.
"""

from datetime import datetime

from adapters.simulated.gitea_git import GitRefusedError, GitStore
from adapters.simulated.gitea_repo_shapes import JsonObject, RepoShapes, maybe, stamp
from adapters.simulated.gitea_state import Comment, GiteaState, Issue, Repo, Review, User


class GiteaShapes(RepoShapes):
    """``RepoShapes`` with issues, comments, pull requests and reviews."""

    def __init__(self, state: GiteaState, git: GitStore, *, version: str) -> None:
        super().__init__(state, git, version=version)
        self._mergeable: dict[tuple[int, str, str], bool] = {}

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
