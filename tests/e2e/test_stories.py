"""The main job, told as stories: real processes, real HTTP, real git, real boxes, each agent."""

import asyncio
import signal
import sys
from collections.abc import Callable

import pytest

from domain.tasks import TaskClaimed, TaskTransitioned
from domain.turns import TurnItemSeen, TurnStarted
from tests.e2e.world import World, directive, running

MakeWorld = Callable[..., World]

ONCE = "if [ -e .once ]; then echo again; else touch .once; sleep 300; fi"
"""Hangs in the first turn, goes on in the second: the workspace remembers."""

pytestmark = pytest.mark.timeout(240)


async def test_a_mention_is_answered_once_and_confirmed(new_world: MakeWorld, agent: str) -> None:
    """A mention ends succeeded, with one receipt and one final comment that was read back."""
    async with running(new_world(agent)) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        world.mention(repo, number, "why?")
        task = await world.received()
        ended = await world.reaches(task.task_id)
        assert ended.to_state == "succeeded"
        finals = world.finals(repo, number, task.task_id)
        folded = await world.task(task.task_id)
        assert folded.reply is not None
        assert [each.id for each in finals] == list(folded.reply.comment_ids)
        assert world.receipts(repo, number, task.task_id) == ["queued"]
        assert world.sim.unknown_calls == []


async def test_a_second_mention_goes_on_in_the_same_thread_after_a_restart(
    new_world: MakeWorld, agent: str
) -> None:
    """The issue's thread outlives the service: the second turn runs on it, in a new process."""
    async with new_world(agent) as world:
        first = await world.serve()
        repo = world.repository("shop")
        number = world.issue(repo)
        world.mention(repo, number, "one")
        one = await world.received()
        await world.reaches(one.task_id, "succeeded")
        assert await first.end() == 0
        await world.serve()
        world.mention(repo, number, "two")
        head = (await world.everything())[-1].position
        two = await world.received(after=head)
        assert (await world.reaches(two.task_id)).to_state == "succeeded"
        threads = {
            each.event.thread_id for each in await world.everything() if isinstance(each.event, TurnStarted)
        }
        assert len(threads) == 1
        assert len(world.finals(repo, number, two.task_id)) == 1


async def test_two_issues_take_turns_and_two_repositories_run_at_once(
    new_world: MakeWorld, agent: str
) -> None:
    """One repository's issues run one after the other on two threads; another repository runs meanwhile."""
    async with running(new_world(agent)) as world:
        busy, other = world.repository("busy"), world.repository("other")
        numbers = [world.issue(busy), world.issue(busy)]
        slow = directive(
            "steps", [{"do": "exec", "cmd": "sleep 2"}, {"do": "comment"}, {"do": "text", "text": "ok"}]
        )
        for number in numbers:
            world.mention(busy, number, slow)
        world.mention(other, world.issue(other), slow)
        received = []
        position = 0
        for _ in range(3):
            found = await world.until(lambda each: each.type == "TaskReceived", after=position)
            position = found.position
            received.append(found.event)
        for task in received:
            assert (await world.reaches(task.task_id)).to_state == "succeeded"
        events = await world.everything()
        spans = {}
        for each in events:
            if isinstance(each.event, TaskClaimed):
                spans[each.event.task_id] = [each.position, 0]
            if isinstance(each.event, TaskTransitioned) and each.event.to_state == "succeeded":
                spans[each.event.task_id][1] = each.position
        same = [spans[task.task_id] for task in received if task.repo_key.endswith("/busy")]
        alone = next(spans[task.task_id] for task in received if task.repo_key.endswith("/other"))
        assert same[0][1] < same[1][0]
        assert any(alone[0] < span[1] and span[0] < alone[1] for span in same)
        threads = {each.event.thread_id for each in events if isinstance(each.event, TurnStarted)}
        assert len(threads) == 3


async def test_a_service_killed_in_mid_turn_leaves_one_reply(new_world: MakeWorld, agent: str) -> None:
    """After SIGKILL in mid-turn the next process looks first, runs the turn again, and one reply stands."""
    async with new_world(agent) as world:
        service = await world.serve()
        repo = world.repository("shop")
        number = world.issue(repo)
        steps = [{"do": "exec", "cmd": ONCE}, {"do": "comment"}, {"do": "text", "text": "done"}]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        await world.seen(TurnItemSeen, task.task_id, method="item/started", item_type="commandExecution")
        await service.end(signal.SIGKILL)
        await world.serve()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        assert len(world.finals(repo, number, task.task_id)) == 1
        folded = await world.task(task.task_id)
        assert folded.attempt == 1
        assert len(folded.turns) == 2
        assert len({turn.started.thread_id for turn in folded.turns}) == 1


