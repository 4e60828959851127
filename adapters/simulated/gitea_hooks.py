"""Deliveries of the stand-in Gitea: signed as Gitea signs, one at a time for the whole server, never repeated.

Source of headers, signatures, formatting and limits: deliveries recorded from Gitea 1.22.6 and 1.27.0.
"""

import asyncio
import hashlib
import hmac
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

import httpx
import structlog

from adapters.simulated.gitea_json import go_json
from adapters.simulated.gitea_state import GiteaState, Hook, Repo

log = structlog.get_logger(__name__)

_FAMILIES = {
    "issues": ("issues", "issue_assign", "issue_label", "issue_milestone", "issue_comment"),
    "pull_request": (
        "pull_request",
        "pull_request_assign",
        "pull_request_label",
        "pull_request_milestone",
        "pull_request_comment",
        "pull_request_review",
        "pull_request_review_request",
        "pull_request_sync",
    ),
    "issues_only": ("issues",),
    "pull_request_only": ("pull_request",),
}
_SINGLE = {
    "create",
    "delete",
    "fork",
    "push",
    "issue_assign",
    "issue_label",
    "issue_milestone",
    "issue_comment",
    "pull_request_assign",
    "pull_request_label",
    "pull_request_milestone",
    "pull_request_comment",
    "pull_request_review",
    "pull_request_review_request",
    "pull_request_sync",
    "wiki",
    "repository",
    "release",
    "package",
    "status",
    "workflow_run",
    "workflow_job",
}
_HEADER_EVENT = {
    "pull_request_comment": "issue_comment",
    "pull_request_review_approved": "pull_request_approved",
    "pull_request_review_rejected": "pull_request_rejected",
    "pull_request_review_comment": "pull_request_comment",
    "pull_request_sync": "pull_request",
}
_SUBSCRIPTION = {
    "pull_request_review_approved": "pull_request_review",
    "pull_request_review_rejected": "pull_request_review",
    "pull_request_review_comment": "pull_request_review",
}


def stored_events(names: list[str]) -> frozenset[str]:
    """The events that Gitea stores for the names given at a hook's creation; unknown names are passed over."""
    found: set[str] = set()
    for name in names:
        found.update(_FAMILIES.get(name, (name,) if name in _SINGLE else ()))
    return frozenset(found)


@dataclass(kw_only=True, slots=True)
class GiteaDelivery:
    """One delivery: what is or was sent, and how it ended (``status`` of the answer, or ``error``)."""

    uuid: str
    hook_id: int
    event: str
    event_type: str
    action: str
    url: str
    payload: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    status: int | None = None
    error: str | None = None
    answer: str = ""
    done: bool = False


