"""What every log promises (``domain.log``, ``services.ports.EventLog``), against each log that we have."""

import asyncio
import contextlib
from datetime import timedelta
from uuid import uuid4

import pytest

from domain.events import encode
from domain.faults import Conflict, Fault, LeaseExpired, LeaseHeld, LeaseStale, VersionConflict
from domain.log import Appended, AppendRequest, Content, Draft, EndLease, Fence, Metadata, Premise, QueuePut
from tests.conformance.conftest import ConformanceHappened, Harness, acquisition, request


async def numbers(harness: Harness, stream: str) -> list[int]:
    return [recorded.event.n for recorded in await harness.log.read_stream(stream)]  # type: ignore[attr-defined]


async def test_events_come_back_as_they_were_written(harness: Harness) -> None:
    """What is read is what was appended: place, body, metadata and time."""
    metadata = Metadata(actor="user:7", correlation_id="c", causation="a@1", runner_id="r", rules_version=3)
    event = ConformanceHappened(n=1)
    sent = AppendRequest(
        request_id=uuid4(),
        premises=(Premise("s", 0), Premise("t", 0)),
        drafts=(Draft(stream="s", event=event), Draft(stream="t", event=event, causation="b@2")),
        metadata=metadata,
    )
    appended = await harness.log.append(sent)
    first, second = await harness.log.read(after=0, limit=10)
    assert (appended.first, appended.last) == (1, 2)
    assert (first.position, first.stream, first.version, first.type) == (1, "s", 1, "ConformanceHappened")
    assert first.body == encode(event)
    assert first.event == event
    assert first.recorded_at == second.recorded_at == appended.recorded_at
    assert first.recorded_at.utcoffset() == timedelta()
    own = {"request_id": str(sent.request_id), "logId": harness.log.log_id}
    assert first.metadata == metadata.fields() | own
    assert second.metadata == metadata.fields() | own | {"causation": "b@2"}


async def test_versions_rise_by_one_per_stream(harness: Harness) -> None:
    """Each stream counts its own events from 1."""
    await harness.write("s", 1, 2)
    await harness.write("t", 1)
    await harness.write("s", 3, expect=2)
    assert [e.version for e in await harness.log.read_stream("s")] == [1, 2, 3]
    assert [e.version for e in await harness.log.read_stream("s", after=2)] == [3]
    assert [e.position for e in await harness.log.read(after=0, limit=3)] == [1, 2, 3]


@pytest.mark.parametrize("expected", [0, 2])
async def test_a_premise_that_does_not_hold_refuses_the_whole_request(
    harness: Harness, expected: int
) -> None:
    """A stream that stands elsewhere, further or not so far, is a version conflict, and nothing is written."""
    await harness.write("s", 1)
    with pytest.raises(VersionConflict):
        await harness.write("s", 2, expect=expected)
    with pytest.raises(VersionConflict):
        await harness.write("t", 2, premises=(Premise("s", expected),))
    assert await harness.log.head() == 1


async def test_a_premise_may_name_a_stream_that_is_not_written(harness: Harness) -> None:
    """A decision may depend on what it does not change."""
    await harness.write("s", 1)
    await harness.write("t", 2, premises=(Premise("s", 1), Premise("u", 0)))
    assert await numbers(harness, "t") == [2]


async def test_a_written_stream_without_premise_is_refused(harness: Harness) -> None:
    """Nobody appends without having said what they had read."""
    bad = AppendRequest(
        request_id=uuid4(), premises=(), drafts=(Draft(stream="s", event=ConformanceHappened(n=1)),)
    )
    with pytest.raises(ValueError, match="without a premise"):
        await harness.log.append(bad)


@pytest.mark.parametrize("stream", ["", "a\0b", "a\ud800b"])
async def test_a_name_that_no_log_can_store_is_refused(harness: Harness, stream: str) -> None:
    """Such a request is its caller's own error and never reaches a batch."""
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own words
        await harness.write(stream, 1)


