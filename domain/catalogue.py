"""Every module that declares events, imported in one place: what can be appended can be read, in any process."""

from domain import commands, control, deliveries, effects, leases, repositories, sessions, tasks, turns
from domain.events import decode, event_types

MODULES = (commands, control, deliveries, effects, leases, repositories, sessions, tasks, turns)

__all__ = ["MODULES", "decode", "event_types"]
