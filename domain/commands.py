"""Words that people say to the bot instead of giving it a task (gitea-workflow, Words)."""

from typing import Any, Literal

from domain.events import Event, derived

Word = Literal["stop", "retry", "status", "help"]


@derived
class CommandGiven(Event):
    """A word of somebody who may say it, on the stream of the delivery that brought it.

    ``outcome``: what was done, or why nothing was (``cancelled``, ``aborting``, ``queued``, ``told``,
    ``nothing_to_stop``, ``nothing_to_retry``, ``verifying_reply``, ``invalid_state``, ``repository_disabled``).
    ``task_id``: the task that it was done to. ``details``: what its answer tells (``domain.processes.words``).
    """

    delivery_key: str
    word: Word
    author_id: int
    session_key: str
    outcome: str
    task_id: str | None
    details: dict[str, Any]
    at: str
