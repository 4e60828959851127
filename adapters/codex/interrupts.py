"""Ending a turn for certain: asked for until Codex takes it, over only when Codex says so."""

import asyncio
from contextlib import suppress

import structlog

from adapters.codex.errors import NO_ACTIVE_TURN, without_links
from adapters.codex.turns import ActiveTurn
from adapters.jsonrpc import Peer, RemoteError, RequestTimeout
from domain.faults import Fault

INTERRUPT_TIMEOUT = 30.0  # seconds from asking to ``turn/completed``
INTERRUPT_PAUSE = 0.1  # seconds before an interrupt that came too early is tried again
CLEAN_TIMEOUT = 5.0  # seconds

log = structlog.get_logger(__name__)


async def end_turn(peer: Peer, active: ActiveTurn, patience: float) -> None:
    """Interrupt ``active`` and return when it has ended, in whichever way.

    Right after ``turn/start`` Codex refuses ("no active turn") and the turn runs on: so this waits for
    ``turn/started`` and asks again. Raises ``abort_timeout`` after ``patience`` seconds, or ``agent_exited``.
    """
    try:
        async with asyncio.timeout(patience):
            await active.started.wait()
            while not active.done.is_set():
                if await _taken(peer, active, patience):
                    await active.done.wait()
                else:
                    await _within(INTERRUPT_PAUSE, active.done)
    except (TimeoutError, RequestTimeout):
        raise Fault(
            f"the turn did not end within {patience:g} s of being interrupted", code="abort_timeout"
        ) from None


async def clean_terminals(peer: Peer, thread_id: str) -> None:
    """End the shell children that an interrupt leaves behind; a version that cannot is left alone."""
    with suppress(Fault):
        await peer.request("thread/backgroundTerminals/clean", {"threadId": thread_id}, timeout=CLEAN_TIMEOUT)


async def _taken(peer: Peer, active: ActiveTurn, patience: float) -> bool:
    params = {"threadId": active.thread_id, "turnId": active.turn_id}
    asking = asyncio.create_task(peer.request("turn/interrupt", params, timeout=patience))
    ended = asyncio.create_task(active.done.wait())
    try:
        await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not active.done.is_set():
            await asking
    except RemoteError as error:
        if NO_ACTIVE_TURN not in error.text:
            log.warning("an interrupt was refused", reason=without_links(error.text))
        return False
    finally:
        asking.cancel()
        ended.cancel()
        await asyncio.gather(asking, ended, return_exceptions=True)
    return True


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
