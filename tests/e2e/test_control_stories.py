"""An operator steers a running service: what is asked by HTTP or on the command line happens, once, and is told."""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adapters.simulated.gitea_state import Repo
from domain.control import GiteaReachabilityObserved, GloballyPaused, RequestRecorded
from domain.effects import EffectConcluded
from domain.tasks import AbortConfirmed, AbortRequested, Task, TaskClaimed, WorkspaceFoundBlocked
from domain.turns import TurnEnded, TurnItemSeen, TurnStarted
from tests.e2e.conftest import agent_command
from tests.e2e.world import ROOT, World, directive, running

MakeWorld = Callable[..., World]
BASE = "/api/gitea-workflow"
HANG = directive("steps", [{"do": "exec", "cmd": "sleep 300"}, {"do": "comment"}])
ANSWER = directive("steps", [{"do": "comment"}])
"""Said after a scripted comment: the issue's comments are in the prompt, and the first script in it counts."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(
    params=[
        "scripted",
        pytest.param("codex", marks=pytest.mark.codex),
        pytest.param("codex-old", marks=pytest.mark.codex),
    ]
)
def any_agent(request: pytest.FixtureRequest) -> str:
    """Each agent's name."""
    name: str = request.param
    return name


async def ask(
    world: World, path: str, *, request_id: str | None = None, status: int | None = None
) -> dict[str, Any]:
    """One act by HTTP; its answer."""
    async with httpx.AsyncClient(base_url=world.processes[-1].url, trust_env=False) as client:
        answer = await client.post(
            f"{BASE}/{path}",
            json={"requestId": request_id or str(uuid.uuid4()), "reason": "the story wants it"},
            headers={"Authorization": f"Bearer {world.admin_token}"},
        )
    told: dict[str, Any] = answer.json()
    assert answer.is_success if status is None else answer.status_code == status, told
    return told


