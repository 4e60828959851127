"""The logs that the conformance suite runs against: memory, the embedded server, another PostgreSQL."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from adapters.append import token_hash
from adapters.memory import Clock, MemoryLog
from adapters.postgres.log import PostgresLog
from domain.events import Event, fact
from domain.log import AcquireLease, Appended, AppendRequest, Draft, Fence, Premise
from tests.conftest import fresh_schema


@fact
class ConformanceHappened(Event):
    """An event of the conformance suite."""

    n: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Harness:
    """A log under test, and the hand on its clock."""

    log: MemoryLog | PostgresLog
    advance: Callable[[float], None]

    async def write(self, stream: str, *numbers: int, expect: int = 0, **parts: Any) -> Appended:
        """Append one event per number to one stream."""
        return await self.log.append(request(stream, *numbers, expect=expect, **parts))

    async def acquire(self, scope: str, epoch: int = 1, *, ttl_ms: int = 60_000, **parts: Any) -> Fence:
        """Take a lease and return its fence."""
        fence = Fence(scope=scope, epoch=epoch, token=f"token of {scope} {epoch}".encode())
        await self.write(f"lease:{scope}:{uuid4()}", epoch, leases=(acquisition(fence, ttl_ms),), **parts)
        return fence


def request(stream: str, *numbers: int, expect: int = 0, **parts: Any) -> AppendRequest:
    """One event per number on one stream that stands at ``expect``."""
    premises = (Premise(stream, expect), *parts.pop("premises", ()))
    drafts = tuple(Draft(stream=stream, event=ConformanceHappened(n=n)) for n in numbers)
    return AppendRequest(request_id=uuid4(), premises=premises, drafts=drafts, **parts)


def acquisition(fence: Fence, ttl_ms: int = 60_000) -> AcquireLease:
    """The operation that makes ``fence`` valid."""
    return AcquireLease(
        scope=fence.scope,
        epoch=fence.epoch,
        lease_id=f"lease-{fence.epoch}",
        holder={"runner": "r1"},
        token_hash=token_hash(fence.token),
        ttl_ms=ttl_ms,
    )


@pytest.fixture(params=["memory", "embedded", pytest.param("second", marks=pytest.mark.postgres15)])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Each log in turn, empty."""
    if request.param == "memory":
        clock = Clock()
        yield Harness(log=MemoryLog(clock=clock), advance=lambda by: clock.advance(timedelta(seconds=by)))
        return
    url = request.getfixturevalue(f"{request.param}_url")
    with fresh_schema(url) as schema:
        log = await PostgresLog.open(schema.url, schema=schema.schema)
        yield Harness(log=log, advance=schema.advance)
        await log.close()
