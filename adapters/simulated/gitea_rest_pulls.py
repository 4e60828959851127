"""REST: forks, branches, files, pull requests and reviews."""

import base64
from typing import Any

from adapters.simulated.gitea_git import ChangedFile
from adapters.simulated.gitea_repo_shapes import JsonObject, stamp
from adapters.simulated.gitea_rest import Answer, Call, route
from adapters.simulated.gitea_state import GiteaError, Issue, Review, forbidden, not_found

_REPO = "/repos/{owner}/{repo}"
_PULL = _REPO + "/pulls/{number}"


@route("POST", _REPO + "/forks")
def fork(call: Call) -> Answer:
    """Fork to one's own account."""
    child = call.state.fork(call.doer, call.repo, name=call.body.get("name"))
    return Answer(status=202, value=call.shapes.repo(child, call.doer))


# Branches


@route("GET", _REPO + "/branches")
def list_branches(call: Call) -> Answer:
    """Branches by name."""
    call.need_code()
    branches = call.state.git.branches(call.repo.id)
    return call.page(
        list(branches), lambda name: call.shapes.branch(call.repo, name, branches[name], call.user)
    )


@route("POST", _REPO + "/branches")
def create_branch(call: Call) -> Answer:
    """Create a branch."""
    call.need_writer()
    call.need_active()
    call.need(new_branch_name="BranchName")
    name = call.body["new_branch_name"]
    start = call.body.get("old_ref_name") or call.body.get("old_branch_name") or call.repo.default_branch
    sha = call.state.git.resolve(call.repo.id, start)
    if sha is None:
        raise GiteaError(404, "The old branch does not exist")
    if name in call.state.git.branches(call.repo.id):
        raise GiteaError(409, "The branch already exists.")
    call.state.create_branch(call.doer, call.repo, name, sha)
    return Answer(status=201, value=call.shapes.branch(call.repo, name, sha, call.doer))


@route("GET", _REPO + "/branches/{branch}")
def get_branch(call: Call) -> Answer:
    """One branch."""
    call.need_code()
    name = call.args["branch"]
    sha = call.state.git.branches(call.repo.id).get(name)
    if sha is None:
        raise not_found(f"branch does not exist [name: {name}]")
    return Answer(value=call.shapes.branch(call.repo, name, sha, call.user))


@route("DELETE", _REPO + "/branches/{branch}")
def delete_branch(call: Call) -> Answer:
    """Delete a branch."""
    call.need_writer()
    call.need_active()
    call.state.delete_branch(call.doer, call.repo, call.args["branch"])
    return Answer(status=204)


@route("POST", _REPO + "/branch_protections")
def protect_branch(call: Call) -> Answer:
    """Let nobody push to a branch (``enable_push`` false is all that the stand-in knows)."""
    call.need_admin()
    rule = call.body.get("rule_name") or call.body.get("branch_name")
    if not rule:
        raise GiteaError(422, "[RuleName]: Required")
    if call.body.get("enable_push"):
        raise GiteaError(501, "the stand-in Gitea protects branches against every push only")
    call.state.protect(call.repo, rule)
    now = stamp(call.repo.protected[rule])
    shape: JsonObject = {"branch_name": rule, "rule_name": rule, "priority": len(call.repo.protected)}
    shape |= _PROTECTION | {"created_at": now, "updated_at": now}
    if call.old:
        shape = {key: value for key, value in shape.items() if key not in _PROTECTION_NEW}
    return Answer(status=201, value=shape)


