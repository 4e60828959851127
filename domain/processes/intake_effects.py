"""What a verdict on a delivery appends: one request with the fact, the decision and everything derived from them."""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any, Literal

from domain import comments, contents, ids, tasks
from domain.deliveries import DeliveryDecided, DenialReceiptGranted, MentionConsumed, Status
from domain.effects import EffectIntended
from domain.events import Event
from domain.log import Content, Draft, Premise, QueueDrop, QueuePut
from domain.mentions import Mention
from domain.policy import Rules
from domain.processes import endings, execution
from domain.processes.intake_facts import Taken
from domain.processes.intake_state import Answer, State, answer, denial, mention
from domain.repositories import RepositoryKeyClaimed, RepositoryRegistered, RepositoryRenamed
from domain.sessions import SessionOpened, SessionTaskAdmitted
from domain.tasks import InstructionAmended, TaskCancelled, TaskReceived
from domain.transitions import TERMINAL

REFUSAL_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "not_permitted": "giteabot: you may not give me tasks in this repository",
        "rate_limited": "giteabot: too many tasks here just now; mention me again in a comment later",
        "permission_unknown": (
            "giteabot: I could not find out whether you may give me tasks here; mention me again in a new comment"
        ),
    },
    "zh": {
        "not_permitted": "giteabot: 你没有在此仓库派发任务的权限",
        "rate_limited": "giteabot: 此处的任务过多，请稍后在评论中再次提及我",
        "permission_unknown": "giteabot: 无法确认你是否有权在此派发任务，请在新评论中再次提及我",
    },
}
"""Short receipts for denied mentions, by locale and reason (gitea-workflow, Who may)."""

Refusal = Literal["not_permitted", "rate_limited", "permission_unknown"]
"""Why a mention is refused with a short receipt."""

_FOREIGN = frozenset(("foreign_instance", "repository_not_allowed"))


