"""REST: issues, comments, reactions, timeline."""

from datetime import datetime
from typing import TypeVar

from adapters.simulated.gitea_rest import Answer, Call, route
from adapters.simulated.gitea_state import Comment, GiteaError, Issue, forbidden, not_found

_ISSUES = "/repos/{owner}/{repo}/issues"
_T = TypeVar("_T", Issue, Comment)


@route("POST", _ISSUES, scope="issue")
def create_issue(call: Call) -> Answer:
    """Open an issue."""
    doer = call.doer
    call.need_active()
    if not call.repo.has_issues:
        raise not_found()
    call.need(title="Title")
    issue = call.state.open_issue(doer, call.repo, call.body["title"], call.body.get("body") or "")
    return Answer(status=201, value=call.shapes.issue(issue, doer))


@route("GET", _ISSUES, scope="issue")
def list_issues(call: Call) -> Answer:
    """List issues and pull requests, newest first."""
    state, kind = call.query.get("state") or "open", call.query.get("type") or ""
    found = [
        issue
        for issue in reversed(call.state.issues_of(call.repo))
        if state in ("all", issue.state)
        and (kind != "issues" or issue.pull is None)
        and (kind != "pulls" or issue.pull is not None)
        and (call.query.get("q") or "").lower() in issue.title.lower() + "\n" + issue.body.lower()
    ]
    return call.page(_by_time(call, found), lambda issue: call.shapes.issue(issue, call.user))


@route("GET", _ISSUES + "/{number}", scope="issue")
def get_issue(call: Call) -> Answer:
    """One issue or pull request."""
    return Answer(value=call.shapes.issue(call.issue(), call.user))


@route("PATCH", _ISSUES + "/{number}", scope="issue")
def edit_issue(call: Call) -> Answer:
    """Change title, body or state."""
    doer = call.doer
    call.need_active()
    issue = call.issue()
    if doer.id != issue.poster_id and not call.state.may_write(call.repo, doer, _unit(issue)):
        raise forbidden()
    call.state.edit_issue(
        doer, issue, title=call.body.get("title"), body=call.body.get("body"), state=call.body.get("state")
    )
    return Answer(status=201, value=call.shapes.issue(issue, doer))


@route("DELETE", _ISSUES + "/{number}", scope="issue")
def delete_issue(call: Call) -> Answer:
    """Delete an issue."""
    call.need_admin()
    call.state.delete_issue(call.doer, call.issue())
    return Answer(status=204)


@route("PUT", _ISSUES + "/{number}/lock", scope="issue")
def lock_issue(call: Call) -> Answer:
    """Lock a conversation; 1.22 has no such route."""
    return _lock(call, locked=True)


@route("DELETE", _ISSUES + "/{number}/lock", scope="issue")
def unlock_issue(call: Call) -> Answer:
    """Unlock a conversation; 1.22 has no such route."""
    return _lock(call, locked=False)


def _lock(call: Call, *, locked: bool) -> Answer:
    if call.old:
        return Answer(
            status=404, text=b"404 page not found\n", headers={"Content-Type": "text/plain; charset=utf-8"}
        )
    issue = call.issue()
    if not call.state.may_write(call.repo, call.doer, _unit(issue)):
        raise GiteaError(403, "no permission to lock this issue")
    call.state.lock_issue(call.doer, issue, locked=locked)
    return Answer(status=204)


def _unit(issue: Issue) -> str:
    return "pulls" if issue.pull else "issues"


# Comments


@route("POST", _ISSUES + "/{number}/comments", scope="issue")
def create_comment(call: Call) -> Answer:
    """Write below an issue or pull request; a missing issue gives 500, as in Gitea."""
    doer = call.doer
    call.need_active()
    call.need(body="Body")
    issue = call.state.find_issue(call.repo, call.number())
    if issue is not None:
        call.readable(issue)
    comment = call.state.comment(doer, call.repo, call.number(), str(call.body["body"]))
    return Answer(status=201, value=call.shapes.comment(comment))


