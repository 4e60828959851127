"""The stand-in Gitea against what real servers of 1.22.6 and 1.27.0 answered and delivered.

Replayed are all recorded REST steps but these:
- comments of 300,000 and 3,000,000 characters: their request is not in the recording; the test sends its own;
- "deliveries of one comment within 25 quiet seconds, by receiver behaviour": takes 25 s by nature; deadline, order,
  redirects and the absence of a retry are tested in ``test_simulated_gitea``;
- "replay from the web page": a form of the web interface; the replay is tested in ``test_simulated_gitea``.
Of the deliveries, the burst of one comment has a test of its own below; those to misbehaving receivers and the
replay are in ``test_simulated_gitea``. Recorded git steps are compared by exit status and messages; the shape of
transfers is git's own business.

The same comparison runs with other names, other numbers and in another order of its parts.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from adapters.simulated.gitea import SimulatedGitea
from tests.contract.gitea_story import EVIDENCE, SECRET, Recording, Story

VERSIONS = ("1.27.0", "1.22.6")
OTHER_NAMES = {
    "acme": "nordwind",
    "shop": "kiosk",
    "store": "lager",
    "secret": "tresor",
    "codex-bot": "helfer",
    "alice": "ottilie",
    "bob": "rainer",
    "caroline": "susanna",
    "carol": "susi",
    "dave": "uwe",
    "turnkeeper/t1": "versuch/7",
}
NOT_REPLAYED = {
    "comment of 300,000 characters",
    "comment of 3,000,000 characters",
    "deliveries of one comment within 25 quiet seconds, by receiver behaviour",
    "replay from the web page",
}


@pytest_asyncio.fixture(params=VERSIONS)
async def sim(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SimulatedGitea]:
    server = SimulatedGitea(root=tmp_path / "gitea", version=request.param)
    await server.start()
    yield server
    await server.stop()
    assert server.unknown_calls == []


Stories = Callable[..., Story]


@pytest_asyncio.fixture
async def stories(sim: SimulatedGitea) -> AsyncIterator[Stories]:
    made: list[Story] = []

    def make(**options: Any) -> Story:
        made.append(Story(sim, Recording(sim.version), **options))
        return made[-1]

    yield make
    for story in made:
        await story.http.aclose()


def found(sim: SimulatedGitea, story: Story, *, spare: bool) -> None:
    """People and repositories of the recording, before its first step."""
    state = sim.state
    if spare:
        state.add_user("somebody-else")
        other = state.add_repo("somebody-else", "other")
        state.comment("somebody-else", other, state.open_issue("somebody-else", other, "x").number, "y")
        state.add_hook("http://127.0.0.1:9/", repo=other)
        state.commit_files("somebody-else", other, "topic", {"a": "b"})
        pull = state.open_pull("somebody-else", other, title="t", head="topic", base="main")
        state.review("somebody-else", pull, state="COMMENT", body="z")
    state.add_user("root1", admin=True)
    for login in ("alice", "bob", "carol", "dave", "codex-bot"):
        state.add_user(story.name(login))
        story.tokens[login] = state.add_token(story.name(login))
    story.tokens["root1"] = state.add_token("root1")
    story.tokens["narrow"] = state.add_token(story.name("codex-bot"), ("read:issue",))
    acme = story.name("acme")
    state.add_org(acme, owner=story.name("alice"))
    shop = state.add_repo(acme, story.name("shop"))
    state.add_repo(acme, story.name("secret"), private=True)
    story.ids["repo", 1] = shop.id
    if spare:
        number = state.open_issue("root1", shop, "spare").number
        state.delete_issue("root1", state.issue(shop, number))
    story.seen = len(sim.hooks.log)


async def hooks_and_people(story: Story) -> None:
    """Version, tokens, collaborators, hooks."""
    await story.rest("version", None)
    await story.rest("bot: who am I", "codex-bot")
    await story.rest("a token that does not exist", "0123456789012345678901234567890123456789")
    await story.rest("no token at all", None)
    for who, mode in (("codex-bot", "write"), ("carol", "read"), ("dave", "admin")):
        await story.rest(f"collaborator {who} as {mode}", "alice")
    for hook in ("all", "form", "nosecret", "main"):
        await story.rest(f"create hook {hook}", "alice")
    await story.rest("list hooks (is the secret shown?)", "alice")
    await story.rest("list hooks as write collaborator", "codex-bot")
    await story.rest("create hook as write collaborator", "codex-bot")
    await story.rest("create organisation hook", "alice")
    secrets = {hook.url.rsplit("/", 1)[-1]: hook.secret for hook in story.sim.state.hooks.values()}
    assert (secrets["main"], secrets["nosecret"]) == (story.name(SECRET), "")


async def issues(story: Story) -> None:
    """An issue, its comments and edits, reactions, closing, long and empty texts, lists, lookups, refusals."""
    await story.rest("open an issue", "bob")
    await story.delivered("issue_opened")
    await story.change_issue("drain", body="edited")
    await story.delivered("drain")
    await story.rest("edit an issue's body", "bob")
    await story.delivered("issue_body_edited")
    await story.rest("comment with a mention", "bob")
    await story.delivered("comment_mention")
    await story.rest("edit a comment", "bob")
    await story.delivered("comment_edited")
    same = story.recording.payload("comment_edited")["comment"]["body"]
    where = story.path("/api/v1/repos/acme/shop/issues/comments/1")
    await story.call("bob", "PATCH", where, {"body": story.name(same)})
    await story.delivered("comment_same_text_edit")
    await story.rest("CRLF, CJK, separators", "carol")
    await story.delivered("comment_crlf_unicode")
    await story.rest("the bot's own comment with an HTML comment", "codex-bot")
    await story.delivered("comment_by_bot_with_marker")
    await story.rest("delete a comment", "carol")
    await story.delivered("comment_deleted")
    await story.comment("comment_by_outsider_dave_admin")
    await story.delivered("comment_by_outsider_dave_admin")
    await story.rest("reaction eyes, first", "codex-bot")
    await story.rest("reaction eyes, again", "codex-bot")
    await story.delivered("reaction")
    await story.change_issue("issue_closed", state="closed")
    await story.delivered("issue_closed")
    await story.rest("comment on a closed issue", "bob")
    await story.delivered("comment_on_closed")
    await story.change_issue("issue_reopened", state="open")
    await story.delivered("issue_reopened")
    await story.comment("comment_60k")
    await story.delivered("comment_60k")
    comments = story.path("/api/v1/repos/acme/shop/issues/1/comments")
    for size in (300_000, 3_000_000):
        answer = await story.call("codex-bot", "POST", comments, {"body": "y" * size})
        assert answer.status_code == 201
    await story.sim.hooks.idle()
    assert len(json.loads(story.sim.hooks.log[-1].payload)["comment"]["body"]) == 3_000_000
    story.seen = len(story.sim.hooks.log)
    await story.rest("empty comment", "codex-bot")
    await story.rest("blank comment", "codex-bot")
    await story.delivered("drain_big")
    await lists(story)


async def lists(story: Story) -> None:
    """Lists of comments, single ones, and everything that is missing or hidden."""
    for note in (
        "all comments",
        "comments limit=2",
        "comments limit=2 page=2",
        "comments since the first comment's creation",
        "comments since the far future",
        "repository's comments limit=2",
        "repository's comments limit=2 page=2",
        "repository's comments since",
        "one comment (does the HTML comment survive?)",
        "a deleted comment",
        "comments of a missing issue",
        "comment on a missing issue",
        "a missing issue",
        "a missing repository",
        "a private repository the bot may not see",
        "comment in a private repository the bot may not see",
        "bot edits its own comment",
        "bot (write) edits another's comment",
    ):
        await story.rest(note, "codex-bot")
    await story.delivered("drain_edits")


async def rights(story: Story) -> None:
    """Who may ask for whose right, scopes of tokens, locked issues."""
    for who in ("alice", "bob", "carol", "dave", "codex-bot", "nobody-here"):
        await story.rest(f"permission of {who}, asked by the owner", "alice")
    await story.rest("permission of bob, asked by the write bot", "codex-bot")
    await story.rest("the bot's own permission, asked by the bot", "codex-bot")
    await story.rest("list collaborators as the write bot", "codex-bot")
    await story.rest("is carol a collaborator, asked by the write bot", "codex-bot")
    await story.rest("is bob a collaborator, asked by the write bot", "codex-bot")
    await story.rest("the repository as the bot (its `permissions`)", "codex-bot")
    await story.rest("comment with a token of scope read:issue", "narrow")
    await story.rest("repository with a token of scope read:issue", "narrow")
    await story.rest("who am I with a token of scope read:issue", "narrow")
    await story.rest("lock the issue by API", "alice")
    if not story.sim.state.shapes.old:
        await story.rest("outsider comments on a locked issue", "bob")
        await story.rest("write bot comments on a locked issue", "codex-bot")
        await story.delivered("drain_lock")
        await story.call("alice", "DELETE", story.path("/api/v1/repos/acme/shop/issues/1/lock"))


def commit(story: Story, who: str, repo: str, branch: str, file: str) -> None:
    """A push that the recording does not hold."""
    state = story.sim.state
    state.commit_files(story.name(who), story.name(repo), branch, {file: "1.00\n"}, message=f"add {file}")


async def pulls(story: Story) -> None:
    """A pull request of a branch, its comments and reviews."""
    commit(story, "alice", "acme/shop", "feature", "price.txt")
    await story.rest("open a pull request", "alice")
    await story.delivered("pr_opened")
    await story.rest("comment on a pull request", "bob")
    await story.delivered("pr_comment")
    await story.edit("pr_comment_edited")
    await story.delivered("pr_comment_edited")
    for note, who, step in (
        ("review COMMENT", "bob", "review_comment"),
        ("review COMMENT with an inline comment and an empty body", "bob", "review_comment_inline"),
        ("review REQUEST_CHANGES", "dave", "review_rejected"),
        ("review APPROVED", "carol", "review_approved"),
        ("review APPROVED without body", "dave", "review_approved_empty"),
        ("review PENDING", "dave", "review_pending"),
        ("submit the pending review", "dave", "review_submitted"),
    ):
        await story.rest(note, who)
        await story.delivered(step)
    for note in (
        "list reviews",
        "inline comments of review COMMENT",
        "inline comments of review COMMENT",
        "inline comments of review REQUEST_CHANGES",
        "timeline of the pull request",
        "comments of the pull request (are reviews in it?)",
        "changed files",
        "the pull request",
    ):
        await story.rest(note, "codex-bot")


async def forks(story: Story) -> None:
    """A pull request from a fork whose branch and then the fork itself goes away; a merge."""
    commit(story, "alice", "acme/shop", "feature", "more.txt")
    await story.rest("fork", "bob")
    commit(story, "bob", "bob/shop", "from-fork", "fork.txt")
    story.seen = len(story.sim.hooks.log)
    await story.rest("open a pull request from a fork", "bob")
    await story.delivered("pr_from_fork_opened")
    await story.comment("pr_fork_comment")
    await story.delivered("pr_fork_comment")
    await story.rest("delete the fork's head branch while its pull request is open", "bob")
    await story.comment("pr_fork_branch_deleted_comment")
    # Gitea closes the pull request a moment after the branch is gone, the stand-in at once.
    await story.delivered("pr_fork_branch_deleted_comment", ignore=("state", "closed_at", "comments"))
    await story.rest("delete the fork", "bob")
    await story.rest("comment after the fork is gone", "bob")
    await story.delivered("pr_fork_repo_deleted_comment")
    await story.rest("pull request whose fork is gone", "codex-bot")
    await story.rest("merge", "alice")
    await story.delivered("pr_merged")
    await story.comment("pr_comment_after_merge")
    await story.delivered("pr_comment_after_merge")
    commit(story, "codex-bot", "acme/shop", story.name("turnkeeper/t1"), "by-bot.txt")
    await story.rest("protect main", "alice")
    await story.rest("bot opens a pull request", "codex-bot")
    await story.delivered("pr_by_bot")
    await story.rest("open the same pull request again", "codex-bot")


async def changes(story: Story) -> None:
    """Another's edit, the test button, renames, archive, switched-off issues, privacy, deletion, exclusion."""
    await story.comment("comment_to_troubled_receivers")
    await story.sim.hooks.idle()
    story.seen = len(story.sim.hooks.log)
    await story.edit("alice_edits_bobs_comment")
    await story.delivered("alice_edits_bobs_comment")
    await story.rest("a writer adds a mention to another user's comment", "alice")
    await story.delivered("mention_added_by_another_user")
    await story.rest("test delivery", "alice")
    await story.delivered("test_delivery")
    await story.rest("rename a user", "root1")
    story.tokens["caroline"] = story.tokens["carol"]
    await story.comment("comment_by_renamed")
    await story.delivered("comment_by_renamed")
    await story.rest("rename the repository", "alice")
    await story.delivered("repo_renamed")
    for note in (
        "GET the old name",
        "GET comments under the old name",
        "POST a comment under the old name",
        "the repository by its id",
    ):
        await story.rest(note, "codex-bot")
    await story.comment("comment_after_rename")
    await story.delivered("comment_after_rename")
    store = story.path("/api/v1/repos/acme/store")
    await story.rest("archive", "alice")
    await story.rest("comment in an archived repository", "codex-bot")
    await story.rest("read comments in an archived repository", "codex-bot")
    await story.call("alice", "PATCH", store, {"archived": False})
    await story.rest("issues switched off", "alice")
    await story.rest("comment with issues switched off", "codex-bot")
    await story.call("alice", "PATCH", store, {"has_issues": True})
    await story.rest("make it private", "alice")
    await story.comment("comment_in_private")
    await story.delivered("comment_in_private")
    await story.rest("delete the issue", "root1")
    await story.delivered("issue_deleted")
    await story.call("alice", "DELETE", story.path("/api/v1/repos/acme/store/collaborators/codex-bot"))
    await story.rest("the repository after the bot was removed", "codex-bot")
    await story.rest("by id after the bot was removed", "codex-bot")