async def test_a_repeated_request_gets_the_first_answer(harness: Harness) -> None:
    """The same request id appends once, however often it is sent, even after its lease is over."""
    fence = await harness.acquire("x")
    one = request("s", 1, 2, fences=(fence,))
    first = await harness.log.append(one)
    await harness.write("s", 3, expect=2)
    harness.advance(120)
    again = await asyncio.gather(*(harness.log.append(one) for _ in range(3)))
    assert again == [first] * 3
    assert await numbers(harness, "s") == [1, 2, 3]


async def test_of_many_that_expect_the_same_version_one_wins(harness: Harness) -> None:
    """Compare-and-swap: the others are told so and leave no hole."""
    results = await asyncio.gather(*(harness.write("s", n) for n in range(20)), return_exceptions=True)
    assert sum(isinstance(result, Appended) for result in results) == 1
    assert sum(isinstance(result, VersionConflict) for result in results) == 19
    assert [e.position for e in await harness.log.read(after=0, limit=50)] == [1]


async def test_a_loser_never_fails_its_neighbours(harness: Harness) -> None:
    """Requests that go into one batch stand or fall alone, and positions stay gapless."""
    await harness.write("taken", 0)
    wanted = [harness.write("taken" if n % 3 == 0 else f"s{n}", n, n) for n in range(30)]
    results = await asyncio.gather(*wanted, return_exceptions=True)
    for n, result in enumerate(results):
        assert isinstance(result, VersionConflict if n % 3 == 0 else Appended)
    events = await harness.log.read(after=0, limit=100)
    assert [e.position for e in events] == list(range(1, 42))
    for n, result in enumerate(results):
        if isinstance(result, Appended):
            assert [e.stream for e in events[result.first - 1 : result.last]] == [f"s{n}"] * 2


async def test_a_batch_does_not_tear_a_premise_from_the_write_it_forbids(harness: Harness) -> None:
    """Where one request writes what another one depends on, the log's order agrees with both."""
    for round_ in range(10):
        results = await asyncio.gather(
            harness.write(f"control{round_}", 1),
            harness.write(f"task{round_}", 1, premises=(Premise(f"control{round_}", 0),)),
            return_exceptions=True,
        )
        writer, reader = results
        assert isinstance(writer, Appended)
        if isinstance(reader, Appended):
            assert reader.last < writer.first
        else:
            assert isinstance(reader, VersionConflict)


async def test_time_never_falls(harness: Harness) -> None:
    """A clock that is set back does not take recorded time with it."""
    before = (await harness.write("s", 1)).recorded_at
    harness.advance(-3600)
    after = (await harness.write("s", 2, expect=1)).recorded_at
    assert after == before
    assert await harness.log.now() < before


async def test_a_fence_lets_its_holder_write(harness: Harness) -> None:
    """The fence stands in the metadata of what was written under it."""
    fence = await harness.acquire("x")
    await harness.write("s", 1, fences=(fence,))
    (recorded,) = await harness.log.read_stream("s")
    assert recorded.metadata["fence"] == {"scope": "x", "epoch": 1}


async def test_a_stale_fence_changes_nothing(harness: Harness) -> None:
    """Another token, another epoch, or a lease that was never taken: lease_stale."""
    fence = await harness.acquire("x")
    for wrong in (
        Fence(scope="x", epoch=1, token=b"another"),
        Fence(scope="x", epoch=2, token=fence.token),
        Fence(scope="y", epoch=1, token=fence.token),
    ):
        with pytest.raises(LeaseStale):
            await harness.write("s", 1, fences=(wrong,))
        with pytest.raises(LeaseStale):
            await harness.log.renew_lease(wrong, 1000)
    assert await numbers(harness, "s") == []


async def test_a_late_fence_changes_nothing(harness: Harness) -> None:
    """The right token after the end: lease_expired, for writing and for renewal, and it is never revived."""
    fence = await harness.acquire("x", ttl_ms=1000)
    harness.advance(2)
    with pytest.raises(LeaseExpired):
        await harness.write("s", 1, fences=(fence,))
    with pytest.raises(LeaseExpired):
        await harness.log.renew_lease(fence, 60_000)
    with pytest.raises(LeaseExpired):
        await harness.write("s", 1, fences=(fence,))


