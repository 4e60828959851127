"""Deferred admissions: what a payload did not say is looked up, and the mention is decided after all.

Deferred are reviews (the payload has neither id nor inline comments nor rights), bodies edited by others, payloads
without rights, and comments that the reconciler found. Each mention in them is decided by the same rules as any other
(``services.intake``), under a delivery key of its own, with the delivery that brought it as its cause; then the
deferred delivery gets its outcome. Nothing is lost: what was deferred stays so in the log until it is decided, and
deciding it twice changes nothing (gitea-workflow, Admission).
"""

import asyncio
import dataclasses
import hashlib
import heapq
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID, uuid4

import structlog

from domain import contents, deliveries, ids, tasks
from domain.deliveries import DeliveryDecided, DeliveryReceived
from domain.failures import AWAY
from domain.faults import Fault, Unavailable, VersionConflict
from domain.gitea import GiteaNotFound, Review
from domain.log import AppendRequest, Draft, Metadata, Premise
from domain.mentions import find_mention
from domain.policy import Rules
from domain.processes.intake_deferred import Found, Place, best, comment_part, matching, outcome
from domain.processes.intake_facts import Taken, Texts, take
from domain.processes.intake_state import Answer
from domain.webhooks import CommentPart, Delivery, Permissions, Person
from services.gitea_watch import GiteaWatch
from services.intake import Intake, fresh_salt
from services.ports import EventLog
from services.rights import Looking, Right, Rights
from services.view_store import ViewStore

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
_PAGE = 500


