"""The control plane: the global pause, operators' requests, and the configuration that was active (seed §4.5).

Streams ``control:default``, ``request:<requestId>`` and ``configuration:default``.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from domain.events import Event, fact


@fact
class GloballyPaused(Event):
    """An operator's act: nothing new is claimed; intake and running turns go on."""

    actor: str
    reason: str
    request_id: str


@fact
class GloballyResumed(Event):
    """An operator's act: claims go on."""

    actor: str
    reason: str
    request_id: str


@fact
class RequestRecorded(Event):
    """An operator's act was accepted, and what was answered. Stands in the append of the act's own events.

    ``target``: task id or repository key, None for the whole service. ``digest``: of everything that was asked, by
    which a repeat is told from another request under the same id. ``answer`` lacks only the position.
    """

    request_id: str
    action: str
    target: str | None
    digest: str
    actor: str
    reason: str
    http_status: int
    answer: dict[str, Any]


@fact
class GiteaReachabilityObserved(Event):
    """Gitea itself stopped answering, or answers again. Nothing is claimed in between. Stream ``gitea:default``."""

    reachable: bool
    at: str
    error_code: str | None = None


@fact
class ConfigurationActivated(Event):
    """The settings that decide, without secrets, as one process started with them."""

    hash: str
    values: dict[str, Any]
    rules_version: int
    runner_id: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Control:
    """The fold of ``control:default``. ``version`` counts its events."""

    paused: bool = False
    reason: str | None = None
    updated_by: str | None = None
    version: int = 0


def fold(events: Iterable[Event]) -> Control:
    """Rebuild the control plane's state."""
    control = Control()
    for event in events:
        match event:
            case GloballyPaused():
                control = Control(
                    paused=True, reason=event.reason, updated_by=event.actor, version=control.version + 1
                )
            case GloballyResumed():
                control = Control(updated_by=event.actor, version=control.version + 1)
            case _:
                control = dataclasses.replace(control, version=control.version + 1)
    return control
