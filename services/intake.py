"""Intake: a delivery in, one append, one answer (gitea-workflow, Intake). Nothing but the log is called before it.

What the append holds is decided by ``domain.processes.intake``; here it is read, tried, and tried again when somebody
else was faster. Unsigned requests are only counted (``Refusals``).
"""

import asyncio
import secrets
import weakref
from collections import Counter
from collections.abc import Callable
from uuid import UUID, uuid4

import structlog

from domain import ids, policy
from domain.deliveries import DeliveryReceived, DeliveryRefused, DeliveryRepeated, SignaturesRefused
from domain.events import Event
from domain.faults import Invalid, Unavailable, VersionConflict
from domain.log import AppendRequest, Draft, Metadata, Premise, Recorded
from domain.policy import Rules
from domain.processes import intake, intake_state
from domain.processes.intake_effects import Decision
from domain.processes.intake_facts import Route, Taken, stamped, take
from domain.processes.intake_state import Answer, State
from domain.webhooks import Delivery
from services.ports import EventLog

log = structlog.get_logger(__name__)

_SALT_BYTES = 16
_TRIES = 50


def fresh_salt() -> bytes:
    """Random bytes that part an erasable text from its digest."""
    return secrets.token_bytes(_SALT_BYTES)


class Intake:
    """Takes deliveries in. Safe to call at once from many tasks and processes: the log decides who was first.

    ``rules`` is called for each delivery, so that a new configuration holds from the next one on. ``new_id`` draws
    ids of requests and of streams, ``new_salt`` random bytes.
    """

    def __init__(
        self,
        event_log: EventLog,
        rules: Callable[[], Rules],
        *,
        runner_id: str | None = None,
        new_id: Callable[[], UUID] = uuid4,
        new_salt: Callable[[], bytes] = fresh_salt,
        tries: int = _TRIES,
    ) -> None:
        self._log = event_log
        self._rules = rules
        self._runner_id = runner_id
        self._new_id = new_id
        self._new_salt = new_salt
        self._tries = tries
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def receive(self, delivery: Delivery, route: Route) -> Answer:
        """Decide about a verified delivery and record it, or give a repeat its first answer.

        Raises ``Unavailable`` when the log can't be written: then nothing was taken in. ``Invalid`` for a repository
        name that Gitea would not allow is recorded and answered as 400.
        """
        turn = self._turn(delivery)
        async with turn:
            try:
                return await self._received(delivery, route)
            except Invalid as fault:
                return await self.refuse(
                    delivery_id=delivery.delivery_id,
                    payload_hash=delivery.payload_hash,
                    error_code=fault.code,
                )

    async def refuse(self, *, delivery_id: str, payload_hash: str, error_code: str) -> Answer:
        """Record a signed delivery that can't be read (400), or give a repeat its first answer."""
        key = ids.delivery_key(delivery_id)
        stream = ids.delivery_stream(key)
        refused = DeliveryRefused(
            delivery_key=key,
            delivery_id=delivery_id,
            payload_hash=payload_hash,
            error_code=error_code,
            http_status=400,
        )
        for _ in range(self._tries):
            rows = await self._log.read_stream(stream)
            first = intake_state.repeated(rows)
            if first is not None:
                return await self._again(first, key)
            try:
                await self._append(stream, refused, correlation=key, version=len(rows))
            except VersionConflict:
                continue
            log.info("delivery refused", deliveryKey=key, reason=error_code)
            return Answer(http_status=400, delivery_id=delivery_id, status="rejected", reason=error_code)
        raise _busy()

    async def _received(self, delivery: Delivery, route: Route) -> Answer:
        rules = self._rules()
        unstamped = take(delivery, rules, route, salts=(self._new_salt(), self._new_salt()))
        answer, repeated = await self._decided(unstamped, rules)
        if repeated:
            return await self._again(answer, unstamped.fact.delivery_key)
        sender = delivery.sender
        if sender is not None and policy.taken_over(rules, sender):
            log.warning(
                "a login of the allow-list has another id now", deliveryKey=unstamped.fact.delivery_key
            )
        return answer

    async def resume(self, unstamped: Taken) -> Answer:
        """Decide about a mention that could not be decided at once, under a key of its own; a repeat changes nothing.

        ``Unavailable`` when the log can't be written.
        """
        answer, _ = await self._decided(unstamped, self._rules())
        return answer

    async def _decided(self, unstamped: Taken, rules: Rules) -> tuple[Answer, bool]:
        """The decision, and whether it had been taken before."""
        salt = self._new_salt()
        stream = ids.delivery_stream(unstamped.fact.delivery_key)
        for _ in range(self._tries):
            rows, at = await asyncio.gather(self._read(unstamped.fact), self._log.now())
            first = intake_state.repeated(rows[stream])
            if first is not None:
                return first, True
            state = await self._with_text(intake_state.fold(unstamped.fact, rows))
            taken = stamped(unstamped, at)
            decision = intake.decide(taken, state, rules, salt=salt)
            try:
                await self._log.append(self._request(decision, taken, rules))
            except VersionConflict:
                continue
            log.info(
                "delivery decided",
                deliveryKey=taken.fact.delivery_key,
                taskId=decision.answer.task_id,
                status=decision.answer.status,
                reason=decision.answer.reason,
                shape=taken.fact.shape,
            )
            return decision.answer, False
        raise _busy()

    async def _read(self, fact: DeliveryReceived) -> dict[str, list[Recorded]]:
        """Every stream that decides. What is read first names what else to read: at most three rounds."""
        rows: dict[str, list[Recorded]] = {}
        while wanted := intake_state.streams(fact, rows) - rows.keys():
            read = await self._log.read_streams(wanted)
            rows |= {stream: list(read[stream]) for stream in wanted}
        return rows

    async def _with_text(self, state: State) -> State:
        content_id = intake_state.present_id(state)
        if content_id is None:
            return state
        texts = await self._log.contents([content_id])
        return intake_state.with_present(state, texts.get(content_id))

    def _request(self, decision: Decision, taken: Taken, rules: Rules) -> AppendRequest:
        fact = taken.fact
        return AppendRequest(
            request_id=self._new_id(),
            premises=decision.premises,
            drafts=decision.drafts,
            metadata=Metadata(
                actor=f"gitea:user:{fact.sender_id}" if fact.sender_id else "system",
                correlation_id=decision.task_id or fact.delivery_key,
                runner_id=self._runner_id,
                rules_version=rules.rules_version,
            ),
            queue=decision.queue,
            contents=decision.contents,
        )

    async def _again(self, first: Answer, key: str) -> Answer:
        """Record that a delivery came again, on a stream of its own: a busy one is never waited for."""
        stream = f"delivery-repeat:{self._new_id()}"
        repeat = DeliveryRepeated(delivery_key=key, delivery_id=first.delivery_id or "")
        await self._append(stream, repeat, correlation=first.task_id or key)
        return first

    async def _append(self, stream: str, event: Event, *, correlation: str, version: int = 0) -> None:
        await self._log.append(
            AppendRequest(
                request_id=self._new_id(),
                premises=(Premise(stream, version),),
                drafts=(Draft(stream=stream, event=event),),
                metadata=Metadata(correlation_id=correlation, runner_id=self._runner_id),
            )
        )

    def _turn(self, delivery: Delivery) -> asyncio.Lock:
        """Deliveries about one issue or pull request go one after the other in this process, to save lost tries.

        Correctness does not depend on it: other processes know nothing of this lock.
        """
        name = delivery.delivery_id
        if delivery.repository and delivery.resource:
            name = f"{delivery.repository.id}:{delivery.resource.number}"
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock


