"""The table of ``docs/failures.md``: what each situation was seen to lead to, kept equal to what the tests see."""

import json
import os
from pathlib import Path

from domain.tasks import TaskTransitioned
from tests.e2e.world import World

DOCS = Path(__file__).resolve().parents[2] / "docs" / "failures.md"
WRITE = "TURNKEEPER_WRITE_FAILURES"
"""Names a folder: rows are written there instead of being compared (``scripts/failures`` makes the page)."""


async def row(world: World, situation: str, task_id: str, final_comments: int, receipts: list[str]) -> str:
    """The table's row for one task as it went: states, code, attempts, receipts, final comments."""
    changes = [
        each.event
        for each in await world.everything()
        if isinstance(each.event, TaskTransitioned) and each.event.task_id == task_id
    ]
    states = " → ".join(change.to_state for change in changes)
    code = next((change.error_code for change in reversed(changes) if change.error_code), "-")
    last = changes[-1]
    attempts = f"{last.attempt}, {last.reply_attempt}"
    return f"| {situation} | {states} | {code} | {attempts} | {', '.join(receipts)} | {final_comments} |"


def check(line: str) -> None:
    """Compare with the page, or write the row where rows are collected."""
    folder = os.environ.get(WRITE)
    if folder:
        name = line.split("|")[1].strip().replace(" ", "-").replace("/", "-")
        Path(folder, f"{name}.json").write_text(json.dumps(line), encoding="utf-8")
        return
    rows = DOCS.read_text(encoding="utf-8").splitlines()
    assert line in rows, f"docs/failures.md has no such row (run scripts/failures):\n{line}"
