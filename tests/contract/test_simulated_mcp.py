"""The stand-in gitea-mcp against the exchanges recorded from the official one, in its three dialects.

Every recorded exchange is replayed: 26 per dialect, the closing of stdin, wrong tokens and an absent Gitea among
them. Compared are error codes and texts, and of results the keys in their order, the types, and all values that are
no ids, times or addresses. Left out: tool descriptions (not recorded), and the tail of texts that the recording cut
(2026-02, comments of an issue), where only the beginning is compared.

The same is then done with other names and texts in another order: what is computed cannot have been memorised.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from adapters.simulated.gitea import SimulatedGitea

EVIDENCE = Path(__file__).parents[1] / "evidence" / "gitea-mcp"
ROOT = Path(__file__).parents[2]
DIALECTS = ("2025-06", "2026-02", "2026-03")
MOVING = re.compile(
    r"(^|\.)(id|created|created_at|updated_at|avatar_url|html_url|url|issue_url|email|number)$"
)

Names = Mapping[str, str]
AS_RECORDED: Names = {}
OTHERS: Names = {
    "acme": "nordwind",
    "store": "lager",
    "secret": "tresor",
    "codex-bot": "helferin",
    "alice": "ottilie",
    "turnkeeper/t1": "versuch/7",
    "Hello from gitea-mcp.": "Moin <alle> & tschüß.\r\n\u2028 Ende.",
    "string index": "Zahl als Text",
}


class Child:
    """The stand-in as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.number = 0

    @classmethod
    async def start(cls, dialect: str, host: str, token: str, home: Path) -> "Child":
        """Start it as the runner does: address and token in its environment, nothing in argv."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "GITEA_HOST": host,
            "GITEA_ACCESS_TOKEN": token,
            "TURNKEEPER_SIMULATED_MCP_DIALECT": dialect,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "adapters.simulated.gitea_mcp",
            "-t",
            "stdio",
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        return cls(process)

    async def write(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting."""
        assert self.process.stdin is not None
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()
        return self.number

    async def read(self) -> dict[str, Any]:
        """The next message, or ``_closed`` with what was said on stderr."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = await self.process.stdout.readline()
        if not line:
            return {"_closed": True, "_stderr": (await self.process.stderr.read()).decode()}
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        await self.write(method, params)
        return await self.read()

    async def close(self) -> int:
        """Close its stdin and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.process.wait()