async def test_a_service_killed_after_the_comment_does_not_write_again(new_world: MakeWorld) -> None:
    """If the comment stood before the kill, it is the reply: no second turn, no second comment."""
    async with new_world() as world:
        service = await world.serve()
        repo = world.repository("shop")
        number = world.issue(repo)
        steps = [{"do": "comment"}, {"do": "exec", "cmd": "sleep 300"}]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        await world.seen(TurnItemSeen, task.task_id, method="item/started", item_type="commandExecution")
        await service.end(signal.SIGKILL)
        await world.serve()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        assert len(world.finals(repo, number, task.task_id)) == 1
        assert len((await world.task(task.task_id)).turns) == 1


async def test_a_drained_service_hands_its_run_back(new_world: MakeWorld) -> None:
    """SIGTERM interrupts a run after the drain deadline and exits 0; the next process finishes the task."""
    async with new_world(TURNKEEPER_DRAIN_DEADLINE="0.5") as world:
        service = await world.serve()
        repo = world.repository("shop")
        number = world.issue(repo)
        steps = [{"do": "exec", "cmd": ONCE}, {"do": "comment"}, {"do": "text", "text": "done"}]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        await world.seen(TurnItemSeen, task.task_id, method="item/started", item_type="commandExecution")
        assert await service.end() == 0
        waiting = await world.task(task.task_id)
        assert (waiting.state, waiting.error_code) == ("retry_wait", "drained")
        await world.serve()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        assert len(world.finals(repo, number, task.task_id)) == 1


async def test_an_agent_that_edits_files_does_not_block_the_next_issue(new_world: MakeWorld) -> None:
    """Leftovers of one issue are parked for the next, and are there again when the first issue goes on."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        first, second = world.issue(repo), world.issue(repo)
        edit = [{"do": "exec", "cmd": "echo changed >> price.py; echo new > note.txt"}, {"do": "comment"}]
        look = [{"do": "exec", "cmd": "cat price.py; ls"}, {"do": "comment"}]
        again = [{"do": "exec", "cmd": "test -e note.txt && grep changed price.py"}, {"do": "comment"}]
        outputs = []
        position = 0
        for number, steps in ((first, edit), (second, look), (first, again)):
            world.mention(repo, number, directive("steps", steps))
            found = await world.until(lambda each: each.type == "TaskReceived", after=position)
            position = found.position
            assert (await world.reaches(found.event.task_id)).to_state == "succeeded"
            done = await world.seen(
                TurnItemSeen, found.event.task_id, method="item/completed", item_type="commandExecution"
            )
            outputs.append(done.event.summary)
        assert "note.txt" not in outputs[1]["aggregatedOutput"]
        assert "changed" not in outputs[1]["aggregatedOutput"]
        assert outputs[2]["exitCode"] == 0
        assert any(each.type == "LeftoversParked" for each in await world.everything())


async def test_a_lease_taken_over_kills_the_former_box_first(new_world: MakeWorld) -> None:
    """A stopped service loses its lease; the other process ends its box before it touches the workspace."""
    async with new_world() as world:
        service = await world.serve()
        repo = world.repository("shop")
        number = world.issue(repo)
        steps = [{"do": "exec", "cmd": ONCE}, {"do": "comment"}, {"do": "text", "text": "done"}]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        await world.seen(TurnItemSeen, task.task_id, method="item/started", item_type="commandExecution")
        box = (await world.task(task.task_id)).box
        assert box is not None
        service.process.send_signal(signal.SIGSTOP)
        await world.serve(TURNKEEPER_PORT="0")
        ended = await world.seen(_box_ended(), task.task_id)
        assert not _alive(box.identity["pid"], box.identity["start_time"])
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        service.process.send_signal(signal.SIGCONT)
        await asyncio.wait_for(_quiet(world, ended.position), 60)
        assert len(world.finals(repo, number, task.task_id)) == 1


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("no-such-gitea-mcp-program", "gitea_mcp_missing"),
        ("false", "gitea_mcp_exited"),
        (f"{sys.executable} -c 'import time; time.sleep(600)'", "gitea_mcp_timeout"),
    ],
    ids=["missing", "exiting", "hanging"],
)
async def test_a_broken_gitea_mcp_fails_the_task_with_one_receipt(
    new_world: MakeWorld, command: str, code: str
) -> None:
    """Missing, exiting and hanging are told apart; each fails at once, with one receipt and no turn."""
    world = new_world(TURNKEEPER_GITEA_MCP_COMMAND=command, TURNKEEPER_MCP_HANDSHAKE="1")
    async with running(world):
        repo = world.repository("shop")
        number = world.issue(repo)
        world.mention(repo, number, "why?")
        task = await world.received()
        ended = await world.reaches(task.task_id)
        assert (ended.to_state, ended.error_code, ended.attempt) == ("failed", code, 0)
        await world.until(
            lambda each: each.type == "EffectConcluded" and b"receipt.create" in each.body, after=0
        )
        receipts = await world.until(
            lambda each: (
                each.type == "EffectConcluded"
                and each.stream.endswith(task.task_id)
                and len(world.receipts(repo, number, task.task_id)) == 2
            )
        )
        assert receipts is not None
        assert world.receipts(repo, number, task.task_id) == ["queued", "failed"]
        assert (await world.task(task.task_id)).turns == ()


async def test_a_second_final_comment_edits_the_first(new_world: MakeWorld) -> None:
    """An agent that comments twice leaves one comment, with its last text."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        steps = [{"do": "comment", "body": "first"}, {"do": "comment", "body": "second"}]
        world.mention(repo, number, directive("steps", steps))
        task = await world.received()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        finals = world.finals(repo, number, task.task_id)
        assert len(finals) == 1
        assert finals[0].body.startswith("second")


