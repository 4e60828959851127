"""A batch of requests on its way to ``append_v1``, and what comes back."""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from adapters.append import Prepared, refusal, token_hash
from adapters.postgres.arrays import Array, Bytes, Integers, Longs, Moments, Texts, Truths, Uuids
from domain.faults import Fault
from domain.log import AcquireLease, Appended, QueuePut


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * width


def parameters(batch: Sequence[Prepared]) -> tuple[Array, ...]:
    """The arguments of ``append_v1``, in its order."""
    numbered = list(enumerate(batch, 1))
    fences = _columns(
        (
            (n, fence.scope.encode(), fence.epoch, token_hash(fence.token))
            for n, one in numbered
            for fence in one.request.fences
        ),
        4,
    )
    premises = _columns(
        ((n, stream.encode(), version) for n, one in numbered for stream, version in one.premises.items()), 3
    )
    leases = _columns(
        (
            (n, True, o.scope.encode(), o.epoch, False, o.lease_id.encode(), orjson.dumps(dict(o.holder)),
             o.token_hash, o.ttl_ms)
            if isinstance(o, AcquireLease)
            else (n, False, o.scope.encode(), o.epoch, o.force, None, None, None, 0)
            for n, one in numbered
            for o in one.request.leases
        ),
        9,
    )  # fmt: skip
    queue = _columns(
        (
            (n, True, o.task.encode(), o.repo.encode(), o.session.encode(), o.available_at)
            if isinstance(o, QueuePut)
            else (n, False, o.task.encode(), None, None, None)
            for n, one in numbered
            for o in one.queue
        ),
        6,
    )
    contents = _columns(
        (
            (n, c.id.encode(), c.text.encode("utf-8", "surrogatepass"), c.salt, c.replace)
            for n, one in numbered
            for c in one.contents
        ),
        5,
    )
    events = _columns(
        (
            (n, e.stream.encode(), e.version, e.type.encode(), e.schema, e.body, e.metadata)
            for n, one in numbered
            for e in one.events
        ),
        7,
    )
    return (
        Uuids([one.request.request_id for one in batch]), Integers([len(one.events) for one in batch]),
        Integers(fences[0]), Texts(fences[1]), Longs(fences[2]), Bytes(fences[3]),
        Integers(premises[0]), Texts(premises[1]), Longs(premises[2]),
        Integers(leases[0]), Truths(leases[1]), Texts(leases[2]), Longs(leases[3]), Truths(leases[4]),
        Texts(leases[5]), Texts(leases[6]), Bytes(leases[7]), Longs(leases[8]),
        Integers(queue[0]), Truths(queue[1]), Texts(queue[2]), Texts(queue[3]), Texts(queue[4]), Moments(queue[5]),
        Integers(contents[0]), Texts(contents[1]), Bytes(contents[2]), Bytes(contents[3]), Truths(contents[4]),
        Integers(events[0]), Texts(events[1]), Longs(events[2]), Texts(events[3]), Integers(events[4]),
        Bytes(events[5]), Bytes(events[6]),
    )  # fmt: skip


def outcomes(batch: Sequence[Prepared], row: tuple[Any, ...]) -> list[Appended | Fault]:
    """What became of each request, from the row that ``append_v1`` answered."""
    base: int
    at: dt.datetime
    base, at, bad_req, bad_code, bad_position, bad_at = row
    bad = {req: (code, first, when) for req, code, first, when in zip(
        bad_req or (), bad_code or (), bad_position or (), bad_at or (), strict=True)}  # fmt: skip
    results: list[Appended | Fault] = []
    for n, one in enumerate(batch, 1):
        count = len(one.events)
        if n not in bad:
            results.append(Appended(first=base + 1, last=base + count, recorded_at=at))
            base += count
            continue
        code, first, when = bad[n]
        if code == "replayed":
            results.append(Appended(first=first, last=first + count - 1, recorded_at=when))
        else:
            results.append(refusal(code))
    return results