_PROTECTION: JsonObject = {
    "enable_push": False,
    "enable_push_whitelist": False,
    "push_whitelist_usernames": [],
    "push_whitelist_teams": [],
    "push_whitelist_deploy_keys": False,
    "enable_force_push": False,
    "enable_force_push_allowlist": False,
    "force_push_allowlist_usernames": [],
    "force_push_allowlist_teams": [],
    "force_push_allowlist_deploy_keys": False,
    "enable_merge_whitelist": False,
    "merge_whitelist_usernames": [],
    "merge_whitelist_teams": [],
    "enable_bypass_allowlist": False,
    "bypass_allowlist_usernames": [],
    "bypass_allowlist_teams": [],
    "enable_status_check": False,
    "status_check_contexts": None,
    "required_approvals": 0,
    "enable_approvals_whitelist": False,
    "approvals_whitelist_username": [],
    "approvals_whitelist_teams": [],
    "block_on_rejected_reviews": False,
    "block_on_official_review_requests": False,
    "block_on_outdated_branch": False,
    "dismiss_stale_approvals": False,
    "ignore_stale_approvals": False,
    "require_signed_commits": False,
    "protected_file_patterns": "",
    "unprotected_file_patterns": "",
    "block_admin_merge_override": False,
}
_PROTECTION_NEW = {
    "priority",
    "enable_force_push",
    "enable_force_push_allowlist",
    "force_push_allowlist_usernames",
    "force_push_allowlist_teams",
    "force_push_allowlist_deploy_keys",
    "enable_bypass_allowlist",
    "bypass_allowlist_usernames",
    "bypass_allowlist_teams",
    "block_admin_merge_override",
}


# Files and commits


@route("GET", _REPO + "/contents")
def get_root(call: Call) -> Answer:
    """The root folder."""
    return _contents(call, "")


@route("GET", _REPO + "/contents/{path*}")
def get_contents(call: Call) -> Answer:
    """A file with its content, or a folder's entries."""
    return _contents(call, call.args["path"].strip("/"))


def _contents(call: Call, path: str) -> Answer:
    call.need_code()
    git, repo = call.state.git, call.repo
    ref = call.query.get("ref") or repo.default_branch
    commit = git.resolve(repo.id, ref)
    if commit is None:
        raise not_found(f"object does not exist [id: {ref}, rel_path: ]")
    entry = git.entry(repo.id, commit, path)
    if entry is None:
        raise not_found(f"object does not exist [id: , rel_path: {path}]")
    if entry[0] == "blob":
        return Answer(value=_file(call, path, entry[1], entry[2], ref, content=git.blob(repo.id, entry[1])))
    rows = git.listing(repo.id, commit, f"{path}/" if path else "")
    return Answer(value=[_file(call, row[0], row[2], row[3], ref, kind=row[1]) for row in rows])


def _file(
    call: Call, path: str, sha: str, size: int, ref: str, *, kind: str = "blob", content: bytes | None = None
) -> JsonObject:
    name = call.state.full_name(call.repo)
    base = call.shapes.base_url
    is_file = kind == "blob"
    return {
        "name": path.rsplit("/", 1)[-1],
        "path": path,
        "sha": sha,
        "type": "file" if is_file else "dir",
        "size": size,
        "encoding": "base64" if content is not None else None,
        "content": base64.b64encode(content).decode() if content is not None else None,
        "target": None,
        "url": f"{base}/api/v1/repos/{name}/contents/{path}?ref={ref}",
        "html_url": f"{base}/{name}/src/branch/{ref}/{path}",
        "git_url": f"{base}/api/v1/repos/{name}/git/{'blobs' if is_file else 'trees'}/{sha}",
        "download_url": f"{base}/{name}/raw/branch/{ref}/{path}" if is_file else None,
        "submodule_git_url": None,
    }


@route("GET", _REPO + "/raw/{path*}")
def raw_file(call: Call) -> Answer:
    """A file's bytes."""
    call.need_code()
    git = call.state.git
    commit = git.resolve(call.repo.id, call.query.get("ref") or call.repo.default_branch)
    entry = git.entry(call.repo.id, commit, call.args["path"]) if commit else None
    if entry is None or entry[0] != "blob":
        raise not_found()
    return Answer(
        text=git.blob(call.repo.id, entry[1]), headers={"Content-Type": "text/plain; charset=utf-8"}
    )


@route("POST", _REPO + "/contents/{path*}")
def create_file(call: Call) -> Answer:
    """Create a file by a commit."""
    return _write_file(call, 201)


