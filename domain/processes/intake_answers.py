"""What the answer to a task's question appends: the task goes on with it, and no task is made."""

import dataclasses

from domain import ids, tasks
from domain.mentions import Mention
from domain.processes import execution
from domain.processes.intake_effects import Decision, Effects
from domain.sessions import SessionContinued, SessionMentionTaken
from domain.tasks import TaskAnswered


def answered(effects: Effects, found: Mention) -> Decision:
    """202 with the task that asked: the text is the input of a new turn. It counts for the rate limit."""
    fact, task = effects.taken.fact, effects.state.waiting
    stored, instruction = effects.instruction(task.task_id, found)
    part = fact.part or {}
    given = TaskAnswered(
        task_id=task.task_id,
        delivery_key=fact.delivery_key,
        comment_id=part["id"] if part["kind"] == "comment" else None,
        author_id=fact.sender_id,
        instruction=instruction,
    )
    queued = tasks.transition(tasks.evolve(task, given), "queued", trigger="answered")
    session, stream = ids.session_stream(effects.resource_key), ids.task_stream(task.task_id)
    continued = SessionContinued(session_key=effects.resource_key, task_id=task.task_id)
    taken = SessionMentionTaken(
        session_key=effects.resource_key,
        kind="answer",
        author_id=fact.sender_id,
        at=effects.at,
        task_id=task.task_id,
    )
    decision = effects.decision(
        "accepted",
        None,
        http_status=202,
        task_id=task.task_id,
        drafts=[
            effects.draft(session, continued),
            effects.draft(session, taken),
            effects.draft(stream, given),
            effects.draft(stream, queued),
            effects.consumed(task.task_id),
        ],
        premises=[session, stream],
    )
    return dataclasses.replace(
        decision,
        queue=tuple(execution.queue_changes(queued)),
        contents=(*decision.contents, stored),
    )
