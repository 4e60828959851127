"""What only a log in a database can promise: protection by the server, many processes, and survival of failures."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from adapters.postgres import migrations
from adapters.postgres.log import PostgresLog
from adapters.postgres.statements import statements
from domain.faults import Fault, Invalid, Unavailable, VersionConflict
from domain.log import Appended, Fence, Recorded
from tests.conformance.conftest import Harness, acquisition, request
from tests.conftest import STATEMENTS, Schema, composed, fresh_schema


@pytest.fixture(params=["embedded", pytest.param("second", marks=pytest.mark.postgres15)])
def place(request: pytest.FixtureRequest) -> Iterator[Schema]:
    """A fresh schema on each server."""
    with fresh_schema(request.getfixturevalue(f"{request.param}_url")) as schema:
        yield schema


@pytest.fixture
async def log(place: Schema) -> AsyncIterator[PostgresLog]:
    """A log on it."""
    opened = await PostgresLog.open(place.url, schema=place.schema, application_name=place.schema)
    yield opened
    await opened.close()


def end_sessions(place: Schema, part: str) -> int:
    """End the sessions of one part of the log, as an operator or a failing network would."""
    rows = place.execute(STATEMENTS["end_sessions"], {"name": f"{place.schema} {part}"})
    return len(rows)


@pytest.mark.parametrize("change", ["update_event", "delete_event", "truncate_event"])
async def test_nobody_changes_the_log(place: Schema, log: PostgresLog, change: str) -> None:
    """The service is refused by privilege, the owner by trigger, even with triggers switched off for replicas."""
    await log.append(request("s", 1))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        place.execute(
            composed("as_service", role=migrations.role_name(place.schema))
            + sql.SQL(STATEMENTS[change].decode())
        )
    with pytest.raises(psycopg.Error) as caught:
        place.execute(STATEMENTS[change])
    assert caught.value.sqlstate == "TK001"
    with pytest.raises(psycopg.Error) as caught:
        place.execute(composed("as_replica") + sql.SQL(STATEMENTS[change].decode()))
    assert caught.value.sqlstate == "TK001"
    assert await log.head() == 1


async def test_the_epoch_of_a_lease_never_falls(place: Schema, log: PostgresLog) -> None:
    """Not even by hand: the database refuses it."""
    await Harness(log=log, advance=place.advance).acquire("x")
    with pytest.raises(psycopg.Error) as caught:
        place.execute(STATEMENTS["lower_epoch"])
    assert caught.value.sqlstate == "TK002"


async def test_appending_needs_read_committed(place: Schema) -> None:
    """Under a stricter isolation the function would read what was true before it had the lock: it refuses."""
    with psycopg.connect(place.url, options=f"-c search_path={place.schema}") as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(STATEMENTS["append_nothing"])
    assert caught.value.sqlstate == "TK003"


@pytest.mark.timeout(120)
async def test_eight_writers_and_three_tailing_readers(place: Schema) -> None:
    """Ten seconds of eight writers: every reader sees every event once, in order, without a hole."""
    writers = [await PostgresLog.open(place.url, schema=place.schema) for _ in range(8)]
    readers = [await PostgresLog.open(place.url, schema=place.schema) for _ in range(3)]
    loop = asyncio.get_running_loop()
    end = loop.time() + 10
    total = asyncio.get_running_loop().create_future()

    async def write(number: int) -> Counter[str]:
        written: Counter[str] = Counter()
        while loop.time() < end:
            own, shared = f"w{number}", "shared"
            await writers[number].append(request(own, *range(3), expect=written[own]))
            written[own] += 3
            with contextlib.suppress(
                VersionConflict
            ):  # they race for this one, and losers must leave no hole
                at = len(await writers[number].read_stream(shared))
                await writers[number].append(request(shared, number, expect=at))
                written[shared] += 1
        return written

    async def read(log: PostgresLog) -> list[tuple[int, str, int]]:
        seen: list[tuple[int, str, int]] = []
        async with contextlib.aclosing(log.tail(after=0)) as batches:
            async for batch in batches:
                seen.extend((e.position, e.stream, e.version) for e in batch)
                if total.done() and len(seen) >= total.result():
                    break
        return seen

    reading = [asyncio.create_task(read(log)) for log in readers]
    counts = await asyncio.gather(*(write(number) for number in range(8)))
    expected = sum(counts, Counter[str]())
    total.set_result(expected.total())
    # the last announcement may have been read before the total was known
    await writers[0].append(request("end", 1))
    for task in reading:
        seen = [one for one in await task if one[1] != "end"]
        assert [position for position, _, _ in seen] == list(range(1, expected.total() + 1))
        by_stream: dict[str, list[int]] = {}
        for _, stream, version in seen:
            by_stream.setdefault(stream, []).append(version)
        assert by_stream == {stream: list(range(1, count + 1)) for stream, count in expected.items()}
    for log in (*writers, *readers):
        await log.close()


async def test_an_answer_that_was_lost_after_the_commit_is_found_again(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is sent again under its request ids and gets the answer that was lost; nothing stands twice."""
    execute = log._writer._execute
    losses: list[Any] = []

    async def lose(connection: Any, arguments: Any) -> Any:
        row = await execute(connection, arguments)
        if len(losses) < 3:
            losses.append(row)
            await connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return row

    monkeypatch.setattr(log._writer, "_execute", lose)
    await log.append(request("taken", 1))
    results = await asyncio.gather(
        log.append(request("a", 1, 2)),
        log.append(request("taken", 9)),
        log.append(request("b", 1)),
        return_exceptions=True,
    )
    assert isinstance(results[1], VersionConflict)
    assert losses
    for result, count in ((results[0], 2), (results[2], 1)):
        assert isinstance(result, Appended)
        assert result.last - result.first == count - 1
    events = await log.read(after=0, limit=10)
    assert [(e.position, e.stream, e.version) for e in events] == [
        (1, "taken", 1),
        (2, "a", 1),
        (3, "a", 2),
        (4, "b", 1),
    ]


