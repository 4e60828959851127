"""Intent, outside, result: how the bridge makes every one of its writes (architecture, Intents and results)."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from domain.effects import Operation
from domain.faults import Fault, LeaseExpired, LeaseStale, Unavailable, VersionConflict
from domain.tools import ToolAnswer
from services.bridge_ports import EffectLedger, EffectStatus

LEASE_FAULTS = (LeaseStale, LeaseExpired, VersionConflict)
LEASE_LOST = "this run has lost its lease: nothing was sent. Stop now; another run goes on with the task"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """What became of a write. ``text``: what the outside said, ``code`` its error."""

    status: EffectStatus
    text: str = ""
    outside_id: str | None = None
    code: str | None = None
    http_status: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write:
    """What is about to be written; ``send`` does it."""

    operation: Operation
    tool: str
    target: str
    key: str
    body_hash: str | None
    turn_id: str
    send: Callable[[], Awaitable[Effect]]


async def carry_out(write: Write, ledger: EffectLedger) -> Effect:
    """Write the intent, send, write the result. A fault of ``intend`` passes on, and nothing was sent.

    Exactly one result follows each intent, also when the sending is cancelled or fails unexpectedly: ``unknown``.
    A fault of ``conclude`` passes on too: the intent is then reconciled by whoever comes next.
    """
    intent = await ledger.intend(
        operation=write.operation,
        tool=write.tool,
        target=write.target,
        key=write.key,
        body_hash=write.body_hash,
        turn_id=write.turn_id,
    )
    effect = Effect(status="unknown", code="interrupted")
    try:
        effect = await write.send()
    except Fault as fault:
        effect = of_fault(fault)
    except asyncio.CancelledError:
        raise
    except Exception:  # the result still has to be written; the caller logs what it was
        effect = Effect(status="unknown", code="internal_error")
        raise
    finally:
        await ledger.conclude(
            intent,
            status=effect.status,
            outside_id=effect.outside_id,
            error_code=effect.code,
            http_status=effect.http_status,
        )
    return effect


def of_answer(answer: ToolAnswer) -> Effect:
    """Read the effect of a write from gitea-mcp's answer."""
    if answer.outcome == "done":
        return Effect(status="succeeded", text=answer.text)
    status: EffectStatus = "failed" if answer.outcome == "refused" else "unknown"
    return Effect(status=status, text=answer.message or "", code=answer.code)


def of_fault(fault: Fault) -> Effect:
    """Read the effect of a write by REST from its fault: without an answer it is unknown."""
    http_status = fault.params.get("http_status")
    return Effect(
        status="unknown" if isinstance(fault, Unavailable) else "failed",
        text=fault.message,
        code=fault.code,
        http_status=http_status if isinstance(http_status, int) else None,
    )
