"""The REST client against a small server that answers as Gitea 1.27.0 and 1.22.6 were recorded to."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.gitea.comments import RepositoryComments
from adapters.gitea.rest import HOOK_EVENTS, GiteaRest
from domain.faults import Fault, NotFound, Unavailable
from domain.gitea import GiteaFault
from domain.webhooks import Person

EVIDENCE = Path(__file__).parents[1] / "evidence" / "gitea-real"
VERSIONS = ("1.27.0", "1.22.6")
TOKEN = "canary-token-b1946ac9"
PEOPLE = {"alice": 2, "bob": 3, "carol": 4, "dave": 5, "codex-bot": 6}


@dataclasses.dataclass
class Reply:
    """What the server answers: ``raw`` None closes the connection, ``hang`` answers nothing."""

    status: int = 200
    data: Any = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    raw: bytes | None = None
    drop: bool = False
    hang: bool = False


@dataclasses.dataclass(frozen=True)
class Asked:
    """One request that the server saw."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server:
    """A tiny HTTP server on 127.0.0.1: ``answer`` decides by request."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.answer = answer
        self.seen: list[Asked] = []
        self.url = ""

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
                raw = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ")
                asked = Asked(method, path, headers, json.loads(raw) if raw else None)
                self.seen.append(asked)
                reply = self.answer(asked)
                if reply.hang:
                    await asyncio.Event().wait()
                if reply.drop:
                    break
                data = (
                    reply.raw
                    if reply.raw is not None
                    else b""
                    if reply.data is None
                    else json.dumps(reply.data).encode()
                )
                told = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
                writer.write(
                    f"HTTP/1.1 {reply.status} X\r\n{told}Content-Length: {len(data)}\r\n\r\n".encode() + data
                )
                await writer.drain()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator["Server"]:
        """Serve until the block ends."""
        tasks: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._handle(reader, writer))
            tasks.add(task)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _rows(version: str) -> dict[str, dict[str, Any]]:
    lines = (EVIDENCE / version / "rest.jsonl").read_text().strip().split("\n")
    return {row["note"]: row for row in map(json.loads, lines)}


def _person(login: str) -> dict[str, Any]:
    return {"id": PEOPLE[login], "login": login}


def _whole(answer: Any) -> Any:
    """The recorder shortened the authors of listed comments to their logins: make them accounts again."""
    if isinstance(answer, list):
        return [
            {**one, "user": _person(one["user"])} if isinstance(one.get("user"), str) else one
            for one in answer
        ]
    return answer


def _reply(row: dict[str, Any]) -> Reply:
    headers = {key: value for key, value in (row.get("headers") or {}).items() if key != "Content-Length"}
    answer = row["answer"]
    if isinstance(answer, dict) and "_raw" in answer:
        return Reply(row["status"], raw=answer["_raw"].encode(), headers=headers)
    return Reply(row["status"], _whole(answer), headers)


@contextlib.asynccontextmanager
async def recorded(version: str, *notes: str) -> AsyncIterator[tuple[GiteaRest, Server]]:
    """A client, and a server that knows these recorded exchanges, by method and path without query."""
    known = {}
    for note in notes:
        row = _rows(version)[note]
        known[row["request"]["method"], row["request"]["path"].partition("?")[0]] = _reply(row)

    def answer(asked: Asked) -> Reply:
        return known.get(
            (asked.method, asked.path.partition("?")[0]), Reply(599, {"message": "not recorded"})
        )

    async with Server(answer).run() as server, GiteaRest(server.url, TOKEN, timeout=5) as rest:
        yield rest, server


@contextlib.asynccontextmanager
async def answering(
    answer: Callable[[Asked], Reply], **options: Any
) -> AsyncIterator[tuple[GiteaRest, Server]]:
    """A client, and a server that answers by a function."""
    async with (
        Server(answer).run() as server,
        GiteaRest(server.url, TOKEN, **{"timeout": 5, **options}) as rest,
    ):
        yield rest, server


@pytest.mark.parametrize("version", VERSIONS)
async def test_who_and_what(version: str) -> None:
    """The bot's account, the version and a repository by name and by id are read."""
    notes = (
        "version",
        "bot: who am I",
        "the repository as the bot (its `permissions`)",
        "the repository by its id",
    )
    async with recorded(version, *notes) as (rest, server):
        assert await rest.version() == version
        assert await rest.me() == Person(id=6, login="codex-bot")
        shop = await rest.repository("acme", "shop")
        assert (shop.id, shop.owner, shop.name, shop.default_branch) == (1, "acme", "shop", "main")
        rights = await rest.own_rights("acme", "shop")
        assert rights is not None
        assert rights.push
        assert not rights.admin
        assert await rest.names(1) == ("acme", "store")
    assert {asked.headers["authorization"] for asked in server.seen} == {f"token {TOKEN}"}
    assert not any(TOKEN in asked.path for asked in server.seen)


