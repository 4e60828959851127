"""What an event is: a frozen, keyword-only dataclass with JSON fields, known by its type name.

Three classes of events (architecture, Decisions): a *fact* came from outside (a delivery, an observation, a
result, an operator's act, a lease change, a timer); a *derived* event follows from facts (transitions and
intents) and can be derived again; a *note* is progress for people, which nothing depends on.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import orjson

EventClass = Literal["fact", "derived", "note"]


class Event:
    """The base of all events. Fields are JSON values (text, whole numbers, booleans, None, lists, objects)."""

    event_class: ClassVar[EventClass]
    schema: ClassVar[int] = 1

    @property
    def type(self) -> str:
        """The name under which this event stands in the log."""
        return type(self).__name__


E = TypeVar("E", bound=Event)

_REGISTRY: dict[str, type[Event]] = {}
_UPCASTERS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _register(event_class: EventClass, cls: type[E]) -> type[E]:
    if cls.__name__ in _REGISTRY:
        raise TypeError(f"two events are named {cls.__name__}")
    cls.event_class = event_class
    made = dataclasses.dataclass(frozen=True, kw_only=True, slots=False)(cls)
    _REGISTRY[cls.__name__] = made
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
def fact(cls: type[E]) -> type[E]:
    """Declare an event that came from outside."""
    return _register("fact", cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def derived(cls: type[E]) -> type[E]:
    """Declare an event that follows from facts."""
    return _register("derived", cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def note(cls: type[E]) -> type[E]:
    """Declare an event that only tells people something."""
    return _register("note", cls)


def upcaster(
    name: str, schema: int
) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Callable[[dict[str, Any]], dict[str, Any]]]:
    """Declare how a body of ``name`` at ``schema`` becomes one of ``schema + 1``. Events are never rewritten."""

    def declare(
        function: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        _UPCASTERS[name, schema] = function
        return function

    return declare


def event_types() -> Mapping[str, type[Event]]:
    """Every declared event by its type name."""
    return dict(_REGISTRY)


def encode(event: Event) -> bytes:
    """Compact JSON of the event's fields."""
    return orjson.dumps(event)


def decode(name: str, schema: int, body: bytes) -> Event:
    """Read an event back, raising the body of an older schema step by step.

    An unknown type is a ``LookupError``: a newer version wrote this log.
    """
    cls = _REGISTRY.get(name)
    if cls is None:
        raise LookupError(f"event type {name} is not known to this version")
    fields: dict[str, Any] = orjson.loads(body)
    while schema < cls.schema:
        fields = _UPCASTERS[name, schema](fields)
        schema += 1
    return cls(**fields)
