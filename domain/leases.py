"""Leases: one primitive for a repository, a work item and a loop that must be alone. Stream ``lease:<scope>``."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from domain.events import Event, fact


@fact
class LeaseAcquired(Event):
    """A holder took the scope. ``holder``: runner id, host reference, boot id, pid namespace, pid, start time."""

    scope: str
    epoch: int
    lease_id: str
    holder: dict[str, Any]
    ttl_ms: int
    task_id: str | None = None


@fact
class LeaseEnded(Event):
    """The scope is free again: given back, run out, or its holder provably dead."""

    scope: str
    epoch: int
    lease_id: str
    cause: Literal["released", "expired", "holder_dead"]
    task_id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lease:
    """The fold of one lease stream. Epochs never fall."""

    epoch: int = 0
    lease_id: str | None = None
    task_id: str | None = None
    holder: dict[str, Any] | None = None


def fold(events: Iterable[Event]) -> Lease:
    """Rebuild a lease from its events."""
    lease = Lease()
    for event in events:
        match event:
            case LeaseAcquired():
                lease = Lease(
                    epoch=event.epoch, lease_id=event.lease_id, task_id=event.task_id, holder=event.holder
                )
            case LeaseEnded():
                lease = Lease(epoch=lease.epoch)
            case _:
                pass
    return lease
