"""What intake reads before it decides: folds of named streams, each a premise of the append that follows."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from domain import deliveries, ids, repositories, sessions, tasks
from domain.deliveries import DeliveryDecided, DeliveryReceived, DenialReceiptGranted, MentionConsumed
from domain.log import Recorded
from domain.processes import steering
from domain.repositories import RepositoryKeyClaimed

Rows = Mapping[str, Sequence[Recorded]]

_STATES = {"trigger_deleted": "cancelled", "instruction_amended": "queued", "command": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered over HTTP. ``state``: the task's state that the answer tells of."""

    http_status: int
    delivery_id: str | None
    status: str
    reason: str | None = None
    task_id: str | None = None
    state: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON members (seed §6.1): ``taskId`` and ``state`` always with 202, elsewhere where there is one."""
        optional = {"taskId": self.task_id, "state": self.state, "reason": self.reason}
        always = ("taskId", "state") if self.status in ("accepted", "deferred") else ()
        members: dict[str, Any] = {"deliveryId": self.delivery_id, "status": self.status}
        return members | {key: value for key, value in optional.items() if value is not None or key in always}


def answer(delivery_id: str, decided: DeliveryDecided) -> Answer:
    """The answer that a decision stands for; a repeat gets the same one."""
    state: str | None = None
    if decided.status == "deferred":
        state = "received"
    elif decided.status == "accepted":
        state = _STATES.get(decided.reason or "", "queued")
    return Answer(
        http_status=decided.http_status,
        delivery_id=delivery_id,
        status=decided.status,
        reason=decided.reason,
        task_id=decided.task_id,
        state=state,
    )


def repeated(rows: Iterable[Recorded]) -> Answer | None:
    """The answer to a delivery that was decided before, None for a new one.

    Its first result, with 200; a first 400 or 409 stays that; a deferred one tells its present outcome.
    """
    delivery = deliveries.fold(row.event for row in rows)
    if delivery.refused is not None:
        return Answer(
            http_status=delivery.refused.http_status,
            delivery_id=delivery.refused.delivery_id,
            status="rejected",
            reason=delivery.refused.error_code,
        )
    if delivery.decided is None or delivery.received is None:
        return None
    first = answer(delivery.received.delivery_id, delivery.decided)
    return dataclasses.replace(first, http_status=200) if first.http_status == 202 else first


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Folds of everything that may decide about one delivery.

    ``versions``: every stream that was read, at its version. ``repo_key`` is the repository's key, ``claimed``
    whether it had it before. ``waiting``: the session's task that waits for an answer. ``present``: the text that a
    consumed mention's task has now. ``around``: where a word was said, the latest tasks there, oldest first;
    ``asked``: the instruction of the last of them.
    """

    versions: Mapping[str, int]
    repo_key: str | None = None
    claimed: bool = False
    repository: repositories.Repository = dataclasses.field(default_factory=repositories.Repository)
    consumed: MentionConsumed | None = None
    task: tasks.Task = dataclasses.field(default_factory=tasks.Task)
    session: sessions.Session = dataclasses.field(default_factory=sessions.Session)
    waiting: tasks.Task = dataclasses.field(default_factory=tasks.Task)
    denied_at: str | None = None
    present: str | None = None
    around: tuple[tasks.Task, ...] = ()
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def mention(fact: DeliveryReceived) -> str | None:
    """Stream of the mention key of a delivery's text, None where the payload has no id for it."""
    part = fact.part
    if part is None or part["id"] is None or not part["created_at"] or not fact.repository:
        return None
    return ids.mention_stream(fact.repository["id"], part["kind"], part["id"], part["created_at"])


def denial(fact: DeliveryReceived) -> str:
    """Stream of the short receipts that a denied author got in a repository."""
    return f"denial:{fact.repository['id']}:{fact.sender_id}"