async def test_a_renewed_lease_lives_on(harness: Harness) -> None:
    """Renewal moves the end, and never to an earlier time."""
    fence = await harness.acquire("x", ttl_ms=10_000)
    until = await harness.log.renew_lease(fence, 60_000)
    assert await harness.log.renew_lease(fence, 1) == until
    harness.advance(30)
    await harness.write("s", 1, fences=(fence,))
    row = await harness.log.lease("x")
    assert row is not None
    assert row.expires_at == until


async def test_a_lease_that_runs_cannot_be_taken(harness: Harness) -> None:
    """The second to come is told lease_held, with the next epoch as with the same."""
    await harness.acquire("x")
    for epoch in (1, 2, 3):
        with pytest.raises(LeaseHeld):
            await harness.acquire("x", epoch)


async def test_an_expired_lease_is_taken_at_the_next_epoch(harness: Harness) -> None:
    """Epochs rise by one with every holder, and the former holder can do nothing any more."""
    former = await harness.acquire("x", ttl_ms=1000)
    harness.advance(2)
    for epoch in (1, 3):
        with pytest.raises(LeaseHeld):
            await harness.write(
                f"try{epoch}", 1, leases=(acquisition(Fence(scope="x", epoch=epoch, token=b"t")),)
            )
    fence = await harness.acquire("x", 2)
    with pytest.raises(LeaseStale):
        await harness.write("s", 1, fences=(former,))
    await harness.write("s", 1, fences=(fence,))


async def test_a_lease_is_given_back_with_its_fence(harness: Harness) -> None:
    """Release needs the fence; then nobody holds the lease, its epoch stays, and the old fence is late."""
    fence = await harness.acquire("x")
    end = EndLease(scope="x", epoch=1)
    with pytest.raises(LeaseHeld):
        await harness.write("s", 1, leases=(end,))
    await harness.write("s", 1, leases=(end,), fences=(fence,))
    row = await harness.log.lease("x")
    assert row is not None
    assert (row.epoch, row.expires_at) == (1, None)
    assert await harness.log.leases() == []
    with pytest.raises(LeaseExpired):
        await harness.write("t", 1, fences=(fence,))
    with pytest.raises(LeaseStale):
        await harness.write("t", 1, leases=(end,))
    with pytest.raises(LeaseHeld):
        await harness.acquire("x", 1)
    await harness.acquire("x", 2)


async def test_a_late_lease_is_ended_by_anybody(harness: Harness) -> None:
    """Expiry needs no fence."""
    await harness.acquire("x", ttl_ms=1000)
    harness.advance(2)
    assert [row.scope for row in await harness.log.leases()] == ["x"]
    await harness.write("s", 1, leases=(EndLease(scope="x", epoch=1),))
    assert await harness.log.leases() == []


async def test_a_dead_holders_lease_is_ended_by_force(harness: Harness) -> None:
    """Force ends a running lease, but only that of the epoch whose holder was proven dead."""
    await harness.acquire("x")
    with pytest.raises(LeaseStale):
        await harness.write("s", 1, leases=(EndLease(scope="x", epoch=2, force=True),))
    fence = Fence(scope="x", epoch=2, token=b"new")
    await harness.write("s", 1, leases=(EndLease(scope="x", epoch=1, force=True), acquisition(fence)))
    await harness.write("s", 2, expect=1, fences=(fence,))


async def test_of_many_that_want_a_lease_one_gets_it(harness: Harness) -> None:
    """The epoch is a compare-and-swap of its own."""
    fences = [Fence(scope="x", epoch=1, token=bytes([n])) for n in range(10)]
    results = await asyncio.gather(
        *(harness.write(f"s{n}", n, leases=(acquisition(fence),)) for n, fence in enumerate(fences)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Appended) for result in results) == 1
    assert sum(isinstance(result, LeaseHeld) for result in results) == 9


