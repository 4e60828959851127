"""The POST routes by which an operator steers (seed §6.2; api-and-console, HTTP).

Body: ``{requestId, reason}``, nothing else; the header ``Idempotency-Key`` may stand for ``requestId``. Bodies are
strict: each way in which one can be wrong is a 400 with its own code and, where there is one, the field's name.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from domain import ids
from domain.faults import Invalid, UnsupportedType
from domain.processes.steering import Act, Command
from services.control import Control
from services.http.query import PREFIX, Json

MAX_BODY = 64 * 1024
MAX_REASON = 2_000
ADMIN = "admin:token"
"""Whom the one bearer stands for, until tokens have owners."""

_FIELDS = ("requestId", "reason")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_TASK_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class _Duplicate(ValueError):
    """A name stands twice in an object."""


def control_routes(control: Control) -> list[Route]:
    """The routes of this module. All need the token (``services.http.app``)."""

    def route(path: str, act: Act, target: Callable[[Request], str | None]) -> Route:
        async def answer(request: Request) -> Response:
            return await _answered(control, request, act, target(request))

        return Route(f"{PREFIX}/{path}", answer, methods=["POST"])

    service: tuple[Act, ...] = ("pause", "resume")
    task: tuple[Act, ...] = ("cancel", "abort", "unblock", "retry")
    repository: tuple[Act, ...] = ("disable", "enable")
    return [
        *(route(f"control/{act}", act, lambda _request: None) for act in service),
        *(route(f"tasks/{{task_id}}/{act}", act, _task_id) for act in task),
        *(route(f"repos/{{repo_key:path}}/{act}", act, _repo_key) for act in repository),
    ]


async def _answered(control: Control, request: Request, act: Act, target: str | None) -> Response:
    for name in request.query_params:
        raise Invalid("this route has no parameters", code="unknown_parameter", params={"name": name[:100]})
    fields = decoded(
        await _body(request), request.headers.get("content-type"), request.headers.get("idempotency-key")
    )
    command = Command(
        act=act, request_id=fields["requestId"], reason=fields["reason"], actor=ADMIN, target=target
    )
    outcome = await control.act(command)
    return Json(outcome.answer, status_code=outcome.http_status)


def _task_id(request: Request) -> str:
    task_id: str = request.path_params["task_id"]
    if not _TASK_ID.fullmatch(task_id):
        raise Invalid("this is no task id", code="invalid_task_id", params={"name": "taskId"})
    return task_id


def _repo_key(request: Request) -> str:
    """The key as the server decoded it, once; whatever is still encoded, or climbs, is no key."""
    key: str = request.path_params["repo_key"]
    try:
        ids.workspace_parts(key)
    except Invalid as fault:
        raise Invalid(
            "this is no repository key: it looks like default:owner/name, percent-encoded, in lower case",
            code=fault.code,
            params={"name": "repoKey"},
        ) from None
    return key


async def _body(request: Request) -> bytes:
    held = b""
    async for chunk in request.stream():
        held += chunk
        if len(held) > MAX_BODY:
            raise Invalid("the body is larger than 64 KiB", code="body_too_large", params={"limit": MAX_BODY})
    return held


def decoded(raw: bytes, content_type: str | None = None, key: str | None = None) -> dict[str, str]:
    """``requestId`` and ``reason`` of a body; ``Invalid`` with a code of its own for each fault.

    ``invalid_json``, ``trailing_json``, ``duplicate_field``, ``wrong_type``, ``null_field``, ``unknown_field``,
    ``missing_field``, ``invalid_field``, ``idempotency_key_differs``; ``UnsupportedType`` for another content type.
    """
    if content_type is not None and content_type.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedType("this route takes application/json")
    body = _parsed(raw)
    if not isinstance(body, dict):
        raise _wrong("body", "the body is an object")
    for name, value in body.items():
        if name not in _FIELDS:
            raise Invalid("there is no such field", code="unknown_field", params={"name": _shown(name)})
        if value is None:
            raise Invalid(f"{name} is null", code="null_field", params={"name": name})
        if not isinstance(value, str):
            raise _wrong(name, f"{name} is text")
    if key is not None and body.setdefault("requestId", key) != key:
        raise Invalid(
            "Idempotency-Key and requestId differ",
            code="idempotency_key_differs",
            params={"name": "requestId"},
        )
    for name in _FIELDS:
        if name not in body:
            raise Invalid(f"{name} is missing", code="missing_field", params={"name": name})
    if not _REQUEST_ID.fullmatch(body["requestId"]):
        raise _unusable("requestId", "requestId is 1 to 100 letters, digits, dots, hyphens and underscores")
    reason = body["reason"].strip()
    if not reason or len(reason) > MAX_REASON or _CONTROL.search(reason) or _lone(reason):
        raise _unusable("reason", f"reason is 1 to {MAX_REASON} characters, none of them a control character")
    return {"requestId": body["requestId"], "reason": reason}


def _parsed(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        text = raw.decode("utf-8")
        decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
        value, end = decoder.raw_decode(text.lstrip(" \t\r\n"))
    except _Duplicate as twice:
        raise Invalid(
            "a field stands twice", code="duplicate_field", params={"name": _shown(str(twice))}
        ) from None
    except (ValueError, RecursionError):
        raise Invalid("the body is no JSON", code="invalid_json") from None
    if text.lstrip(" \t\r\n")[end:].strip(" \t\r\n"):
        raise Invalid("something follows the JSON", code="trailing_json")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Duplicate(name)
        found[name] = value
    return found


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


def _lone(text: str) -> bool:
    """Whether a surrogate stands alone: no text that could be written down."""
    return any("\ud800" <= each <= "\udfff" for each in text)


def _shown(name: str) -> str:
    return name[:100].encode("utf-8", "replace").decode()


def _wrong(name: str, message: str) -> Invalid:
    return Invalid(message, code="wrong_type", params={"name": name})


def _unusable(name: str, message: str) -> Invalid:
    return Invalid(message, code="invalid_field", params={"name": name})
