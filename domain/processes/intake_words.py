"""What a word appends (gitea-workflow, Words): its event, what it does, and the intent of its one answer."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from domain import ids
from domain.commands import CommandGiven, Word
from domain.events import Event
from domain.faults import Conflict
from domain.log import Draft, QueueDrop, QueuePut
from domain.processes import endings, execution, steering, words
from domain.processes.intake_effects import Decision, Effects
from domain.sessions import SessionMentionTaken
from domain.tasks import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Done:
    """What became of a word. ``task_id`` None: it was about no task; ``silent``: something else answers it."""

    outcome: str
    task_id: str | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    drafts: Sequence[Draft] = ()
    premises: Sequence[str] = ()
    queue: Sequence[QueuePut | QueueDrop] = ()
    silent: bool = False


def commanded(effects: Effects, word: Word, *, own: bool, amends: Task | None) -> Decision:
    """200: the word is done, or why not; answered once by a short comment.

    ``own``: about the tasks that its author asked for alone. ``amends``: about the task whose text it is.
    """
    fact = effects.taken.fact
    about = words.mentioned(word, effects.state.around, fact.sender_id if own else None)
    match word:
        case "stop":
            done = _stop(effects, amends or words.stoppable(about))
        case "retry":
            done = _retry(effects, about)
        case "status":
            told = words.status_of(about)
            done = _Done(outcome="told", details={"tasks": told})
        case "help":
            done = _Done(outcome="told")
    details = {"outcome": done.outcome, **done.details}
    given = CommandGiven(
        delivery_key=fact.delivery_key,
        word=word,
        author_id=fact.sender_id,
        session_key=effects.resource_key,
        outcome=done.outcome,
        task_id=done.task_id,
        details=details,
        at=effects.at,
    )
    session = ids.session_stream(effects.resource_key)
    drafts = [effects.draft(effects.delivery, given), *done.drafts]
    if amends is None:
        drafts.append(effects.consumed(None))
    if done.outcome != "queued":  # a retry's own task counts already
        taken = SessionMentionTaken(
            session_key=effects.resource_key,
            kind="word",
            author_id=fact.sender_id,
            at=effects.at,
            task_id=done.task_id,
        )
        drafts.append(effects.draft(session, taken))
    if not done.silent:
        own_text = effects.rules.receipt_templates.get(word)
        text = own_text or words.answer_text(word, details=details, locale=effects.rules.locale)
        drafts.append(effects.draft(effects.delivery, effects.letter(word, text)))
    decision = effects.decision(
        "accepted",
        "command",
        task_id=done.task_id,
        drafts=drafts,
        premises=[session, *effects.around(), *effects.edited(), *done.premises],
    )
    return dataclasses.replace(decision, queue=tuple(done.queue))


def _stop(effects: Effects, task: Task | None) -> _Done:
    if task is None:
        return _Done(outcome="nothing_to_stop")
    stream = ids.task_stream(task.task_id)
    try:
        facts = steering.stop(_command(effects, "abort", task), task, at=effects.at, code=words.STOPPED)
    except Conflict:
        outcome = "verifying_reply" if task.state == "verifying_reply" else "ending"
        return _Done(outcome=outcome, task_id=task.task_id, details=words.told(task))
    followed = execution.follow(
        task, effects.version(stream), facts, endings.Rules(locale=effects.rules.locale)
    )
    outcome = "cancelled" if followed.task.state == "cancelled" else "aborting"
    return _Done(
        outcome=outcome,
        task_id=task.task_id,
        details=words.told(followed.task),
        drafts=effects.followed(followed),
        premises=[stream],
        queue=followed.queue,
    )


def _retry(effects: Effects, about: Sequence[Task]) -> _Done:
    """The latest task here again, if it ended badly. Whoever says the word is the new task's author."""
    if not about:
        return _Done(outcome="nothing_to_retry")
    task = about[-1]
    try:
        again = steering.again(
            _command(effects, "retry", task),
            task,
            effects.state.repository,
            effects.state.asked,
            at=effects.at,
            locale=effects.rules.locale,
        )
    except Conflict as refused:
        return _Done(outcome=refused.code, task_id=task.task_id, details=words.told(task))
    author = effects.taken.fact.sender_id
    received = dataclasses.replace(again.received, author_id=author)
    admitted = dataclasses.replace(again.admitted, author_id=author)
    stream, session = ids.task_stream(again.task_id), ids.session_stream(received.session_key)
    events: tuple[tuple[str, Event], ...] = (
        (session, admitted),
        (stream, received),
        (stream, again.queued),
        (stream, effects.receipt(again.receipt)),
    )
    return _Done(
        outcome="queued",
        task_id=again.task_id,
        details={**words.told(again.task), "retryOf": task.task_id},
        drafts=[effects.draft(name, event) for name, event in events],
        premises=[stream],
        queue=execution.queue_changes(again.queued),
        silent=True,
    )


def _command(effects: Effects, act: steering.TaskAct, task: Task) -> steering.Command:
    return steering.Command(
        act=act,
        request_id=effects.taken.fact.delivery_id,
        reason="asked for in a comment",
        actor=effects.actor,
        target=task.task_id,
    )
