"""Forks, pull requests, reviews and pushes in the stand-in Gitea."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from adapters.simulated.gitea_acts import GiteaActs
from adapters.simulated.gitea_git import EMPTY
from adapters.simulated.gitea_repo_shapes import stamp
from adapters.simulated.gitea_state import GiteaError, Issue, Pull, Repo, Review, User, forbidden, not_found


class GiteaPulls(GiteaActs):
    """``GiteaActs`` with everything that needs git."""

    def fork(self, doer: User | str, repo: Repo | str, *, name: str | None = None) -> Repo:
        """Fork a repository to the doer's own account."""
        user, parent = self.who(doer), self.which(repo)
        own = name or parent.name
        if self.find_repo(user.login, own) is not None:
            raise GiteaError(
                409, f"The repository with the same name already exists. [uname: {user.login}, name: {own}]"
            )
        now = self.clock()
        child = Repo(
            id=self.next_id("repo"),
            owner_id=user.id,
            name=own,
            private=parent.private,
            default_branch=parent.default_branch,
            fork_of=parent.id,
            has_issues=False,
            has_extras=False,
            created=now,
            updated=now,
        )
        self.git.copy(parent.id, child.id, parent.default_branch)
        self.repos[child.id] = child
        self.events.fork(user, parent, child)
        return child

    def commit_files(
        self,
        doer: User | str,
        repo: Repo | str,
        branch: str,
        files: Mapping[str, str | bytes | None],
        *,
        message: str = "Change files",
        start: str | None = None,
    ) -> str:
        """Commit files (None deletes) on a branch, made from ``start`` if it is new; acts as a push does."""
        user, target = self.who(doer), self.which(repo)
        if branch in target.protected:
            raise forbidden(f"branch {branch} is protected from force push")
        refs = self.git.refs(target.id)
        tips = self.git.branches(target.id)
        parent = tips.get(branch) or tips.get(start or target.default_branch)
        sha = self.git.commit(
            target.id,
            branch=branch,
            message=message + "\n",
            author=(user.login, user.email),
            when=stamp(self.clock()),
            files={k: v.encode() if isinstance(v, str) else v for k, v in files.items()},
            parent=parent,
        )
        self.pushed(user, target, refs)
        return sha

    def create_branch(self, doer: User | str, repo: Repo | str, name: str, start: str) -> None:
        """Create a branch at a commit; acts as a push does."""
        user, target = self.who(doer), self.which(repo)
        refs = self.git.refs(target.id)
        self.git.set_ref(target.id, f"refs/heads/{name}", start)
        self.pushed(user, target, refs)

    def delete_branch(self, doer: User | str, repo: Repo | str, name: str) -> None:
        """Delete a branch; pull requests from it are closed."""
        user, target = self.who(doer), self.which(repo)
        if name not in self.git.branches(target.id):
            raise not_found()
        if name == target.default_branch:
            raise forbidden("can not delete default branch")
        if name in target.protected:
            raise forbidden("branch protected")
        refs = self.git.refs(target.id)
        self.git.set_ref(target.id, f"refs/heads/{name}", None)
        self.pushed(user, target, refs)

    def protect(self, repo: Repo | str, branch: str) -> None:
        """Let nobody push to a branch."""
        self.which(repo).protected[branch] = self.clock()

    def pushed(self, doer: User | str, repo: Repo | str, before: Mapping[str, str]) -> None:
        """What follows from refs that changed since ``before``: events, heads of pull requests, closings."""
        user, target = self.who(doer), self.which(repo)
        after = self.git.refs(target.id)
        for ref in sorted(set(before) | set(after)):
            old, new = before.get(ref, EMPTY), after.get(ref, EMPTY)
            if old == new or not ref.startswith("refs/heads/"):
                continue
            target.updated = self.clock()
            branch = ref.removeprefix("refs/heads/")
            self.events.push(user, target, ref, old, new)
            for issue in self._pulls_from(target, branch):
                if new == EMPTY:
                    self.set_state(user, issue, "closed")
                else:
                    self._move_head(user, issue, target, new)

    def _pulls_from(self, repo: Repo, branch: str) -> list[Issue]:
        return [
            issue
            for issue in self.issues.values()
            if issue.pull
            and issue.state == "open"
            and issue.pull.head_repo_id == repo.id
            and issue.pull.head_branch == branch
        ]

    def _move_head(self, user: User, issue: Issue, head_repo: Repo, sha: str) -> None:
        pull = issue.pull
        if pull is None:
            return
        self.git.fetch_into(issue.repo_id, head_repo.id, sha, f"refs/pull/{issue.number}/head")
        pull.head_sha = sha
        base = self.git.branches(issue.repo_id).get(pull.base_branch)
        if base:
            pull.merge_base = self.git.merge_base(issue.repo_id, base, sha) or pull.merge_base
        issue.updated = self.clock()
        self.note(issue, user, "pull_push", _push_note(sha))
        self.events.issue("synchronized", user, issue)

    def open_pull(
        self, doer: User | str, repo: Repo | str, *, title: str, head: str, base: str, body: str = ""
    ) -> Issue:
        """Open a pull request; ``head`` is a branch or ``owner:branch`` of a fork."""
        user, target = self.who(doer), self.which(repo)
        owner, _, branch = head.rpartition(":")
        source = self._head_repo(target, owner)
        head_sha = self.git.branches(source.id).get(branch)
        base_sha = self.git.branches(target.id).get(base)
        if head_sha is None or base_sha is None:
            raise not_found()
        self._refuse_twin(target, source, branch, base)
        issue = self._new_issue(user, target, title, body)
        self.git.fetch_into(target.id, source.id, head_sha, f"refs/pull/{issue.number}/head")
        issue.pull = Pull(
            id=self.next_id("pull"),
            head_repo_id=source.id,
            head_branch=branch,
            base_branch=base,
            merge_base=self.git.merge_base(target.id, base_sha, head_sha) or base_sha,
            head_sha=head_sha,
        )
        self.note(issue, user, "pull_push", _push_note(head_sha))
        self.events.issue("opened", user, issue)
        return issue

    def _head_repo(self, target: Repo, owner: str) -> Repo:
        if not owner:
            return target
        account = self.find_user(owner)
        if account is None:
            raise not_found()
        if account.id == target.owner_id:
            return target
        for repo in self.repos.values():
            if repo.owner_id == account.id and repo.fork_of == target.id:
                return repo
        raise not_found()

    def _refuse_twin(self, target: Repo, source: Repo, branch: str, base: str) -> None:
        for issue in self.issues_of(target):
            pull = issue.pull
            if (
                pull
                and issue.state == "open"
                and (pull.head_repo_id, pull.head_branch, pull.base_branch) == (source.id, branch, base)
            ):
                raise GiteaError(
                    409,
                    "pull request already exists for these targets "
                    f"[id: {pull.id}, issue_id: {issue.id}, head_repo_id: {source.id}, "
                    f"base_repo_id: {target.id}, head_branch: {branch}, base_branch: {base}]",
                )

    def merge(self, doer: User | str, issue: Issue, *, style: str = "merge", message: str = "") -> str:
        """Merge a pull request (``merge`` or ``squash``) and return the new commit."""
        user, repo, pull = self.who(doer), self.repos[issue.repo_id], issue.pull
        if pull is None:
            raise not_found()
        if pull.merged_at is not None or issue.state == "closed":
            raise GiteaError(405, "The PR is already merged" if pull.merged_at else "")
        base = self.git.branches(repo.id)[pull.base_branch]
        tree = self.git.merge_tree(repo.id, base, pull.head_sha)
        if tree is None:
            raise GiteaError(405, "Please try again later")
        parents = [base, pull.head_sha] if style == "merge" else [base]
        text = message or f"Merge pull request '{issue.title}' (#{issue.number}) from {pull.head_branch}\n"
        sha = self.git.commit_tree(
            repo.id,
            tree=tree,
            parents=parents,
            message=text,
            author=(user.login, user.email),
            when=stamp(self.clock()),
        )
        self.git.set_ref(repo.id, f"refs/heads/{pull.base_branch}", sha)
        now = self.clock()
        pull.merged_at, pull.merged_by, pull.merge_commit = now, user.id, sha
        issue.state, issue.closed, issue.updated = "closed", now, now
        repo.updated = now
        self.note(issue, user, "merge_pull")
        self.events.issue("closed", user, issue, rights_of=user)
        self.events.push(user, repo, f"refs/heads/{pull.base_branch}", base, sha)
        return sha

    # Reviews

    def review(
        self,
        doer: User | str,
        issue: Issue,
        *,
        state: str,
        body: str = "",
        comments: Iterable[Mapping[str, Any]] = (),
    ) -> Review:
        """Create a review with inline comments ``{path, body, new_position | old_position}``.

        A PENDING one delivers nothing until it is submitted.
        """
        user, pull = self.who(doer), issue.pull
        inline = list(comments)
        if pull is None:
            raise not_found()
        self._check_review(user, issue, state, body, has_inline=bool(inline))
        now = self.clock()
        review = Review(
            id=self.next_id("review"),
            issue_id=issue.id,
            reviewer_id=user.id,
            state=state,
            body=body,
            commit_id=pull.head_sha,
            submitted=now,
            updated=now,
        )
        self.reviews[review.id] = review
        for entry in inline:
            self._inline(user, issue, pull, review, entry)
        review.comment_id = self.note(issue, user, "review", body, review_id=review.id).id
        issue.updated = now
        if state != "PENDING":
            self._publish(user, issue, review)
        return review

    def _inline(self, user: User, issue: Issue, pull: Pull, review: Review, entry: Mapping[str, Any]) -> None:
        line = int(entry.get("new_position") or 0) or -int(entry.get("old_position") or 0)
        path = str(entry.get("path") or "")
        self.note(
            issue,
            user,
            "code",
            str(entry.get("body") or ""),
            review_id=review.id,
            path=path,
            line=line,
            commit_id=pull.head_sha,
            diff_hunk=self.git.hunk(issue.repo_id, pull.merge_base, pull.head_sha, path, line),
        )

    def _check_review(self, user: User, issue: Issue, state: str, body: str, *, has_inline: bool) -> None:
        if state not in ("APPROVED", "REQUEST_CHANGES", "COMMENT", "PENDING"):
            raise GiteaError(422, f"unknown review type: {state}")
        if user.id == issue.poster_id and state in ("APPROVED", "REQUEST_CHANGES"):
            word = "approve" if state == "APPROVED" else "reject"
            raise GiteaError(422, f"{word} your own pull is not allowed")
        if state in ("REQUEST_CHANGES", "COMMENT") and not body.strip() and not has_inline:
            raise GiteaError(422, f"review event {state} requires a body or a comment")

    def submit_review(
        self, doer: User | str, issue: Issue, review: Review, *, state: str, body: str
    ) -> Review:
        """Publish a pending review."""
        user = self.who(doer)
        if review.reviewer_id != user.id:
            raise GiteaError(403)
        if review.state != "PENDING":
            raise GiteaError(422, "only a pending review can be submitted")
        code = [c for c in self.comments_of(issue, ["code"]) if c.review_id == review.id]
        self._check_review(user, issue, state, body or review.body, has_inline=bool(code))
        review.state = state
        review.body = body
        review.updated = self.clock()
        issue.updated = review.updated
        self.note(issue, user, "review", body, review_id=review.id)
        self._publish(user, issue, review)
        return review

    def _publish(self, user: User, issue: Issue, review: Review) -> None:
        if review.state in ("APPROVED", "REQUEST_CHANGES"):
            for earlier in self.reviews_of(issue):
                if earlier.id < review.id and earlier.reviewer_id == user.id and earlier.official:
                    earlier.official, earlier.dismissed = False, True
                    earlier.updated = self.clock()
            review.official = self.may_write(self.repos[issue.repo_id], user)
        self.events.review(user, issue, review)


def _push_note(sha: str) -> str:
    return json.dumps({"is_force_push": False, "commit_ids": [sha]}, separators=(",", ":"))