@route("GET", _ISSUES + "/{number}/comments", scope="issue")
def list_comments(call: Call) -> Answer:
    """All plain comments of an issue, ascending, never paged; a missing issue gives 500, as in Gitea."""
    issue = call.state.find_issue(call.repo, call.number())
    if issue is None:
        raise GiteaError(500)
    call.readable(issue)
    found = _by_time(call, call.state.comments_of(issue))
    return Answer(
        value=[call.shapes.comment(comment) for comment in found],
        headers={"X-Total-Count": str(len(found))},
    )


@route("GET", _ISSUES + "/comments", scope="issue")
def list_repo_comments(call: Call) -> Answer:
    """Plain comments of a whole repository: paged in 1.27, in 1.22 only where a page is asked for."""
    ids = {issue.id for issue in call.state.issues.values() if issue.repo_id == call.repo.id}
    found = [c for c in call.state.comments.values() if c.kind == "comment" and c.issue_id in ids]
    return call.page(_by_time(call, found), call.shapes.comment, always=not call.old)


def _by_time(call: Call, items: list[_T]) -> list[_T]:
    since, before = _moment(call, "since"), _moment(call, "before")
    return [
        item
        for item in items
        if (since is None or item.updated >= since) and (before is None or item.updated <= before)
    ]


def _moment(call: Call, name: str) -> datetime | None:
    text = call.query.get(name)
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError as error:
        raise GiteaError(422, f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00"') from error


@route("GET", _ISSUES + "/comments/{comment}", scope="issue")
def get_comment(call: Call) -> Answer:
    """One comment; 204 for what is no plain comment."""
    comment = call.state.plain_comment(call.repo, call.number("comment"))
    call.readable(call.state.issues[comment.issue_id])
    if comment.kind != "comment":
        return Answer(status=204)
    return Answer(value=call.shapes.comment(comment))


@route("PATCH", _ISSUES + "/comments/{comment}", scope="issue")
def edit_comment(call: Call) -> Answer:
    """Change a comment."""
    doer = call.doer
    call.need_active()
    call.need(body="Body")
    number = call.number("comment")
    comment = call.state.edit_comment(doer, call.repo, number, str(call.body["body"]))
    if comment.kind != "comment":
        return Answer(status=204)
    return Answer(value=call.shapes.comment(comment))


@route("DELETE", _ISSUES + "/comments/{comment}", scope="issue")
def delete_comment(call: Call) -> Answer:
    """Delete a comment."""
    doer = call.doer
    call.need_active()
    call.state.delete_comment(doer, call.repo, call.number("comment"))
    return Answer(status=204)


# Reactions and timeline


@route("POST", _ISSUES + "/comments/{comment}/reactions", scope="issue")
def react_to_comment(call: Call) -> Answer:
    """React to a comment: 201, or 200 where the reaction is there already."""
    return _react(call, call.state.plain_comment(call.repo, call.number("comment")))


@route("GET", _ISSUES + "/comments/{comment}/reactions", scope="issue")
def list_comment_reactions(call: Call) -> Answer:
    """Reactions to a comment."""
    return _reactions(call, call.state.plain_comment(call.repo, call.number("comment")))


@route("POST", _ISSUES + "/{number}/reactions", scope="issue")
def react_to_issue(call: Call) -> Answer:
    """React to an issue."""
    return _react(call, call.issue())


@route("GET", _ISSUES + "/{number}/reactions", scope="issue")
def list_issue_reactions(call: Call) -> Answer:
    """Reactions to an issue."""
    return _reactions(call, call.issue())


def _react(call: Call, on: Comment | Issue) -> Answer:
    doer = call.doer
    call.need_active()
    content = call.body.get("content")
    if content not in ("+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes"):
        raise GiteaError(403, f"'{content}' is not an allowed reaction")
    entry, is_new = call.state.react(doer, on, content)
    return Answer(status=201 if is_new else 200, value=call.shapes.reaction(entry, doer))


def _reactions(call: Call, on: Comment | Issue) -> Answer:
    return Answer(value=[call.shapes.reaction(entry, call.user) for entry in on.reactions])


@route("GET", _ISSUES + "/{number}/timeline", scope="issue")
def timeline(call: Call) -> Answer:
    """Everything that happened to an issue but inline comments."""
    issue = call.issue()
    entries = [c for c in call.state.comments.values() if c.issue_id == issue.id and c.kind != "code"]
    return call.page(_by_time(call, entries), call.shapes.timeline)
