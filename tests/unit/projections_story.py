"""A log with a life in it: deliveries, a task from its mention to its confirmed reply, another that waits."""

from typing import Any
from uuid import UUID, uuid4

from domain import contents, ids
from domain.comments import final_key, receipt_key
from domain.deliveries import DeliveryDecided, DeliveryReceived, DeliveryRefused, DeliveryRepeated
from domain.effects import EffectConcluded, EffectIntended, ToolCalled
from domain.events import Event
from domain.leases import LeaseAcquired, LeaseEnded
from domain.log import AppendRequest, Content, Draft, Metadata, Premise
from domain.repositories import MirrorFetched, RepositoryDisabled, RepositoryRegistered
from domain.sessions import SessionOpened, SessionTaskAdmitted, ThreadBound
from domain.tasks import ReplyConfirmed, ReplyObserved, TaskClaimed, TaskReceived, TaskTransitioned
from domain.turns import TurnEnded, TurnItemSeen, TurnStarted
from services.ports import EventLog

AT = "2026-08-24T08:00:00.000Z"
HASH = "sha256:" + "0" * 64
ALICE = 7


class Story:
    """Appends events with the premises that they need."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    async def put(
        self, *pairs: tuple[str, Event], contents: tuple[Content, ...] = (), actor: str = "system"
    ) -> int:
        """Append events of several streams in one request; the last position."""
        seen = await self.log.read_streams({stream for stream, _ in pairs})
        made = await self.log.append(
            AppendRequest(
                request_id=uuid4(),
                premises=tuple(Premise(stream, len(rows)) for stream, rows in seen.items()),
                drafts=tuple(Draft(stream=stream, event=event) for stream, event in pairs),
                metadata=Metadata(actor=actor),
                contents=contents,
            )
        )
        return made.last

    async def mention(
        self, number: int, *, repo: str = "acme/widget", author: int = ALICE, n: int = 1
    ) -> str:
        """An accepted delivery with its queued task; the task's id."""
        delivery_id = str(UUID(int=number * 1000 + n))
        key = ids.delivery_key(delivery_id)
        task_id = ids.task_id(key)
        owner, name = repo.split("/")
        repo_key = ids.repo_key(owner, name)
        session = ids.session_key(repo_key, "issue", number)
        text, reference = contents.content(f"delivery:{key}:text", f"fix number {number}", b"salt")
        streams = await self.log.read_streams([ids.repo_stream(repo_key), ids.session_stream(session)])
        pairs: list[tuple[str, Event]] = [
            (ids.delivery_stream(key), received(key, owner, name, author, reference))
        ]
        if not streams[ids.repo_stream(repo_key)]:
            registered = RepositoryRegistered(
                repo_key=repo_key,
                repository_id=12,
                owner=owner,
                name=name,
                clone_url=f"https://gitea.example/{repo}.git",
                default_branch="main",
                private=False,
            )
            pairs.append((ids.repo_stream(repo_key), registered))
        if not streams[ids.session_stream(session)]:
            opened = SessionOpened(session_key=session, repo_key=repo_key, kind="issue", number=number)
            pairs.append((ids.session_stream(session), opened))
        decided = DeliveryDecided(
            delivery_key=key,
            status="accepted",
            reason=None,
            http_status=202,
            task_id=task_id,
            session_key=session,
        )
        task = TaskReceived(
            task_id=task_id,
            delivery_key=key,
            repo_key=repo_key,
            resource_key=session,
            session_key=session,
            comment_id=100 + n,
            trigger={
                "kind": "comment",
                "id": 100 + n,
                "url": f"https://gitea.example/{repo}/issues/{number}#c",
            },
            author_id=author,
            instruction=reference,
            resource={
                "kind": "issue",
                "number": number,
                "title": f"Issue {number}",
                "url": "https://gitea.example/x",
            },
        )
        pairs += [
            (
                ids.session_stream(session),
                SessionTaskAdmitted(session_key=session, task_id=task_id, author_id=author, at=AT),
            ),
            (ids.task_stream(task_id), task),
            (ids.task_stream(task_id), moved(task, "received", "queued", 1)),
            (ids.task_stream(task_id), receipt_intent(task)),
            (ids.delivery_stream(key), decided),
        ]
        login = contents.login(author, "alice" if author == ALICE else f"user{author}")
        await self.put(*pairs, contents=(text, login), actor=f"gitea:user:{author}")
        return task_id

    async def receipt(self, task_id: str) -> None:
        """The receipt was posted."""
        stream = ids.task_stream(task_id)
        await self.put((stream, concluded(f"{task_id}-receipt", "receipt.create", task_id, outside_id="501")))

    async def run(self, task_id: str, *, last: str = "succeeded") -> None:
        """A run from the claim to its end; ``last`` is ``running``, ``waiting_user`` or ``succeeded``."""
        stream = ids.task_stream(task_id)
        first = (await self.log.read_stream(stream))[0].event
        if not isinstance(first, TaskReceived):
            raise TypeError(task_id)
        scope, turn = ids.lease_scope(first.repo_key), f"{task_id}-turn-1"
        lease = LeaseAcquired(
            scope=scope,
            epoch=1,
            lease_id="lease-1",
            holder={"runner_id": "r1"},
            ttl_ms=30_000,
            task_id=task_id,
        )
        claim = TaskClaimed(
            task_id=task_id, runner_id="r1", lease_id="lease-1", epoch=1, thread_id=None, left=None, at=AT
        )
        fetched = MirrorFetched(
            repo_key=first.repo_key, task_id=task_id, default_branch="main", heads={}, at=AT
        )
        await self.put(
            (ids.lease_stream(scope), lease),
            (stream, claim),
            (stream, moved(first, "queued", "preparing", 2)),
            (stream, intended(f"{task_id}-turn", "turn.start", first, turn)),
            (f"mirror:{first.repo_key}", fetched),
        )
        started = TurnStarted(
            task_id=task_id,
            session_key=first.session_key,
            turn_id=turn,
            codex_turn_id="0",
            thread_id="thread-1",
            kind="normal",
            ordinal=1,
            prompt_hash=HASH,
            at=AT,
        )
        bound = ThreadBound(
            session_key=first.session_key, thread_id="thread-1", task_id=task_id, turn_id=turn, runner_id="r1"
        )
        await self.put(
            (stream, concluded(f"{task_id}-turn", "turn.start", task_id, outside_id="0")),
            (stream, started),
            (stream, moved(first, "preparing", "running", 3)),
            (ids.session_stream(first.session_key), bound),
        )
        await self.items(task_id, turn)
        if last == "running":
            return
        if last == "waiting_user":
            await self.put(
                (stream, moved(first, "running", "waiting_user", 4)),
                (ids.lease_stream(scope), ended(scope, task_id)),
            )
            return
        await self.answer(first, turn)

    async def items(self, task_id: str, turn: str) -> None:
        """Two items of a turn."""
        seen = [
            TurnItemSeen(
                task_id=task_id,
                turn_id=turn,
                seq=seq,
                method="item/completed",
                item_type="agentMessage",
                item_id=str(seq),
                summary={},
            )
            for seq in (1, 2)
        ]
        await self.put(*((ids.turn_stream(turn), event) for event in seen))

    async def answer(self, first: TaskReceived, turn: str) -> None:
        """The final comment, the end of the turn, the confirmation."""
        task_id, stream = first.task_id, ids.task_stream(first.task_id)
        scope, key = ids.lease_scope(first.repo_key), final_key(first.task_id, turn)
        called = ToolCalled(
            task_id=task_id,
            turn_id=turn,
            tool="create_issue_comment",
            operation="comment.create",
            target=first.resource_key,
            key="call-1",
        )
        final = intended(
            f"{task_id}-final", "comment.create", first, turn, comment_key=key, comment_kind="mcp_final"
        )
        await self.put((stream, called), (stream, final))
        await self.put((stream, concluded(f"{task_id}-final", "comment.create", task_id, outside_id="502")))
        end = TurnEnded(
            task_id=task_id, turn_id=turn, status="completed", at=AT, event_seq=3, usage={"total_tokens": 9}
        )
        await self.put((stream, end), (stream, moved(first, "running", "verifying_reply", 4)))
        found = ReplyObserved(
            task_id=task_id, outcome="found", comment_ids=(502,), turn_id=turn, listings=1, at=AT
        )
        await self.put(
            (stream, found),
            (stream, ReplyConfirmed(task_id=task_id, turn_id=turn, comment_ids=(502,))),
            (stream, moved(first, "verifying_reply", "succeeded", 5)),
            (ids.lease_stream(scope), ended(scope, task_id)),
        )

    async def everything(self) -> dict[str, str]:
        """A log with something in every view; task ids by what became of them."""
        done = await self.mention(42)
        await self.receipt(done)
        await self.run(done)
        waits = await self.mention(43, repo="acme/gadget", author=8)
        await self.run(waits, last="waiting_user")
        queued = await self.mention(42, n=2)
        odd = ids.delivery_key("odd")
        refused = DeliveryRefused(
            delivery_key=odd,
            delivery_id="odd",
            payload_hash=HASH,
            error_code="invalid_payload",
            http_status=400,
        )
        await self.put((ids.delivery_stream(odd), refused))
        await self.put(("delivery-repeat:odd", DeliveryRepeated(delivery_key=odd, delivery_id="odd")))
        disabled = RepositoryDisabled(
            repo_key="default:acme/gadget", actor="admin:operator", reason="tidying", request_id="r"
        )
        await self.put((ids.repo_stream("default:acme/gadget"), disabled), actor="admin:operator")
        return {"succeeded": done, "waiting_user": waits, "queued": queued}


