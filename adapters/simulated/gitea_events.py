"""Which delivery an act causes, and whose rights ``repository.permissions`` states in it.

The rights are the sender's in comment events, the poster's when an issue or pull request is opened, edited, closed
or reopened, nobody's in reviews, and the doer's when something is merged or deleted (recorded from real servers).
"""

from adapters.simulated.gitea_git import EMPTY, Commit, GitStore
from adapters.simulated.gitea_hooks import GiteaHooks
from adapters.simulated.gitea_repo_shapes import JsonObject
from adapters.simulated.gitea_shapes import GiteaShapes
from adapters.simulated.gitea_state import Comment, GiteaState, Hook, Issue, Repo, Review, User

_REVIEW_TYPES = {
    "APPROVED": "pull_request_review_approved",
    "REQUEST_CHANGES": "pull_request_review_rejected",
    "COMMENT": "pull_request_review_comment",
}


class GiteaEvents:
    """Builds payloads and hands them to the hooks."""

    def __init__(self, state: GiteaState, git: GitStore, shapes: GiteaShapes, hooks: GiteaHooks) -> None:
        self.state = state
        self.git = git
        self.shapes = shapes
        self.hooks = hooks

    def changed(self, **before: str) -> JsonObject:
        """The ``changes`` of an edit."""
        changes: JsonObject = {key: {"from": value} for key, value in before.items()}
        if not self.shapes.old:
            changes |= {"added_labels": None, "removed_labels": None}
        return changes

    def comment(
        self,
        action: str,
        sender: User,
        comment: Comment,
        *,
        num_comments: int,
        before: str | None = None,
    ) -> None:
        """A plain comment was created, edited or deleted."""
        issue = self.state.issues[comment.issue_id]
        repo = self.state.repos[issue.repo_id]
        payload: JsonObject = {
            "action": action,
            "issue": self.shapes.issue(issue, sender, num_comments=num_comments),
        }
        if issue.pull and not self.shapes.old:
            payload["pull_request"] = self.shapes.pull(issue, sender, num_comments=num_comments)
        payload["comment"] = self.shapes.comment(comment)
        if before is not None:
            payload["changes"] = self.changed(body=before)
        payload |= {
            "repository": self.shapes.repo(repo, sender),
            "sender": self.shapes.user(sender, None),
            "is_pull": issue.pull is not None,
        }
        self.hooks.raise_event(repo, "pull_request_comment" if issue.pull else "issue_comment", payload)

    def issue(
        self,
        action: str,
        sender: User,
        issue: Issue,
        *,
        changes: JsonObject | None = None,
        rights_of: User | None = None,
    ) -> None:
        """An issue or pull request was opened, edited, closed, reopened or deleted."""
        repo = self.state.repos[issue.repo_id]
        holder = rights_of or self.state.users[issue.poster_id]
        if issue.pull:
            payload = self._pull_payload(action, sender, issue, changes)
            payload["repository"] = self.shapes.repo(repo, holder)
            self.hooks.raise_event(
                repo, "pull_request_sync" if action == "synchronized" else "pull_request", payload
            )
            return
        payload = {"action": action, "number": issue.number}
        if changes is not None:
            payload["changes"] = changes
        payload |= {
            "issue": self.shapes.issue(issue, sender),
            "repository": self.shapes.repo(repo, holder),
            "sender": self.shapes.user(sender, None),
            "commit_id": "",
        }
        self.hooks.raise_event(repo, "issues", payload)

    def _pull_payload(
        self, action: str, sender: User, issue: Issue, changes: JsonObject | None = None
    ) -> JsonObject:
        payload: JsonObject = {"action": action, "number": issue.number}
        if changes is not None:
            payload["changes"] = changes
        return payload | {
            "pull_request": self.shapes.pull(issue, None if self.shapes.old else sender),
            "requested_reviewer": None,
            "repository": None,
            "sender": self.shapes.user(sender, None),
            "commit_id": "",
            "review": None,
        }

    def review(self, sender: User, issue: Issue, review: Review) -> None:
        """A review was submitted: no id, no inline comments, nobody's rights."""
        repo = self.state.repos[issue.repo_id]
        kind = _REVIEW_TYPES[review.state]
        payload = self._pull_payload("reviewed", sender, issue)
        payload["requested_reviewer"] = None if self.shapes.old else self.shapes.user(sender, None)
        payload["repository"] = self.shapes.repo(repo, None)
        payload["review"] = {"type": kind, "content": review.body}
        self.hooks.raise_event(repo, kind, payload)

    def push(self, sender: User, repo: Repo, ref: str, old: str, new: str) -> None:
        """A branch was pushed: creation and deletion have events of their own besides."""
        name = ref.removeprefix("refs/heads/")
        basic = {"repository": self.shapes.repo(repo, None), "sender": self.shapes.user(sender, None)}
        if new == EMPTY:
            gone = {"ref": name, "ref_type": "branch", "pusher_type": "user"}
            self.hooks.raise_event(repo, "delete", gone | basic)
            return
        if old == EMPTY:
            made = {"sha": new, "ref": name, "ref_type": "branch"}
            self.hooks.raise_event(repo, "create", made | basic)
        self.hooks.raise_event(repo, "push", self._push_payload(repo, sender, ref, old, new))

    def _push_payload(self, repo: Repo, sender: User, ref: str, old: str, new: str) -> JsonObject:
        commits: list[Commit] = []
        if old != EMPTY:
            commits = self.git.commits(repo.id, new, exclude=old, limit=10)
        head = self.git.commits(repo.id, new, limit=1)[0]
        name = self.state.full_name(repo)
        base = self.shapes.base_url
        return {
            "ref": ref,
            "before": old,
            "after": new,
            "compare_url": f"{base}/{name}/compare/{old}...{new}" if old != EMPTY else "",
            "commits": [self.shapes.payload_commit(repo, commit) for commit in commits],
            "total_commits": len(commits),
            "head_commit": self.shapes.payload_commit(repo, head),
            "repository": self.shapes.repo(repo, None),
            "pusher": self.shapes.user(sender, None),
            "sender": self.shapes.user(sender, None),
        }

    def test(self, sender: User, repo: Repo, hook: Hook) -> None:
        """The test button: always a push, by a ghost author; a hook that does not want pushes gets nothing."""
        tip = self.git.branches(repo.id).get(repo.default_branch, EMPTY)
        ghost = {"name": "Ghost", "email": "", "username": "Ghost"}
        commit: JsonObject = {
            "id": tip,
            "message": "This is a fake commit",
            "url": f"{self.shapes.base_url}/{self.state.full_name(repo)}/commit/{tip}",
            "author": ghost,
            "committer": ghost,
            "verification": None,
            "timestamp": "0001-01-01T00:00:00Z",
            "added": None,
            "removed": None,
            "modified": None,
        }
        name = self.state.full_name(repo)
        payload: JsonObject = {
            "ref": f"refs/heads/{repo.default_branch}",
            "before": tip,
            "after": tip,
            "compare_url": f"{self.shapes.base_url}/{name}/compare/{tip}...{tip}",
            "commits": [commit],
            "total_commits": 1,
            "head_commit": commit,
            "repository": self.shapes.repo(repo, None),
            "pusher": self.shapes.user(sender, None),
            "sender": self.shapes.user(sender, None),
        }
        self.hooks.raise_for(hook, "push", payload)

    def fork(self, sender: User, parent: Repo, child: Repo) -> None:
        """A repository was forked."""
        payload = {
            "forkee": self.shapes.repo(parent, sender),
            "repository": self.shapes.repo(child, sender),
            "sender": self.shapes.user(sender, None),
        }
        self.hooks.raise_event(parent, "fork", payload)