def refusal_text(reason: str, *, rules: Rules) -> str:
    """The visible line of a refusal's receipt."""
    own = rules.receipt_templates.get(reason)
    return own or REFUSAL_TEXTS.get(rules.locale, REFUSAL_TEXTS["en"])[reason]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """One append and its answer."""

    answer: Answer
    drafts: tuple[Draft, ...]
    premises: tuple[Premise, ...]
    queue: tuple[QueuePut | QueueDrop, ...] = ()
    contents: tuple[Content, ...] = ()
    task_id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effects:
    """Builds decisions about one delivery. ``salt``: for the instruction."""

    taken: Taken
    state: State
    rules: Rules
    salt: bytes

    def ignored(self, reason: str) -> Decision:
        """200, nothing is done."""
        return self.decision("ignored", reason, registers=reason not in _FOREIGN, premises=self.edited())

    def disabled(self) -> Decision:
        """409, or 200 where configured so."""
        if self.rules.disabled_answer == "ignore":
            return self.decision("ignored", "repository_disabled")
        return self.decision("rejected", "repository_disabled", http_status=409)

    def handled(self) -> Decision:
        """200: the task that the same text has already. A replay must not bring an old name back."""
        consumed = self.state.consumed
        task_id = consumed.task_id if consumed else None
        return self.decision("ignored", "comment_already_handled", task_id=task_id, renames=False)

    def deferred(self) -> Decision:
        """202 without a task: a worker decides later."""
        return self.decision("deferred", "deferred", http_status=202)

    def denied(self, reason: Refusal, *, receipt: bool) -> Decision:
        """200, and at most one short receipt. Its intent stands on the delivery's own stream.

        It has no task; its ``task_id`` is the one that the delivery would have become, so that it can be marked.
        """
        fact = self.taken.fact
        stream = denial(fact)
        drafts: list[Draft] = []
        if receipt:
            granted = DenialReceiptGranted(
                repository_id=fact.repository["id"],
                author_id=fact.sender_id,
                reason=reason,
                at=self.at,
            )
            text = refusal_text(reason, rules=self.rules)
            drafts = [self.draft(stream, granted), self.draft(self.delivery, self.letter(reason, text))]
        premises = [stream, *self.edited(), *self.around()]
        if reason == "rate_limited":
            premises.append(ids.session_stream(self.resource_key))
        return self.decision("ignored", reason, drafts=drafts, premises=premises)

    def withdrawn(self) -> Decision:
        """200: the queued task is cancelled."""
        task = self.state.task
        cancelled = TaskCancelled(
            task_id=task.task_id,
            reason="trigger_deleted",
            actor=self.actor,
            delivery_key=self.taken.fact.delivery_key,
        )
        followed = execution.follow(
            task, self.version(ids.task_stream(task.task_id)), [cancelled], endings.Rules()
        )
        decision = self.decision(
            "accepted",
            "trigger_deleted",
            task_id=task.task_id,
            drafts=self.followed(followed),
            premises=self.edited(),
        )
        return dataclasses.replace(decision, queue=followed.queue)

    def amended(self, found: Mention) -> Decision:
        """200: the queued task has another instruction."""
        task = self.state.task
        fact = self.taken.fact
        stored, instruction = self.instruction(task.task_id, found)
        amended = InstructionAmended(
            task_id=task.task_id,
            instruction=instruction,
            editor_id=fact.sender_id,
            delivery_key=fact.delivery_key,
        )
        decision = self.decision(
            "accepted",
            "instruction_amended",
            task_id=task.task_id,
            drafts=[self.draft(ids.task_stream(task.task_id), amended)],
            premises=self.edited(),
        )
        return dataclasses.replace(decision, contents=(*decision.contents, stored))

    def admitted(self, found: Mention) -> Decision:
        """202: repository, session, task ``received → queued`` and its receipt's intent (seed §5.1.5)."""
        fact, key = self.taken.fact, self.resource_key
        task_id = ids.task_id(fact.delivery_key)
        task_stream, session_stream = ids.task_stream(task_id), ids.session_stream(key)
        stored, instruction = self.instruction(task_id, found)
        received = self._received(task_id, instruction)
        task = tasks.evolve(tasks.Task(), received)
        queued = tasks.transition(task, "queued", trigger="admitted")
        task = tasks.evolve(task, queued)
        receipt = self.receipt(
            execution.receipt_intent(task, "queued", 2, locale=self.rules.locale, code=None)
        )
        session: list[Event] = []
        if self.state.session.opened is None:
            session.append(
                SessionOpened(
                    session_key=key,
                    repo_key=self.repo_key,
                    kind=_resource(fact.resource)["kind"],
                    number=_resource(fact.resource)["number"],
                )
            )
        session.append(
            SessionTaskAdmitted(session_key=key, task_id=task_id, author_id=fact.sender_id, at=self.at)
        )
        decision = self.decision(
            "accepted",
            None,
            http_status=202,
            task_id=task_id,
            drafts=[
                *(self.draft(session_stream, event) for event in session),
                *(self.draft(task_stream, event) for event in (received, queued, receipt)),
                self.consumed(task_id),
            ],
            premises=[session_stream, task_stream],
        )
        return dataclasses.replace(
            decision,
            queue=tuple(execution.queue_changes(queued)),
            contents=(*decision.contents, stored),
        )

    def consumed(self, task_id: str | None) -> Draft:
        """The mention was admitted, once for ever."""
        consumed = MentionConsumed(
            mention_key=self.mention_stream.removeprefix("mention:"),
            delivery_key=self.taken.fact.delivery_key,
            task_id=task_id,
        )
        return self.draft(self.mention_stream, consumed)

    def receipt(self, intent: EffectIntended) -> EffectIntended:
        """The intent of a task's first receipt, under the operator's own template where there is one."""
        own = self.rules.receipt_templates.get("queued")
        return (
            intent
            if own is None
            else dataclasses.replace(intent, body_hash=_hash(own.replace("{code}", "-")))
        )

    def followed(self, followed: execution.Followed) -> list[Draft]:
        """What follows from facts about a task, caused by this delivery where nothing nearer caused it."""
        return [
            draft if draft.causation else dataclasses.replace(draft, causation=self.cause)
            for draft in followed.drafts
        ]

    @property
    def actor(self) -> str:
        """The account that acted, by its id: logins may change."""
        return f"gitea:user:{self.taken.fact.sender_id}"

    @property
    def at(self) -> str:
        """The delivery's time."""
        return str(self.taken.fact.facts["at"])

    @property
    def delivery(self) -> str:
        """The delivery's own stream."""
        return ids.delivery_stream(self.taken.fact.delivery_key)

    @property
    def cause(self) -> str:
        """What caused everything else: the delivery's fact."""
        return f"{self.delivery}@1"

    @property
    def repo_key(self) -> str:
        """The repository's key; ``LookupError`` where the delivery has none."""
        if self.state.repo_key is None:
            raise LookupError("this delivery has no repository")
        return self.state.repo_key

    @property
    def resource_key(self) -> str:
        """The key of the issue or pull request."""
        resource = _resource(self.taken.fact.resource)
        return ids.resource_key(self.repo_key, resource["kind"], resource["number"])

    @property
    def mention_stream(self) -> str:
        """Stream of the text's mention key."""
        stream = mention(self.taken.fact)
        if stream is None:
            raise LookupError("this delivery's text has no id")
        return stream

    def version(self, stream: str) -> int:
        """The version at which a stream was read."""
        return self.state.versions.get(stream, 0)

    def draft(self, stream: str, event: Event) -> Draft:
        """An event that the delivery caused."""
        return Draft(stream=stream, event=event, causation=self.cause)

    def edited(self) -> list[str]:
        """The task's stream, where its state decided: for edits and deletions of a handled text."""
        task = self.state.task
        return [ids.task_stream(task.task_id)] if task.received is not None else []

    def around(self) -> list[str]:
        """The streams of the session's tasks that decide: those that have not ended, and the latest one."""
        known = [task for task in self.state.around if task.received is not None]
        still = [task for task in known if task.state not in TERMINAL]
        return [ids.task_stream(task.task_id) for task in (*still, *known[-1:])]

    def instruction(self, task_id: str, found: Mention) -> tuple[Content, dict[str, Any]]:
        """The instruction as content, and its reference with that of the text it was taken from."""
        fact = self.taken.fact
        stored, reference = contents.content(
            f"task:{task_id}:instruction:{fact.delivery_key}", found.instruction, self.salt
        )
        return stored, {
            **reference,
            "stripped": list(found.stripped),
            "text": fact.text,
            "whole": fact.facts.get("whole"),
        }

    def _received(self, task_id: str, instruction: dict[str, Any]) -> TaskReceived:
        fact, part = self.taken.fact, _resource(self.taken.fact.part)
        return TaskReceived(
            task_id=task_id,
            delivery_key=fact.delivery_key,
            repo_key=self.repo_key,
            resource_key=self.resource_key,
            session_key=self.resource_key,
            comment_id=part["id"] if part["kind"] == "comment" and not fact.facts.get("inline") else None,
            trigger={**part, "mention_key": self.mention_stream.removeprefix("mention:")},
            author_id=fact.sender_id,
            instruction=instruction,
            resource=_resource(fact.resource),
            refs=fact.refs,
        )

    def letter(self, status: str, text: str) -> EffectIntended:
        """The intent of a short comment that belongs to no task. Its id is the one that would have been a task's."""
        task_id = ids.task_id(self.taken.fact.delivery_key)
        key = comments.receipt_key(task_id, status)
        return EffectIntended(
            intent_id=ids.intent_id(self.delivery, 1, "receipt.create"),
            operation="receipt.create",
            executor="receipts",
            task_id=task_id,
            target=self.resource_key,
            key=key,
            attempt=0,
            body_hash=_hash(text),
            comment_key=key,
            comment_kind="status",
        )

    def _registration(self, *, renames: bool) -> list[Draft]:
        """The repository on first sight; its new name where a later delivery tells one."""
        seen, known = self.taken.fact.repository, self.state.repository
        if not seen:
            return []
        stream = ids.repo_stream(self.repo_key)
        named = {key: seen[key] for key in ("owner", "name", "clone_url", "default_branch")}
        if not self.state.claimed:
            claimed = RepositoryKeyClaimed(repository_id=seen["id"], repo_key=self.repo_key)
            registered = RepositoryRegistered(
                repo_key=self.repo_key, repository_id=seen["id"], private=seen["private"], **named
            )
            id_stream = ids.repository_id_stream(seen["id"])
            return [self.draft(id_stream, claimed), self.draft(stream, registered)]
        if renames and any(getattr(known, key) != value for key, value in named.items()):
            return [self.draft(stream, RepositoryRenamed(repo_key=self.repo_key, **named))]
        return []

    def decision(
        self,
        status: Status,
        reason: str | None,
        *,
        http_status: int = 200,
        task_id: str | None = None,
        drafts: Iterable[Draft] = (),
        premises: Iterable[str] = (),
        registers: bool = True,
        renames: bool = True,
    ) -> Decision:
        """The fact, the decision about it, and ``drafts``; every stream that is written or named is a premise."""
        fact = self.taken.fact
        session = self.resource_key if task_id and fact.resource else None
        decided = DeliveryDecided(
            delivery_key=fact.delivery_key,
            status=status,
            reason=reason,
            http_status=http_status,
            task_id=task_id,
            session_key=session,
        )
        derived = tuple(drafts)
        repository = self._registration(renames=renames) if registers else []
        names = {self.delivery, *premises, *(draft.stream for draft in (*repository, *derived))}
        if fact.repository and registers:
            names |= {ids.repository_id_stream(fact.repository["id"]), ids.repo_stream(self.repo_key)}
            names |= {stream for stream in [mention(fact)] if stream is not None}
        return Decision(
            answer=answer(fact.delivery_id, decided),
            drafts=(
                Draft(stream=self.delivery, event=fact, causation=fact.facts.get("cause")),
                self.draft(self.delivery, decided),
                *repository,
                *derived,
            ),
            premises=tuple(Premise(name, self.version(name)) for name in sorted(names)),
            contents=self.taken.contents,
            task_id=task_id,
        )


def _resource(fields: dict[str, Any] | None) -> dict[str, Any]:
    if fields is None:
        raise LookupError("this delivery has no such thing")
    return fields


def _hash(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
