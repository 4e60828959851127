"""The webhook's door as tests knock on it: the real routes over ASGI, with a log of the test's choice."""

import dataclasses
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from adapters.gitea import webhook
from domain.policy import Rules
from services.http.ingress import Limits, routes
from services.intake import Intake, Refusals
from services.ports import EventLog

EVIDENCE = Path(__file__).parent.parent / "evidence"
SAMPLES = EVIDENCE / "gitea"
SECRET = "a secret that signs deliveries"
RULES = Rules(
    bot_login="ccweb-bot", bot_id=99, gitea_urls=("https://git.example.com",), repositories=("acme/*",)
)
_UNSENT = {"content-length", "accept-encoding", "host"}


class Door:
    """The ingress over one log."""

    def __init__(
        self,
        event_log: EventLog,
        rules: Rules = RULES,
        *,
        secrets: tuple[str, ...] = (SECRET,),
        limits: Limits | None = None,
    ) -> None:
        self.log = event_log
        self.rules = rules
        self.counted: list[tuple[str, str]] = []
        self.refusals = Refusals(event_log)
        self.intake = Intake(event_log, lambda: self.rules)
        self.app = Starlette(
            routes=routes(
                intake=self.intake,
                reading=webhook,
                secrets=lambda: secrets,
                refusals=self.refusals,
                limits=limits,
                counted=lambda status, reason: self.counted.append((status, reason)),
            )
        )

    async def send(
        self, content: bytes, headers: Mapping[str, str], path: str = "/api/gitea/webhook"
    ) -> httpx.Response:
        """One request."""
        kept = {name: value for name, value in headers.items() if name.lower() not in _UNSENT}
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            return await client.post(path, content=content, headers=kept)

    async def knock(self, sent: "Sent", path: str = "/api/gitea/webhook") -> httpx.Response:
        """Send one made-up delivery."""
        return await self.send(sent.content, sent.headers, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sent:
    """A signed request."""

    content: bytes
    headers: dict[str, str]


def sample(name: str = "01_issue_comment_created") -> dict[str, Any]:
    """The JSON of one sample delivery, to be changed at will."""
    loaded: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_bytes())
    return loaded


def signed(
    payload: Mapping[str, Any] | bytes,
    delivery_id: str | None = "d-1",
    *,
    secret: str = SECRET,
    event: str = "issue_comment",
    content_type: str = "application/json",
) -> Sent:
    """A payload as Gitea would send it."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload, indent=2).encode()
    headers = {
        "Content-Type": content_type,
        "X-Gitea-Event": event,
        "X-Gitea-Signature": hmac.digest(secret.encode(), content, "sha256").hex(),
    }
    if delivery_id is not None:
        headers["X-Gitea-Delivery"] = delivery_id
    return Sent(content=content, headers=headers)


def comment(
    body: str,
    *,
    ident: int = 3001,
    action: str = "created",
    before: str | None = None,
    sender: int = 11,
    author: int = 11,
    push: bool = True,
    number: int = 12,
    repository: int = 7,
    name: str = "widget",
) -> dict[str, Any]:
    """A comment event, by default of a writer on issue 12 of acme/widget."""
    payload = sample()
    payload["action"] = action
    payload["comment"] |= {"id": ident, "body": body}
    payload["comment"]["user"] |= {"id": author, "login": f"user{author}", "username": f"user{author}"}
    payload["sender"] |= {"id": sender, "login": f"user{sender}", "username": f"user{sender}"}
    payload["issue"]["number"] = number
    payload["repository"] |= {
        "id": repository,
        "name": name,
        "full_name": f"acme/{name}",
        "clone_url": f"https://git.example.com/acme/{name}.git",
        "permissions": {"admin": False, "push": push, "pull": True},
    }
    if before is not None:
        payload["changes"] = {"body": {"from": before}}
    return payload
