"""What follows from a delivery: the one ordered list of reasons, and what is done when none of them holds.

``decide`` is pure. Its inputs are the delivery's fact with its texts, folds of streams whose versions are premises of
the append, and the rules. The order is that of gitea-workflow, Intake, "The answer says what was decided":

    foreign_instance · repository_not_allowed · own_event · bot_not_allowed · not_a_trigger · no_mention ·
    repository_disabled · comment_already_handled · (deferred) · not_permitted · (command_not_available) ·
    rate_limited · command · answered · admitted

Where ``not_a_trigger`` would hold, an edit or a deletion may instead do something to a queued task:
``trigger_deleted``, ``instruction_amended``, or ``command`` where the edit made the text the word stop.
"""

import dataclasses
from datetime import datetime, timedelta

from domain import policy
from domain.commands import Word
from domain.deliveries import DeliveryReceived
from domain.markers import parse_markers
from domain.mentions import Mention, find_mention
from domain.policy import Rules, Trigger
from domain.processes import intake_answers, intake_effects, intake_words, words
from domain.processes.intake_effects import Decision, Refusal
from domain.processes.intake_facts import Taken, Texts, rights
from domain.processes.intake_state import State
from domain.tasks import Task
from domain.webhooks import PartKind

_CREATED: frozenset[str] = frozenset(("comment_created", "issue_opened", "pull_opened", "review_submitted"))
_EDITED: frozenset[str] = frozenset(("comment_edited", "issue_edited", "pull_edited"))
_DELETED: frozenset[str] = frozenset(("comment_deleted", "issue_deleted"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ignored:
    """Nothing is done, and why."""

    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denied:
    """The author may not, or not so often, or nobody knows: one short receipt per author and hour."""

    reason: Refusal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disabled:
    """An operator disabled the repository."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handled:
    """The same text was admitted before, under another delivery id."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deferred:
    """The payload does not say enough: a worker decides later."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Withdrawn:
    """The queued task's comment is gone, or no longer speaks to the bot."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amended:
    """The queued task's comment was edited by somebody who may."""

    mention: Mention


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """The answer to a question that a task of this session asked."""

    mention: Mention


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admitted:
    """A new task."""

    mention: Mention


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commanded:
    """A word. ``own``: about the author's own tasks only; ``amends``: an edit made a queued task's text this word."""

    word: Word
    own: bool = False
    amends: Task | None = None


Verdict = (
    Ignored | Denied | Disabled | Handled | Deferred | Withdrawn | Amended | Commanded | Answered | Admitted
)


def decide(taken: Taken, state: State, rules: Rules, *, salt: bytes) -> Decision:
    """Everything to append for a delivery, and its answer.

    ``salt``: fresh random bytes for the instruction's content. Pure; the time is the fact's own.
    """
    verdict = judge(taken.fact, taken.texts, state, rules)
    effects = intake_effects.Effects(taken=taken, state=state, rules=rules, salt=salt)
    match verdict:
        case Ignored():
            return effects.ignored(verdict.reason)
        case Denied():
            return effects.denied(verdict.reason, receipt=_receipt_due(state, rules, _at(taken.fact)))
        case Disabled():
            return effects.disabled()
        case Handled():
            return effects.handled()
        case Deferred():
            return effects.deferred()
        case Withdrawn():
            return effects.withdrawn()
        case Amended():
            return effects.amended(verdict.mention)
        case Answered():
            return intake_answers.answered(effects, verdict.mention)
        case Commanded():
            return intake_words.commanded(effects, verdict.word, own=verdict.own, amends=verdict.amends)
        case Admitted():
            return effects.admitted(verdict.mention)


def judge(fact: DeliveryReceived, texts: Texts, state: State, rules: Rules) -> Verdict:
    """The first reason that holds, or what is done."""
    reason = _unwelcome(fact, texts, rules)
    if reason is not None:
        return Ignored(reason=reason)
    if fact.shape in _DELETED:
        return Withdrawn() if state.task.state == "queued" else Ignored(reason="not_a_trigger")
    if fact.shape in _EDITED:
        return _edited(fact, texts, state, rules)
    if fact.shape not in _CREATED or not _enabled(fact, rules):
        return Ignored(reason="not_a_trigger")
    if fact.shape == "review_submitted":  # its inline comments, unknown here, may mention the bot
        return Disabled() if state.repository.disabled else Deferred()
    found = _mention(texts.now, rules)
    if found is None:
        return Ignored(reason="no_mention")
    return _admission(fact, found, state, rules)


def _unwelcome(fact: DeliveryReceived, texts: Texts, rules: Rules) -> str | None:
    repository = fact.repository
    if repository and not policy.native(rules.gitea_urls, repository["clone_url"]):
        return "foreign_instance"
    if repository and not policy.serves(rules.repositories, repository["owner"], repository["name"]):
        return "repository_not_allowed"
    lists = fact.facts["lists"]
    if rules.shared_account:
        if texts.now is not None and parse_markers(texts.now):
            return "own_event"
    elif "bot" in lists:
        return "own_event"
    if "other_bot" in lists and "allowed_bot" not in lists:
        return "bot_not_allowed"
    return None


def _edited(fact: DeliveryReceived, texts: Texts, state: State, rules: Rules) -> Verdict:
    if texts.before is None or _unchanged(fact, texts):
        return Ignored(reason="not_a_trigger")
    now, before = _mention(texts.now, rules), _mention(texts.before, rules)
    if now is not None and before is None:
        if not _enabled(fact, rules) or "edit" not in rules.triggers:
            return Ignored(reason="not_a_trigger")
        return _admission(fact, now, state, rules)
    if state.task.state != "queued" or before is None:
        return Ignored(reason="not_a_trigger")
    if now is None:
        return Withdrawn()
    return _amendment(fact, texts, now, state, rules)


def _amendment(fact: DeliveryReceived, texts: Texts, found: Mention, state: State, rules: Rules) -> Verdict:
    """An edit of a queued task's text: it counts only from somebody who may, and only on the present text."""
    instruction = state.task.instruction or {}
    fits = (
        state.present is not None
        and texts.before == state.present
        and fact.facts.get("before_whole") == instruction.get("whole")
    )
    may = _may(fact, rules)
    if not fits or may == "unknown":
        return Ignored(reason="not_a_trigger")
    if state.repository.disabled:
        return Disabled()
    if may == "denied":
        return Denied(reason="not_permitted")
    if found.command == "stop":
        return Commanded(word="stop", amends=state.task)
    if found.command is not None:
        return Ignored(reason="not_a_trigger")
    return Amended(mention=found)


def _admission(fact: DeliveryReceived, found: Mention, state: State, rules: Rules) -> Verdict:
    if state.repository.disabled:
        return Disabled()
    if state.consumed is not None:
        return Handled()
    if fact.permissions is None and fact.route != "worker":
        return Deferred()
    word, may = found.command, _may(fact, rules)
    own = word in words.BY_AUTHORS and may != "granted" and _authored(fact, word, state)
    if may == "unknown" and not own:
        return Denied(reason="permission_unknown")
    if may != "granted" and not own:
        return Denied(reason="not_permitted")
    if word != "stop" and _too_many(state, rules, _at(fact)):
        return Denied(reason="rate_limited")
    if word is not None:
        return Commanded(word=word, own=own)
    if state.waiting.state == "waiting_user":
        return Answered(mention=found)
    return Admitted(mention=found)


def _may(fact: DeliveryReceived, rules: Rules) -> policy.Right:
    """The right of the sender, stated by the delivery itself, or found by the worker of deferred admissions.

    Unknown under every policy where the delivery states none, and where nobody knows who wrote the text.
    """
    stated = rights(fact)
    if fact.facts.get("unexplained") or (stated is None and fact.route != "worker"):
        return "unknown"
    listed = "allowed" in fact.facts["lists"]
    return policy.may_trigger(rules.trigger_policy, stated, user_id=fact.sender_id, listed=listed)


def _authored(fact: DeliveryReceived, word: Word | None, state: State) -> bool:
    """Whether a word is about a task that its own sender asked for."""
    if word is None or fact.facts.get("unexplained"):
        return False
    return bool(words.mentioned(word, state.around, fact.sender_id))


def _mention(text: str | None, rules: Rules) -> Mention | None:
    return find_mention(text, rules.bot_login) if text is not None else None


def _unchanged(fact: DeliveryReceived, texts: Texts) -> bool:
    return texts.before == texts.now and fact.facts.get("before_whole") == fact.facts.get("whole")


def _enabled(fact: DeliveryReceived, rules: Rules) -> bool:
    kind: PartKind | None = fact.part["kind"] if fact.part else None
    wanted: Trigger | None = "review" if fact.facts.get("inline") else kind
    return wanted in rules.triggers


def _too_many(state: State, rules: Rules, at: datetime) -> bool:
    if not rules.rate_limit:
        return False
    since = at - timedelta(seconds=rules.rate_window_s)
    recent = sum(datetime.fromisoformat(when) > since for _, when in state.session.admitted)
    return recent >= rules.rate_limit


def _receipt_due(state: State, rules: Rules, at: datetime) -> bool:
    if state.denied_at is None:
        return True
    return at - datetime.fromisoformat(state.denied_at) >= timedelta(seconds=rules.denial_window_s)


def _at(fact: DeliveryReceived) -> datetime:
    return datetime.fromisoformat(fact.facts["at"])
