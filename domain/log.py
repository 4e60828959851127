"""The language of the log: what is appended, and what is read back.

The log itself is a port (``services.ports.EventLog``) with two implementations under one conformance suite:
``adapters.postgres.log`` and ``adapters.memory``. Rules (architecture, The log):

* a stream per aggregate; ``(stream, version)`` is unique, versions start at 1, an empty stream is at version 0;
* every stream that a request writes stands among its premises, and further streams may (compare-and-swap);
* positions are gapless and ``recorded_at`` never falls;
* a request is committed whole or not at all, and a losing request never fails its neighbours in a batch.
"""

import dataclasses
import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from domain.catalogue import decode
from domain.events import Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """Who and why, beside every event. ``causation`` names the causing event as ``stream@version``."""

    actor: str = "system"
    correlation_id: str | None = None
    causation: str | None = None
    runner_id: str | None = None
    rules_version: int = 1
    instance_id: str = "default"

    def fields(self) -> dict[str, Any]:
        """JSON members, without the absent ones."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draft:
    """One event to append to ``stream``. ``causation`` overrides the request's."""

    stream: str
    event: Event
    causation: str | None = None


@dataclasses.dataclass(frozen=True)
class Premise:
    """``stream`` is at ``version`` when the request is committed, else ``version_conflict``."""

    stream: str
    version: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fence:
    """The right to write under a lease: checked in the same transaction (``lease_stale``, ``lease_expired``)."""

    scope: str
    epoch: int
    token: bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class AcquireLease:
    """Take ``scope`` at ``epoch`` (one more than its last), else ``lease_held``. Only the token's hash is stored."""

    scope: str
    epoch: int
    lease_id: str
    holder: Mapping[str, Any]
    token_hash: bytes
    ttl_ms: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndLease:
    """End ``scope`` at ``epoch``.

    ``force`` false: only if it has expired or the request carries its fence (release). ``force`` true: the caller
    proved that the holder is dead. Another epoch is ``lease_stale``; one that still runs is ``lease_held``.
    """

    scope: str
    epoch: int
    force: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueuePut:
    """Inline table ``queue``: a task waits. A task that is there already keeps its place in the order.

    ``available_at`` None means now; later means that it holds back younger tasks of its session until then.
    """

    task: str
    repo: str
    session: str
    available_at: datetime | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueDrop:
    """Inline table ``queue``: a task no longer waits."""

    task: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """An erasable text. The event holds ``digest`` (HMAC-SHA256 under ``salt``), the content table the rest.

    ``replace`` true: a current value that may be overwritten (a login), not part of any digest.
    """

    id: str
    text: str
    salt: bytes
    replace: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendRequest:
    """Events and their conditions, committed together under ``request_id`` (which makes a repeat harmless)."""

    request_id: UUID
    premises: tuple[Premise, ...]
    drafts: tuple[Draft, ...]
    metadata: Metadata = Metadata()
    fences: tuple[Fence, ...] = ()
    leases: tuple[AcquireLease | EndLease, ...] = ()
    queue: tuple[QueuePut | QueueDrop, ...] = ()
    contents: tuple[Content, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Appended:
    """Where a request's events stand: positions ``first`` to ``last``, and when they were recorded."""

    first: int
    last: int
    recorded_at: datetime


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One event as it stands in the log. ``body`` and ``metadata_bytes`` are compact JSON."""

    position: int
    stream: str
    version: int
    type: str
    schema: int
    body: bytes
    metadata_bytes: bytes
    recorded_at: datetime

    @functools.cached_property
    def event(self) -> Event:
        """The event itself, read on first use."""
        return decode(self.type, self.schema, self.body)

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """``Metadata.fields`` and ``request_id``, ``fence`` where there was one."""
        loaded: dict[str, Any] = orjson.loads(self.metadata_bytes)
        return loaded

    @property
    def ref(self) -> str:
        """``stream@version``: how other events name this one."""
        return f"{self.stream}@{self.version}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """A lease as it stands: ``expires_at`` None means that nobody holds it."""

    scope: str
    epoch: int
    lease_id: str
    holder: Mapping[str, Any]
    expires_at: datetime | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A waiting task. ``position`` is that of its first enqueuing: the order within a repository."""

    task: str
    repo: str
    session: str
    position: int
    available_at: datetime
