"""The stand-in Gitea by itself: faults, deliveries, unknown calls, git over HTTP."""

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from adapters.simulated.gitea import DemoWorld, SimulatedGitea, _Server, seed_demo, serve_simulated


class Receiver:
    """Takes deliveries and keeps path, headers and body."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = ""

    async def hook(self, request: Request) -> Response:
        """Answer by the name in the path."""
        self.got.append((request.method, request.url.path, dict(request.headers), await request.body()))
        match request.path_params["name"]:
            case "slow":
                await asyncio.Event().wait()
            case "fails":
                return Response(status_code=500)
            case "redirect":
                return RedirectResponse(f"{self.url}/redirected", 302)
        return Response("ok")


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    taker = Receiver()
    app = Starlette(routes=[Route("/{name}", taker.hook, methods=["POST", "GET"])])
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=0
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    await server.ready.wait()
    taker.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield taker
    server.should_exit = True
    server.force_exit = True
    await task


@pytest_asyncio.fixture
async def sim(tmp_path: Path) -> AsyncIterator[SimulatedGitea]:
    server = SimulatedGitea(root=tmp_path / "gitea")
    await server.start()
    yield server
    await server.stop()


def client(sim: SimulatedGitea, token: str | None) -> httpx.AsyncClient:
    headers = {"Authorization": f"token {token}"} if token else {}
    return httpx.AsyncClient(base_url=f"{sim.url}/api/v1", headers=headers, trust_env=False)


async def git(cwd: Path, *args: str, token: str | None = None) -> tuple[int, str, str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.test",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.test",
        "LC_ALL": "C",
    }
    if token is not None:
        askpass = cwd / "askpass"
        askpass.write_text('#!/bin/sh\necho "$TEST_TOKEN"\n')
        askpass.chmod(0o700)
        env |= {"GIT_ASKPASS": str(askpass), "TEST_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        "git", *args, cwd=cwd, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_demo_world_is_served_and_its_tokens_differ_each_time(tmp_path: Path) -> None:
    """Seeding makes alice, bob and the bot with random tokens, and the bot's token speaks for the bot."""
    tokens = []
    for turn in range(2):
        server = SimulatedGitea(root=tmp_path / str(turn))
        await server.start()
        world = seed_demo(server)
        tokens.append(world.tokens["turnkeeper-bot"])
        async with client(server, tokens[-1]) as api:
            me = (await api.get("/user")).json()
            issue = (await api.get(f"/repos/{world.repository}/issues/{world.issue}")).json()
        assert (me["login"], me["id"]) == ("turnkeeper-bot", world.bot_id)
        assert issue["user"]["login"] == "bob"
        assert server.unknown_calls == []
        await server.stop()
    assert tokens[0] != tokens[1]


async def test_an_unknown_call_is_refused_loudly(sim: SimulatedGitea) -> None:
    """What the stand-in does not know is answered 501 and remembered."""
    async with client(sim, None) as api:
        answer = await api.get("/repos/a/b/no/such/route")
    assert answer.status_code == 501
    assert sim.unknown_calls == ["GET /repos/a/b/no/such/route"]


async def test_comment_reaches_the_hook_signed(sim: SimulatedGitea, receiver: Receiver) -> None:
    """A comment by REST is delivered once per hook, signed over the payload, also as a form."""
    world = seed_demo(sim)
    await sim.hooks.idle()
    sim.state.add_hook(f"{receiver.url}/json", secret="s1", repo=world.repository)
    sim.state.add_hook(f"{receiver.url}/form", secret="s2", repo=world.repository, content_type="form")
    async with client(sim, world.tokens["bob"]) as api:
        body = {"body": "@turnkeeper-bot <fix> & go"}
        answer = await api.post(f"/repos/{world.repository}/issues/1/comments", json=body)
    assert answer.status_code == 201
    await sim.hooks.idle()
    (_, first, head1, raw1), (_, second, head2, raw2) = receiver.got
    assert (first, second) == ("/json", "/form")
    payload = parse_qs(raw2.decode())["payload"][0].encode()
    assert payload == raw1
    assert head1["x-gitea-signature"] == hmac.new(b"s1", raw1, hashlib.sha256).hexdigest()
    assert head2["x-gitea-signature"] == hmac.new(b"s2", payload, hashlib.sha256).hexdigest()
    assert head1["x-gitea-delivery"] != head2["x-gitea-delivery"]
    assert b"\\u003cfix\\u003e \\u0026 go" in raw1
    event = json.loads(raw1)
    assert event["comment"]["id"] == answer.json()["id"]
    assert event["repository"]["permissions"] == {"admin": False, "push": False, "pull": True}


async def test_a_hanging_receiver_is_cut_off_and_nothing_is_repeated(
    sim: SimulatedGitea, receiver: Receiver
) -> None:
    """Deliveries go one at a time, a hanging one ends with its deadline, failures are not tried again."""
    world = seed_demo(sim)
    sim.hooks.timeout = 0.2
    for name in ("slow", "fails", "redirect"):
        sim.state.add_hook(f"{receiver.url}/{name}", repo=world.repository)
    sim.state.comment("bob", world.repository, 1, "hello")
    await sim.hooks.idle()
    assert [(m, p) for m, p, _, _ in receiver.got] == [
        ("POST", "/slow"),
        ("POST", "/fails"),
        ("POST", "/redirect"),
        ("GET", "/redirected"),
    ]
    assert [(d.error, d.status) for d in sim.hooks.log] == [("timeout", None), (None, 500), (None, 200)]
    await sim.hooks.idle()
    assert len(sim.hooks.log) == 3


