"""Who may trigger what, and where: the settings that decide, and the small questions that they answer.

Values come from the configuration; what is decided here can be decided again from the log (gitea-workflow, Who may,
Loops, Which secret).
"""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from domain.webhooks import Permissions, Person

TriggerPolicy = Literal["write", "admin", "allow-list", "anyone"]
Right = Literal["granted", "denied", "unknown"]
Trigger = Literal["comment", "review", "issue", "pull_request", "edit"]
Match = Literal["bot", "allowed", "other_bot", "allowed_bot"]

EVERY_TRIGGER: frozenset[Trigger] = frozenset(("comment", "review", "issue", "pull_request", "edit"))

GITEA_ACTIONS_ID = -2
"""Gitea's own account for its workflows: a bot wherever it appears."""

_PORTS = {"http": 80, "https": 443}


@dataclasses.dataclass(frozen=True)
class Listed:
    """An entry of a list of accounts: a login, an id, or both (then both must match: logins can be taken over)."""

    login: str | None = None
    id: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Listed":
        """``login`` or ``login:id``; ``ValueError`` for anything else."""
        login, colon, ident = text.strip().removeprefix("@").partition(":")
        if not login or (colon and not (ident.isascii() and ident.isdigit())):
            raise ValueError("an entry is a login, or login:id")
        return cls(login=login, id=int(ident) if colon else None)

    def matches(self, person: Person) -> bool:
        """Whether this account is meant. An entry with an id is not matched by a login alone."""
        if self.id is not None and self.id != person.id:
            return False
        if self.login is not None and self.login.casefold() != person.login.casefold():
            return False
        return self.id is not None or self.login is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Every setting that decides about a delivery.

    ``repositories``: patterns ``owner/name``, or ``*`` for all. ``gitea_urls``: under which a ``clone_url`` must lie.
    ``bot_id`` None: not known yet, the login decides. ``rate_limit``: tasks per issue or pull request within
    ``rate_window_s``, 0 for no limit. ``denial_window_s``: between receipts to one denied author of a repository.
    ``receipt_templates``: own texts by status, ``{code}`` stands for the error code.
    """

    bot_login: str
    gitea_urls: tuple[str, ...]
    repositories: tuple[str, ...]
    bot_id: int | None = None
    shared_account: bool = False
    trigger_policy: TriggerPolicy = "write"
    allow: tuple[Listed, ...] = ()
    other_bots: tuple[Listed, ...] = ()
    allowed_bots: tuple[Listed, ...] = ()
    triggers: frozenset[Trigger] = EVERY_TRIGGER
    rate_limit: int = 60
    rate_window_s: float = 3600
    denial_window_s: float = 3600
    disabled_answer: Literal["conflict", "ignore"] = "conflict"
    locale: str = "en"
    receipt_templates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules_version: int = 1


def matches(rules: Rules, person: Person | None) -> frozenset[Match]:
    """Which lists an account stands on. Recorded with a delivery, because logins are not part of events."""
    if person is None:
        return frozenset()
    lists: tuple[tuple[Match, tuple[Listed, ...]], ...] = (
        ("bot", (Listed(id=rules.bot_id) if rules.bot_id is not None else Listed(login=rules.bot_login),)),
        ("allowed", rules.allow),
        ("other_bot", rules.other_bots),
        ("allowed_bot", rules.allowed_bots),
    )
    found: set[Match] = {name for name, entries in lists if any(entry.matches(person) for entry in entries)}
    if person.id == GITEA_ACTIONS_ID:
        found.add("other_bot")
    return frozenset(found)


def taken_over(rules: Rules, person: Person) -> bool:
    """Whether the allow-list names this login with another id: refused, and reported to the operator."""
    same = [entry for entry in rules.allow if (entry.login or "").casefold() == person.login.casefold()]
    return bool(same) and not any(entry.matches(person) for entry in same)


def may_trigger(
    policy: TriggerPolicy, permissions: Permissions | None, *, user_id: int, listed: bool = False
) -> Right:
    """Whether this account may set the agent to work.

    ``permissions`` is the account's right on code as a signed payload states it, None where none does. ``listed``:
    whether it stands on the allow-list. Ghosts and Gitea's own accounts (ids below 1) never may.
    """
    if user_id < 1:
        return "denied"
    if policy == "anyone":
        return "granted"
    if policy == "allow-list":
        return "granted" if listed else "denied"
    if permissions is None:
        return "unknown"
    enough = permissions.admin if policy == "admin" else permissions.admin or permissions.push
    return "granted" if enough else "denied"


def serves(patterns: tuple[str, ...], owner: str, name: str) -> bool:
    """Whether one of the patterns names this repository; cases are not told apart, ``*`` alone means all."""
    for pattern in patterns:
        if pattern == "*":
            return True
        wanted_owner, slash, wanted_name = pattern.lower().partition("/")
        if slash and _like(owner, wanted_owner) and _like(name, wanted_name):
            return True
    return False


def native(urls: tuple[str, ...], clone_url: str) -> bool:
    """Whether a ``clone_url`` lies under one of our Gitea's addresses. One with a credential or ``..`` never does."""
    place = _place(clone_url)
    if place is None:
        return False
    for url in urls:
        base = _place(url)
        if base is None or base[0] != place[0]:
            continue
        under = place[1][: len(base[1])] == base[1]
        if under and len(place[1]) > len(base[1]) and ".." not in place[1]:
            return True
    return False


def _like(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern)


def _place(url: str) -> tuple[tuple[str, str, int | None], tuple[str, ...]] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        return None
    return (parts.scheme, parts.hostname.lower(), port), tuple(part for part in parts.path.split("/") if part)