class Refusals:
    """Counts requests without a right signature, and appends the counts now and then. Nothing of them is kept."""

    def __init__(
        self, event_log: EventLog, *, interval_s: float = 60.0, new_id: Callable[[], UUID] = uuid4
    ) -> None:
        self._log = event_log
        self._interval_s = interval_s
        self._new_id = new_id
        self._counts: Counter[str] = Counter()

    def count(self, reason: str) -> None:
        """One more request was refused."""
        self._counts[reason] += 1

    async def flush(self, *, seconds: float | None = None) -> int:
        """Append what was counted since the last time; how many events that were. A failure keeps the counts."""
        counts, self._counts = self._counts, Counter()
        written = 0
        for reason, count in sorted(counts.items()):
            stream = f"security:{self._new_id()}"
            event = SignaturesRefused(
                count=count,
                seconds=round(self._interval_s if seconds is None else seconds),
                reason=reason,
            )
            try:
                await self._log.append(
                    AppendRequest(
                        request_id=self._new_id(),
                        premises=(Premise(stream, 0),),
                        drafts=(Draft(stream=stream, event=event),),
                    )
                )
            except Unavailable as fault:
                self._counts[reason] += count
                log.warning("refused signatures could not be recorded", code=fault.code)
            else:
                written += 1
        return written

    async def run(self) -> None:
        """Flush every interval until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self.flush()
        finally:
            await self.flush()


def _busy() -> Unavailable:
    return Unavailable("too many deliveries about the same thing at once: send it again")
