"""The webhook's door: ``POST /api/gitea/webhook`` and ``POST /api/gitea/webhook/{repository_id}`` (seed §6.1).

In this order, and nothing but the log is called: size, content type, signature, delivery id, dedupe, parse, filter,
append, answer. The first route takes the plain secret; the second only the secret derived for its repository, and
only payloads of that repository: an administrator of one repository must not speak for another.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from domain.faults import Fault, Invalid, TooLarge, Unauthorised, Unavailable
from domain.processes.intake_state import Answer
from domain.webhooks import Delivery
from services.intake import Intake, Refusals

log = structlog.get_logger(__name__)

_LARGEST_ID = 2**63 - 1


class Reading(Protocol):
    """How bytes become a delivery (``adapters.gitea.webhook``)."""

    def verify(
        self, raw: bytes, content_type: str, headers: Mapping[str, str], secrets: Sequence[str]
    ) -> bytes:
        """The payload that one of ``secrets`` signed; ``UnsupportedType``, ``Unauthorised``."""
        ...

    def normalise(self, payload: bytes, headers: Mapping[str, str]) -> Delivery:
        """Read a verified payload; ``Invalid`` ``invalid_payload``, ``delivery_id_missing``."""
        ...

    def header_delivery_id(self, headers: Mapping[str, str]) -> str | None:
        """The delivery's id as its header tells it; ``Invalid`` where it is odd."""
        ...

    def payload_hash(self, payload: bytes) -> str:
        """``sha256:…`` of the payload."""
        ...

    def derived_secret(self, secret: str, repository_id: int) -> str:
        """The secret of one repository's own hook."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """``body``: bytes of one request; ``in_flight``: bytes of all at once; ``read_s``: seconds for one to arrive."""

    body: int = 16 * 1024 * 1024
    in_flight: int = 64 * 1024 * 1024
    read_s: float = 30.0


class _Bodies:
    """Bytes of request bodies that are held in memory now."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    async def read(self, request: Request) -> tuple[bytes, int]:
        """One body, and how many bytes to give back; ``TooLarge``, or ``Unavailable`` when all together are."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._limits.body:
            raise _too_large()
        chunks: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._limits.read_s):
                async for chunk in request.stream():
                    self._hold(held, len(chunk))
                    held += len(chunk)
                    chunks.append(chunk)
        except TimeoutError:
            self.release(held)
            raise Invalid("the request did not arrive in time", code="request_timeout") from None
        except BaseException:
            self.release(held)
            raise
        return b"".join(chunks), held

    def _hold(self, held: int, more: int) -> None:
        if held + more > self._limits.body:
            raise _too_large()
        if self._held + more > self._limits.in_flight:
            raise Unavailable("too many deliveries at once: send it again", code="busy")
        self._held += more

    def release(self, held: int) -> None:
        """Give bytes back."""
        self._held -= held


class Ingress:
    """Both routes. ``counted`` is told each answer's status and reason, for metrics."""

    def __init__(
        self,
        *,
        intake: Intake,
        reading: Reading,
        secrets: Callable[[], Sequence[str]],
        refusals: Refusals,
        limits: Limits,
        counted: Callable[[str, str], None],
    ) -> None:
        self._intake = intake
        self._reading = reading
        self._secrets = secrets
        self._refusals = refusals
        self._bodies = _Bodies(limits)
        self._counted = counted

    async def plain(self, request: Request) -> Response:
        """``POST /api/gitea/webhook``: hooks of the instance's or an organisation's owner."""
        return await self._answer(request, None)

    async def derived(self, request: Request) -> Response:
        """``POST /api/gitea/webhook/{repository_id}``: one repository's own hook."""
        return await self._answer(request, int(request.path_params["repository_id"]))

    async def _answer(self, request: Request, repository_id: int | None) -> Response:
        try:
            raw, held = await self._bodies.read(request)
            try:
                answer = await self._taken(raw, request, repository_id)
            finally:
                self._bodies.release(held)
        except Fault as fault:
            return self._refused(fault)
        except ClientDisconnect:
            return Response(status_code=400)
        self._counted(answer.status, answer.reason or "")
        return JSONResponse(answer.body(), status_code=answer.http_status)

    async def _taken(self, raw: bytes, request: Request, repository_id: int | None) -> Answer:
        headers = request.headers
        payload = self._reading.verify(
            raw, headers.get("content-type", ""), headers, self._valid(repository_id)
        )
        delivery_id = self._reading.header_delivery_id(headers)
        try:
            delivery = self._reading.normalise(payload, headers)
        except Invalid as fault:
            if delivery_id is None:
                raise
            return await self._intake.refuse(
                delivery_id=delivery_id,
                payload_hash=self._reading.payload_hash(payload),
                error_code=fault.code,
            )
        if repository_id is None:
            return await self._intake.receive(delivery, "plain")
        if delivery.repository is None or delivery.repository.id != repository_id:
            raise Unauthorised("the signature is missing or wrong", code="invalid_signature")
        return await self._intake.receive(delivery, "derived")

    def _valid(self, repository_id: int | None) -> Sequence[str]:
        secrets = [secret for secret in self._secrets() if secret]
        if repository_id is None:
            return secrets
        if not 0 < repository_id <= _LARGEST_ID:
            return []
        return [self._reading.derived_secret(secret, repository_id) for secret in secrets]

    def _refused(self, fault: Fault) -> Response:
        self._counted("rejected", fault.code)
        if isinstance(fault, Unauthorised):
            self._refusals.count(fault.code)
        elif isinstance(fault, TooLarge):
            log.warning("a delivery was too large", limit=fault.params.get("limit"))
        elif fault.status >= 500:
            log.warning("a delivery was not taken in", code=fault.code)
        headers = {"Retry-After": "1"} if fault.status == 503 else None
        body = {"status": "rejected", "reason": fault.code, "message": fault.message}
        return JSONResponse(body, status_code=fault.status, headers=headers)


def routes(
    *,
    intake: Intake,
    reading: Reading,
    secrets: Callable[[], Sequence[str]],
    refusals: Refusals,
    limits: Limits | None = None,
    counted: Callable[[str, str], None] = lambda _status, _reason: None,
) -> list[Route]:
    """The webhook's two routes. ``reading`` is the module ``adapters.gitea.webhook``.

    ``secrets`` gives the valid plain secrets (one, or two while it is changed); ``ValueError`` if there is none now.
    """
    if not any(secrets()):
        raise ValueError("a service without a webhook secret must not start")
    ingress = Ingress(
        intake=intake,
        reading=reading,
        secrets=secrets,
        refusals=refusals,
        limits=limits or Limits(),
        counted=counted,
    )
    return [
        Route("/api/gitea/webhook", ingress.plain, methods=["POST"]),
        Route("/api/gitea/webhook/{repository_id:int}", ingress.derived, methods=["POST"]),
    ]


def _too_large() -> TooLarge:
    return TooLarge("the delivery is larger than this service takes", code="too_large")
