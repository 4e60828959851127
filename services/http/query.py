"""The GET routes over the read models (seed §6.2; api-and-console, HTTP).

Every parameter of a route stands in ``FILTERS`` or ``PAGING``; another one is a 400. Lists answer
``{items, nextCursor, position}``; ``min_position`` waits, bounded, until the lists show what was written.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from domain.faults import Invalid
from domain.transitions import STATES
from projections.view import stamp
from services.queries import Page, Queries, Selection

PREFIX = "/api/gitea-workflow"
LIMIT = 50
MOST = 100
PAGING = frozenset(("limit", "cursor", "order", "min_position"))
FILTERS: Mapping[str, str] = {
    "repoKey": "repo",
    "resourceKey": "resource",
    "sessionKey": "resource",
    "taskId": "task",
    "deliveryKey": "delivery",
    "deliveryId": "delivery",
    "turnId": "turn",
    "threadId": "thread",
    "commentId": "comment",
    "author": "",
    "state": "",
    "status": "",
    "action": "",
    "since": "",
    "until": "",
}
"""Parameters and the columns that they match; those without one are read apart."""

_CHAIN = ("taskId", "deliveryKey", "deliveryId", "turnId", "threadId", "commentId", "since", "until")
_WHERE = ("repoKey", "resourceKey", "sessionKey")
ACCEPTED: Mapping[str, tuple[str, ...]] = {
    "tasks": ("author", "state", *_WHERE, *_CHAIN),
    "audit": ("author", "action", *_WHERE, *_CHAIN),
    "sessions": ("status", "threadId", "since", "until", *_WHERE),
    "turns": ("status", "taskId", "threadId", "turnId", "sessionKey", "since", "until"),
    "comments": ("status", "taskId", "turnId", "commentId", "resourceKey", "since", "until"),
    "repositories": ("status", "repoKey", "since", "until"),
    "deliveries": ("status", "author", *_WHERE, *_CHAIN),
    "intents": ("status", "taskId", "turnId", "since", "until"),
}
STATUSES: Mapping[str, frozenset[str]] = {
    "tasks": frozenset(STATES),
    "sessions": frozenset(("active", "waiting_user", "closed")),
    "turns": frozenset(("started", "completed", "interrupted", "failed", "cancelled")),
    "comments": frozenset(("pending", "sent", "confirmed", "failed")),
    "repositories": frozenset(("active", "disabled", "blocked")),
    "deliveries": frozenset(("accepted", "ignored", "duplicate", "rejected", "deferred")),
    "intents": frozenset(("open", "succeeded", "failed", "unknown")),
}


class Json(Response):
    """JSON by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - JSON
        """The bytes of ``content``."""
        return orjson.dumps(content, default=str)


def invalid(name: str, message: str) -> Invalid:
    """A parameter that cannot be used."""
    return Invalid(message, code="invalid_parameter", params={"name": name})


def query_routes(queries: Queries) -> list[Route]:
    """The routes of this module."""

    async def overview(request: Request) -> Response:
        _only(request, frozenset(("min_position",)))
        await _reach(queries, request)
        return Json(await queries.overview())

    async def task(request: Request) -> Response:
        _only(request, frozenset(("min_position",)))
        return Json(await queries.task(request.path_params["task_id"]))

    def listing(view: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            selection = selection_of(view, request)
            await _reach(queries, request)
            match view:
                case "tasks":
                    page = await queries.tasks(selection)
                case "audit":
                    page = await queries.audit(selection)
                case _:
                    page = await queries.listed(view, selection)
            return Json(_listed(page))

        return answer

    return [
        Route(f"{PREFIX}/overview", overview, methods=["GET"]),
        Route(f"{PREFIX}/tasks/{{task_id}}", task, methods=["GET"]),
        *(Route(f"{PREFIX}/{view}", listing(view), methods=["GET"]) for view in ACCEPTED),
    ]


def selection_of(view: str, request: Request) -> Selection:
    """Read a list's parameters. Raises ``Invalid`` ``invalid_parameter`` with the parameter's name."""
    accepted = ACCEPTED[view]
    _only(request, PAGING | set(accepted))
    given = {name: value for name, value in request.query_params.items() if value != ""}
    where: dict[str, Any] = {}
    for name in accepted:
        if name not in given or not FILTERS[name]:
            continue
        value: Any = given[name]
        if name == "deliveryId":
            value = f"default:{value}"
        elif name == "commentId":
            value = _number(name, value, least=0, most=2**63 - 1)
        if where.setdefault(FILTERS[name], value) != value:
            raise invalid(name, f"{name} contradicts another parameter")
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "order is asc or desc")
    return Selection(
        where=where,
        states=_states(view, given),
        author=given.get("author"),
        since=_moment("since", given.get("since")),
        until=_moment("until", given.get("until")),
        descending=order == "desc",
        after=_decoded(given["cursor"]) if "cursor" in given else None,
        limit=_number("limit", given.get("limit", str(LIMIT)), least=1, most=MOST),
    )


def _states(view: str, given: Mapping[str, str]) -> tuple[str, ...] | None:
    name = {"tasks": "state", "audit": "action"}.get(view, "status")
    if name not in given:
        return None
    asked = tuple(part for part in given[name].split(",") if part)
    known = STATUSES.get(view)
    unknown = [part for part in asked if known is not None and part not in known]
    if unknown or not asked:
        raise invalid(name, f"{name} holds a value that there is not")
    return asked


def _only(request: Request, accepted: frozenset[str]) -> None:
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in accepted:
            raise Invalid(
                "this route has no such parameter", code="unknown_parameter", params={"name": name[:100]}
            )
        if names.count(name) > 1:
            raise invalid(name, f"{name} is given twice")


async def _reach(queries: Queries, request: Request) -> None:
    text = request.query_params.get("min_position")
    if text:
        await queries.reach(_number("min_position", text, least=0, most=2**63 - 1))


def _number(name: str, text: str, *, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise invalid(name, f"{name} is a whole number from {least} to {most}")
    return int(text)


def _moment(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
        if moment.tzinfo is not None:
            return stamp(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    raise invalid(name, f"{name} is a time like 2026-08-24T08:00:00Z")


def _listed(page: Page) -> dict[str, Any]:
    return {"items": page.items, "nextCursor": _encoded(page.following)}


def _encoded(place: tuple[int, str] | None) -> str | None:
    if place is None:
        return None
    return base64.urlsafe_b64encode(f"{place[0]}:{place[1]}".encode()).decode().rstrip("=")


def _decoded(cursor: str) -> tuple[int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise invalid("cursor", "the cursor is not one that this service gave") from None
    order, separator, key = text.partition(":")
    if not (separator and order.isascii() and order.isdigit() and len(order) < 19 and "\x00" not in key):
        raise invalid("cursor", "the cursor is not one that this service gave")
    return int(order), key