def recorded(dialect: str) -> list[dict[str, Any]]:
    lines = (EVIDENCE / f"{dialect}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def renamed(value: Any, names: Names) -> Any:
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if isinstance(value, str):
        if value[:1] in ("{", "["):
            with suppress(ValueError):
                return json.dumps(renamed(json.loads(value), names))
        for old, new in names.items():
            value = value.replace(old, new)
    return value


def flat(value: Any, place: str = "") -> list[tuple[str, str, Any]]:
    """Path, type and value of every leaf, in order; moving values (ids, times, addresses) without the value."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in flat(item, f"{place}.{key}")] or [
            (place, "{}", None)
        ]
    if isinstance(value, list):
        return [leaf for item in value for leaf in flat(item, f"{place}[]")] or [(place, "[]", None)]
    return [(place, type(value).__name__, None if MOVING.search(place) else value)]


@pytest_asyncio.fixture
async def sim(tmp_path: Path) -> AsyncIterator[SimulatedGitea]:
    server = SimulatedGitea(root=tmp_path / "gitea")
    await server.start()
    yield server
    await server.stop()
    assert server.unknown_calls == []


class World:
    """The world of the recordings, under any names."""

    def __init__(self, sim: SimulatedGitea, names: Names, *, spare: int) -> None:
        self.sim = sim
        state = sim.state
        owner, repo, secret, bot, alice, branch = (
            renamed(name, names)
            for name in ("acme", "store", "secret", "codex-bot", "alice", "turnkeeper/t1")
        )
        state.add_user(alice)
        state.add_user(bot)
        state.add_org(owner, owner=alice)
        state.add_repo(owner, secret, private=True)
        self.repo = state.add_repo(owner, repo)
        state.collaborator(f"{owner}/{repo}", bot, "write")
        for number in range(spare):
            state.open_issue(alice, self.repo, f"spare {number}")
        self.issue = state.open_issue(alice, self.repo, "mcp", "b")
        state.commit_files(bot, self.repo, branch, {"x.txt": "x\n"})
        self.twin = state.open_pull(bot, self.repo, title="first", head=branch, base="main")
        self.token = state.add_token(bot, ("write:issue", "write:repository", "read:user"))

    def adapt(self, value: Any, old_index: int) -> Any:
        """A recorded request or error, with this world's issue and pull request."""
        text = json.dumps(value)
        text = re.sub(rf'("index": "?){old_index}\b', rf"\g<1>{self.issue.number}", text)
        text = text.replace(f"/issue/{old_index}/", f"/issue/{self.issue.number}/")
        pull = self.twin.pull
        assert pull is not None
        ids = f"[id: {pull.id}, issue_id: {self.twin.id}, head_repo_id: {self.repo.id}, base_repo_id: {self.repo.id},"
        text = re.sub(r"\[id: \d+, issue_id: \d+, head_repo_id: \d+, base_repo_id: \d+,", ids, text)
        return json.loads(text)


def compare(note: str, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """The same kind of answer; results by keys in order, types and values, errors by code and text."""
    assert mine.keys() == theirs.keys(), (note, mine)
    if "error" in theirs:
        assert mine["error"] == theirs["error"], note
        return
    ours, real = mine["result"]["content"], theirs["result"]["content"]
    assert [part["type"] for part in ours] == [part["type"] for part in real], note
    text = real[0]["text"]
    cut = re.search(r"…\(\+\d+ characters\)$", text)
    if cut:
        pattern = re.compile(r'"([a-z_]+)":')
        keys = pattern.findall(text[: cut.start()])
        assert pattern.findall(ours[0]["text"])[: len(keys)] == keys, note
        return
    assert flat(json.loads(ours[0]["text"])) == flat(json.loads(text)), note


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("names", [AS_RECORDED, OTHERS], ids=["as recorded", "other names and texts"])
async def test_every_recorded_exchange_is_answered_alike(
    sim: SimulatedGitea, tmp_path: Path, dialect: str, names: Names
) -> None:
    """Replayed in their order, all recorded calls give the recorded errors and the recorded shapes."""
    lines = recorded(dialect)
    world = World(sim, names, spare=0 if names is AS_RECORDED else 3)
    old_index = lines[3]["request"]["arguments"]["index"]
    child = await Child.start(dialect, sim.url, world.token, tmp_path)
    hello = await child.ask(
        "initialize", {"protocolVersion": lines[0]["answer"]["result"]["protocolVersion"]}
    )
    assert hello == lines[0]["answer"]
    tools = (await child.ask("tools/list"))["result"]["tools"]
    undescribed = [{k: v for k, v in tool.items() if k != "description"} for tool in tools]
    assert undescribed == lines[1]["answer"]["result"]["tools"]
    assert all(tool["description"] for tool in tools)
    for line in lines[2:15]:
        request = line["request"]
        if request is None:
            arguments = dict(lines[3]["request"]["arguments"], body="with _meta")
            request = {
                "name": lines[3]["request"]["name"],
                "arguments": arguments,
                "_meta": {"progressToken": 1},
            }
        mine = await child.ask("tools/call", world.adapt(renamed(request, names), old_index))
        compare(line["note"], mine, world.adapt(renamed(line["answer"], names), old_index))
    first = await child.write("tools/call", {"name": lines[2]["request"]["name"], "arguments": {}})
    second = await child.write("ping")
    assert [(await child.read())["id"], (await child.read())["id"]] == [first, second]
    assert await child.close() == lines[16]["answer"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_wrong_or_missing_token_and_an_absent_gitea_show_at_the_first_call(
    sim: SimulatedGitea, tmp_path: Path, dialect: str
) -> None:
    """``initialize`` works in each of these cases; what the first call gives is as recorded."""
    lines = recorded(dialect)
    world = World(sim, AS_RECORDED, spare=1)
    old_index = lines[3]["request"]["arguments"]["index"]
    cases = {
        "a wrong token": (sim.url, "0" * 40),
        "no token": (sim.url, ""),
        "no server at that address": ("http://127.0.0.1:9", world.token),
    }
    checked = 0
    for line in lines[17:]:
        case, _, step = line["note"].partition(": ")
        if step == "initialize":
            continue
        child = await Child.start(dialect, *cases[case], tmp_path)
        assert "result" in await child.ask("initialize")
        assert "result" in await child.ask("tools/list")
        mine = await child.ask("tools/call", world.adapt(line["request"], old_index))
        theirs = dict(world.adapt(line["answer"], old_index))
        mine.pop("id", None)
        theirs.pop("id", None)
        assert mine == theirs, line["note"]
        await child.close()
        checked += 1
    assert checked == 6
    assert sim.state.comments_of(world.issue) == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_calls_in_another_order_with_texts_made_up_now(
    sim: SimulatedGitea, tmp_path: Path, dialect: str
) -> None:
    """What one call writes the next one reads, for comments, edits, issues, branches, files and pull requests."""
    world = World(sim, OTHERS, spare=2)
    where = {"owner": "nordwind", "repo": "lager"}
    child = await Child.start(dialect, sim.url, world.token, tmp_path)
    await child.ask("initialize")

    async def call(flat_name: str, grouped: str, **arguments: Any) -> Any:
        name, _, method = grouped.partition("/")
        if dialect != "2026-03":
            name, method = flat_name, ""
        extra = {"method": method} if method else {}
        answer = await child.ask("tools/call", {"name": name, "arguments": {**where, **extra, **arguments}})
        assert "result" in answer, answer
        text = answer["result"]["content"][0]["text"]
        if dialect == "2026-03":
            return json.loads(text) if text[:1] in "[{" else text
        return json.loads(text)["Result"]

    issue = await call("create_issue", "issue_write/create", title="Neu", body="Text")
    assert issue["number"] == world.twin.number + 1
    made = await call(
        "create_issue_comment", "issue_write/add_comment", index=issue["number"], body="eins <1> & zwei"
    )
    assert made["body"] == "eins <1> & zwei"
    await call("edit_issue_comment", "issue_write/edit_comment", commentID=made["id"], body="drei")
    read = await call("get_issue_comments_by_index", "issue_read/get_comments", index=issue["number"])
    assert [(c["id"], c["body"]) for c in read] == [(made["id"], "drei")]
    await call("edit_issue", "issue_write/update", index=issue["number"], state="closed")
    assert (await call("get_issue_by_index", "issue_read/get", index=issue["number"]))["state"] == "closed"
    listed = await call("list_repo_issues", "list_issues", state="closed")
    assert [i["number"] for i in listed] == [issue["number"]]
    await call("create_branch", "create_branch", branch="zweig", old_branch="main")
    await call(
        "create_file",
        "create_or_update_file",
        filePath="neu.txt",
        content="Inhalt\n",
        message="neu",
        branch_name="zweig",
    )
    names = [b["name"] for b in await call("list_branches", "list_branches")]
    assert names == ["main", "versuch/7", "zweig"]
    found = await call("get_file_content", "get_file_contents", filePath="neu.txt", ref="zweig")
    assert found["content"] in ("Inhalt\n", "SW5oYWx0Cg==")
    pull = await call(
        "create_pull_request", "pull_request_write/create", title="Zieh", body="", head="zweig", base="main"
    )
    pulls = await call("list_repo_pull_requests", "list_pull_requests", state="open")
    assert [p["number"] for p in pulls] == [pull["number"], world.twin.number]
    got = await call("get_pull_request_by_index", "pull_request_read/get", index=pull["number"])
    assert (got["title"], got["head"]["ref"], got["base"]["ref"]) == ("Zieh", "zweig", "main")
    await child.close()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_listed_tool_that_is_not_implemented_says_so(
    sim: SimulatedGitea, tmp_path: Path, dialect: str
) -> None:
    """No listed tool is silent: each either works on its arguments or says that the stand-in lacks it."""
    world = World(sim, AS_RECORDED, spare=0)
    child = await Child.start(dialect, sim.url, world.token, tmp_path)
    answer = await child.ask(
        "tools/call", {"name": "create_release", "arguments": {"owner": "acme", "repo": "store"}}
    )
    assert answer["error"] == {
        "code": -32603,
        "message": "the stand-in gitea-mcp does not implement create_release",
    }
    await child.close()