@pytest.mark.parametrize("version", VERSIONS)
async def test_comments(version: str) -> None:
    """Comments are listed, written, edited, deleted and reacted to."""
    notes = (
        "all comments",
        "comment with a mention",
        "edit a comment",
        "delete a comment",
        "one comment (does the HTML comment survive?)",
    )
    async with recorded(version, *notes) as (rest, server):
        listed = await rest.comments("acme", "shop", 1, since="2026-11-30T21:03:27Z")
        assert [one.id for one in listed] == sorted(one.id for one in listed)
        assert (listed[0].author_id, listed[0].author) == (3, "bob")
        assert server.seen[-1].path.endswith("/comments?since=2026-11-30T21%3A03%3A27Z")
        made = await rest.create_comment("acme", "shop", 1, "text")
        assert made.id == 1
        assert made.created_at.endswith("Z")
        assert server.seen[-1].body == {"body": "text"}
        assert (await rest.edit_comment("acme", "shop", 1, "new")).id == 1
        found = await rest.comment("acme", "shop", 3)
        assert found is not None
        assert "<!-- ccweb taskId=t1 turnId=u1 -->" in found.body
        await rest.delete_comment("acme", "shop", 2)
        assert server.seen[-1].method == "DELETE"


@pytest.mark.parametrize("version", VERSIONS)
async def test_reactions(version: str) -> None:
    """A reaction is new once."""
    for note, new in (("reaction eyes, first", True), ("reaction eyes, again", False)):
        async with recorded(version, note) as (rest, server):
            assert await rest.react("acme", "shop", 1) is new
            assert server.seen[-1].body == {"content": "eyes"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_pull_requests(version: str) -> None:
    """A pull request, its files, its reviews and their inline comments are read."""
    notes = ("the pull request", "changed files", "list reviews", "open an issue")
    rows = _rows(version)
    inline = next(
        row
        for line in (EVIDENCE / version / "rest.jsonl").read_text().strip().split("\n")
        if (row := json.loads(line))["note"].startswith("inline comments") and row["answer"]
    )
    async with recorded(version, *notes) as (rest, server):
        pull = await rest.pull("acme", "shop", 2)
        assert (pull.resource.kind, pull.resource.number) == ("pull_request", 2)
        assert pull.refs is not None
        assert (pull.refs.base, pull.refs.head, pull.refs.same_repository) == ("main", "feature", True)
        assert [file.filename for file in await rest.pull_files("acme", "shop", 2)] == ["price.txt"]
        reviews = await rest.reviews("acme", "shop", 2)
        assert len(reviews) == int(rows["list reviews"]["headers"]["X-Total-Count"])
        assert reviews[0].state == "COMMENT"
        assert reviews[0].author == Person(id=3, login="bob")
        server.answer = lambda _: _reply(inline)
        (comment,) = await rest.review_comments("acme", "shop", 2, 2)
        assert (comment.author, comment.body) == ("bob", "@codex-bot inline question")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pull_request_whose_fork_is_gone(version: str) -> None:
    """A deleted fork leaves no head repository."""
    async with recorded(version, "pull request whose fork is gone") as (rest, _):
        refs = (await rest.pull("acme", "shop", 3)).refs
        assert refs is not None
        assert refs.head_repo_id is None
        assert not refs.same_repository


@pytest.mark.parametrize("version", VERSIONS)
async def test_permissions(version: str) -> None:
    """Permissions are read where the token may ask, else forbidden; an unknown account is not found."""
    notes = (
        "permission of alice, asked by the owner",
        "permission of carol, asked by the owner",
        "permission of nobody-here, asked by the owner",
        "permission of bob, asked by the write bot",
    )
    async with recorded(version, *notes) as (rest, _):
        assert await rest.permission("acme", "shop", "alice") == "owner"
        assert await rest.permission("acme", "shop", "carol") == "read"
        with pytest.raises(GiteaFault) as caught:
            await rest.permission("acme", "shop", "nobody-here")
        assert caught.value.code == "gitea_not_found"
        with pytest.raises(GiteaFault) as caught:
            await rest.permission("acme", "shop", "bob")
        assert caught.value.code == "gitea_forbidden"


@pytest.mark.parametrize("version", VERSIONS)
async def test_hooks(version: str) -> None:
    """Hooks are listed, and made active, with JSON and the fewest events; others than owners may not."""
    async with recorded(version, "list hooks (is the secret shown?)", "create hook main") as (rest, server):
        hooks = await rest.hooks("acme", "shop")
        assert [hook.url.rpartition("/")[2] for hook in hooks] == ["all", "form", "nosecret", "main"]
        assert hooks[1].content_type == "form"
        made = await rest.create_hook("acme", "shop", url="http://127.0.0.1/x", secret="s")
        assert made.active
        body = server.seen[-1].body
        assert body["active"] is True
        assert body["config"] == {"url": "http://127.0.0.1/x", "content_type": "json", "secret": "s"}
        assert tuple(body["events"]) == HOOK_EVENTS
    async with recorded(version, "list hooks as write collaborator") as (rest, _):
        with pytest.raises(GiteaFault) as caught:
            await rest.hooks("acme", "shop")
        assert caught.value.code == "gitea_forbidden"


FAULTS = [
    ("a token that does not exist", "gitea_token_invalid"),
    ("no token at all", "gitea_token_invalid"),
    ("a missing repository", "gitea_not_found"),
    ("a private repository the bot may not see", "gitea_not_found"),
    ("comment in a private repository the bot may not see", "gitea_not_found"),
    ("empty comment", "gitea_refused"),
    ("comment with a token of scope read:issue", "gitea_scope_missing"),
    ("repository with a token of scope read:issue", "gitea_scope_missing"),
    ("who am I with a token of scope read:issue", "gitea_scope_missing"),
    ("create hook as write collaborator", "gitea_forbidden"),
    ("comment in an archived repository", "gitea_archived"),
    ("comment with issues switched off", "gitea_not_found"),
    ("the repository after the bot was removed", "gitea_not_found"),
    ("POST a comment under the old name", "repository_renamed"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("note", "code"), FAULTS)
async def test_recorded_failures(version: str, note: str, code: str) -> None:
    """Each recorded refusal has its own code, and what Gitea refused has not happened."""
    row = _rows(version)[note]
    async with answering(lambda _: _reply(row)) as (rest, server):
        with pytest.raises(GiteaFault) as caught:
            await (
                rest.create_comment("acme", "shop", 1, "x")
                if row["request"]["method"] == "POST"
                else rest.me()
            )
        fault = caught.value
        assert fault.code == code
        assert fault.outcome == fault.params["outcome"] == "refused"
        assert fault.params["http_status"] == row["status"]
        assert len(server.seen) == 1
        assert isinstance(fault, NotFound) == (code == "gitea_not_found")
        if code == "gitea_scope_missing":
            assert fault.params["scope"] in {"write:issue", "read:repository", "read:user"}
            assert str(fault.params["scope"]) in fault.message
        assert TOKEN not in f"{fault!r} {fault} {fault.params}"
        assert "127.0.0.1" not in f"{fault} {fault.params}"


async def test_a_locked_issue() -> None:
    """A locked issue is told apart from other refusals."""
    row = _rows("1.27.0")["outsider comments on a locked issue"]
    async with answering(lambda _: _reply(row)) as (rest, _):
        with pytest.raises(GiteaFault) as caught:
            await rest.create_comment("acme", "shop", 1, "x")
        assert caught.value.code == "gitea_locked"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_missing_issue(version: str) -> None:
    """Gitea's 500 with an empty message for a missing issue is not found: nothing was written."""
    notes = ("comments of a missing issue", "comment on a missing issue", "a missing issue")
    async with recorded(version, *notes) as (rest, server):
        for attempt in (
            rest.comments("acme", "shop", 99999),
            rest.create_comment("acme", "shop", 99999, "x"),
        ):
            with pytest.raises(GiteaFault) as caught:
                await attempt
            assert (caught.value.code, caught.value.outcome) == ("gitea_not_found", "refused")
        assert [asked.method for asked in server.seen] == ["GET", "GET", "POST", "GET"]


async def test_a_500_of_a_standing_issue() -> None:
    """The same 500 while the issue is there stays what it is: nobody knows whether the comment was written."""
    issue = _rows("1.27.0")["open an issue"]["answer"]

    def answer(asked: Asked) -> Reply:
        return Reply(200, issue) if asked.method == "GET" else Reply(500, {"message": ""})

    async with answering(answer) as (rest, _):
        with pytest.raises(Unavailable) as caught:
            await rest.create_comment("acme", "shop", 1, "x")
        assert caught.value.params["outcome"] == "unknown"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_deleted_comment(version: str) -> None:
    """A deleted comment is none; a hidden repository and a review's comment (204) are told apart from it."""
    notes = ("a deleted comment", "the repository as the bot (its `permissions`)")
    async with recorded(version, *notes) as (rest, _):
        assert await rest.comment("acme", "shop", 2) is None
    async with answering(lambda _: Reply(404, {"message": "not found"})) as (rest, _):
        with pytest.raises(GiteaFault):
            await rest.comment("acme", "shop", 2)
    async with answering(lambda _: Reply(204)) as (rest, _):
        with pytest.raises(GiteaFault) as told:
            await rest.comment("acme", "shop", 15)
        assert told.value.code == "review_comment"


@pytest.mark.parametrize("version", VERSIONS)
async def test_reads_follow_a_rename(version: str) -> None:
    """Reads under the former name arrive at the present one; writes never follow."""
    rows = _rows(version)
    present = {**rows["the repository by its id"]["answer"]}

    def answer(asked: Asked) -> Reply:
        if asked.path.startswith("/api/v1/repos/acme/shop/"):
            return Reply(
                _reply(rows["GET comments under the old name"]).status,
                raw=b"<a>moved</a>",
                headers={"Location": asked.path.replace("/shop/", "/store/")},
            )
        if asked.path == "/api/v1/repos/acme/shop":
            return _reply(rows["GET the old name"])
        if asked.path in {"/api/v1/repos/acme/store", "/api/v1/repositories/1"}:
            return Reply(200, present)
        if asked.method == "POST":
            return _reply(rows["comment with a mention"])
        return _reply(rows["all comments"])

    async with answering(answer) as (rest, server):
        assert (await rest.repository("acme", "shop")).name == "store"
        assert len(await rest.comments("acme", "shop", 1, since="2026-01-01T00:00:00Z")) > 0
        assert "since=" in server.seen[-1].path
        with pytest.raises(GiteaFault) as caught:
            await rest.create_comment("acme", "shop", 1, "x")
        assert (caught.value.code, caught.value.outcome) == ("repository_renamed", "refused")
        before = len(server.seen)
        assert (await rest.create_comment("acme", "shop", 1, "x", repository_id=1)).id == 1
        assert [(asked.method, asked.path) for asked in server.seen[before:]] == [
            ("GET", "/api/v1/repositories/1"),
            ("POST", "/api/v1/repos/acme/store/issues/1/comments"),
        ]


async def test_no_token_leaves_for_another_address() -> None:
    """A redirect to another address is not followed, so nobody else sees the token; nor is a circle."""
    async with Server(lambda _: Reply(200, {})).run() as other:
        for target in (f"{other.url}/api/v1/user", "https://127.0.0.1/api/v1/user", "//[", ""):
            reply = Reply(302, headers={"Location": target} if target else {})
            async with answering(lambda _, reply=reply: reply) as (rest, _):  # type: ignore[misc]
                with pytest.raises(GiteaFault) as caught:
                    await rest.me()
                assert caught.value.code == "gitea_redirected"
        assert other.seen == []
    async with answering(lambda asked: Reply(307, headers={"Location": asked.path})) as (rest, server):
        with pytest.raises(GiteaFault):
            await rest.me()
        assert len(server.seen) == 4


def _listed(ids: range) -> list[dict[str, Any]]:
    return [
        {
            "id": ident,
            "user": _person("bob"),
            "body": "x",
            "created_at": "2026-11-30T21:03:27+01:00",
            "updated_at": "2026-11-30T21:03:27+01:00",
            "issue_url": "" if ident % 2 else "http://h/acme/shop/issues/7",
            "pull_request_url": "http://h/acme/shop/pulls/8" if ident % 2 else "",
        }
        for ident in ids
    ]


@pytest.mark.parametrize("cap", [30, 50, 1000])
async def test_all_pages(cap: int) -> None:
    """A repository's comments are all read, whatever the server's page is, and those that ignore pages once."""
    everything = _listed(range(1, 124))

    def answer(asked: Asked) -> Reply:
        query = dict(pair.split("=") for pair in asked.path.partition("?")[2].split("&"))
        size = min(cap, int(query["limit"])) if cap < 1000 else len(everything)
        start = (int(query["page"]) - 1) * size if cap < 1000 else 0
        return Reply(200, everything[start : start + size], {"X-Total-Count": str(len(everything))})

    async with answering(answer) as (rest, server):
        found = [one async for one in rest.repo_comments("acme", "shop", since="2026-11-30T00:00:00Z")]
        assert [one.comment.id for one in found] == list(range(1, 124))
        assert (found[0].kind, found[0].number) == ("pull_request", 8)
        assert (found[1].kind, found[1].number) == ("issue", 7)
        assert found[0].comment.created_at == "2026-11-30T20:03:27Z"
        assert len(server.seen) == -(-123 // min(cap, 50)) if cap < 1000 else 1


async def test_pages_end_without_a_total() -> None:
    """Without a total, or with one that is never reached, reading ends at the first page that brings nothing new."""
    for headers in ({}, {"X-Total-Count": "9999"}, {"X-Total-Count": "many"}):

        def answer(_: Asked, headers: dict[str, str] = headers) -> Reply:
            return Reply(200, _listed(range(1, 6)), headers)

        async with answering(answer) as (rest, server):
            assert len([one async for one in rest.repo_comments("acme", "shop")]) == 5
            assert len(server.seen) == 2


async def test_recorded_repository_lists_end() -> None:
    """Null instead of a list is an empty one."""
    async with answering(lambda _: Reply(200, raw=b"null")) as (rest, _):
        assert [one async for one in rest.repo_comments("acme", "shop")] == []
        assert await rest.comments("acme", "shop", 1) == []


async def _fails(answer: Callable[[Asked], Reply], **options: Any) -> GiteaFault:
    async with answering(answer, **options) as (rest, _):
        with pytest.raises(Unavailable) as caught:
            await rest.create_comment("acme", "shop", 1, "x")
    fault = caught.value
    assert isinstance(fault, GiteaFault)
    assert fault.code == "gitea_unavailable"
    assert TOKEN not in f"{fault!r} {fault.params}"
    return fault


async def test_what_is_unknown() -> None:
    """A lost answer, a time-out, a 5xx and a stranger's page leave open whether a write happened."""
    assert (await _fails(lambda _: Reply(drop=True))).outcome == "unknown"
    assert (await _fails(lambda _: Reply(hang=True), timeout=0.2)).outcome == "unknown"
    assert (await _fails(lambda _: Reply(502, raw=b"<html>bad gateway</html>"))).outcome == "unknown"
    assert (await _fails(lambda _: Reply(503, {"message": "busy"}))).outcome == "unknown"
    assert (await _fails(lambda _: Reply(200, raw=b"<html>log in</html>"))).outcome == "unknown"
    assert (await _fails(lambda _: Reply(201, {"id": "x"}))).outcome == "unknown"
    assert (await _fails(lambda _: Reply(201))).outcome == "unknown"


async def test_what_was_not_sent() -> None:
    """No connection: nothing was written. A proxy's 429 neither."""
    async with Server(lambda _: Reply()).run() as server:
        url = server.url
    async with GiteaRest(url, TOKEN) as rest:
        with pytest.raises(GiteaFault) as caught:
            await rest.create_comment("acme", "shop", 1, "x")
    assert (caught.value.code, caught.value.outcome) == ("gitea_unavailable", "not_sent")
    assert "127.0.0.1" not in f"{caught.value} {caught.value.params}"
    assert (await _fails(lambda _: Reply(429))).outcome == "refused"


@pytest.mark.parametrize(("owner", "name"), [("..", "x"), ("a/b", "x"), ("a", "x?y"), ("a", "")])
async def test_odd_names_are_never_sent(owner: str, name: str) -> None:
    """Names that are none are refused before anything is sent."""
    async with answering(lambda _: Reply(200, {})) as (rest, server):
        with pytest.raises(Fault):
            await rest.repository(owner, name)
        assert server.seen == []


async def test_a_path_before_the_interface() -> None:
    """A Gitea below a path is asked there, and logins are quoted."""
    async with Server(lambda _: Reply(200, {"permission": "write"})).run() as server:
        async with GiteaRest(f"{server.url}/git/", TOKEN) as rest:
            assert await rest.permission("acme", "shop", "a/../b?c") == "write"
        assert server.seen[0].path == "/git/api/v1/repos/acme/shop/collaborators/a%2F..%2Fb%3Fc/permission"


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü"])
def test_odd_tokens(token: str) -> None:
    """A token that cannot stand in a header is refused at once, without being told."""
    with pytest.raises(ValueError, match="a token is") as caught:
        GiteaRest("http://127.0.0.1", token)
    assert not token or token not in str(caught.value).replace("a token", "")


async def test_the_environment_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a proxy nor a netrc file of the environment gets the token or changes it."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with answering(lambda _: Reply(200, _person("bob"))) as (rest, server):
        await rest.me()
        assert server.seen[0].headers["authorization"] == f"token {TOKEN}"


async def test_background() -> None:
    """The prompt's background holds title, body, comments and, for a pull request, the changed files."""
    rows = _rows("1.27.0")

    def answer(asked: Asked) -> Reply:
        path = asked.path.partition("?")[0]
        if path.endswith("/comments"):
            return _reply(rows["all comments"])
        return _reply(rows["changed files"] if path.endswith("/files") else rows["open an issue"])

    async with answering(answer) as (rest, _):
        issue = await rest.background("acme", "shop", "issue", 1)
        assert issue.title == "Prices are wrong"
        assert issue.comments[0].author == "bob"
        assert issue.changed_files == ()
        assert (await rest.background("acme", "shop", "pull_request", 1)).changed_files == ("price.txt",)


async def test_comments_of_one_repository() -> None:
    """Bound comments write under the repository's present name, and tell a missing comment as NotFound."""
    rows = _rows("1.27.0")

    def answer(asked: Asked) -> Reply:
        if asked.path == "/api/v1/repositories/1":
            return _reply(rows["the repository by its id"])
        if asked.path.endswith("/issues/comments/2"):
            return _reply(rows["a deleted comment"])
        if asked.path.count("/") == 5:
            return _reply(rows["the repository as the bot (its `permissions`)"])
        return _reply(rows["comment with a mention"])

    async with answering(answer) as (rest, server):
        bound = RepositoryComments(rest, repository_id=1, owner="acme", name="shop")
        assert await bound.create(1, "x") == 1
        await bound.edit(1, "y")
        assert {asked.path.split("/")[5] for asked in server.seen if asked.method != "GET"} == {"store"}
        assert await bound.author_of(1) == 3
        assert (await bound.body_of(1)).startswith("@codex-bot")
        with pytest.raises(NotFound):
            await bound.author_of(2)