async def test_replay_sends_the_same_body_under_another_id(sim: SimulatedGitea, receiver: Receiver) -> None:
    """A replay differs from the first delivery in nothing but its id."""
    world = seed_demo(sim)
    sim.state.add_hook(f"{receiver.url}/json", secret="s", repo=world.repository)
    sim.state.comment("bob", world.repository, 1, "hello")
    sim.hooks.replay(sim.hooks.log[-1])
    await sim.hooks.idle()
    first, again = receiver.got
    assert first[3] == again[3]
    assert first[2]["x-gitea-delivery"] != again[2]["x-gitea-delivery"]
    assert first[2]["x-gitea-signature"] == again[2]["x-gitea-signature"]


async def test_the_test_button_needs_a_hook_that_wants_pushes(
    sim: SimulatedGitea, receiver: Receiver
) -> None:
    """Test Delivery answers 204 either way, but only a hook with ``push`` gets something."""
    world = seed_demo(sim)
    without = sim.state.add_hook(f"{receiver.url}/without", repo=world.repository)
    with_push = sim.state.add_hook(
        f"{receiver.url}/with", repo=world.repository, events=["issue_comment", "push"]
    )
    async with client(sim, world.tokens["alice"]) as api:
        for hook in (without, with_push):
            answer = await api.post(f"/repos/{world.repository}/hooks/{hook.id}/tests")
            assert answer.status_code == 204
    await sim.hooks.idle()
    assert [(path, head["x-gitea-event"]) for _, path, head, _ in receiver.got] == [("/with", "push")]
    assert json.loads(receiver.got[0][3])["head_commit"]["author"]["name"] == "Ghost"


async def test_hooks_of_owner_and_server_are_served_after_those_of_the_repository(
    sim: SimulatedGitea, receiver: Receiver
) -> None:
    """Repository, owner and system hooks each get their own delivery, in that order."""
    world = seed_demo(sim)
    sim.state.add_hook(f"{receiver.url}/system")
    sim.state.add_hook(f"{receiver.url}/owner", owner="alice")
    sim.state.add_hook(f"{receiver.url}/repository", repo=world.repository)
    sim.state.comment("bob", world.repository, 1, "hello")
    await sim.hooks.idle()
    target = "x-gitea-hook-installation-target-type"
    assert [(path, head[target]) for _, path, head, _ in receiver.got] == [
        ("/repository", "repository"),
        ("/owner", "user"),
        ("/system", "system"),
    ]


async def test_faults_strike_as_often_as_they_should(sim: SimulatedGitea) -> None:
    """A status fault handles nothing; a dropped answer handles the request and closes the connection."""
    world = seed_demo(sim)
    path = f"/repos/{world.repository}/issues/1/comments"
    async with client(sim, world.tokens["turnkeeper-bot"]) as api:
        sim.faults.add("POST", r"/issues/1/comments$", status=503)
        assert (await api.post(path, json={"body": "one"})).status_code == 503
        sim.faults.add("POST", r"/issues/1/comments$", drop_answer_after_handling=True)
        with pytest.raises(httpx.RemoteProtocolError):
            await api.post(path, json={"body": "two"})
        sim.faults.add("*", r"/comments$", delay=30.0)
        with pytest.raises(httpx.ReadTimeout):
            await api.get(path, timeout=0.1)
        bodies = [c["body"] for c in (await api.get(path)).json()]
    assert bodies == ["two"]


async def test_git_clone_push_and_the_pull_request_that_follows(
    sim: SimulatedGitea, receiver: Receiver, tmp_path: Path
) -> None:
    """A clone over HTTP can be pushed with a token; a new push moves the pull request's head and its ref."""
    world = seed_demo(sim)
    token = world.tokens["turnkeeper-bot"]
    sim.state.add_hook(f"{receiver.url}/push", repo=world.repository, events=["push"])
    url = f"{sim.url}/{world.repository}.git"
    assert (await git(tmp_path, "clone", "-q", url, "work"))[0] == 0
    work = tmp_path / "work"
    for number in (1, 2):
        (work / "new.txt").write_text(f"{number}\n" * 3)
        await git(work, "add", "new.txt")
        await git(work, "commit", "-qm", f"change {number}")
        code, _, err = await git(work, "push", "-q", "origin", "HEAD:topic", token=token)
        assert code == 0, err
        tip = (await git(work, "rev-parse", "HEAD"))[1].strip()
        if number == 1:
            assert "Create a new pull request for 'topic'" in err
            issue = sim.state.open_pull(
                "turnkeeper-bot", world.repository, title="t", head="topic", base="main"
            )
        else:
            assert f"/pulls/{issue.number}" in err
        refs = (await git(tmp_path, "ls-remote", url))[1]
        assert f"{tip}\trefs/pull/{issue.number}/head" in refs
        assert issue.pull is not None
        assert issue.pull.head_sha == tip
    await sim.hooks.idle()
    events = [json.loads(body) for _, _, _, body in receiver.got]
    assert [e["ref"] for e in events] == ["refs/heads/topic", "refs/heads/topic"]
    assert events[1]["commits"][0]["message"] == "change 2\n"


