"""The order in which waiting tasks may be claimed (architecture, Leases: a claim is an ordinary append)."""

import asyncio
from datetime import timedelta

from domain.ids import lease_scope
from domain.log import AppendRequest, EndLease, QueueDrop, QueuePut
from tests.conformance.conftest import Harness, request


def put(task: str, *, repo: str = "r", session: str = "s", at: object = None) -> QueuePut:
    return QueuePut(task=task, repo=repo, session=session, available_at=at)  # type: ignore[arg-type]


async def enqueue(harness: Harness, *puts: QueuePut | QueueDrop) -> None:
    position = await harness.log.head()
    sent: AppendRequest = request(f"q{position}", 1, queue=puts)
    await harness.log.append(sent)


async def candidates(harness: Harness, limit: int = 10) -> list[str]:
    return [row.task for row in await harness.log.candidates(limit=limit)]


async def test_each_repository_offers_its_first_task(harness: Harness) -> None:
    """First come, first served within a repository; repositories do not wait for each other."""
    await enqueue(harness, put("a1", repo="a"), put("a2", repo="a"))
    await enqueue(harness, put("b1", repo="b"))
    await enqueue(harness, put("c1", repo="c"))
    assert await candidates(harness) == ["a1", "b1", "c1"]
    assert await candidates(harness, limit=2) == ["a1", "b1"]
    (row, *_) = await harness.log.candidates(limit=1)
    assert (row.repo, row.session, row.position) == ("a", "s", 1)


async def test_a_busy_repository_offers_nothing(harness: Harness) -> None:
    """A running lease holds its repository's tasks back, an ended or late one does not."""
    await enqueue(harness, put("a1", repo="a"), put("b1", repo="b"))
    fence = await harness.acquire(lease_scope("a"), ttl_ms=1000)
    assert await candidates(harness) == ["b1"]
    await harness.write("x", 1, leases=(EndLease(scope=fence.scope, epoch=1),), fences=(fence,))
    assert await candidates(harness) == ["a1", "b1"]
    await harness.acquire(lease_scope("a"), 2, ttl_ms=1000)
    harness.advance(2)
    assert await candidates(harness) == ["a1", "b1"]


async def test_a_task_that_waits_for_a_time_holds_back_only_its_own_session(harness: Harness) -> None:
    """Younger tasks of its session wait with it, those of other sessions pass."""
    later = await harness.log.now() + timedelta(seconds=100)
    await enqueue(harness, put("old", session="one"))
    await enqueue(harness, put("waits", session="two", at=later))
    await enqueue(harness, put("behind", session="two"), put("other", session="three"))
    await enqueue(harness, QueueDrop(task="old"))
    assert await candidates(harness) == ["other"]
    assert await harness.log.next_available() == later
    harness.advance(101)
    assert await candidates(harness) == ["waits"]
    assert await harness.log.next_available() is None


async def test_an_older_task_of_the_session_is_not_held_back(harness: Harness) -> None:
    """Only what came after the waiting task waits with it."""
    later = await harness.log.now() + timedelta(seconds=100)
    await enqueue(harness, put("first", session="one"), put("waits", session="one", at=later))
    assert await candidates(harness) == ["first"]


async def test_a_task_that_comes_back_keeps_its_place(harness: Harness) -> None:
    """Put again, while it waits or after it was claimed, a task stands where it was first enqueued."""
    await enqueue(harness, put("first"), put("second"))
    await enqueue(harness, QueueDrop(task="first"))
    assert await candidates(harness) == ["second"]
    await enqueue(harness, put("second"))
    await enqueue(harness, put("first"))
    assert await candidates(harness) == ["first"]
    (row,) = await harness.log.candidates(limit=1)
    assert row.position == 1


async def test_a_dropped_task_is_not_offered(harness: Harness) -> None:
    """Dropping what is not there is harmless; put and dropped in one request, it does not wait."""
    await enqueue(harness, put("a"), QueueDrop(task="a"), QueueDrop(task="never"))
    assert await candidates(harness) == []
    assert await harness.log.next_available() is None


async def test_positions_follow_the_requests_of_a_batch(harness: Harness) -> None:
    """A task's place is the position of its own request's first event, also behind a loser in one batch."""
    await harness.write("taken", 1)
    results = await asyncio.gather(
        harness.write("a", 1, 2, queue=(put("ta", repo="a"),)),
        harness.write("taken", 1, queue=(put("tl", repo="l"),)),
        harness.write("b", 1, queue=(put("tb", repo="b"),)),
        return_exceptions=True,
    )
    rows = {row.task: row.position for row in await harness.log.candidates(limit=10)}
    assert rows == {"ta": results[0].first, "tb": results[2].first}  # type: ignore[union-attr]