async def test_a_comment_deleted_while_it_waits_cancels_its_task(new_world: MakeWorld) -> None:
    """While the repository is busy, deleting a queued comment cancels, and editing it amends."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        number = world.issue(repo)
        busy = directive(
            "steps", [{"do": "exec", "cmd": "while [ ! -e .go ]; do sleep 0.1; done"}, {"do": "comment"}]
        )
        world.mention(repo, number, busy)
        first = await world.received()
        await world.seen(TurnItemSeen, first.task_id, method="item/started", item_type="commandExecution")
        head = (await world.everything())[-1].position
        gone = world.mention(repo, number, "never mind")
        deleted = await world.received(after=head)
        head = (await world.everything())[-1].position
        changed = world.mention(repo, number, "do this")
        amended = await world.received(after=head)
        world.sim.state.delete_comment("alice", repo, gone.id)
        ended = await world.reaches(deleted.task_id)
        assert (ended.to_state, ended.error_code) == ("cancelled", "trigger_deleted")
        world.sim.state.edit_comment("alice", repo, changed.id, changed.body.replace("this", "that instead"))
        await world.until(
            lambda each: each.type == "InstructionAmended" and each.stream.endswith(amended.task_id)
        )
        workspace = world.root / "state" / "workspaces" / "default" / "alice" / "shop"
        (workspace / ".go").touch()
        assert (await world.reaches(amended.task_id)).to_state == "succeeded"


async def test_a_pull_request_of_a_fork_is_checked_out_from_the_base(new_world: MakeWorld) -> None:
    """A mention on a fork's pull request works on refs/pull/N/head of the base repository."""
    async with running(new_world()) as world:
        repo = world.repository("shop")
        fork = world.sim.state.fork("bob", repo)
        world.sim.state.commit_files("bob", fork, "feature", {"feature.txt": "from the fork\n"})
        pull = world.sim.state.open_pull("bob", repo, title="Feature", head="bob:feature", base="main")
        steps = [{"do": "exec", "cmd": "cat feature.txt"}, {"do": "comment"}]
        world.mention(repo, pull.number, directive("steps", steps))
        task = await world.received()
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        done = await world.seen(
            TurnItemSeen, task.task_id, method="item/completed", item_type="commandExecution"
        )
        assert "from the fork" in done.event.summary["aggregatedOutput"]


def _box_ended() -> type:
    from domain.tasks import BoxEnded  # noqa: PLC0415 - used here only

    return BoxEnded


def _alive(pid: int, start_time: int) -> bool:
    from adapters.box_identity import start_time as now  # noqa: PLC0415 - used here only

    return now(pid) == start_time


async def _quiet(world: World, position: int) -> None:
    """Until the process that was stopped has noticed that its lease is lost."""
    first = world.processes[0]
    while "the lease" not in first.errors.read_text():
        assert first.process.returncode is None
        await asyncio.sleep(0.1)
    assert position