@pytest.mark.parametrize("same", [True, False], ids=["as recorded", "other names, numbers and order"])
async def test_recorded_steps_are_answered_and_delivered_alike(
    sim: SimulatedGitea, stories: Stories, *, same: bool
) -> None:
    """Every replayed step has the recorded status, headers, answer and deliveries."""
    story = stories(names={} if same else OTHER_NAMES, same_order=same)
    found(sim, story, spare=not same)
    parts = [hooks_and_people, issues, rights, pulls, forks, changes]
    if not same:
        parts = [hooks_and_people, pulls, forks, issues, rights, changes]
    for part in parts:
        await part(story)
    notes = [line["note"] for line in story.recording.rest]
    assert sorted(story.compared) == sorted(note for note in notes if note not in NOT_REPLAYED)
    elsewhere = {"comment_to_troubled_receivers", "web_replay", "burst_create_edit_delete"}
    steps = {entry["step"] for entry in story.recording.index} - elsewhere
    assert story.checked_deliveries == sum(len(story.recording.deliveries(step)) for step in steps)


async def test_bodies_are_fixed_at_the_act(sim: SimulatedGitea) -> None:
    """A comment created, edited four times and deleted at once comes as six deliveries with their own bodies."""
    recording = Recording(sim.version)
    real = [
        json.loads((recording.folder / "deliveries" / entry["file"]).read_text())
        for entry in recording.deliveries("burst_create_edit_delete")
        if entry["hook"] == "main"
    ]
    state = sim.state
    state.add_user("bob")
    state.add_repo("bob", "shop")
    number = state.open_issue("bob", "bob/shop", "t").number
    state.add_hook("http://127.0.0.1:9/", repo="bob/shop")
    comment = state.comment("bob", "bob/shop", number, real[0]["comment"]["body"])
    for payload in real[1:5]:
        state.edit_comment("bob", "bob/shop", comment.id, payload["comment"]["body"])
    state.delete_comment("bob", "bob/shop", comment.id)
    await sim.hooks.idle()
    mine = [json.loads(delivery.body) for delivery in sim.hooks.log]
    assert [(p["action"], p["comment"]["body"], p.get("changes", {}).get("body")) for p in mine] == [
        (p["action"], p["comment"]["body"], p.get("changes", {}).get("body")) for p in real
    ]