async def get(world: World, path: str, **params: str) -> dict[str, Any]:
    """What a GET route answers."""
    async with httpx.AsyncClient(base_url=world.processes[-1].url, trust_env=False) as client:
        answer = await client.get(
            f"{BASE}/{path}", params=params, headers={"Authorization": f"Bearer {world.admin_token}"}
        )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def command(world: World, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A command against the running service: its exit code and what it printed as JSON."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services",
        *arguments,
        "--json",
        env=world.environment(),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    told = (out or err).decode().splitlines()
    return process.returncode or 0, json.loads(told[-1])


async def settled(world: World, task_id: str) -> Task:
    """The task once every intent of it has its result, its receipts too."""

    async def wait() -> Task:
        while True:
            task = await world.task(task_id)
            if not task.open_intents:
                return task
            intent = task.open_intents[0].intent_id
            await world.seen(EffectConcluded, task_id, intent_id=intent)

    try:
        return await asyncio.wait_for(wait(), 60)
    except TimeoutError:
        intents = [each.operation for each in (await world.task(task_id)).open_intents]
        raise AssertionError(f"these intents never got their result: {intents}") from None


async def mentioned(world: World, repo: Repo, number: int, text: str) -> str:
    """A mention that was admitted; the task's id."""
    head = await world.log.head()
    world.mention(repo, number, text)
    return (await world.received(after=head)).task_id


async def of(world: World, kind: type, task_id: str) -> list[Any]:
    """The log's events of one type about a task."""
    rows = await world.everything()
    return [row.event for row in rows if isinstance(row.event, kind) and row.event.task_id == task_id]  # type: ignore[attr-defined]


async def test_a_running_turn_is_aborted(new_world: MakeWorld, any_agent: str) -> None:
    """An abort interrupts the turn: it ends cancelled, the task aborted, one receipt says so, the lease is free."""
    async with running(new_world(agent_command(any_agent))) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        task_id = await mentioned(world, repo, number, HANG)
        await world.seen(TurnItemSeen, task_id, method="item/started", item_type="commandExecution")
        first, again = await asyncio.gather(
            ask(world, f"tasks/{task_id}/abort", request_id="abort-1", status=202),
            ask(world, f"tasks/{task_id}/abort", request_id="abort-1", status=202),
        )
        assert first == again
        assert (first["state"], first["taskId"]) == ("aborting", task_id)
        last = await world.reaches(task_id)
        assert (last.to_state, last.from_state) == ("aborted", "aborting")
        task = await settled(world, task_id)
        assert [turn.ended.status for turn in task.turns if turn.ended] == ["cancelled"]
        assert world.receipts(repo, number, task_id) == ["queued", "aborted"]
        assert world.finals(repo, number, task_id) == []
        assert task.received is not None
        lease = await world.log.lease(f"repo:{task.received.repo_key}")
        assert lease is not None
        assert lease.expires_at is None
        (asked,) = await of(world, AbortRequested, task_id)
        assert (asked.actor, asked.request_id) == ("admin:token", "abort-1")
        refused = await ask(world, f"tasks/{task_id}/abort", status=409)
        assert (refused["code"], refused["params"]["state"]) == ("invalid_state", "aborted")
        following = await mentioned(world, repo, number, ANSWER)
        assert (await world.reaches(following)).to_state == "succeeded"


async def test_an_abort_while_it_is_prepared_starts_no_turn(new_world: MakeWorld) -> None:
    """Aborting a task whose repository is still being fetched ends it aborted without a turn ever started."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        slow = world.sim.faults.add("GET", r".*/info/refs", delay=3, times=1)
        task_id = await mentioned(world, repo, number, "why?")
        await world.seen(TaskClaimed, task_id)
        told = await ask(world, f"tasks/{task_id}/abort", status=202)
        assert told["state"] == "aborting"
        assert (await world.reaches(task_id)).to_state == "aborted"
        await settled(world, task_id)
        assert slow.struck <= 1
        assert await of(world, TurnStarted, task_id) == []
        assert [event.outcome for event in await of(world, AbortConfirmed, task_id)] == ["confirmed"]
        assert world.receipts(repo, number, task_id) == ["queued", "aborted"]


async def test_an_abort_while_it_waits_for_its_retry_is_over_at_once(new_world: MakeWorld) -> None:
    """A task in retry_wait is aborted by the request itself, and is never claimed again."""
    async with running(new_world(TURNKEEPER_RETRY_DELAY="600")) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        world.sim.faults.add("GET", r".*/info/refs", status=401, times=None)
        task_id = await mentioned(world, repo, number, "why?")
        await world.reaches(task_id, "retry_wait")
        assert (await ask(world, f"tasks/{task_id}/abort", status=200))["state"] == "aborted"
        await settled(world, task_id)
        assert await world.log.next_available() is None
        assert len(await of(world, TaskClaimed, task_id)) == 1


async def test_an_aborted_task_is_retried_as_a_new_one(new_world: MakeWorld) -> None:
    """A retry makes one new task that names the old one, runs with the same instruction and is answered once."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        once = "if [ -e .once ]; then echo again; else touch .once; sleep 300; fi"
        script = directive("steps", [{"do": "exec", "cmd": once}, {"do": "comment"}])
        old = await mentioned(world, repo, number, script)
        await world.seen(TurnItemSeen, old, method="item/started", item_type="commandExecution")
        refused = await ask(world, f"tasks/{old}/retry", status=409)
        assert refused["code"] == "invalid_state"
        await ask(world, f"tasks/{old}/abort")
        await world.reaches(old, "aborted")
        await settled(world, old)
        first, again = await asyncio.gather(
            *(ask(world, f"tasks/{old}/retry", request_id="retry-1", status=202) for _ in range(2))
        )
        assert first == again
        new = first["taskId"]
        assert (await world.reaches(new)).to_state == "succeeded"
        await settled(world, new)
        assert len(world.finals(repo, number, new)) == 1
        assert world.finals(repo, number, old) == []
        assert world.receipts(repo, number, new) == ["queued"]
        shown = await get(world, f"tasks/{new}")
        assert (shown["retryOf"], shown["deliveryKey"]) == (old, "default:retry:retry-1")
        assert shown["instruction"] == (await get(world, f"tasks/{old}"))["instruction"]


async def test_a_pause_stops_claims_and_nothing_else(new_world: MakeWorld) -> None:
    """While paused, deliveries are taken in and running turns go on, nothing is claimed; resuming claims it."""
    async with running(new_world()) as world:
        repo, other = world.repository("shop"), world.repository("depot")
        number, elsewhere = world.issue(repo), world.issue(other)
        slow = directive("steps", [{"do": "exec", "cmd": "sleep 2"}, {"do": "comment"}])
        first = await mentioned(world, repo, number, slow)
        await world.seen(TurnItemSeen, first, method="item/started", item_type="commandExecution")
        code, told = await command(world, "pause", "--reason", "maintenance")
        assert (code, told["control"]["globalPaused"]) == (0, True)
        second = await mentioned(world, other, elsewhere, "why?")
        assert (await world.reaches(first)).to_state == "succeeded"
        await settled(world, first)
        third = await mentioned(world, repo, number, "and why?")
        await world.sim.hooks.idle()
        await settled(world, third)  # its receipt is posted
        overview = await get(world, "overview")
        assert overview["control"]["globalPaused"] is True
        assert overview["control"]["pauseReason"] == "maintenance"
        assert overview["control"]["updatedBy"] == "admin:token"
        await world.processes[-1].end()
        await world.serve()  # the pause outlives the process
        for task_id in (second, third):
            assert (await world.task(task_id)).state == "queued"
            assert await of(world, TaskClaimed, task_id) == []
        code, told = await command(world, "resume", "--reason", "done")
        assert (code, told["control"]["globalPaused"]) == (0, False)
        for task_id in (second, third):
            assert (await world.reaches(task_id)).to_state == "succeeded"
        rows = await world.everything()
        resumed = next(row.position for row in rows if row.type == "GloballyResumed")
        paused = next(row.position for row in rows if isinstance(row.event, GloballyPaused))
        claims = [row.position for row in rows if isinstance(row.event, TaskClaimed)]
        assert [position for position in claims if paused < position < resumed] == []
        assert not [row for row in rows if isinstance(row.event, GiteaReachabilityObserved)]


async def test_a_queued_task_is_cancelled(new_world: MakeWorld) -> None:
    """A cancelled task is never claimed, and posts nothing beyond its first receipt; a second cancel is refused."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        await ask(world, "control/pause")
        task_id = await mentioned(world, repo, number, "why?")
        code, told = await command(world, "tasks", "cancel", task_id, "--reason", "changed my mind")
        assert (code, told["state"], told["errorCode"]) == (0, "cancelled", "cancelled_by_operator")
        code, told = await command(world, "tasks", "cancel", task_id, "--reason", "changed my mind")
        assert (code, told["code"]) == (1, "invalid_state")
        await ask(world, "control/resume")
        await settled(world, task_id)
        following = await mentioned(world, repo, number, "again?")
        assert (await world.reaches(following)).to_state == "succeeded"
        assert await of(world, TaskClaimed, task_id) == []
        assert world.receipts(repo, number, task_id) == ["queued"]
        audit = await get(world, "audit", taskId=task_id, action="task.cancel")
        assert [entry["actor"] for entry in audit["items"]] == ["admin:token"]


async def test_a_waiting_task_is_cancelled(new_world: MakeWorld) -> None:
    """A task that waits for an answer is cancelled; the next comment is a task of its own."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        question = {"do": "call", "name": "ask_user", "arguments": {"question": "Which price?"}}
        script = directive("steps", [question, {"do": "text", "text": "waiting"}])
        task_id = await mentioned(world, repo, number, script)
        await world.reaches(task_id, "waiting_user")
        await settled(world, task_id)
        assert (await ask(world, f"tasks/{task_id}/abort", status=200))["state"] == "cancelled"
        following = await mentioned(world, repo, number, ANSWER)
        assert following != task_id
        assert (await world.reaches(following)).to_state == "succeeded"


async def test_a_blocked_workspace_waits_until_it_is_unblocked(new_world: MakeWorld) -> None:
    """A change that nobody recorded blocks the workspace until somebody put it in order; nothing of it is lost."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        first = await mentioned(world, repo, number, "why?")
        assert (await world.reaches(first)).to_state == "succeeded"
        await settled(world, first)
        workspace = Path(world.root, "state", "workspaces", "default", "alice", "shop")
        planted = workspace / "unknown.txt"
        planted.write_text("by hand\n")
        task_id = await mentioned(world, repo, number, "and now?")
        blocked = await world.reaches(task_id, "blocked_workspace")
        assert blocked.error_code == "workspace_dirty"
        key = quote("default:alice/shop", safe="")
        page = await get(
            world, "repositories", repoKey="default:alice/shop", min_position=str(await world.log.head())
        )
        assert (page["items"][0]["status"], page["items"][0]["blockedBy"]) == ("blocked", task_id)
        later = await mentioned(world, repo, world.issue(repo), "meanwhile?")
        await settled(world, later)
        assert await of(world, TaskClaimed, later) == []
        assert (await ask(world, f"repos/{key}/enable"))["status"] == "blocked"
        head = await world.log.head()
        assert (await ask(world, f"tasks/{task_id}/unblock"))["state"] == "queued"
        await world.seen(WorkspaceFoundBlocked, task_id, after=head)  # nobody put it in order yet
        await world.until(lambda each: each.type == "RepositoryBlocked", after=head)
        commit_by_hand(workspace)
        code, told = await command(world, "tasks", "unblock", task_id, "--reason", "the file may stay")
        assert (code, told["state"]) == (0, "queued")
        assert (await world.reaches(task_id)).to_state == "succeeded"
        task = await settled(world, task_id)
        assert task.attempt == 0
        assert planted.read_text() == "by hand\n"
        assert len(world.finals(repo, number, task_id)) == 1
        assert (await world.reaches(later)).to_state == "succeeded"
        assert (await ask(world, f"tasks/{task_id}/unblock", status=409))["code"] == "invalid_state"


def commit_by_hand(workspace: Path) -> None:
    """What a person does who wants to keep what was found."""
    for arguments in (("add", "--all"), ("commit", "--quiet", "--message", "kept by hand")):
        who = ("user.name=carol", "user.email=carol@example.com", "safe.directory=*")
        given = [part for setting in who for part in ("-c", setting)]
        subprocess.run(["git", *given, *arguments], cwd=workspace, check=True)


async def test_a_disabled_repository_takes_no_tasks(new_world: MakeWorld) -> None:
    """Disabled: deliveries get 409, queued tasks stay unclaimed, other repositories go on; enabled, they run."""
    async with running(new_world()) as world:
        repo, other = world.repository("shop"), world.repository("depot")
        number, elsewhere = world.issue(repo), world.issue(other)
        await ask(world, "control/pause")
        queued = await mentioned(world, repo, number, "why?")
        code, told = await command(world, "repos", "disable", "alice/shop", "--reason", "being moved")
        assert (code, told["status"]) == (0, "disabled")
        await ask(world, "control/resume")
        head = await world.log.head()
        world.mention(repo, number, "and now?")
        decided = await world.until(
            lambda each: each.type == "DeliveryDecided" and b"repository_disabled" in each.body, after=head
        )
        assert decided.event.http_status == 409  # type: ignore[attr-defined]
        running_on = await mentioned(world, other, elsewhere, "here?")
        assert (await world.reaches(running_on)).to_state == "succeeded"
        assert (await world.task(queued)).state == "queued"
        assert await of(world, TaskClaimed, queued) == []
        code, listed = await command(world, "repos", "list", "--status", "disabled")
        assert (code, [item["statusReason"] for item in listed["items"]]) == (0, ["being moved"])
        await ask(world, f"repos/{quote('default:alice/shop', safe='')}/enable")
        assert (await world.reaches(queued)).to_state == "succeeded"


async def test_a_repeat_after_a_restart_gets_the_first_answer(new_world: MakeWorld) -> None:
    """Another process answers a repeated request as the first one did, and does nothing again."""
    async with running(new_world()) as world:
        told = await ask(world, "control/pause", request_id="pause-1")
        await world.processes[-1].end()
        await world.serve()
        assert await ask(world, "control/pause", request_id="pause-1") == told
        conflict = await ask(world, "control/resume", request_id="pause-1", status=409)
        assert conflict["code"] == "request_conflict"
        recorded = [each for each in await world.everything() if isinstance(each.event, RequestRecorded)]
        assert [each.position for each in recorded] == [told["position"]]


async def test_an_abort_is_told_in_order(new_world: MakeWorld) -> None:
    """The request, the interrupt's intent, the turn's end and the abort stand in the log in this order."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        task_id = await mentioned(world, repo, world.issue(repo), HANG)
        await world.seen(TurnItemSeen, task_id, method="item/started", item_type="commandExecution")
        await ask(world, f"tasks/{task_id}/abort")
        await world.reaches(task_id)
        rows = [row for row in await world.everything() if row.stream == f"task:{task_id}"]
        ends = next(row.position for row in rows if isinstance(row.event, TurnEnded))
        asked = next(row.position for row in rows if isinstance(row.event, AbortRequested))
        states = [
            (row.event.to_state, row.position)  # type: ignore[attr-defined]
            for row in rows
            if row.type == "TaskTransitioned" and row.position > asked
        ]
        assert [state for state, _ in states] == ["aborting", "aborted"]
        intent = next(row.position for row in rows if row.position > asked and row.type == "EffectIntended")
        assert asked < states[0][1] < intent < ends < states[1][1]
