"""What a word does and what is answered to it: pure, on the tasks of the issue or pull request where it was said.

- ``stop`` ends one task by the rule that the abort route obeys too (``domain.processes.steering``);
- ``retry`` makes a new task in the place of the latest one, if that one failed, was aborted or cancelled;
- ``status`` tells of the tasks that have not ended, else of the latest one;
- ``help`` tells of the words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from domain.commands import Word
from domain.processes import steering
from domain.tasks import Task
from domain.transitions import TERMINAL

SHOWN = 5
"""How many tasks ``status`` tells of."""

STOPPED = "cancelled_by_comment"
"""The error code of a task that the word stop cancelled."""

_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "cancelled": "giteabot: stopped; {task} is cancelled",
        "aborting": "giteabot: stopping {task}",
        "verifying_reply": "giteabot: {task} has ended; its answer is being read back and cannot be stopped",
        "ending": "giteabot: {task} is being stopped already",
        "nothing_to_stop": "giteabot: there is nothing to stop here",
        "nothing_to_retry": "giteabot: there is nothing to try again here",
        "invalid_state": "giteabot: {task} is {state}, so there is nothing to try again",
        "task": "giteabot: {task} is {state}{code}",
        "no_task": "giteabot: no task here yet",
        "help": (
            "giteabot: mention me with what you want, or with one word alone: stop (ends the task here), "
            "retry (tries the last one again), status, help"
        ),
    },
    "zh": {
        "cancelled": "giteabot: 已停止，{task} 已取消",
        "aborting": "giteabot: 正在停止 {task}",
        "verifying_reply": "giteabot: {task} 已执行完毕，正在确认其回复，无法停止",
        "ending": "giteabot: {task} 已在停止中",
        "nothing_to_stop": "giteabot: 此处没有可停止的任务",
        "nothing_to_retry": "giteabot: 此处没有可重试的任务",
        "invalid_state": "giteabot: {task} 处于 {state} 状态，无法重试",
        "task": "giteabot: {task} 状态为 {state}{code}",
        "no_task": "giteabot: 此处还没有任务",
        "help": "giteabot: 提及我并写明需求，或只写一个词：停止（结束任务）、重试（重试最近任务）、状态、帮助",
    },
}

ANSWERED: frozenset[str] = frozenset(("stop", "retry", "status", "help"))
"""The statuses of receipts that are answers to words: the words themselves."""

BY_AUTHORS: frozenset[str] = frozenset(("stop", "status"))
"""Words that a task's author may say without the right to trigger."""


def answer_text(status: str, *, details: Mapping[str, Any], locale: str) -> str:
    """The visible text of the answer to the word ``status``; ``details`` are those of its ``CommandGiven``."""
    texts = _TEXTS.get(locale, _TEXTS["en"])
    if status == "help":
        return texts["help"]
    if status == "status":
        lines = [_line(texts["task"], told) for told in details.get("tasks", ())]
        return "\n\n".join(lines) or texts["no_task"]
    return _line(texts[str(details["outcome"])], details)


def told(task: Task) -> dict[str, Any]:
    """What is said of a task."""
    return {"taskId": task.task_id, "state": task.state, "errorCode": task.error_code}


def open_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Those that have not ended, in order."""
    return tuple(task for task in tasks if task.received is not None and task.state not in TERMINAL)


def stoppable(tasks: Sequence[Task]) -> Task | None:
    """The task that ``stop`` means.

    Under way before one that waits for people, that before a queued one, and last one that cannot be stopped.
    """
    ranks = (steering.UNDER_WAY, {"waiting_user", "blocked_workspace"}, {"queued"})
    still = open_tasks(tasks)
    for states in ranks:
        for task in still:
            if task.state in states:
                return task
    return still[-1] if still else None


def mentioned(word: Word, tasks: Sequence[Task], author_id: int | None) -> tuple[Task, ...]:
    """The tasks that a word is about; ``author_id``: only those that this account asked for."""
    own = [
        task
        for task in tasks
        if task.received is not None and (author_id is None or task.received.author_id == author_id)
    ]
    return tuple(own if word != "stop" else open_tasks(own))


def status_of(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """What ``status`` tells: the tasks that have not ended, else the latest one."""
    return [told(task) for task in (open_tasks(tasks) or tuple(tasks[-1:]))[-SHOWN:]]


def _line(text: str, details: Mapping[str, Any]) -> str:
    code = details.get("errorCode")
    return text.format(
        task=details.get("taskId") or "-",
        state=details.get("state") or "-",
        code=f" ({code})" if code else "",
    )
