"""What commands say to a running service over HTTP: its lists, and signed test deliveries."""

import hashlib
import hmac
import ipaddress
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson

from domain.faults import Conflict, Fault, Invalid, NotFound, Unavailable
from services.config import Settings
from services.config_values import configuration_invalid

TIMEOUT_S = 10.0
WEBHOOK = "/api/gitea/webhook"
_SIGNED = frozenset(("x-gitea-signature", "x-gogs-signature", "x-hub-signature", "x-hub-signature-256"))
_REVIEW_EVENTS = {
    "pull_request_review_approved": "pull_request_approved",
    "pull_request_review_rejected": "pull_request_rejected",
    "pull_request_review_comment": "pull_request_comment",
}
_OURS = frozenset(("host", "content-length", "accept-encoding", "connection", "user-agent"))


class Refused(Fault):
    """The service answered with an error of its own; the code is the service's."""


def service_url(settings: Settings) -> str:
    """Where the service of these settings can be reached from this host."""
    host = settings.host
    try:
        if ipaddress.ip_address(host).is_unspecified:
            host = "127.0.0.1"
    except ValueError:
        pass
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def get(settings: Settings, url: str | None, path: str, params: Mapping[str, str | int] | None = None) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a GET with the admin token. Raises ``Unavailable``, ``NotFound`` or ``Refused``."""
    answer = _send("GET", (url or service_url(settings)) + path, headers=_bearer(settings), params=params)
    body = _json(answer)
    if answer.status_code == 200:
        return body
    raise _fault(answer, body)


def post(settings: Settings, url: str | None, path: str, body: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """The JSON of an accepted POST with the admin token.

    Raises ``Unavailable``, ``NotFound``, ``Conflict``, ``Invalid`` or ``Refused``, with the service's own code.
    """
    answer = _send("POST", (url or service_url(settings)) + path, headers=_bearer(settings), json=dict(body))
    told = _json(answer)
    if answer.is_success:
        return told
    fault = _fault(answer, told)
    given = {400: Invalid, 409: Conflict}.get(answer.status_code)
    raise fault if given is None else given(fault.message, code=fault.code, params=_params(told))


def deliver(
    settings: Settings,
    file: Path,
    *,
    url: str | None,
    event: str | None,
    delivery_id: str | None,
    repository_id: int | None,
    derived: str | None,
) -> dict[str, Any]:
    """Send ``file`` as a delivery signed anew; ``{httpStatus, deliveryId, answer}``.

    Headers come from ``<name>.headers.json`` beside it, where there is one, but for the signature; else they are
    made from the payload. ``derived`` is the secret for ``repository_id``; without one the plain secret signs.
    """
    secret = derived or (settings.webhook_secrets[0] if settings.webhook_secrets else None)
    if secret is None:
        raise configuration_invalid(
            "webhook_secret", "TURNKEEPER_WEBHOOK_SECRET is missing: nothing to sign with"
        )
    try:
        payload = file.read_bytes()
    except OSError as error:
        raise Invalid(f"{file.name} cannot be read: {error.strerror}", code="file_unreadable") from None
    headers = headers_for(file, payload, event=event, delivery_id=delivery_id)
    headers["X-Gitea-Signature"] = hmac.digest(secret.encode(), payload, "sha256").hex()
    path = WEBHOOK if repository_id is None else f"{WEBHOOK}/{repository_id}"
    answer = _send("POST", (url or service_url(settings)) + path, headers=headers, content=payload)
    return {
        "httpStatus": answer.status_code,
        "deliveryId": headers["X-Gitea-Delivery"],
        "payloadHash": "sha256:" + hashlib.sha256(payload).hexdigest(),
        "answer": _json(answer),
    }


def headers_for(file: Path, payload: bytes, *, event: str | None, delivery_id: str | None) -> dict[str, str]:
    """A delivery's headers without signatures."""
    beside = file.with_name(file.name.removesuffix(".json").removesuffix(".form") + ".headers.json")
    headers: dict[str, str] = {}
    if beside.is_file():
        recorded = orjson.loads(beside.read_bytes())
        headers = {name: value for name, value in recorded.items() if name.lower() not in _SIGNED | _OURS}
    else:
        name, kind = guess_event(payload)
        headers = {"Content-Type": "application/json", "X-Gitea-Event": name, "X-Gitea-Event-Type": kind}
    if event is not None:
        headers["X-Gitea-Event"] = headers["X-Gitea-Event-Type"] = event
    if delivery_id is not None or "X-Gitea-Delivery" not in headers:
        headers["X-Gitea-Delivery"] = delivery_id or str(uuid.uuid4())
    return headers


def guess_event(payload: bytes) -> tuple[str, str]:
    """Event and event type of a payload, as Gitea names them, from what stands in it."""
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError:
        body = {}
    given = body if isinstance(body, dict) else {}
    if "comment" in given:
        return "issue_comment", "pull_request_comment" if given.get("is_pull") else "issue_comment"
    review = given.get("review")
    if isinstance(review, dict):
        kind = str(review.get("type"))
        return _REVIEW_EVENTS.get(kind, "pull_request_comment"), kind
    if "pull_request" in given:
        return "pull_request", "pull_request"
    if "issue" in given:
        return "issues", "issues"
    return "push", "push"


def _bearer(settings: Settings) -> dict[str, str]:
    if settings.admin_token is None:
        raise configuration_invalid(
            "admin_token", "TURNKEEPER_ADMIN_TOKEN is missing: the service asks for it"
        )
    return {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}


def _params(told: Any) -> Mapping[str, object]:  # noqa: ANN401 - JSON
    params = told.get("params") if isinstance(told, dict) else None
    return params if isinstance(params, dict) else {}


def _send(method: str, url: str, **parts: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own parameters
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
            return client.request(method, url, **parts)
    except (httpx.HTTPError, httpx.InvalidURL):
        raise Unavailable(
            "the service does not answer: see that `turnkeeper serve` runs, and where (TURNKEEPER_HOST,"
            " TURNKEEPER_PORT)",
            code="service_unreachable",
        ) from None


def _json(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


def _fault(answer: httpx.Response, body: Any) -> Fault:  # noqa: ANN401 - JSON
    told = body if isinstance(body, dict) else {}
    code, message = (
        str(told.get("code", "refused")),
        str(told.get("message", f"the service answered {answer.status_code}")),
    )
    match answer.status_code:
        case 404:
            return NotFound(message, code=code)
        case 503:
            return Unavailable(message, code=code)
        case _:
            return Refused(message, code=code)
