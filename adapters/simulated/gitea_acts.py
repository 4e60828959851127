"""What people do in the stand-in Gitea. REST, git and the tests' Python interface all come through here.

Each act checks what Gitea checks, changes the state and raises the deliveries that Gitea would raise. Acts take the
doer as a ``User`` or a login, and repositories as ``Repo`` or ``owner/name``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from adapters.simulated.gitea_events import GiteaEvents
from adapters.simulated.gitea_git import GitStore
from adapters.simulated.gitea_hooks import GiteaHooks, stored_events
from adapters.simulated.gitea_repo_shapes import stamp
from adapters.simulated.gitea_shapes import GiteaShapes
from adapters.simulated.gitea_state import (
    Comment,
    GiteaError,
    GiteaState,
    Hook,
    Issue,
    Repo,
    User,
    forbidden,
    not_found,
)

_COUNTED = ("comment", "review")
_DEFAULT_FILES: Mapping[str, str | bytes] = {"README.md": "# A repository\n"}


class GiteaActs(GiteaState):
    """The state together with everything that people can do to it."""

    git: GitStore
    shapes: GiteaShapes
    hook_queue: GiteaHooks
    events: GiteaEvents

    def who(self, who: User | str) -> User:
        """The user, by object or login."""
        return self.user(who) if isinstance(who, str) else who

    def which(self, repo: Repo | str) -> Repo:
        """The repository, by object or ``owner/name``."""
        return self.repo(repo) if isinstance(repo, str) else repo

    # Repositories

    def add_repo(
        self,
        owner: str,
        name: str,
        *,
        private: bool = False,
        files: Mapping[str, str | bytes] | None = None,
        default_branch: str = "main",
        description: str = "",
    ) -> Repo:
        """Create a repository with a first commit of ``files`` (an empty mapping: no commit at all)."""
        account = self.user(owner)
        if self.find_repo(owner, name) is not None:
            raise GiteaError(
                409, f"The repository with the same name already exists. [uname: {owner}, name: {name}]"
            )
        now = self.clock()
        repo = Repo(
            id=self.next_id("repo"),
            owner_id=account.id,
            name=name,
            private=private,
            default_branch=default_branch,
            description=description,
            created=now,
            updated=now,
        )
        self.git.create(repo.id, default_branch)
        self.repos[repo.id] = repo
        self.redirects.pop((account.id, name.lower()), None)
        content = _DEFAULT_FILES if files is None else files
        if content:
            self.git.commit(
                repo.id,
                branch=default_branch,
                message="Initial commit\n",
                author=(account.login, account.email or f"{account.login}@example.test"),
                when=stamp(now),
                files={k: v.encode() if isinstance(v, str) else v for k, v in content.items()},
                parent=None,
            )
        return repo

    def rename_repo(self, repo: Repo | str, name: str) -> None:
        """Rename; the old name leads to the new one until somebody takes it."""
        target = self.which(repo)
        if target.name != name:
            self.redirects[target.owner_id, target.name.lower()] = target.id
            target.name = name

    def delete_repo(self, repo: Repo | str) -> None:
        """Delete a repository; pull requests that came from it lose their head and are closed."""
        target = self.which(repo)
        for issue in list(self.issues.values()):
            if issue.repo_id == target.id:
                self._forget_issue(issue)
            elif issue.pull and issue.pull.head_repo_id == target.id:
                issue.pull.head_repo_id = None
        for hook in [h for h in self.hooks.values() if h.repo_id == target.id]:
            del self.hooks[hook.id]
        del self.repos[target.id]
        self.redirects = {key: value for key, value in self.redirects.items() if value != target.id}
        self.git.delete(target.id)

    def _forget_issue(self, issue: Issue) -> None:
        del self.issues[issue.id]
        self.comments = {key: c for key, c in self.comments.items() if c.issue_id != issue.id}
        self.reviews = {key: r for key, r in self.reviews.items() if r.issue_id != issue.id}

    # Hooks

    def add_hook(
        self,
        url: str,
        *,
        secret: str = "",
        events: Iterable[str] = (
            "issue_comment",
            "pull_request_comment",
            "pull_request_review",
            "issues_only",
        ),
        repo: Repo | str | None = None,
        owner: str | None = None,
        content_type: str = "json",
        active: bool = True,
    ) -> Hook:
        """Create a hook of a repository, of an owner, or (neither) of the whole server."""
        now = self.clock()
        hook = Hook(
            id=self.next_id("hook"),
            url=url,
            content_type=content_type,
            secret=secret,
            events=stored_events(list(events)) or frozenset({"push"}),
            active=active,
            created=now,
            updated=now,
            repo_id=self.which(repo).id if repo is not None else None,
            owner_id=self.user(owner).id if owner is not None else None,
        )
        self.hooks[hook.id] = hook
        return hook

    def test_hook(self, doer: User | str, repo: Repo | str, hook: Hook) -> None:
        """Press the button "Test Delivery"."""
        self.events.test(self.who(doer), self.which(repo), hook)

    # Issues

    def open_issue(self, doer: User | str, repo: Repo | str, title: str, body: str = "") -> Issue:
        """Open an issue; delivers ``issues/opened``."""
        user, target = self.who(doer), self.which(repo)
        issue = self._new_issue(user, target, title, body)
        self.events.issue("opened", user, issue)
        return issue

    def _new_issue(self, user: User, repo: Repo, title: str, body: str) -> Issue:
        now = self.clock()
        issue = Issue(
            id=self.next_id("issue"),
            repo_id=repo.id,
            number=repo.next_number,
            poster_id=user.id,
            title=title,
            body=body,
            created=now,
            updated=now,
        )
        repo.next_number += 1
        self.issues[issue.id] = issue
        return issue

    def edit_issue(
        self,
        doer: User | str,
        issue: Issue,
        *,
        title: str | None = None,
        body: str | None = None,
        state: str | None = None,
    ) -> Issue:
        """Change an issue or pull request; each change has its own delivery."""
        user = self.who(doer)
        if title is not None and title != issue.title:
            before, issue.title = issue.title, title
            self._touch(issue)
            self.note(issue, user, "change_title")
            self.events.issue("edited", user, issue, changes=self.events.changed(title=before))
        if body is not None and (body != issue.body or self.shapes.old):
            before, issue.body = issue.body, body
            issue.content_version += 1
            self._touch(issue)
            self.events.issue("edited", user, issue, changes=self.events.changed(body=before))
        if state is not None and state != issue.state:
            self.set_state(user, issue, state)
        return issue

    def set_state(self, doer: User | str, issue: Issue, state: str) -> None:
        """Close or reopen."""
        user = self.who(doer)
        if state not in ("open", "closed"):
            raise GiteaError(422, f"unknown state: {state}")
        if issue.pull and issue.pull.merged_at and state == "open":
            raise GiteaError(412, "cannot change state of this pull request, it was already merged")
        issue.state = state
        issue.closed = self.clock() if state == "closed" else None
        self._touch(issue)
        self.note(issue, user, "close" if state == "closed" else "reopen")
        self.events.issue("closed" if state == "closed" else "reopened", user, issue)

    def lock_issue(self, doer: User | str, issue: Issue, *, locked: bool) -> None:
        """Lock or unlock the conversation."""
        if issue.locked != locked:
            issue.locked = locked
            self.note(issue, self.who(doer), "lock" if locked else "unlock")

    def delete_issue(self, doer: User | str, issue: Issue) -> None:
        """Delete; delivers ``issues/deleted`` from 1.27 on, nothing in 1.22."""
        user = self.who(doer)
        if not self.shapes.old:
            self.events.issue("deleted", user, issue, rights_of=user)
        self._forget_issue(issue)

    def _touch(self, issue: Issue) -> None:
        issue.updated = self.clock()

    def note(self, issue: Issue, user: User, kind: str, body: str = "", **more: Any) -> Comment:  # noqa: ANN401 - fields of Comment
        """Add an entry to the timeline that is no plain comment."""
        now = self.clock()
        comment = Comment(
            id=self.next_id("comment"),
            issue_id=issue.id,
            poster_id=user.id,
            kind=kind,
            body=body,
            created=now,
            updated=now,
            **more,
        )
        self.comments[comment.id] = comment
        return comment

    # Comments

    def comment(self, doer: User | str, repo: Repo | str, number: int, body: str) -> Comment:
        """Write below an issue or pull request; delivers ``created``. Raises as Gitea's REST does."""
        user, target = self.who(doer), self.which(repo)
        issue = self.find_issue(target, number)
        if issue is None:
            raise GiteaError(500)
        if issue.locked and not self.may_write(target, user, "pulls" if issue.pull else "issues"):
            raise forbidden("You cannot comment on a locked issue.")
        before = issue.num_comments
        comment = self.note(issue, user, "comment", body)
        self._touch(issue)
        self._count(issue, +1)
        shown = before if self.shapes.old else issue.num_comments
        self.events.comment("created", user, comment, num_comments=shown)
        return comment

    def _count(self, issue: Issue, step: int) -> None:
        # 1.27 counts anew, and then reviews too; 1.22 keeps a sum of plain comments (both recorded).
        counted = len(self.comments_of(issue, _COUNTED))
        issue.num_comments = issue.num_comments + step if self.shapes.old else counted

    def plain_comment(self, repo: Repo | str, comment_id: int) -> Comment:
        """A comment of that repository by id (of any kind), else ``GiteaError`` 404."""
        target = self.which(repo)
        comment = self.comments.get(comment_id)
        if comment is None:
            raise not_found(f"comment does not exist [id: {comment_id}, issue_id: 0]")
        if self.issues[comment.issue_id].repo_id != target.id:
            raise not_found()
        return comment

    def edit_comment(self, doer: User | str, repo: Repo | str, comment_id: int, body: str) -> Comment:
        """Change a comment: its author may, and whoever may write issues. Delivers ``edited``."""
        user, target = self.who(doer), self.which(repo)
        comment = self.plain_comment(target, comment_id)
        self._may_change(user, target, comment)
        before = comment.body
        if body == before and not self.shapes.old:
            return comment
        comment.body, comment.updated = body, self.clock()
        if comment.kind == "comment":
            issue = self.issues[comment.issue_id]
            self.events.comment("edited", user, comment, num_comments=issue.num_comments, before=before)
        return comment

    def delete_comment(self, doer: User | str, repo: Repo | str, comment_id: int) -> None:
        """Remove a comment; delivers ``deleted``."""
        user, target = self.who(doer), self.which(repo)
        comment = self.plain_comment(target, comment_id)
        self._may_change(user, target, comment)
        issue = self.issues[comment.issue_id]
        before = issue.num_comments
        del self.comments[comment.id]
        if comment.kind != "comment":
            return
        self._count(issue, -1)
        shown = before if self.shapes.old else issue.num_comments
        self.events.comment("deleted", user, comment, num_comments=shown)

    def _may_change(self, user: User, repo: Repo, comment: Comment) -> None:
        unit = "pulls" if self.issues[comment.issue_id].pull else "issues"
        if user.id != comment.poster_id and not self.may_write(repo, user, unit):
            raise forbidden()

    def react(self, doer: User | str, on: Comment | Issue, content: str) -> tuple[tuple[int, str, Any], bool]:
        """Add a reaction; the flag says whether it is new."""
        user = self.who(doer)
        for entry in on.reactions:
            if entry[:2] == (user.id, content):
                return entry, False
        added = (user.id, content, self.clock())
        on.reactions.append(added)
        return added, True