@route("PUT", _REPO + "/contents/{path*}")
def update_file(call: Call) -> Answer:
    """Change a file by a commit."""
    return _write_file(call, 200)


@route("DELETE", _REPO + "/contents/{path*}")
def delete_file(call: Call) -> Answer:
    """Delete a file by a commit."""
    return _write_file(call, 200)


def _write_file(call: Call, status: int) -> Answer:
    call.need_writer()
    call.need_active()
    path, body = call.args["path"], call.body
    branch = body.get("new_branch") or body.get("branch") or call.repo.default_branch
    start = body.get("branch") or call.repo.default_branch
    old = call.state.git.resolve(call.repo.id, start)
    entry = call.state.git.entry(call.repo.id, old, path) if old else None
    if call.method == "POST" and entry is not None:
        raise GiteaError(422, f"repository file already exists [path: {path}]")
    if call.method != "POST" and (entry is None or entry[1] != body.get("sha")):
        raise GiteaError(
            422, f"sha does not match [given: {body.get('sha')}, expected: {entry and entry[1]}]"
        )
    content = None if call.method == "DELETE" else base64.b64decode(body.get("content") or "")
    message = body.get("message") or f"Update {path}"
    sha = call.state.commit_files(call.doer, call.repo, branch, {path: content}, message=message, start=start)
    made = call.state.git.entry(call.repo.id, sha, path)
    shown = _file(call, path, made[1], made[2], branch, content=content) if made else None
    commit = call.state.git.commits(call.repo.id, sha, limit=1)[0]
    return Answer(
        status=status,
        value={"content": shown, "commit": {"sha": sha, "message": commit.message}, "verification": None},
    )


@route("GET", _REPO + "/commits")
def list_commits(call: Call) -> Answer:
    """Commits of a branch, newest first."""
    call.need_code()
    git = call.state.git
    tip = git.resolve(call.repo.id, call.query.get("sha") or call.repo.default_branch)
    if tip is None:
        raise not_found()
    return call.page(
        git.commits(call.repo.id, tip, limit=500),
        lambda commit: {
            "sha": commit.sha,
            "html_url": f"{call.shapes.base_url}/{call.state.full_name(call.repo)}/commit/{commit.sha}",
            "commit": {
                "message": commit.message,
                "tree": {"sha": commit.tree},
                "author": dict(zip(("name", "email", "date"), commit.author, strict=True)),
                "committer": dict(zip(("name", "email", "date"), commit.committer, strict=True)),
            },
            "parents": [{"sha": parent} for parent in commit.parents],
        },
    )


# Pull requests


@route("POST", _REPO + "/pulls")
def create_pull(call: Call) -> Answer:
    """Open a pull request."""
    doer = call.doer
    call.need_active()
    call.need(head="Head", base="Base", title="Title")
    body = call.body
    issue = call.state.open_pull(
        doer,
        call.repo,
        title=body["title"],
        head=body["head"],
        base=body["base"],
        body=body.get("body") or "",
    )
    return Answer(status=201, value=call.shapes.pull(issue, doer))


@route("GET", _REPO + "/pulls")
def list_pulls(call: Call) -> Answer:
    """Pull requests, newest first."""
    state = call.query.get("state") or "open"
    found = [i for i in call.state.issues_of(call.repo) if i.pull and state in ("all", i.state)]
    return call.page(found[::-1], lambda issue: call.shapes.pull(issue, call.user))


@route("GET", _PULL)
def get_pull(call: Call) -> Answer:
    """One pull request."""
    return Answer(value=call.shapes.pull(call.pull(), call.user))


@route("PATCH", _PULL)
def edit_pull(call: Call) -> Answer:
    """Change title, body or state."""
    doer, issue = call.doer, call.pull()
    call.need_active()
    if doer.id != issue.poster_id and not call.state.may_write(call.repo, doer, "pulls"):
        raise forbidden()
    call.state.edit_issue(
        doer, issue, title=call.body.get("title"), body=call.body.get("body"), state=call.body.get("state")
    )
    return Answer(status=201, value=call.shapes.pull(issue, doer))