async def test_a_killed_backend_loses_and_doubles_nothing(place: Schema, log: PostgresLog) -> None:
    """Sessions of the writer are ended again and again in mid-append: what was answered stands, once."""
    answered: dict[str, Appended] = {}
    unknown: set[str] = set()

    async def write(number: int) -> None:
        for n in range(40):
            stream = f"s{number}-{n}"
            try:
                answered[stream] = await log.append(request(stream, 1, 2))
            except Unavailable:
                unknown.add(stream)

    async def kill() -> int:
        killed = 0
        while killed < 15:
            killed += await asyncio.to_thread(end_sessions, place, "append")
            if writing.done():
                break
        return killed

    writing = asyncio.gather(*(write(number) for number in range(16)))
    killed = await kill()
    await writing
    assert killed > 0
    events: list[Recorded] = list(await log.read(after=0, limit=5_000))
    assert [e.position for e in events] == list(range(1, len(events) + 1))
    found = Counter(e.stream for e in events)
    assert set(found.values()) <= {2}
    assert set(answered) <= set(found) <= set(answered) | unknown
    for stream, appended in answered.items():
        assert [e.stream for e in events[appended.first - 1 : appended.last]] == [stream] * 2


async def test_a_tail_goes_on_when_its_sessions_are_ended(place: Schema, log: PostgresLog) -> None:
    """What is appended elsewhere while nobody listens is still seen."""
    other = await PostgresLog.open(place.url, schema=place.schema)
    got: list[int] = []
    async with contextlib.aclosing(log.tail(after=0)) as batches:
        await other.append(request("s", 1))
        async for batch in batches:
            got.extend(e.position for e in batch)
            if got[-1] == 3:
                break
            await asyncio.to_thread(end_sessions, place, "tail")
            await other.append(request("s", got[-1], expect=got[-1]))
    assert got == [1, 2, 3]
    await other.close()


async def test_a_lock_that_is_not_granted_is_no_commit(place: Schema) -> None:
    """One session that sits on the log's lock must not hold the service up for ever: it says so and goes on later."""
    log = await PostgresLog.open(place.url, schema=place.schema, lock_timeout_ms=50)
    with psycopg.connect(place.url, options=f"-c search_path={place.schema}") as blocker:
        blocker.execute(STATEMENTS["take_append_lock"])
        with pytest.raises(Unavailable):
            await log.append(request("s", 1))
    await log.append(request("s", 1))
    assert await log.head() == 1
    await log.close()


async def test_a_request_that_the_database_cannot_take_fails_alone(log: PostgresLog) -> None:
    """What slipped through every check is refused; those that were in one batch with it are appended."""
    endless = acquisition(Fence(scope="x", epoch=1, token=b"t"), ttl_ms=2**62)
    results = await asyncio.gather(
        log.append(request("first", 1)),
        log.append(request("a", 1)),
        log.append(request("b", 1, leases=(endless,))),
        log.append(request("c", 1)),
        return_exceptions=True,
    )
    assert [isinstance(result, Appended) for result in results] == [True, True, False, True]
    assert isinstance(results[2], Fault)
    assert results[2].code == "append_refused"
    assert [e.position for e in await log.read(after=0, limit=9)] == [1, 2, 3]


async def test_a_database_that_is_not_there_is_said_without_its_secrets() -> None:
    """Neither the password nor the address of a server enters a fault."""
    with pytest.raises(Unavailable) as caught:
        await PostgresLog.open("postgresql://me:hush-hush@127.0.0.1:1/nothing")
    assert "hush" not in repr(caught.value.__dict__) + str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(Invalid) as refused:
        await PostgresLog.open("postgres//me:hush-hush@127.0.0.1:1/nothing")
    assert "hush" not in repr(refused.value.__dict__) + str(refused.value)


async def test_a_schema_without_a_log_is_no_log(embedded_url: str) -> None:
    """Opening a log before its migrations is refused with what to do."""
    with pytest.raises(Fault) as caught:
        await PostgresLog.open(embedded_url, schema=f"none_{uuid4().hex[:8]}")
    assert caught.value.code == "migration_missing"


def test_look_ups_of_an_append_stay_by_key(place: Schema) -> None:
    """The plans of the reads that grow with the log use an index."""
    for name, params in (
        ("read", {"after": 5, "limit": 5}),
        ("read_stream", {"stream": "s", "after": 0}),
        ("head", None),
    ):
        rows = place.execute(b"explain " + statements("log.sql")[name], params)
        assert any("Index" in row[0] for row in rows), name
