"""What both logs ask of an append request before they take it, and what it comes down to.

A request that cannot be stored is refused here, in the caller's own task, so that it never fails its neighbours in a
batch.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable

import orjson

from domain.events import encode
from domain.faults import Conflict, Fault, LeaseExpired, LeaseHeld, LeaseStale, VersionConflict
from domain.log import AppendRequest, Content, EndLease, Metadata, QueueDrop, QueuePut

_LARGEST = 2**63 - 1

_FAULTS: dict[str, type[Fault]] = {
    "version_conflict": VersionConflict,
    "lease_stale": LeaseStale,
    "lease_expired": LeaseExpired,
    "lease_held": LeaseHeld,
    "content_conflict": Conflict,
}
_MESSAGES = {
    "version_conflict": "the log has moved on: read again and decide again",
    "lease_stale": "another holder came after: stop, nothing was changed",
    "lease_expired": "the lease ran out before this was written: nothing was changed",
    "lease_held": "somebody else holds the lease: take something else, or wait",
    "content_conflict": "another text stands under this id already",
}


def refusal(code: str) -> Fault:
    """The fault for a request that lost, by its code."""
    return _FAULTS[code](_MESSAGES[code], code=code)


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedEvent:
    """One event as it will stand in the log, but for its position and time."""

    stream: str
    version: int
    type: str
    schema: int
    body: bytes
    metadata: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request.

    ``writes`` and ``reads`` name what it changes and what it depends on: two requests may stand in one batch only if
    neither writes what the other reads or writes. ``size`` is in bytes of bodies and metadata.
    """

    request: AppendRequest
    premises: dict[str, int]
    events: tuple[PreparedEvent, ...]
    queue: tuple[QueuePut | QueueDrop, ...]
    contents: tuple[Content, ...]
    writes: frozenset[str]
    reads: frozenset[str]
    size: int


def token_hash(token: bytes) -> bytes:
    """What a log stores of a lease's token: its SHA-256."""
    return hashlib.sha256(token).digest()


def prepare(request: AppendRequest, log_id: str) -> Prepared:
    """Check a request and work out its events.

    Raises ``ValueError`` for one that no log can take: a written stream without a premise, two premises of one stream
    that differ, names with NUL, two operations on one lease in an order that makes no sense.
    """
    premises: dict[str, int] = {}
    for premise in request.premises:
        if premises.setdefault(premise.stream, premise.version) != premise.version:
            raise ValueError(f"two premises of {premise.stream} differ")
    versions = dict(premises)
    base = _metadata(request, log_id)
    plain = orjson.dumps(base)
    events = []
    size = 0
    for draft in request.drafts:
        stream = draft.stream
        if stream not in versions:
            raise ValueError(f"{stream} is written without a premise")
        versions[stream] = version = versions[stream] + 1
        event = draft.event
        body = encode(event)
        metadata = plain if draft.causation is None else orjson.dumps({**base, "causation": draft.causation})
        size += len(body) + len(metadata)
        events.append(PreparedEvent(stream, version, event.type, event.schema, body, metadata))
    _check_names(premises)
    _check_leases(request)
    queue = {operation.task: operation for operation in request.queue}
    contents = _contents(request.contents)
    writes = {
        *(f"s {event.stream}" for event in events),
        *(f"l {operation.scope}" for operation in request.leases),
        *(f"l {fence.scope}" for fence in request.fences),
        *(f"q {task}" for task in queue),
        *(f"c {content.id}" for content in contents),
    }
    return Prepared(
        request=request,
        premises=premises,
        events=tuple(events),
        queue=tuple(queue.values()),
        contents=contents,
        writes=frozenset(writes),
        reads=frozenset(f"s {stream}" for stream in premises),
        size=size,
    )


@functools.lru_cache(maxsize=1024)
def _fields(metadata: Metadata) -> dict[str, object]:
    return metadata.fields()


def _metadata(request: AppendRequest, log_id: str) -> dict[str, object]:
    fields = {**_fields(request.metadata), "request_id": request.request_id, "logId": log_id}
    if request.fences:
        fences = [{"scope": fence.scope, "epoch": fence.epoch} for fence in request.fences]
        fields["fence"] = fences[0]
        if len(fences) > 1:
            fields["fences"] = fences
    return fields


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not name or "\0" in name:
            raise ValueError("a name must not be empty or hold NUL")
        name.encode()  # a lone surrogate is a ValueError


def _check_numbers(*numbers: int) -> None:
    for number in numbers:
        if not 0 <= number <= _LARGEST:
            raise ValueError(f"{number} is not a number of the log")


def _check_leases(request: AppendRequest) -> None:
    ended: dict[str, int] = {}
    acquired: set[str] = set()
    for fence in request.fences:
        _check_numbers(fence.epoch)
    _check_numbers(*(premise.version for premise in request.premises))
    _check_names(fence.scope for fence in request.fences)
    for operation in request.leases:
        scope = operation.scope
        _check_names((scope,))
        _check_numbers(operation.epoch)
        if scope in acquired or (scope in ended and isinstance(operation, EndLease)):
            raise ValueError(f"a request may end {scope} once and acquire it once after that")
        if isinstance(operation, EndLease):
            ended[scope] = operation.epoch
            continue
        _check_names((operation.lease_id,))
        if operation.ttl_ms <= 0:
            raise ValueError("a lease needs a time to live")
        acquired.add(scope)
    for change in request.queue:
        _check_names(
            (change.task, change.repo, change.session) if isinstance(change, QueuePut) else (change.task,)
        )
        if isinstance(change, QueuePut) and change.available_at and change.available_at.tzinfo is None:
            raise ValueError("available_at must be aware")


def _contents(contents: tuple[Content, ...]) -> tuple[Content, ...]:
    found: dict[str, Content] = {}
    for content in contents:
        _check_names((content.id,))
        before = found.get(content.id)
        if before is not None and before != content and not content.replace:
            raise ValueError(f"two contents of {content.id} differ")
        found[content.id] = content
    return tuple(found.values())