@route("GET", _REPO + "/pulls/{number}.diff")
def pull_diff(call: Call) -> Answer:
    """The difference as text."""
    pull = call.pull().pull
    if pull is None:
        raise not_found()
    text = call.state.git.run(call.repo.id, "diff", "--no-renames", pull.merge_base, pull.head_sha)
    return Answer(text=text, headers={"Content-Type": "text/plain; charset=utf-8"})


@route("GET", _PULL + "/files")
def pull_files(call: Call) -> Answer:
    """Changed files."""
    issue = call.pull()
    pull = issue.pull
    if pull is None:
        raise not_found()
    name = call.state.full_name(call.repo)
    base = call.shapes.base_url

    def show(changed: ChangedFile) -> JsonObject:
        sha = pull.head_sha
        return {
            "filename": changed.path,
            "status": changed.status,
            "additions": changed.additions,
            "deletions": changed.deletions,
            "changes": changed.additions + changed.deletions,
            "html_url": f"{base}/{name}/src/commit/{sha}/{changed.path}",
            "contents_url": f"{base}/api/v1/repos/{name}/contents/{changed.path}?ref={sha}",
            "raw_url": f"{base}/{name}/raw/commit/{sha}/{changed.path}",
        }

    return call.page(call.state.git.changes(call.repo.id, pull.merge_base, pull.head_sha), show)


@route("POST", _PULL + "/merge")
def merge_pull(call: Call) -> Answer:
    """Merge (``merge`` and ``squash``; other styles are refused loudly)."""
    issue, style = call.pull(), call.body.get("Do") or call.body.get("do")
    call.need_writer()
    call.need_active()
    if style not in ("merge", "squash"):
        raise GiteaError(501, f"the stand-in Gitea cannot merge by {style!r}")
    call.state.merge(call.doer, issue, style=style, message=call.body.get("MergeMessageField") or "")
    return Answer(status=200)


# Reviews


@route("GET", _PULL + "/reviews")
def list_reviews(call: Call) -> Answer:
    """Reviews, ascending; pending ones only for their author."""
    issue = call.pull()
    seen = [
        r
        for r in call.state.reviews_of(issue)
        if r.state != "PENDING" or (call.user is not None and r.reviewer_id == call.user.id)
    ]
    return call.page(seen, lambda review: call.shapes.review(review, call.user))


@route("POST", _PULL + "/reviews")
def create_review(call: Call) -> Answer:
    """Create a review."""
    doer, issue = call.doer, call.pull()
    inline: list[dict[str, Any]] = call.body.get("comments") or []
    review = call.state.review(
        doer,
        issue,
        state=call.body.get("event") or "PENDING",
        body=call.body.get("body") or "",
        comments=inline,
    )
    return Answer(value=call.shapes.review(review, doer))


@route("GET", _PULL + "/reviews/{review}")
def get_review(call: Call) -> Answer:
    """One review."""
    return Answer(value=call.shapes.review(_review(call, call.pull()), call.user))


@route("POST", _PULL + "/reviews/{review}")
def submit_review(call: Call) -> Answer:
    """Publish a pending review."""
    doer, issue = call.doer, call.pull()
    review = call.state.submit_review(
        doer,
        issue,
        _review(call, issue),
        state=call.body.get("event") or "",
        body=call.body.get("body") or "",
    )
    return Answer(value=call.shapes.review(review, doer))


@route("GET", _PULL + "/reviews/{review}/comments")
def review_comments(call: Call) -> Answer:
    """Inline comments of a review."""
    issue = call.pull()
    review = _review(call, issue)
    code = [c for c in call.state.comments_of(issue, ["code"]) if c.review_id == review.id]
    return Answer(value=[call.shapes.inline(comment, call.user) for comment in code])


def _review(call: Call, issue: Issue) -> Review:
    review = call.state.reviews.get(call.number("review"))
    if review is None or review.issue_id != issue.id:
        raise not_found(f"review does not exist [id: {call.args['review']}]")
    return review