async def test_rights_in_payloads_and_by_rest_are_as_recorded(sim: SimulatedGitea, stories: Stories) -> None:
    """``repository.permissions`` states whose right it stated in real Gitea, for seven users, public and private."""
    lines = [
        json.loads(line)
        for line in (EVIDENCE / sim.version / "permissions.jsonl").read_text().strip().split("\n")
    ]
    state = sim.state
    for login in ("own", "code", "issue", "read", "none", "collab", "collabread"):
        state.add_user(login)
    state.add_org("team", owner="own")
    state.add_team(
        "team", "coders", units={"code": "write", "issues": "write", "pulls": "write"}, members=["code"]
    )
    state.add_team(
        "team", "clerks", units={"code": "read", "issues": "write", "pulls": "read"}, members=["issue"]
    )
    state.add_team(
        "team", "readers", units=dict.fromkeys(("code", "issues", "pulls"), "read"), members=["read"]
    )
    pull: dict[str, Any] = {}
    for name in ("public", "private"):
        repo = state.add_repo("team", name, private=name == "private")
        state.collaborator(f"team/{name}", "collab", "write")
        state.collaborator(f"team/{name}", "collabread", "read")
        state.add_hook(
            "http://127.0.0.1:9/",
            repo=repo,
            events=[
                "issues_only",
                "issue_comment",
                "pull_request_only",
                "pull_request_comment",
                "pull_request_review",
            ],
        )
        state.commit_files("own", repo, "topic", {"a": "b"})
    for line in lines:
        if "action" not in line:
            continue
        repo = state.repo(f"team/{line['repository']}")
        sender, author = line["sender"], line["author"]
        match line["event_type"], line["action"]:
            case "issues", "opened":
                state.open_issue(sender, repo, "t")
            case "issues", "edited":
                state.edit_issue(sender, state.open_issue(author, repo, "t"), body="changed")
            case "issue_comment", "created":
                state.comment(sender, repo, state.open_issue("own", repo, "t").number, "c")
            case "pull_request", "opened":
                pull[repo.name] = state.open_pull(sender, repo, title="t", head="topic", base="main")
            case "pull_request_comment", "created":
                state.comment(sender, repo, pull[repo.name].number, "c")
            case "pull_request_review_comment", "reviewed":
                state.review(sender, pull[repo.name], state="COMMENT", body="r")
        last = json.loads(sim.hooks.log[-1].body)
        assert last["action"] == line["action"]
        assert last["sender"]["login"] == sender
        assert last["repository"]["permissions"] == line["permissions"], line
    story = stories(names={}, same_order=True)
    token = state.add_token("own")
    asked = lines[-2]["GET collaborators/{u}/permission, private"]
    for login, mode in asked.items():
        answer = await story.call(
            token, "GET", f"/api/v1/repos/team/private/collaborators/{login}/permission"
        )
        assert answer.json()["permission"] == mode, login
    answer = await story.call(token, "GET", "/api/v1/repos/team/private/assignees")
    assert [user["login"] for user in answer.json()] == lines[-1]["GET assignees, private"]


