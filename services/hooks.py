"""A repository's own webhook: made, set right, and looked at with an owner's token that is used for this call only.

Gitea shows a hook's secret to every administrator of its repository and copies it into repositories made from a
template, so each repository gets an address of its own with a secret that is worth that repository only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from domain.faults import Invalid
from domain.gitea import Hook

EVENTS = ("issue_comment", "issues", "pull_request", "pull_request_comment", "pull_request_review", "push")
"""What must be among a hook's events; ``push`` lets Gitea's test button send something."""

_REVIEWS = frozenset(
    ("pull_request_review_approved", "pull_request_review_rejected", "pull_request_review_comment")
)  # how newer versions of Gitea list pull_request_review

PATH = "/api/gitea/webhook"


class HookHands(Protocol):
    """What an owner may do, by their token (``adapters.gitea.rest`` behind ``services.wiring``)."""

    async def repository_id(self, owner: str, name: str) -> int:
        """Gitea's id of a repository."""
        ...

    async def hooks(self, owner: str, name: str) -> Sequence[Hook]:
        """All hooks of a repository; ``gitea_forbidden`` for who does not own it."""
        ...

    async def create_hook(self, owner: str, name: str, *, url: str, secret: str) -> Hook:
        """Make an active JSON hook with the events that this service needs."""
        ...

    async def update_hook(self, owner: str, name: str, hook_id: int, *, url: str, secret: str) -> Hook:
        """Set everything of a hook again."""
        ...

    def derived_secret(self, repository_id: int) -> str:
        """The secret of this repository's own hook."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class HookReport:
    """What was done or found. ``findings``: what is wrong, each in a sentence."""

    outcome: Literal["created", "updated", "ok", "missing", "wrong"]
    repository: str
    repository_id: int
    url: str
    hook_id: int | None = None
    findings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The members, snake case."""
        return dataclasses.asdict(self)


def split_name(repository: str) -> tuple[str, str]:
    """``OWNER/REPO``; ``Invalid`` else."""
    owner, _, name = repository.partition("/")
    if not owner or not name or "/" in name:
        raise Invalid("name the repository as OWNER/REPO", code="invalid_repository_name")
    return owner, name


def hook_url(service_url: str, repository_id: int) -> str:
    """The address of a repository's own hook."""
    return f"{service_url.rstrip('/')}{PATH}/{repository_id}"


async def install(hands: HookHands, repository: str, service_url: str) -> HookReport:
    """Make the repository's hook, or set the one at this address right. Idempotent."""
    owner, name = split_name(repository)
    ident = await hands.repository_id(owner, name)
    url, secret = hook_url(service_url, ident), hands.derived_secret(ident)
    found = [hook for hook in await hands.hooks(owner, name) if hook.url == url]
    if found:
        hook = await hands.update_hook(owner, name, found[0].id, url=url, secret=secret)
    else:
        hook = await hands.create_hook(owner, name, url=url, secret=secret)
    return HookReport(
        outcome="updated" if found else "created",
        repository=repository,
        repository_id=ident,
        url=url,
        hook_id=hook.id,
        findings=judge(hook),
    )


async def check(hands: HookHands, repository: str, service_url: str) -> HookReport:
    """Look at the repository's hook and change nothing. Its secret cannot be read back: Gitea never shows it."""
    owner, name = split_name(repository)
    ident = await hands.repository_id(owner, name)
    url = hook_url(service_url, ident)
    every = await hands.hooks(owner, name)
    found = [hook for hook in every if hook.url == url]
    plain = [hook for hook in every if hook.url == f"{service_url.rstrip('/')}{PATH}"]
    findings: list[str] = []
    if plain:
        findings.append(
            "another hook uses the address without the repository's id, whose secret is the service's own"
        )
    if len(found) > 1:
        findings.append(f"{len(found)} hooks have this address: remove all but one")
    if not found:
        return HookReport(
            outcome="missing", repository=repository, repository_id=ident, url=url, findings=tuple(findings)
        )
    findings.extend(judge(found[0]))
    return HookReport(
        outcome="wrong" if findings else "ok",
        repository=repository,
        repository_id=ident,
        url=url,
        hook_id=found[0].id,
        findings=tuple(findings),
    )


def judge(hook: Hook) -> tuple[str, ...]:
    """What is wrong with a hook's settings."""
    findings = []
    if not hook.active:
        findings.append("the hook is switched off")
    if hook.content_type != "json":
        findings.append(f"the hook sends {hook.content_type}, not json")
    given = set(hook.events)
    if given >= _REVIEWS:
        given.add("pull_request_review")
    missing = [event for event in EVENTS if event not in given]
    if missing:
        findings.append("the hook does not send " + ", ".join(missing))
    return tuple(findings)
