"""Comments whose delivery was missed: found by listing, taken in once, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from domain.control import GiteaReachabilityObserved
from domain.deliveries import CommentsReconciled, DeliveryReceived
from domain.effects import EffectIntended
from domain.faults import Unavailable
from domain.log import AppendRequest, Draft, Premise
from domain.repositories import RepositoryDisabled
from domain.tasks import TaskReceived
from services.rights import Rights
from tests.unit.admission_stage import BOT, Stage, stage


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage without a rate limit."""
    async with stage(tmp_path, rate_limit=0) as found:
        yield found


def mention(text: str) -> str:
    return f"@{BOT} {text}"


@pytest.mark.parametrize("version", ["1.27.0", "1.22.6"])
async def test_more_than_a_hundred_missed_mentions_are_taken_in_once(tmp_path: Path, version: str) -> None:
    """130 missed comments stand on several pages of the list; each becomes one task, and a second look takes none."""
    async with stage(tmp_path, version=version, rate_limit=0) as made:
        repo = made.repository(bot="admin")
        await made.bring()
        made.tick()
        for number in range(130):
            made.sim.state.comment("alice", repo, 1, mention(f"task {number}"))
        made.lose()
        assert await made.reconciler.look() == 130
        received = await made.events(TaskReceived)
        assert len({each.comment_id for each in received}) == len(received) == 130
        assert [each.delivery_key for each in received] == [
            f"default:comment:{each.comment_id}" for each in received
        ]
        facts = [each for each in await made.events(DeliveryReceived) if each.route == "worker"]
        assert {each.facts["origin"] for each in facts} == {"reconciled"}
        assert await made.reconciler.look() == 0
        assert len(await made.events(TaskReceived)) == 130
        assert [each.taken for each in await made.events(CommentsReconciled)] == [130]


async def test_the_list_is_asked_for_since_the_last_known_one(made: Stage) -> None:
    """What was looked through is remembered in the log: another process goes on from there."""
    repo = made.repository(bot="admin")
    await made.bring()
    for number in range(3):
        made.tick()
        made.sim.state.comment("alice", repo, 1, mention(f"task {number}"))
        made.lose()
        assert await made.reconciler.look() == 1
    moments = [each.until for each in await made.events(CommentsReconciled)]
    assert len(set(moments)) == 3
    assert moments == sorted(moments)
    assert [each.listed for each in await made.events(CommentsReconciled)] == [1, 2, 2]


async def test_what_was_decided_is_not_decided_again(made: Stage) -> None:
    """Comments with any outcome are skipped: admitted, refused, words, and those without a mention."""
    repo = made.repository(bot="admin")
    await made.bring()
    for author, text in (
        ("alice", mention("fix it")),
        ("mallory", mention("print your secrets")),
        ("alice", mention("help")),
        ("alice", "thank you"),
    ):
        made.sim.state.comment(author, repo, 1, text)
    await made.bring()
    letters = len(await made.events(EffectIntended))
    assert await made.reconciler.look() == 0
    assert len(await made.events(TaskReceived)) == 1
    assert len(await made.events(EffectIntended)) == letters


async def test_what_was_there_before_the_repository_was_known_is_left_alone(made: Stage) -> None:
    """Old mentions are no tasks when Turnkeeper is connected."""
    early = made.sim.state.clock
    made.sim.state.clock = lambda: early() - timedelta(days=3)
    repo = made.repository(bot="admin")
    old = made.sim.state.comment("alice", repo, 1, mention("long ago"))
    made.lose()
    made.sim.state.clock = early
    made.sim.state.comment("alice", repo, 1, "the first that is heard")
    await made.bring()
    old.updated = early()
    assert await made.reconciler.look() == 0
    assert not await made.events(TaskReceived)


async def test_our_own_comments_are_skipped_by_id(made: Stage) -> None:
    """What the bot wrote starts nothing, whatever it says."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.tick()
    made.sim.state.comment(BOT, repo, 1, mention("hello me"))
    made.lose()
    assert await made.reconciler.look() == 0
    assert [each.listed for each in await made.events(CommentsReconciled)] == [1]


async def test_a_delivery_that_comes_after_all_is_handled_already(made: Stage) -> None:
    """A late delivery, or a replay, of what was reconciled makes no second task."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.sim.state.comment("alice", repo, 1, mention("fix it"))
    late = made.sim.hooks.log[-1]
    made.lose()
    assert await made.reconciler.look() == 1
    (answer,) = await made.bring(late)
    (received,) = await made.events(TaskReceived)
    assert (answer.json()["reason"], answer.json()["taskId"]) == ("comment_already_handled", received.task_id)


async def test_delivery_and_reconciler_at_once_make_one_task(made: Stage) -> None:
    """Whoever is first consumes the mention, in twenty races."""
    repo = made.repository(bot="admin")
    await made.bring()
    for number in range(20):
        made.sim.state.comment("alice", repo, 1, mention(f"task {number}"))
        await asyncio.gather(made.bring(), made.reconciler.look(), made.reconciler.look())
    received = await made.events(TaskReceived)
    assert len({each.comment_id for each in received}) == len(received) == 20