class Admissions:
    """Decides what was deferred. ``caught_up``: returns when the views have seen the whole log.

    ``first_pause``: seconds before what failed is tried again; it doubles up to five minutes.
    """

    def __init__(
        self,
        *,
        event_log: EventLog,
        views: ViewStore,
        gitea: Looking,
        watch: GiteaWatch,
        intake: Intake,
        rights: Rights,
        rules: Callable[[], Rules],
        bot_id: int,
        caught_up: Callable[[], Awaitable[None]],
        first_pause: float = FIRST_PAUSE_S,
        new_id: Callable[[], UUID] = uuid4,
        new_salt: Callable[[], bytes] = fresh_salt,
    ) -> None:
        self._log = event_log
        self._views = views
        self._gitea = gitea
        self._watch = watch
        self._intake = intake
        self._rights = rights
        self._rules = rules
        self._bot_id = bot_id
        self._caught_up = caught_up
        self._first_pause = first_pause
        self._new_id = new_id
        self._new_salt = new_salt
        self._due: list[tuple[float, int, str]] = []
        self._tries: dict[str, int] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Decide until cancelled: first what was left, then what the log brings."""
        self._due.clear()
        self._tries.clear()
        head = await self._log.head()
        for key in await self._left():
            self._put(key)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._listen(head))
            both.create_task(self._work())

    async def settle(self, key: str) -> bool:
        """Decide one deferred delivery; False if it was decided before. Raises what Gitea's absence raises."""
        stream = ids.delivery_stream(key)
        rows = await self._log.read_stream(stream)
        delivery = deliveries.fold(row.event for row in rows)
        fact, decided = delivery.received, delivery.decided
        if fact is None or decided is None or decided.status != "deferred":
            return False
        gone = False
        try:
            if fact.shape == "review_submitted":
                answers = await self._of_review(fact)
                gone = answers is None
            else:
                answers = [await self._of_own_text(fact)]
        except GiteaNotFound:  # the pull request, or the repository itself, is gone or hidden from the bot
            answers, gone = [], True
        found = best(answers or [])
        session_key = await self._session(found.task_id) if found and found.task_id else None
        told = outcome(fact, answers or [], gone=gone, session_key=session_key)
        request = AppendRequest(
            request_id=self._new_id(),
            premises=(Premise(stream, len(rows)),),
            drafts=(Draft(stream=stream, event=told, causation=f"{stream}@1"),),
            metadata=Metadata(correlation_id=told.task_id or key),
        )
        try:
            await self._log.append(request)
        except VersionConflict:
            return False
        log.info("deferred delivery decided", deliveryKey=key, status=told.status, reason=told.reason)
        return True

    async def admit(self, found: Found) -> Answer:
        """Decide about a text that was found in Gitea, judged by its own author. A repeat changes nothing."""
        rules = self._rules()
        kind, part = found.part.kind, found.part
        right: Right | None = None
        if (
            rules.trigger_policy in ("write", "admin")
            and not self._own(part.author, rules)
            and part.author.id > 0
        ):
            right = await self._rights.of(found.repository, part.author)
        made = Delivery(
            delivery_id=f"{kind}.{found.ident}",
            event=found.origin,
            event_type=found.origin,
            action="created",
            shape="comment_created",
            payload_hash="sha256:"
            + hashlib.sha256(repr((part.id, part.updated_at_utc)).encode()).hexdigest(),
            sender=part.author,
            repository=found.repository,
            permissions=Permissions(**right.permissions) if right and right.permissions else None,
            resource=found.resource,
            refs=found.refs,
            part=part,
            changed_from=None,
            is_pull=found.resource.kind == "pull_request",
        )
        taken = take(
            made,
            rules,
            "worker",
            salts=(self._new_salt(), self._new_salt()),
            key=ids.deferred_key(kind, found.ident),
        )
        facts: dict[str, Any] = {**taken.fact.facts, "origin": found.origin, **right_told(right)}
        if found.cause is not None:
            facts["cause"] = found.cause
        if found.inline:
            facts["inline"] = True
        if found.unexplained and rules.trigger_policy != "anyone":
            facts["unexplained"] = True
        fact = dataclasses.replace(taken.fact, facts=facts)
        return await self._intake.resume(dataclasses.replace(taken, fact=fact))

    async def free_ident(
        self, kind: Literal["comment", "review", "issue", "pull_request"], *idents: str, cause: str | None
    ) -> str:
        """The first of ``idents`` whose key is free, or has this very cause already; the last if there is none."""
        for ident in idents[:-1]:
            rows = await self._log.read_stream(ids.delivery_stream(ids.deferred_key(kind, ident)))
            first = rows[0].event if rows else None
            if first is None:
                return ident
            if (
                cause is not None
                and isinstance(first, DeliveryReceived)
                and first.facts.get("cause") == cause
            ):
                return ident
        return idents[-1]

    # What was deferred

    async def _of_own_text(self, fact: DeliveryReceived) -> Answer:
        """A signed text whose sender's right was not stated: text and sender stand, the right is looked up."""
        rules = self._rules()
        repository_id = int(fact.repository["id"])
        part = fact.part or {}
        kind, number = part["kind"], part["id"]
        cause = f"{ids.delivery_stream(fact.delivery_key)}@1"
        base = str(number) if kind == "comment" else f"{repository_id}.{number}"
        ident = await self.free_ident(kind, base, f"{base}.{fact.delivery_id}", cause=cause)
        login_id = contents.login_id(fact.sender_id)
        before = fact.facts.get("before") or {}
        wanted = [login_id, (fact.text or {}).get("content"), before.get("content")]
        texts = await self._log.contents([each for each in wanted if each])
        right: Right | None = None
        if rules.trigger_policy in ("write", "admin") and fact.sender_id > 0:
            present = await self._gitea.repository_by_id(repository_id)
            right = await self._rights.of(present, Person(id=fact.sender_id, login=texts.get(login_id, "-")))
        facts = {name: value for name, value in fact.facts.items() if name != "at"}
        resumed = dataclasses.replace(
            fact,
            delivery_key=ids.deferred_key(kind, ident),
            delivery_id=f"{kind}.{ident}",
            route="worker",
            permissions=right.permissions if right else None,
            facts={**facts, "origin": "deferred", "cause": cause, **right_told(right)},
        )
        spoken = Texts(now=texts.get(wanted[1] or ""), before=texts.get(wanted[2] or ""))
        return await self._intake.resume(Taken(fact=resumed, texts=spoken, contents=()))

    async def _session(self, task_id: str) -> str | None:
        received = tasks.fold(
            row.event for row in await self._log.read_stream(ids.task_stream(task_id))
        ).received
        return received.session_key if received else None

    async def _of_review(self, fact: DeliveryReceived) -> list[Answer] | None:
        """A review: its body, and each of its inline comments by its own author. None: it is not there any more."""
        repository = await self._gitea.repository_by_id(int(fact.repository["id"]))
        number = int((fact.resource or {})["number"])
        cause = f"{ids.delivery_stream(fact.delivery_key)}@1"
        reference, login_id = (fact.text or {}).get("content"), contents.login_id(fact.sender_id)
        texts = await self._log.contents([each for each in (reference, login_id) if each])
        body = texts.get(reference or "", "")
        listed = await self._gitea.reviews(repository.owner, repository.name, number)
        pull = await self._gitea.pull(repository.owner, repository.name, number)
        place = Place(repository=repository, resource=pull.resource, refs=pull.refs, cause=cause)
        author = Person(id=fact.sender_id, login=texts.get(login_id, "-"))
        answers: list[Answer] = []
        reviews = matching(fact, listed, body)
        for review in reviews:
            answers.extend(await self._of_one(place, review, author, body))
        return answers if reviews else None

    async def _of_one(self, place: "Place", review: Review, author: Person, body: str) -> list[Answer]:
        rules = self._rules()
        answers: list[Answer] = []
        if find_mention(body, rules.bot_login) is not None:
            part = CommentPart(
                kind="review",
                id=review.id,
                body=body,
                author=author,
                created_at=review.submitted_at,
                updated_at=review.submitted_at,
                created_at_utc=review.submitted_at,
                updated_at_utc=review.submitted_at,
                html_url=review.html_url,
            )
            answers.append(await self.admit(place.found(part, str(review.id))))
        owner, name, number = place.repository.owner, place.repository.name, place.resource.number
        for comment in await self._gitea.review_comments(owner, name, number, review.id):
            if comment.author_id == self._bot_id or find_mention(comment.body, rules.bot_login) is None:
                continue
            known = await self._rights.known(place.repository.id, comment.id, comment.body)
            if known == "same":
                continue
            unexplained = known == "other" or comment.updated_at != comment.created_at
            found = place.found(comment_part(comment), str(comment.id))
            answers.append(await self.admit(dataclasses.replace(found, inline=True, unexplained=unexplained)))
        return answers

    def _own(self, person: Person, rules: Rules) -> bool:
        return person.id == self._bot_id and not rules.shared_account

    # When

    async def _left(self) -> list[str]:
        """Keys of what is deferred, oldest first, as the caught-up view knows them."""
        await self._caught_up()
        found: list[str] = []
        after: tuple[int, str] | None = None
        while True:
            rows = await self._views.select(
                "deliveries", where={"state": "deferred"}, limit=_PAGE, after=after, descending=False
            )
            found.extend(row["document"]["deliveryKey"] for row in rows)
            if len(rows) < _PAGE:
                return found
            after = (rows[-1]["ord"], rows[-1]["key"])

    async def _listen(self, after: int) -> None:
        while True:
            try:
                async for batch in self._log.tail(after=after):
                    for row in batch:
                        if row.type == DeliveryDecided.__name__:
                            event = row.event
                            if isinstance(event, DeliveryDecided) and event.status == "deferred":
                                self._put(event.delivery_key)
                        after = row.position
            except Unavailable as fault:
                log.warning("deferred deliveries wait for the database", code=fault.code)
                await asyncio.sleep(FIRST_PAUSE_S)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            if not self._due:
                await self._woken.wait()
                continue
            wait = self._due[0][0] - loop.time()
            if wait > 0:
                try:
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
                except TimeoutError:
                    pass
                continue
            _, _, key = heapq.heappop(self._due)
            await self._try(key)

    async def _try(self, key: str) -> None:
        """One try; what fails comes again, later each time, and while Gitea is away when it is back."""
        try:
            await self.settle(key)
        except Exception as error:
            code = error.code if isinstance(error, Fault) else "unexpected_error"
            if not isinstance(error, Fault):
                log.exception("a deferred delivery could not be decided", deliveryKey=key)
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            pause = min(LONGEST_PAUSE_S, self._first_pause * 2 ** min(tries - 1, 20))
            log.warning("a deferred delivery waits", deliveryKey=key, code=code, tries=tries, pause=pause)
            self._put(key, pause)
            if code in AWAY:
                self._watch.suspect()
                if not await self._watch.reachable():
                    await self._watch.wait_back()
        else:
            self._tries.pop(key, None)

    def _put(self, key: str, pause: float = 0.0) -> None:
        at = asyncio.get_running_loop().time() + pause
        heapq.heappush(self._due, (at, len(self._due), key))
        self._woken.set()


def right_told(right: Right | None) -> dict[str, Any]:
    """What an event keeps of where a right was found."""
    if right is None:
        return {}
    return {"right": {"source": right.source, "position": right.position}}
