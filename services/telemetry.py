"""Structured logs with the ids of the chain on every line, and the metrics of the service.

Logs go to stderr: JSON, or coloured lines on a terminal. ``chain`` binds ids (deliveryKey, taskId, turnId, …) for a
block; every line within carries them. Known secrets are replaced wherever they stand in a line, also within
tracebacks, which never show the values of variables. Logs name ``hostRef`` and ``tokenRef`` only.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from domain.effects import EffectConcluded, ToolCalled, ToolRefused
from domain.log import Recorded
from domain.tasks import TaskClaimed, TaskTransitioned
from domain.transitions import TERMINAL

MASK = "********"
SHORTEST_SECRET = 4
"""Shorter values are no secrets worth the name, and replacing them would make every line unreadable."""


class SecretMask:
    """A structlog processor that replaces known secrets in every text of a line."""

    def __init__(self, secrets: Sequence[str]) -> None:
        kept = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._secrets = sorted(kept, key=len, reverse=True)

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        """Mask one line."""
        return {key: self.mask(value) for key, value in event.items()}

    def mask(self, value: object) -> Any:  # noqa: ANN401 - whatever came, masked
        """``value`` without secrets, into lists and mappings; objects that are no JSON become their text."""
        match value:
            case str():
                for secret in self._secrets:
                    value = value.replace(secret, MASK)
                return value
            case None | bool() | int() | float():
                return value
            case Mapping():
                return {self.mask(str(key)): self.mask(item) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.mask(item) for item in value]
            case _:
                return self.mask(str(value))


def configure_logging(
    *,
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    secrets: Sequence[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's root logger, once per process; ``stream`` instead of stderr."""
    out = stream or sys.stderr
    console = style == "console" or (style == "auto" and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        SecretMask(secrets),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))


def logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger that says which part of the service speaks."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger(part=name)
    return bound


@contextlib.contextmanager
def chain(**ids: str | int | None) -> Iterator[None]:
    """Bind ids of the chain for this block, in this task and those that it starts; None binds nothing."""
    with structlog.contextvars.bound_contextvars(**{k: v for k, v in ids.items() if v is not None}):
        yield


class Metrics:
    """The service's counters and gauges, in a registry of their own (two services in one process don't mix)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry, "namespace": "turnkeeper"}
        self.deliveries = Counter("deliveries", "Webhook answers", ["status", "reason"], **made)
        self.auth_denied = Counter("auth_denied", "API requests without a right token", **made)
        self.requests = Histogram("http_request_seconds", "Time to answer", ["route", "status"], **made)
        self.events = Counter("events", "Events that this process read from the log", **made)
        self.claims = Counter("claims", "Tasks claimed, by any process", **made)
        self.tasks_ended = Counter(
            "tasks_ended", "Tasks that reached an end", ["state", "error_code"], **made
        )
        self.intents = Counter("intents", "Outside writes concluded", ["operation", "status"], **made)
        self.tool_calls = Counter("tool_calls", "Writes that agents asked for", ["outcome"], **made)
        self.view_position = Gauge("view_position", "Position that the read models reached", **made)
        self.view_failures = Counter("view_failures", "Batches that the read models could not take", **made)
        self.started = Gauge("ready", "1 while the service takes deliveries", **made)

    def take(self, batch: Sequence[Recorded]) -> None:
        """Count what the log says since this process started."""
        for recorded in batch:
            self.events.inc()
            match recorded.event:
                case TaskClaimed():
                    self.claims.inc()
                case TaskTransitioned() as event if event.to_state in TERMINAL:
                    self.tasks_ended.labels(state=event.to_state, error_code=event.error_code or "").inc()
                case EffectConcluded() as event:
                    self.intents.labels(operation=event.operation, status=event.status).inc()
                case ToolCalled():
                    self.tool_calls.labels(outcome="allowed").inc()
                case ToolRefused():
                    self.tool_calls.labels(outcome="refused").inc()
                case _:
                    pass

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