def streams(fact: DeliveryReceived, rows: Rows) -> set[str]:
    """The streams to read for a delivery, given those that were read already; read again until nothing is new."""
    wanted = {ids.delivery_stream(fact.delivery_key)}
    repository = fact.repository
    if not repository:
        return wanted
    wanted.add(ids.repository_id_stream(repository["id"]))
    wanted.add(ids.repo_stream(ids.repo_key(repository["owner"], repository["name"])))
    wanted.add(ids.repo_stream(repo_key(fact, rows)))
    wanted.add(denial(fact))
    session = _session(fact, rows)
    if session is not None:
        wanted.add(session)
        folded = sessions.fold(row.event for row in rows.get(session, ()))
        if fact.facts.get("word"):
            wanted.update(map(ids.task_stream, folded.task_ids))
        if folded.waiting_task is not None:
            wanted.add(ids.task_stream(folded.waiting_task))
    key = mention(fact)
    if key is not None:
        wanted.add(key)
        consumed = _consumed(rows.get(key, ()))
        if consumed is not None and consumed.task_id and fact.shape.endswith(("_edited", "_deleted")):
            wanted.add(ids.task_stream(consumed.task_id))
    return wanted


def repo_key(fact: DeliveryReceived, rows: Rows) -> str:
    """The key of a delivery's repository: the one that its id has for ever, else the one that it gets now.

    A newcomer on a name whose key another repository has gets ``…~<id>``. ``Invalid`` for a name Gitea has not.
    """
    repository = fact.repository
    for row in rows.get(ids.repository_id_stream(repository["id"]), ()):
        if isinstance(row.event, RepositoryKeyClaimed):
            return row.event.repo_key
    key = ids.repo_key(repository["owner"], repository["name"])
    if rows.get(ids.repo_stream(key)):
        return ids.repo_key(repository["owner"], repository["name"], repository_id=repository["id"])
    return key


def fold(fact: DeliveryReceived, rows: Rows) -> State:
    """Fold the streams that ``streams`` named; the caller looks up ``present``."""
    versions = {stream: len(events) for stream, events in rows.items()}
    if not fact.repository:
        return State(versions=versions)
    key = repo_key(fact, rows)
    consumed = _consumed(rows.get(mention(fact) or "", ()))
    task = rows.get(ids.task_stream(consumed.task_id), ()) if consumed and consumed.task_id else ()
    denials = rows.get(denial(fact), ())
    session = sessions.fold(row.event for row in rows.get(_session(fact, rows) or "", ()))
    around = [
        rows[stream]
        for stream in map(ids.task_stream, session.task_ids)
        if fact.facts.get("word") and rows.get(stream)
    ]
    waiting = rows.get(ids.task_stream(session.waiting_task), ()) if session.waiting_task else ()
    return State(
        versions=versions,
        repo_key=key,
        claimed=bool(rows.get(ids.repository_id_stream(fact.repository["id"]))),
        repository=repositories.fold(row.event for row in rows.get(ids.repo_stream(key), ())),
        consumed=consumed,
        task=tasks.fold(row.event for row in task),
        session=session,
        waiting=tasks.fold(row.event for row in waiting),
        denied_at=next(
            (row.event.at for row in reversed(denials) if isinstance(row.event, DenialReceiptGranted)), None
        ),
        around=tuple(tasks.fold(row.event for row in each) for each in around),
        asked=steering.asked(row.event for row in around[-1]) if around else {},
    )


def present_id(state: State) -> str | None:
    """Content id of the text that a queued task has now: an edit must have started from it."""
    reference = (state.task.instruction or {}).get("text")
    return str(reference["content"]) if state.task.state == "queued" and reference else None


def with_present(state: State, text: str | None) -> State:
    """The state with that text; None: erased."""
    return dataclasses.replace(state, present=text)


def _session(fact: DeliveryReceived, rows: Rows) -> str | None:
    if fact.resource is None:
        return None
    key = ids.session_key(repo_key(fact, rows), fact.resource["kind"], fact.resource["number"])
    return ids.session_stream(key)


def _consumed(rows: Sequence[Recorded]) -> MentionConsumed | None:
    return next((row.event for row in rows if isinstance(row.event, MentionConsumed)), None)
