"""One process on one address: the service behind its HTTP surface, from start to drained stop."""

import asyncio
import signal
import uuid
from collections.abc import Callable

import structlog

from services.config import Settings
from services.control import Control
from services.http import ingress
from services.http.app import create_app
from services.http.control import control_routes
from services.http.ingress import Limits, Reading
from services.http.server import HttpServer
from services.queries import Queries
from services.service import Service
from services.telemetry import Metrics

log = structlog.get_logger(__name__)


class Host:
    """Listens while the service runs. Deliveries are taken in until the very end: intake outlives the runs."""

    def __init__(self, settings: Settings, service: Service, reading: Reading, metrics: Metrics) -> None:
        self.service = service
        outside = service.outside

        def counted(status: str, reason: str) -> None:
            metrics.deliveries.labels(status=status, reason=reason).inc()

        app = create_app(
            ingress=ingress.routes(
                intake=service.intake,
                reading=reading,
                secrets=lambda: settings.webhook_secrets,
                refusals=service.refusals,
                limits=Limits(body=settings.max_body_bytes, in_flight=settings.max_in_flight_bytes),
                counted=counted,
            ),
            queries=Queries(outside.event_log, outside.views, service.projector, wait=settings.view_wait),
            admin_token=settings.admin_token.get_secret_value() if settings.admin_token else "",
            metrics=metrics,
            ready=lambda: service.ready,
            more=control_routes(
                Control(
                    outside.event_log,
                    rules=lambda: service.rules,
                    runner_id=outside.runner_id,
                    new_id=uuid.uuid4,
                )
            ),
        )
        self._http = HttpServer(app, host=settings.host, port=settings.port)

    @property
    def url(self) -> str:
        """Its address, once started."""
        return self._http.url

    async def start(self) -> None:
        """Listen and start every loop."""
        await self._http.start()
        try:
            await self.service.start()
        except BaseException:
            await self._http.stop()
            raise

    async def stop(self) -> None:
        """Drain, then stop listening."""
        await self.service.stop()
        await self._http.stop()

    async def run(self, announce: Callable[[str], None]) -> None:
        """Start, announce the address, and stop in order at SIGTERM or SIGINT. A second signal ends at once."""
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _ask, asked, loop)
        await self.start()
        announce(self.url)
        await asked.wait()
        log.info("stopping")
        await self.stop()


def _ask(asked: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    if asked.is_set():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        signal.raise_signal(signal.SIGTERM)
    asked.set()