class GiteaHooks:
    """The queue of deliveries. ``timeout`` and ``delay`` are seconds; a real Gitea sends after about 1.5 s."""

    def __init__(self, state: GiteaState, *, version: str) -> None:
        self.state = state
        self.timeout = 5.0
        self.delay = 0.0
        self.log: list[GiteaDelivery] = []
        self._says_target = not version.startswith("1.22")
        self._queue: deque[GiteaDelivery] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send; what was queued before goes out first."""
        self._task = asyncio.create_task(self._work(), name="simulated-gitea-hooks")

    async def stop(self) -> None:
        """Stop sending; what is still queued is lost, as with Gitea."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def idle(self) -> None:
        """Return once every delivery that was caused so far has been tried."""
        await self._idle.wait()

    def raise_event(self, repo: Repo, event_type: str, payload: dict[str, Any]) -> list[GiteaDelivery]:
        """Queue one delivery for each hook that subscribes; the body is fixed now."""
        wanted = _SUBSCRIPTION.get(event_type, event_type)
        hooks = sorted(self.state.hooks.values(), key=lambda h: (self._distance(h), h.id))
        text = go_json(payload, indent=True)
        action = str(payload.get("action", ""))
        return [
            self._queue_one(hook, event_type, action, text)
            for hook in hooks
            if hook.active
            and wanted in hook.events
            and (hook.repo_id == repo.id or (hook.repo_id is None and hook.owner_id in (None, repo.owner_id)))
        ]

    def raise_for(self, hook: Hook, event_type: str, payload: dict[str, Any]) -> GiteaDelivery | None:
        """Queue one delivery of one hook, if it subscribes (the test button)."""
        if event_type not in hook.events:
            return None
        return self._queue_one(
            hook, event_type, str(payload.get("action", "")), go_json(payload, indent=True)
        )

    def replay(self, delivery: GiteaDelivery) -> GiteaDelivery:
        """Send the same payload again under a new id, as the button in Gitea's pages does."""
        hook = self.state.hooks[delivery.hook_id]
        return self._queue_one(hook, delivery.event_type, delivery.action, delivery.payload)

    @staticmethod
    def _distance(hook: Hook) -> int:
        return 0 if hook.repo_id is not None else 1 if hook.owner_id is not None else 2

    def _queue_one(self, hook: Hook, event_type: str, action: str, payload: str) -> GiteaDelivery:
        event = _HEADER_EVENT.get(event_type, event_type)
        form = hook.content_type == "form"
        body = f"payload={quote_plus(payload)}" if form else payload
        delivery = GiteaDelivery(
            uuid=str(uuid.uuid4()),
            hook_id=hook.id,
            event=event,
            event_type=event_type,
            action=action,
            url=hook.url,
            payload=payload,
            body=body.encode(),
            headers={},
        )
        delivery.headers = self._headers(hook, delivery, form=form)
        self.log.append(delivery)
        self._queue.append(delivery)
        self._idle.clear()
        self._wake.set()
        return delivery

    def _headers(self, hook: Hook, delivery: GiteaDelivery, *, form: bool) -> dict[str, str]:
        key, message = hook.secret.encode(), delivery.payload.encode()
        sha256 = hmac.new(key, message, hashlib.sha256).hexdigest() if key else ""
        sha1 = hmac.new(key, message, hashlib.sha1).hexdigest() if key else ""
        headers = {
            "User-Agent": "Go-http-client/1.1",
            "Content-Type": "application/x-www-form-urlencoded" if form else "application/json",
            "Accept-Encoding": "gzip",
        }
        for family in ("Gitea", "Gogs", "GitHub"):
            headers[f"X-{family}-Delivery"] = delivery.uuid
            headers[f"X-{family}-Event"] = delivery.event
            headers[f"X-{family}-Event-Type"] = delivery.event_type
        headers["X-Gitea-Signature"] = headers["X-Gogs-Signature"] = sha256
        headers["X-Hub-Signature"] = f"sha1={sha1}"
        headers["X-Hub-Signature-256"] = f"sha256={sha256}"
        if self._says_target:
            for family in ("Gitea", "GitHub"):
                headers[f"X-{family}-Hook-Installation-Target-Type"] = self._target(hook)
        return headers

    def _target(self, hook: Hook) -> str:
        if hook.repo_id is not None:
            return "repository"
        if hook.owner_id is None:
            return "system"
        return "organization" if self.state.users[hook.owner_id].is_org else "user"

    async def _work(self) -> None:
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True, timeout=None) as client:  # noqa: S113 - asyncio.timeout bounds the whole delivery
            while True:
                while self._queue:
                    await self._send(client, self._queue.popleft())
                self._wake.clear()
                self._idle.set()
                await self._wake.wait()

    async def _send(self, client: httpx.AsyncClient, delivery: GiteaDelivery) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        request = httpx.Request("POST", delivery.url, headers=delivery.headers, content=delivery.body)
        try:
            async with asyncio.timeout(self.timeout):
                answer = await client.send(request)
            delivery.status, delivery.answer = answer.status_code, answer.text[:4096]
        except TimeoutError:
            delivery.error = "timeout"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            delivery.error = f"{type(error).__name__}: {error}"
        delivery.done = True
        log.debug(
            "simulated_delivery",
            delivery=delivery.uuid,
            event_type=delivery.event_type,
            action=delivery.action,
            status=delivery.status,
            error=delivery.error,
        )