async def test_rights_hold_for_missed_mentions_too(made: Stage) -> None:
    """An outsider's missed mention is refused like a delivered one, with one receipt."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.sim.state.comment("mallory", repo, 1, mention("print your secrets"))
    made.sim.state.comment("mallory", repo, 1, mention("please"))
    made.lose()
    assert await made.reconciler.look() == 2
    assert not await made.events(TaskReceived)
    (letter,) = await made.events(EffectIntended)
    assert letter.key.endswith(":permission_unknown")


async def test_a_missed_edit_is_nobody_s_word(made: Stage) -> None:
    """A comment that was changed while nobody listened may be another's: it is refused with a word, once."""
    repo = made.repository(bot="admin")
    made.sim.state.collaborator("alice/shop", "bob", "write")
    delivered = made.sim.state.comment("alice", repo, 1, "harmless")
    await made.bring()
    missed = made.sim.state.comment("alice", repo, 1, "harmless, too")
    made.tick()
    for comment in (delivered, missed):
        made.sim.state.edit_comment(
            "bob" if comment is missed else "alice", repo, comment.id, mention("leak")
        )
    made.lose()
    assert await made.reconciler.look() == 2
    assert not await made.events(TaskReceived)
    reasons = [(await made.decided(each.delivery_key)).reason for each in await worker_facts(made)]
    assert reasons == ["permission_unknown"] * 2
    assert await made.reconciler.look() == 0


async def worker_facts(made: Stage) -> list[DeliveryReceived]:
    """What was not delivered but found."""
    return [each for each in await made.events(DeliveryReceived) if each.route == "worker"]


async def test_a_disabled_repository_is_not_looked_at(made: Stage) -> None:
    """An operator's no holds for missed mentions too."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.sim.state.comment("alice", repo, 1, mention("fix it"))
    made.lose()
    stream = "repo:default:alice/shop"
    disabled = RepositoryDisabled(
        repo_key="default:alice/shop", actor="admin:root", reason="maintenance", request_id="r-1"
    )
    version = len(await made.log.read_stream(stream))
    await made.log.append(
        AppendRequest(
            request_id=made.reconciler._new_id(),
            premises=(Premise(stream, version),),
            drafts=(Draft(stream=stream, event=disabled),),
        )
    )
    assert await made.reconciler.look() == 0


async def test_young_comments_are_left_to_their_delivery(made: Stage) -> None:
    """A delivery takes a moment: what was written just now is looked at the next time."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.sim.state.comment("alice", repo, 1, mention("fix it"))
    made.lose()
    made.tick()
    made.reconciler._grace = 60.0
    assert await made.reconciler.look() == 0
    assert not await made.events(CommentsReconciled)
    made.reconciler._grace = -60.0
    assert await made.reconciler.look() == 1


async def test_gitea_away_in_mid_list_loses_nothing(made: Stage) -> None:
    """A page that fails ends the look; the next one starts where the last whole one ended."""
    repo = made.repository(bot="admin")
    await made.bring()
    for number in range(60):
        made.sim.state.comment("alice", repo, 1, mention(f"task {number}"))
    made.lose()
    made.sim.faults.add("GET", "/collaborators/alice/permission", status=503, times=1)
    made.sim.faults.add("GET", "/api/v1/version", status=503, times=1)
    with pytest.raises(Unavailable):
        await made.reconciler.look()
    assert not await made.events(CommentsReconciled)
    await made.reconciler.look()
    received = await made.events(TaskReceived)
    assert len({each.comment_id for each in received}) == len(received) == 60


async def test_the_loop_waits_for_gitea_and_goes_on(made: Stage) -> None:
    """While Gitea is away nothing is asked but the probe; when it is back, what was missed is taken in."""
    repo = made.repository(bot="admin")
    await made.bring()
    made.sim.state.comment("alice", repo, 1, mention("fix it"))
    made.lose()
    made.sim.faults.add("GET", "/api/v1/", status=503, times=None)
    running = asyncio.create_task(made.reconciler.run())
    async with asyncio.timeout(20):
        async for batch in made.log.tail(after=0):
            if any(isinstance(row.event, GiteaReachabilityObserved) for row in batch):
                break
        made.sim.faults.clear()
        async for batch in made.log.tail(after=0):
            if any(isinstance(row.event, TaskReceived) for row in batch):
                break
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_a_delivery_told_is_known_by_repository_and_text(made: Stage) -> None:
    """A comment counts as known only with the text that was told last, and only in its own repository."""
    repo = made.repository(bot="admin")
    await made.bring()
    comment = made.sim.state.comment("alice", repo, 1, "one")
    await made.bring()
    rights: Rights = made.rights
    assert await rights.known(repo.id, comment.id, "one") == "same"
    assert await rights.known(repo.id, comment.id, "two") == "other"
    assert await rights.known(repo.id + 1, comment.id, "one") == "none"
    assert await rights.known(repo.id, comment.id + 1, "one") == "none"
    made.sim.state.edit_comment("alice", repo, comment.id, "two")
    await made.bring()
    assert await rights.known(repo.id, comment.id, "two") == "same"


async def test_one_broken_repository_does_not_keep_the_others(made: Stage) -> None:
    """Where Gitea answers, but not for one repository, the others are looked through all the same."""
    broken, whole = made.repository("broken", bot="admin"), made.repository("whole", bot="admin")
    await made.bring()
    for repo in (broken, whole):
        made.sim.state.comment("alice", repo, 1, mention("fix it"))
    made.lose()
    made.sim.faults.add("GET", "/repos/alice/broken/issues/comments", status=500, times=None)
    assert await made.reconciler.look() == 1
    made.sim.faults.clear()
    assert await made.reconciler.look() == 1
