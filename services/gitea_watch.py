"""Whether Gitea itself is there: an automatic pause while it is not (gitea-workflow, Gitea away).

Nobody polls a Gitea that answers. Whoever meets a failure says so (``suspect``); then a cheap probe decides, and
while Gitea is away it is asked again now and then. What was found is an observation in the log.
"""

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from domain.control import GiteaReachabilityObserved
from domain.faults import Fault
from services.ledger import Ledger
from services.ports import GiteaSide

log = structlog.get_logger(__name__)

STREAM = "gitea:default"


class GiteaWatch:
    """``pause``: seconds between two probes of a Gitea that is away."""

    def __init__(self, *, gitea: GiteaSide, ledger: Ledger, pause: float) -> None:
        self._gitea = gitea
        self._ledger = ledger
        self._pause = pause
        self._suspected = asyncio.Event()
        self._back = asyncio.Event()
        self._back.set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def away(self) -> bool:
        """Whether the last probe failed."""
        return not self._back.is_set()

    def on_back(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` each time Gitea is there again."""
        self._listeners.append(listener)

    def suspect(self) -> None:
        """Somebody got no answer: probe soon."""
        self._suspected.set()

    async def reachable(self) -> bool:
        """Probe now; what changed is recorded."""
        code = None
        try:
            await self._gitea.version()
        except Fault as fault:
            code = fault.code
        there = code is None
        if there == self.away:
            await self._changed(there=there, code=code)
        return there

    async def wait_back(self) -> None:
        """Return when Gitea answers."""
        await self._back.wait()

    async def run(self) -> None:
        """Probe what is suspected, and what is away, until cancelled."""
        while True:
            await self._suspected.wait()
            self._suspected.clear()
            while not await self.reachable():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause):
                        await self._back.wait()

    async def _changed(self, *, there: bool, code: str | None) -> None:
        if there:
            self._back.set()
        else:
            self._back.clear()
        log.warning(
            "gitea is there again" if there else "gitea does not answer: nothing is claimed", code=code
        )
        observed = GiteaReachabilityObserved(reachable=there, at=await self._ledger.at(), error_code=code)
        await self._ledger.note(STREAM, observed, correlation=STREAM)
        if there:
            for listener in self._listeners:
                listener()
