"""Mentions that a delivery did not tell whole: texts found in Gitea, and what a deferred delivery came to. Pure."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from domain.deliveries import DeliveryDecided, DeliveryReceived
from domain.gitea import Review
from domain.processes.intake_facts import kept
from domain.processes.intake_state import Answer
from domain.runs import Comment
from domain.webhooks import CommentPart, Person, Refs, Repository, Resource

_STATES = {"comment": "COMMENT", "approved": "APPROVED", "rejected": "REQUEST_CHANGES"}
_NEAR_S = 600.0
"""How far a review's time may lie from its delivery's: the clocks are two."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A text in Gitea that mentions the bot, and where. ``body`` as Gitea shows it.

    ``cause``: the delivery that led to it, as ``stream@version``. ``unexplained``: it was changed after it was
    written, and nobody signed who did.
    """

    repository: Repository
    resource: Resource
    refs: Refs | None
    part: CommentPart
    ident: str
    origin: Literal["deferred", "reconciled"]
    cause: str | None = None
    inline: bool = False
    unexplained: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The pull request of a review."""

    repository: Repository
    resource: Resource
    refs: Refs | None
    cause: str

    def found(self, part: CommentPart, ident: str) -> Found:
        """A text of it."""
        return Found(
            repository=self.repository,
            resource=self.resource,
            refs=self.refs,
            part=part,
            ident=ident,
            origin="deferred",
            cause=self.cause,
        )


def comment_part(comment: Comment) -> CommentPart:
    """A comment as Gitea lists it, as what may mention the bot."""
    return CommentPart(
        kind="comment",
        id=comment.id,
        body=comment.body,
        author=Person(id=comment.author_id, login=comment.author),
        created_at=comment.created_at,
        updated_at=comment.updated_at,
        created_at_utc=comment.created_at,
        updated_at_utc=comment.updated_at,
        html_url=comment.url,
    )


def matching(fact: DeliveryReceived, reviews: Sequence[Review], body: str) -> list[Review]:
    """The reviews that a delivery may have told of: same author, state and text, near in time.

    Several if they cannot be told apart: each is decided once, whichever delivery comes first. If none has the text
    any more, the nearest one.
    """
    at = datetime.fromisoformat(fact.facts["at"])
    state = _STATES.get(fact.facts.get("review_state", ""))
    near: list[tuple[float, Review]] = []
    for review in reviews:
        if review.author is None or review.author.id != fact.sender_id or review.state != state:
            continue
        distance = abs((datetime.fromisoformat(review.submitted_at) - at).total_seconds())
        if distance <= _NEAR_S:
            near.append((distance, review))
    near.sort(key=lambda each: (each[0], each[1].id))
    same = [review for _, review in near if kept(review.body)[0] == body]
    return same or [review for _, review in near[:1]]


def outcome(
    fact: DeliveryReceived, answers: Sequence[Answer], *, gone: bool, session_key: str | None
) -> DeliveryDecided:
    """What a deferred delivery came to: its first task, else what was done or refused, else that nothing was asked.

    ``gone``: what it told of is no longer there. ``session_key``: that of the best answer's task.
    """
    found = best(answers)
    if found is None:
        reason = "trigger_deleted" if gone else "no_mention"
        return DeliveryDecided(
            delivery_key=fact.delivery_key, status="ignored", reason=reason, http_status=200
        )
    if found.status == "accepted":
        return DeliveryDecided(
            delivery_key=fact.delivery_key,
            status="accepted",
            reason=found.reason,
            http_status=202 if found.reason is None else 200,
            task_id=found.task_id,
            session_key=session_key,
        )
    rejected = found.status == "rejected"
    return DeliveryDecided(
        delivery_key=fact.delivery_key,
        status="rejected" if rejected else "ignored",
        reason=found.reason,
        http_status=409 if rejected else 200,
        task_id=found.task_id,
        session_key=session_key,
    )


def best(answers: Sequence[Answer]) -> Answer | None:
    """The answer that tells most: a task before a word, a word before a refusal."""
    weight = {"accepted": 0, "rejected": 1}
    return min(
        answers, key=lambda answer: (weight.get(answer.status, 2), answer.task_id is None), default=None
    )
