"""What both logs ask of an append request before they take it, and what it comes down to.

A request that cannot be stored is refused here, in the caller's own task, so that it never fails its neighbours in a
batch.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

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


class PreparedEvent(NamedTuple):
    """One event as it will stand in the log, but for its position and time."""

    stream: str
    version: int
    type: str
    schema: int
    body: bytes
    metadata: bytes


class Prepared(NamedTuple):
    """A checked request.

    ``writes`` and ``reads`` name what it changes and what it depends on: two requests may stand in one batch only if
    neither writes what the other reads or writes. ``size`` is in bytes of bodies and metadata.
    """

    request: AppendRequest
    premises: dict[str, int]
    events: list[PreparedEvent]
    queue: tuple[QueuePut | QueueDrop, ...]
    contents: tuple[Content, ...]
    writes: set[str]
    reads: set[str]
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
        stream, version = premise.stream, premise.version
        if premises.setdefault(stream, version) != version:
            raise ValueError(f"two premises of {stream} differ")
        if not 0 <= version <= _LARGEST:
            raise ValueError(f"{version} is not a version")
    _check_names(premises)
    versions = premises.copy()
    base = _metadata(request, log_id)
    plain = orjson.dumps(base)
    events = []
    writes: set[str] = set()
    size = 0
    for draft in request.drafts:
        stream, event = draft.stream, draft.event
        if stream not in versions:
            raise ValueError(f"{stream} is written without a premise")
        versions[stream] = version = versions[stream] + 1
        body = encode(event)
        metadata = plain if draft.causation is None else orjson.dumps({**base, "causation": draft.causation})
        size += len(body) + len(metadata)
        events.append(PreparedEvent(stream, version, event.type, event.schema, body, metadata))
        writes.add(stream)
    queue: tuple[QueuePut | QueueDrop, ...] = ()
    contents: tuple[Content, ...] = ()
    if request.fences or request.leases:
        _check_leases(request)
        writes.update(f"lease {operation.scope}" for operation in request.leases)
        writes.update(f"lease {fence.scope}" for fence in request.fences)
    if request.queue:
        queue = _queue(request.queue)
        writes.update(f"task {operation.task}" for operation in queue)
    if request.contents:
        contents = _contents(request.contents)
        writes.update(f"content {content.id}" for content in contents)
    # a stream may be named like a scope: that costs a batch, never a promise
    return Prepared(request, premises, events, queue, contents, writes, set(premises), size)


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


def _check_number(number: int) -> None:
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{number} is not a number of the log")


def _check_leases(request: AppendRequest) -> None:
    ended: set[str] = set()
    acquired: set[str] = set()
    for fence in request.fences:
        _check_names((fence.scope,))
        _check_number(fence.epoch)
    for operation in request.leases:
        scope = operation.scope
        _check_names((scope,))
        _check_number(operation.epoch)
        if scope in acquired or (scope in ended and isinstance(operation, EndLease)):
            raise ValueError(f"a request may end {scope} once and acquire it once after that")
        if isinstance(operation, EndLease):
            ended.add(scope)
            continue
        _check_names((operation.lease_id,))
        _check_number(operation.ttl_ms)
        orjson.dumps(dict(operation.holder))  # what JSON cannot hold is refused here
        acquired.add(scope)


def _queue(operations: tuple[QueuePut | QueueDrop, ...]) -> tuple[QueuePut | QueueDrop, ...]:
    """The last operation on each task: a put after a drop keeps the task's place, a drop after a put undoes it."""
    found: dict[str, QueuePut | QueueDrop] = {}
    for operation in operations:
        _check_names((operation.task,))
        if isinstance(operation, QueuePut):
            _check_names((operation.repo, operation.session))
            if operation.available_at is not None and operation.available_at.tzinfo is None:
                raise ValueError("available_at must be aware")
        found[operation.task] = operation
    return tuple(found.values())


def _contents(contents: tuple[Content, ...]) -> tuple[Content, ...]:
    found: dict[str, Content] = {}
    for content in contents:
        _check_names((content.id,))
        before = found.get(content.id)
        if before is not None and before != content and not content.replace:
            raise ValueError(f"two contents of {content.id} differ")
        found[content.id] = content
    return tuple(found.values())
