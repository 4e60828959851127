"""What the commands need of ``services.wiring``, which brings every adapter along: imported when needed only."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

from services.config import Settings
from services.doctor import Probes
from services.hooks import HookHands
from services.story import Line


class Wiring(Protocol):
    """The functions of ``services.wiring`` that commands call. All may raise a ``Fault``."""

    async def serve(self, settings: Settings, announce: Callable[[str], None]) -> None:
        """Run until told to stop; ``announce`` gets the address when the service is ready."""
        ...

    async def migrate(self, settings: Settings) -> Sequence[str]:
        """Apply what is missing; the names of what was applied."""
        ...

    async def demo(
        self, settings: Settings, *, agent: str, show: Callable[[Line], None], say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Play the main job; the object that ``demo --json`` prints last."""
        ...

    def doctor_probes(self, settings: Settings) -> AbstractAsyncContextManager[Probes]:
        """The doctor's probes, with what they share open."""
        ...

    def hook_hands(self, settings: Settings, owner_token: str) -> AbstractAsyncContextManager[HookHands]:
        """An owner's hands on Gitea for one command. The token is kept nowhere."""
        ...

    def derived_secret(self, secret: str, repository_id: int) -> str:
        """The secret of one repository's own hook."""
        ...

    async def simulate_gitea(
        self, *, host: str, port: int, version: str, ready: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """Run the stand-in until told to stop.

        ``ready`` gets ``url``, ``repository``, ``repository_id``, ``issue``, ``bot``, ``bot_id``, ``owner`` and
        ``tokens`` (of this stand-in alone) by login.
        """
        ...


def wiring() -> Wiring:
    """``services.wiring`` itself."""
    return cast("Wiring", importlib.import_module("services.wiring"))
