"""One finding of the doctor, and how a look at something is kept from failing the others."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from domain.faults import Fault

Status = Literal["ok", "warn", "fail"]
LIMIT_S = 45.0
"""No single check takes longer, in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One finding: ``detail`` says what was found, ``cure`` what to do about it."""

    name: str
    status: Status
    detail: str
    cure: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The members ``name``, ``status``, ``detail``, ``cure``."""
        return dataclasses.asdict(self)


async def guarded(
    name: str, look: Callable[[], Awaitable[Check]], cure: str | Callable[[Fault], str]
) -> Check:
    """What ``look`` found; a failure is a finding too. ``cure`` may depend on the fault."""
    general = cure if isinstance(cure, str) else cure(Fault(""))
    try:
        async with asyncio.timeout(LIMIT_S):
            return await look()
    except Fault as fault:
        known = cure if isinstance(cure, str) else cure(fault)
        return Check(name=name, status="fail", detail=fault.message, cure=known)
    except TimeoutError:
        return Check(name=name, status="fail", detail=f"no answer within {LIMIT_S:g} s", cure=general)
    except OSError as error:
        return Check(name=name, status="fail", detail=error.strerror or type(error).__name__, cure=general)
