"""The overview's numbers in one document: how many tasks are in which state, and which leases run."""

from domain.leases import LeaseAcquired, LeaseEnded
from domain.log import Recorded
from domain.tasks import TaskReceived, TaskTransitioned
from projections.view import Documents, stamp

KEY = "overview"


class Overview:
    """``counts`` by state, ``leases`` by scope."""

    name = "overview"
    version = 1

    def group(self, recorded: Recorded) -> str | None:
        """There is only one."""
        match recorded.event:
            case TaskReceived() | TaskTransitioned() | LeaseAcquired() | LeaseEnded():
                return KEY
            case _:
                return None

    def fold(self, rows: Documents, recorded: Recorded) -> Documents:
        """Count one up and one down."""
        before = rows.get(KEY, {"counts": {}, "leases": {}})
        counts, leases = dict(before["counts"]), dict(before["leases"])
        match recorded.event:
            case TaskReceived():
                counts["received"] = counts.get("received", 0) + 1
            case TaskTransitioned() as event:
                counts[event.from_state] = counts.get(event.from_state, 0) - 1
                counts[event.to_state] = counts.get(event.to_state, 0) + 1
            case LeaseAcquired() as event:
                leases[event.scope] = {
                    "scope": event.scope,
                    "leaseId": event.lease_id,
                    "epoch": event.epoch,
                    "taskId": event.task_id,
                    "runnerId": event.holder.get("runner_id"),
                    "acquiredAt": stamp(recorded.recorded_at),
                }
            case LeaseEnded() as event:
                leases.pop(event.scope, None)
            case _:
                return {}
        return {KEY: {"counts": counts, "leases": leases}}