async def test_git_answers_as_recorded(sim: SimulatedGitea, tmp_path: Path) -> None:
    """Exit status and messages of all git steps: reading without and with wrong tokens, pushing, refused."""
    rows = (EVIDENCE / sim.version / "git.jsonl").read_text().strip().split("\n")
    recorded = {line["note"]: line for line in map(json.loads, rows)}
    state = sim.state
    for login in ("alice", "codex-bot", "bob"):
        state.add_user(login)
    state.add_org("acme", owner="alice")
    state.add_repo("acme", "shop")
    state.add_repo("acme", "secret", private=True)
    state.collaborator("acme/shop", "codex-bot", "write")
    token = state.add_token("codex-bot", ("write:repository",))
    state.open_issue("bob", "acme/shop", "one")
    state.commit_files("alice", "acme/shop", "feature", {"a": "b"})
    state.open_pull("alice", "acme/shop", title="two", head="feature", base="main")
    state.fork("bob", "acme/shop")
    tip = state.commit_files("bob", "bob/shop", "from-fork", {"f": "f"})
    state.open_pull("bob", "acme/shop", title="three", head="bob:from-fork", base="main")
    state.delete_repo("bob/shop")
    state.merge("alice", state.issue(state.repo("acme/shop"), 2))
    shop, work = f"{sim.url}/acme/shop.git", tmp_path / "work"
    ask = Git(tmp_path)
    base = Recording(sim.version).base

    def plain(text: str) -> str:
        # Hints are the client's own words, which depend on its version and on the local branch.
        text = "".join(row for row in text.splitlines(keepends=True) if not row.startswith("hint:"))
        text = text.replace(sim.url, "BASE").replace(base, "BASE")
        return re.sub(r"\b[0-9a-f]{40}\b", "SHA", text)

    async def check(note: str, *args: str, cwd: Path = tmp_path, token: str | None = None) -> None:
        real = recorded.pop(note)
        code, out, err = await ask(*args, cwd=cwd, token=token)
        assert (code, plain(out)) == (real["rc"], plain(real["stdout"])), (note, err)
        assert plain(err) == plain(real["stderr"]), note

    await check("ls-remote with the bot's token", "ls-remote", shop, token=token)
    await check("ls-remote anonymous, public repository", "ls-remote", shop, "HEAD")
    secret = f"{sim.url}/acme/secret.git"
    await check("ls-remote anonymous, private repository", "ls-remote", secret, "HEAD")
    await check("ls-remote bot, private repository it may not see", "ls-remote", secret, "HEAD", token=token)
    await check("ls-remote with a wrong token", "ls-remote", shop, "HEAD", token="0" * 40)
    await check(
        "ls-remote missing repository", "ls-remote", f"{sim.url}/acme/nowhere.git", "HEAD", token=token
    )
    await check("clone", "clone", "-q", shop, str(work), token=token)
    note = "fetch refs/pull/N/head of a deleted fork from the base"
    await check(note, "fetch", "-q", "origin", "refs/pull/3/head", cwd=work, token=token)
    assert (await ask("rev-parse", "FETCH_HEAD", cwd=work))[1].strip() == tip
    (work / "bot.txt").write_text("x\n")
    await ask("add", ".", cwd=work)
    await ask("commit", "-qm", "by the bot", cwd=work)
    topic = "HEAD:refs/heads/turnkeeper/t1"
    await check("push a new branch", "push", "-q", "origin", topic, cwd=work, token=token)
    await check("push the same commit again", "push", "-q", "origin", topic, cwd=work, token=token)
    await ask("reset", "-q", "--hard", "HEAD~1", cwd=work)
    await check("push non-fast-forward without force", "push", "-q", "origin", topic, cwd=work, token=token)
    state.protect("acme/shop", "main")
    (work / "again.txt").write_text("x\n")
    await ask("add", ".", cwd=work)
    await ask("commit", "-qm", "again", cwd=work)
    await check("push to a protected branch", "push", "-q", "origin", "HEAD:main", cwd=work, token=token)
    await check("push to refs/pull", "push", "-q", "origin", "HEAD:refs/pull/9/head", cwd=work, token=token)
    state.rename_repo("acme/shop", "store")
    await check("ls-remote under the old name", "ls-remote", shop, "HEAD")
    assert recorded == {}


class Git:
    """Runs git with credentials by askpass, as a careful client does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.askpass = home / "askpass"
        self.askpass.write_text('#!/bin/sh\necho "$TEST_TOKEN"\n')
        self.askpass.chmod(0o700)

    async def __call__(self, *args: str, cwd: Path, token: str | None = None) -> tuple[int, str, str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
            **{
                f"GIT_{who}_{what}": "t@example.test"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
        if token is not None:
            env |= {"GIT_ASKPASS": str(self.askpass), "TEST_TOKEN": token}
        process = await asyncio.create_subprocess_exec(
            "git", *args, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()