async def test_operations_on_a_lease_in_a_senseless_order_are_refused(harness: Harness) -> None:
    """A request ends a lease once and acquires it once after that."""
    taken = acquisition(Fence(scope="x", epoch=1, token=b"t"))
    for operations in ((taken, EndLease(scope="x", epoch=1)), (taken, taken)):
        with pytest.raises(ValueError, match="once"):
            await harness.write("s", 1, leases=operations)


async def test_texts_can_be_erased(harness: Harness) -> None:
    """Text and salt go, whatever characters they held; the rest stays."""
    odd = "nul \0, a lone half \ud800, and 😀"
    contents = (Content(id="a", text=odd, salt=b"\0\1"), Content(id="b", text="", salt=b""))
    await harness.write("s", 1, contents=contents)
    assert await harness.log.contents(["a", "b", "c"]) == {"a": odd, "b": ""}
    assert (await harness.log.salted_contents(["a"]))["a"].salt == b"\0\1"
    await harness.log.erase_contents(["a", "c"])
    assert await harness.log.contents(["a", "b"]) == {"b": ""}


async def test_a_text_that_an_event_vouches_for_is_never_replaced(harness: Harness) -> None:
    """The same text may come again, another one under its id is a conflict; a current value is replaced."""
    await harness.write("s", 1, contents=(Content(id="a", text="one", salt=b"1"),))
    await harness.write("t", 1, contents=(Content(id="a", text="one", salt=b"1"),))
    with pytest.raises(Conflict) as caught:
        await harness.write("u", 1, contents=(Content(id="a", text="two", salt=b"1"),))
    assert caught.value.code == "content_conflict"
    await harness.write("u", 1, contents=(Content(id="a", text="two", salt=b"2", replace=True),))
    assert await harness.log.contents(["a"]) == {"a": "two"}


async def test_a_losing_request_leaves_nothing_behind(harness: Harness) -> None:
    """Lease, queue and contents of a refused request are refused with it."""
    await harness.write("s", 1)
    with pytest.raises(VersionConflict):
        await harness.write(
            "s",
            2,
            leases=(acquisition(Fence(scope="x", epoch=1, token=b"t")),),
            queue=(QueuePut(task="t", repo="r", session="n"),),
            contents=(Content(id="a", text="t", salt=b""),),
        )
    assert await harness.log.lease("x") is None
    assert await harness.log.candidates(limit=5) == []
    assert await harness.log.contents(["a"]) == {}


async def test_several_streams_are_read_as_of_one_moment(harness: Harness) -> None:
    """Two streams that always grow together are never seen apart."""

    async def grow() -> None:
        for n in range(60):
            pair = AppendRequest(
                request_id=uuid4(),
                premises=(Premise("a", n), Premise("b", n)),
                drafts=tuple(Draft(stream=s, event=ConformanceHappened(n=n)) for s in ("a", "b")),
            )
            await harness.log.append(pair)

    growing = asyncio.create_task(grow())
    while not growing.done():
        seen = await harness.log.read_streams(["a", "b", "none"])
        assert len(seen["a"]) == len(seen["b"])
        assert seen["none"] == []
        await asyncio.sleep(0)
    await growing
    assert [e.version for e in (await harness.log.read_streams(["b"]))["b"]] == list(range(1, 61))


async def test_a_tailing_reader_waits_and_misses_nothing(harness: Harness) -> None:
    """A reader that starts in the middle gets every later event once, in order, as it comes."""
    await harness.write("s", *range(7))
    got: list[int] = []
    async with contextlib.aclosing(harness.log.tail(after=2, limit=3)) as batches:
        writing = None
        async for batch in batches:
            assert len(batch) <= 3
            got.extend(recorded.position for recorded in batch)
            if got[-1] == 7 and writing is None:
                writing = asyncio.create_task(harness.write("s", *range(10), expect=7))
            if got[-1] == 17:
                break
        assert writing is not None
        await writing
    assert got == list(range(3, 18))


async def test_a_closed_log_takes_nothing(harness: Harness) -> None:
    """After close a caller is told so instead of waiting for ever."""
    await harness.log.close()
    with pytest.raises(Fault) as caught:
        await harness.write("s", 1)
    assert caught.value.code == "log_closed"
