"""What can be asked: lists from the read models, single tasks from the log itself, texts looked up when asked.

A single task is folded from its own streams, so that it is there as soon as it was answered for. Logins and
instructions come from the erasable contents; an erased one is None.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from domain import contents, control, ids
from domain.faults import NotFound
from domain.transitions import STATES
from domain.turns import TurnStarted
from projections.comments import Comments
from projections.overview import KEY as OVERVIEW
from projections.tasks import Tasks
from projections.turns import Turns
from projections.view import Document, project, shown, stamp
from services.ports import EventLog
from services.projector import Projector
from services.view_store import ViewStore

NEEDS_PERSON = ("waiting_user", "blocked_workspace")
"""States in which a task waits for somebody."""

ACTOR = "gitea:user:"
SHOWN_WAITING = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """What a list is asked for: columns that must match, bounds of time, order and page."""

    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    states: tuple[str, ...] | None = None
    author: str | None = None
    since: str | None = None
    until: str | None = None
    descending: bool = True
    after: tuple[int, str] | None = None
    limit: int = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """Part of a list; ``following`` is where the next one begins, None at the end."""

    items: list[Document]
    following: tuple[int, str] | None


class Queries:
    """Answers from ``event_log`` and ``views``; ``wait`` bounds, in seconds, the wait for a position."""

    def __init__(
        self, event_log: EventLog, views: ViewStore, projector: Projector, *, wait: float = 2.0
    ) -> None:
        self._log = event_log
        self._views = views
        self._projector = projector
        self._wait = wait

    async def reach(self, position: int) -> None:
        """Wait until the lists show ``position``; ``Unavailable`` ``view_behind`` else."""
        await self._projector.wait_for(position, self._wait)

    async def ping(self) -> None:
        """Whether the log answers; raises ``Unavailable``."""
        await self._log.head()

    async def task(self, task_id: str) -> Document:
        """One task with its turns and comments, as the log has it now; ``NotFound`` ``task_not_found``."""
        events = await self._log.read_stream(ids.task_stream(task_id))
        found = project(Tasks(), events).get(task_id)
        if found is None:
            raise NotFound("there is no such task", code="task_not_found", params={"taskId": task_id})
        turns = [event.event.turn_id for event in events if isinstance(event.event, TurnStarted)]
        items = await self._log.read_streams(ids.turn_stream(turn) for turn in turns)
        seen = [event for turn in turns for event in items[ids.turn_stream(turn)]]
        in_order = sorted([*events, *seen], key=lambda recorded: recorded.position)
        documents = list(project(Turns(), in_order).values())
        comments = list(project(Comments(), events).values())
        return (await self._told([found], documents, comments))[0]

    async def tasks(self, selection: Selection) -> Page:
        """Tasks with their turns and comments."""
        page = await self._page("tasks", selection)
        keys = [document["taskId"] for document in page.items]
        turns = await self._views.of_tasks("turns", keys) if keys else []
        comments = await self._views.of_tasks("comments", keys) if keys else []
        return dataclasses.replace(page, items=await self._told(page.items, turns, comments))

    async def listed(self, view: str, selection: Selection) -> Page:
        """Any other list: sessions, turns, comments, repositories, deliveries, intents."""
        page = await self._page(view, selection)
        if view == "intents":
            await self._with_deliveries(page.items)
        if view == "deliveries":
            await self._with_authors(page.items)
        if view == "turns":
            await self._with_messages(page.items)
        return dataclasses.replace(page, items=[shown(document) for document in page.items])

    async def audit(self, selection: Selection) -> Page:
        """Audit entries; an id of the chain also finds what belongs to its tasks, a turn's only its own."""
        page = await self._page("audit", selection, through_tasks=not {"turn", "task"} & set(selection.where))
        await self._with_deliveries(page.items)
        people = {
            entry["actor"]: int(entry["actor"].removeprefix(ACTOR))
            for entry in page.items
            if entry["actor"].startswith(ACTOR) and entry["actor"].removeprefix(ACTOR).isdigit()
        }
        logins = await self._logins(people.values())
        for entry in page.items:
            person = people.get(entry["actor"])
            entry["actorId"] = person
            if person is not None and person in logins:
                entry["actor"] = ACTOR + logins[person]
        return dataclasses.replace(page, items=[shown(entry) for entry in page.items])

    async def overview(self) -> Document:
        """Control, running leases, counts per state, the oldest queued task, what needs a person, positions."""
        numbers = (await self._views.get("overview", [OVERVIEW])).get(OVERVIEW, {"counts": {}, "leases": {}})
        held = {lease.scope: lease for lease in await self._log.leases()}
        now = await self._log.now()
        running = []
        for scope, lease in numbers["leases"].items():
            row = held.get(scope)
            if row is not None and row.expires_at is not None and row.epoch == lease["epoch"]:
                ends = {"expiresAt": stamp(row.expires_at), "expired": row.expires_at <= now}
                running.append({**lease, **ends})
        oldest = await self.tasks(Selection(states=("queued",), descending=False, limit=1))
        waiting = await self.tasks(Selection(states=NEEDS_PERSON, descending=False, limit=SHOWN_WAITING))
        return {
            "control": await self._control(),
            "runningLeases": running,
            "counts": {state: numbers["counts"].get(state, 0) for state in STATES},
            "oldestQueued": oldest.items[0] if oldest.items else None,
            "needsPerson": waiting.items,
            "logPosition": await self._log.head(),
            "viewPosition": await self._views.position(),
        }

    async def _control(self) -> Document:
        events = await self._log.read_stream(ids.CONTROL_STREAM)
        state = control.fold(event.event for event in events)
        return {
            "globalPaused": state.paused,
            "pauseReason": state.reason,
            "updatedBy": state.updated_by,
            "updatedAt": stamp(events[-1].recorded_at) if events else None,
            "version": state.version,
        }

    async def _page(self, view: str, selection: Selection, *, through_tasks: bool = False) -> Page:
        where = dict(selection.where)
        if selection.author is not None:
            author = await self._author(selection.author)
            if author is None:
                return Page(items=[], following=None)
            where["author"] = author
        rows = await self._views.select(
            view,
            where=where,
            states=selection.states,
            since=selection.since,
            until=selection.until,
            descending=selection.descending,
            after=selection.after,
            limit=selection.limit + 1,
            through_tasks=through_tasks and bool(where),
        )
        kept = rows[: selection.limit]
        more = len(rows) > selection.limit
        return Page(
            items=[dict(row["document"]) for row in kept],
            following=(kept[-1]["ord"], kept[-1]["key"]) if more else None,
        )

    async def _author(self, name: str) -> int | None:
        """A user id, given as such or as a login that somebody with a task has now."""
        if name.isascii() and name.isdigit():
            return int(name) if len(name) < 19 else None
        logins = await self._logins(await self._views.authors())
        return next((ident for ident, login in logins.items() if login.lower() == name.lower()), None)

    async def _logins(self, people: Iterable[int]) -> dict[int, str]:
        wanted = {contents.login_id(person): person for person in people}
        if not wanted:
            return {}
        texts = await self._log.contents(wanted)
        return {person: texts[key] for key, person in wanted.items() if key in texts}

    async def _told(
        self, tasks: Sequence[Document], turns: Sequence[Document], comments: Sequence[Document]
    ) -> list[Document]:
        """Tasks as they are shown: with author, instruction, turns and comments."""
        wanted = [task["_instruction"] for task in tasks if task["_instruction"]]
        texts = await self._log.contents(wanted) if wanted else {}
        logins = await self._logins(task["authorId"] for task in tasks)
        told_turns = list(turns)
        await self._with_messages(told_turns)
        return [
            {
                **shown(task),
                "author": logins.get(task["authorId"]),
                "instruction": texts.get(task["_instruction"] or ""),
                "turns": [shown(turn) for turn in told_turns if turn["taskId"] == task["taskId"]],
                "comments": [shown(item) for item in comments if item["taskId"] == task["taskId"]],
            }
            for task in tasks
        ]

    async def _with_messages(self, turns: Sequence[Document]) -> None:
        wanted = [turn["_message"] for turn in turns if turn.get("_message")]
        texts = await self._log.contents(wanted) if wanted else {}
        for turn in turns:
            turn["message"] = texts.get(turn.get("_message") or "")

    async def _with_authors(self, documents: Sequence[Document]) -> None:
        logins = await self._logins(item["authorId"] for item in documents if item.get("authorId"))
        for item in documents:
            item["author"] = logins.get(item.get("authorId") or 0)

    async def _with_deliveries(self, documents: Sequence[Document]) -> None:
        """Fill in the delivery that an entry's task came from."""
        wanted = {item["taskId"] for item in documents if item["taskId"] and not item.get("deliveryKey")}
        tasks = await self._views.get("tasks", sorted(wanted)) if wanted else {}
        for item in documents:
            task = tasks.get(item["taskId"] or "")
            if task is not None and not item.get("deliveryKey"):
                item["deliveryKey"] = task["deliveryKey"]
                item["deliveryId"] = task["deliveryKey"].partition(":")[2]