async def test_pushes_are_refused_to_those_who_may_not(sim: SimulatedGitea, tmp_path: Path) -> None:
    """A wrong token, a reader, a narrow token and an archived repository: nothing is written, each says no."""
    world = seed_demo(sim)
    state = sim.state
    url = f"{sim.url}/{world.repository}.git"
    assert (await git(tmp_path, "clone", "-q", url, "work"))[0] == 0
    work = tmp_path / "work"
    before = state.git.refs(world.repository_id)
    narrow = state.add_token("turnkeeper-bot", ("read:repository",))
    for token in ("0" * 40, world.tokens["bob"], narrow):
        assert (await git(work, "push", "-q", "origin", "HEAD:refs/heads/no", token=token))[0] != 0
    state.repo(world.repository).archived = True
    code, _, _ = await git(work, "push", "-q", "origin", "HEAD:refs/heads/no", token=world.tokens["alice"])
    assert code != 0
    assert state.git.refs(world.repository_id) == before
    state.repo(world.repository).archived = False
    code, _, err = await git(work, "push", "-q", "origin", "HEAD:refs/heads/yes", token=world.tokens["alice"])
    assert code == 0, err
    assert set(state.git.refs(world.repository_id)) - set(before) == {"refs/heads/yes"}


async def test_who_may_read_issues_only_does_not_read_code(sim: SimulatedGitea, tmp_path: Path) -> None:
    """A team with the unit of issues sees a private repository and its issues, not its files nor its git."""
    state = sim.state
    for login in ("owner", "clerk"):
        state.add_user(login)
    state.add_org("org", owner="owner")
    repo = state.add_repo("org", "hidden", private=True)
    state.open_issue("owner", repo, "t")
    state.add_team("org", "clerks", units={"issues": "write"}, members=["clerk"])
    token = state.add_token("clerk")
    async with client(sim, token) as api:
        assert (await api.get("/repos/org/hidden")).json()["permissions"]["pull"] is False
        assert (await api.post("/repos/org/hidden/issues/1/comments", json={"body": "c"})).status_code == 201
        assert (await api.get("/repos/org/hidden/contents/README.md")).status_code == 404
        assert (await api.get("/repos/org/hidden/branches")).status_code == 404
    code, _, err = await git(tmp_path, "ls-remote", f"{sim.url}/org/hidden.git", token=token)
    assert code != 0
    assert "not found" in err


async def test_what_it_cannot_do_of_a_known_call_is_refused_loudly_too(sim: SimulatedGitea) -> None:
    """A merge style or a setting that the stand-in lacks is 501 and remembered, not passed over."""
    world = seed_demo(sim)
    sim.state.commit_files("alice", world.repository, "topic", {"with space ü.txt": "x\n"})
    pull = sim.state.open_pull("alice", world.repository, title="t", head="topic", base="main")
    async with client(sim, world.tokens["alice"]) as api:
        path = f"/repos/{world.repository}"
        found = await api.get(f"{path}/contents/with%20space%20%C3%BC.txt?ref=topic")
        assert found.json()["size"] == 2
        assert (await api.post(f"{path}/pulls/{pull.number}/merge", json={"Do": "rebase"})).status_code == 501
        assert (await api.patch(path, json={"website": "x"})).status_code == 501
    assert sim.unknown_calls == [f"POST {path}/pulls/{pull.number}/merge", f"PATCH {path}"]


async def test_two_servers_do_not_share_anything(tmp_path: Path) -> None:
    """What one stand-in knows, another one does not: users, tokens, repositories."""
    servers = [
        SimulatedGitea(root=tmp_path / name, version=v) for name, v in (("a", "1.27.0"), ("b", "1.22.6"))
    ]
    for server in servers:
        await server.start()
    world = seed_demo(servers[0])
    async with client(servers[1], world.tokens["alice"]) as api:
        assert (await api.get("/user")).status_code == 401
    async with client(servers[1], None) as api:
        assert (await api.get(f"/repos/{world.repository}")).status_code == 404
        assert (await api.get("/version")).json() == {"version": "1.22.6"}
    for server in servers:
        await server.stop()


async def test_served_until_cancelled(tmp_path: Path) -> None:
    """``serve_simulated`` says when it is ready, answers, and leaves nothing listening behind."""
    ready: asyncio.Future[DemoWorld] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_simulated(root=tmp_path, version="1.22.6", ready=lambda _, world: ready.set_result(world))
    )
    world = await ready
    async with httpx.AsyncClient(trust_env=False) as api:
        assert (await api.get(f"{world.url}/api/v1/version")).json() == {"version": "1.22.6"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(httpx.ConnectError):
            await api.get(f"{world.url}/api/v1/version")