def received(key: str, owner: str, name: str, author: int, text: dict[str, Any]) -> DeliveryReceived:
    """A comment with a mention."""
    return DeliveryReceived(
        delivery_key=key,
        delivery_id=key.partition(":")[2],
        event="issue_comment",
        event_type="issue_comment",
        action="created",
        shape="comment_created",
        payload_hash=HASH,
        route="plain",
        repository={"id": 12, "owner": owner, "name": name},
        sender_id=author,
        part={"kind": "comment", "id": 101},
        text=text,
    )


def moved(first: TaskReceived, source: Any, target: Any, version: int) -> TaskTransitioned:
    """One transition."""
    return TaskTransitioned(
        task_id=first.task_id,
        repo_key=first.repo_key,
        session_key=first.session_key,
        from_state=source,
        to_state=target,
        state_version=version,
        trigger="told",
        attempt=0,
        reply_attempt=0,
    )


def intended(
    intent: str, operation: Any, first: TaskReceived, turn: str | None, **more: Any
) -> EffectIntended:
    """An outside write will be tried."""
    return EffectIntended(
        intent_id=intent,
        operation=operation,
        executor="bridge" if operation == "comment.create" else "runner",
        task_id=first.task_id,
        target="acme/widget#42" if operation == "comment.create" else first.resource_key,
        key=intent,
        attempt=0,
        turn_id=turn,
        body_hash=HASH,
        **more,
    )


def receipt_intent(first: TaskReceived) -> EffectIntended:
    """The receipt of a queued task."""
    return intended(
        f"{first.task_id}-receipt",
        "receipt.create",
        first,
        None,
        comment_key=receipt_key(first.task_id, "queued"),
        comment_kind="status",
    )


def concluded(intent: str, operation: Any, task_id: str, **more: Any) -> EffectConcluded:
    """It worked."""
    return EffectConcluded(
        intent_id=intent, operation=operation, task_id=task_id, status="succeeded", at=AT, **more
    )


def ended(scope: str, task_id: str) -> LeaseEnded:
    """The lease was given back."""
    return LeaseEnded(scope=scope, epoch=1, lease_id="lease-1", cause="released", task_id=task_id)
