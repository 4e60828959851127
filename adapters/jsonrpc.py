"""JSON-RPC over a pair of streams, one JSON object per line, both sides equal.

Spoken with ``codex app-server`` (no ``"jsonrpc"`` member; its request ids start at 0 and overlap with
ours) and with MCP over stdio or a unix socket (``"jsonrpc": "2.0"``). Both forms are always accepted;
``versioned`` decides what is sent. Lines may be many megabytes long: the limit is ours, not the 64 KiB
of asyncio's reader.

Faults raised by ``Peer.request``:

Unavailable
├── PeerClosed       code ``peer_closed`` (or what the owner chose): the stream ended before the answer
└── RequestTimeout   code ``request_timeout``: no answer in time; whether the other side acted is unknown
RemoteError          code ``remote_error``: the other side answered with an error object
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import structlog

from domain.faults import Fault, Unavailable

RequestId = int | str
Params = Mapping[str, object]
RequestHandler = Callable[[str, Params], Awaitable[object]]
NotificationHandler = Callable[[str, Params], None]

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
DEFAULT_LINE_LIMIT = 64 * 1024 * 1024
CHUNK = 256 * 1024
NOISE_LIMIT = 1000  # lines that are no message, before the other side is taken for something else
NOISE_LOGGED = 5
ANSWERS_LIMIT = 1000  # answers on their way, before the other side is taken for one that never listens

log = structlog.get_logger(__name__)


class PeerClosed(Unavailable):
    """The stream ended, or the peer was closed, before an answer came."""

    code = "peer_closed"


class RequestTimeout(Unavailable):
    """No answer came in time; whether the other side acted is unknown."""

    code = "request_timeout"


class RemoteError(Fault):
    """The other side answered with an error: ``number``, ``text`` and ``data`` are its own."""

    code = "remote_error"

    def __init__(self, *, number: int, text: str, data: object = None, method: str = "") -> None:
        super().__init__(f"{method or 'request'} was refused: {text}", params={"number": number})
        self.number = number
        self.text = text
        self.data = data


class MethodUnknown(Exception):
    """Raised by a request handler for a method it does not serve: answered with -32601."""


class Refusal(Exception):
    """Raised by a request handler to answer with an error of its choice."""

    def __init__(self, number: int, text: str, data: object = None) -> None:
        super().__init__(text)
        self.number = number
        self.text = text
        self.data = data


async def refuse_every_request(method: str, _params: Params) -> object:
    """Serve nothing: the handler of a peer that only asks."""
    raise MethodUnknown(method)


def ignore_notification(_method: str, _params: Params) -> None:
    """Take no notice: the handler of a peer that does not listen."""


class Peer:
    """One end of a conversation. ``start()`` begins to read; ``close()`` fails whatever is pending.

    ``on_request`` is awaited in a task of its own per request, so a slow answer holds up nothing; every
    request is answered, also when the handler fails. ``on_notification`` is called by the reader, in the
    order of arrival and before any later answer is delivered; it must only put things aside.
    ``on_close`` is called once, after the last notification.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        name: str,
        on_request: RequestHandler = refuse_every_request,
        on_notification: NotificationHandler = ignore_notification,
        on_close: Callable[[], None] | None = None,
        versioned: bool = False,
        line_limit: int = DEFAULT_LINE_LIMIT,
        closed_code: str = PeerClosed.code,
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._on_request = on_request
        self._on_notification = on_notification
        self._on_close = on_close
        self._versioned = versioned
        self._line_limit = line_limit
        self._closed_code = closed_code
        self._pending: dict[RequestId, tuple[str, asyncio.Future[object]]] = {}
        self._last_id = 0
        self._answers: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._noise = 0
        self._misbehaves: str | None = None
        self._closed: Fault | None = None
        self._ended = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether the conversation is over."""
        return self._closed is not None

    def start(self) -> None:
        """Begin to read. Call it once, inside a running loop."""
        self._reading = asyncio.create_task(self._read(), name=f"jsonrpc:{self.name}")

    async def wait_closed(self) -> None:
        """Return when the other side has ended the stream, or this side was closed."""
        await self._ended.wait()

    async def request(self, method: str, params: Params, *, timeout: float) -> object:  # noqa: ASYNC109 - a deadline per request
        """Ask, and return the result. ``timeout`` in seconds. Raises the faults named at the top."""
        if self._closed is not None:
            raise self._closed
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._pending[number] = (method, answer)
        try:
            async with asyncio.timeout(timeout):
                await self._send({"id": number, "method": method, "params": params})
                return await answer
        except TimeoutError:
            raise RequestTimeout(
                f"{self.name} did not answer {method} within {timeout:g} s",
                params={"method": method, "seconds": timeout},
            ) from None
        finally:
            self._pending.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def notify(self, method: str, params: Params | None = None) -> None:
        """Tell, without an answer. Raises ``PeerClosed``."""
        message: dict[str, object] = {"method": method}
        if params is not None:
            message["params"] = params
        await self._send(message)

    async def close(self) -> None:
        """End the conversation from this side. Idempotent; the streams' process is not touched."""
        self._finish("was closed")
        tasks = [
            task for task in (*self._answers, self._reading) if task and task is not asyncio.current_task()
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._closed is not None:
            raise self._closed
        whole = {"jsonrpc": "2.0", **message} if self._versioned else message
        # A lone surrogate cannot be encoded, and the other side could not read its escape either.
        line = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        async with self._sending:
            try:
                self._writer.write(line)
                await self._writer.drain()
            except (OSError, RuntimeError):
                # The reader may still hold last words; the stream's end is decided by the reader.
                raise self._fault("no longer reads") from None

    async def _read(self) -> None:
        buffer = bytearray()
        searched = 0
        why = "ended the stream"
        try:
            while chunk := await self._reader.read(CHUNK):
                buffer += chunk
                while (end := buffer.find(b"\n", searched)) >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    searched = 0
                    self._take(line)
                searched = len(buffer)
                if self._misbehaves is not None:
                    why = self._misbehaves
                    break
                if searched > self._line_limit:
                    why = f"sent a line of more than {self._line_limit} bytes"
                    break
        except (OSError, ValueError) as error:
            why = f"broke off ({type(error).__name__})"
        finally:
            self._finish(why)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._skip(line)
            return
        method = message.get("method")
        params = message.get("params")
        fields: Params = params if isinstance(params, dict) else {}
        if not isinstance(method, str):
            self._settle(message)
        elif message.get("id") is None:
            try:
                self._on_notification(method, fields)
            except Exception as error:  # noqa: BLE001 - a failing listener must not stop the reader
                log.error(
                    "a notification could not be handled",
                    peer=self.name,
                    method=method,
                    error=type(error).__name__,
                )
        elif len(self._answers) >= ANSWERS_LIMIT:
            self._misbehaves = "asks without listening"
        else:
            task = asyncio.create_task(self._answer(message["id"], method, fields))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    def _skip(self, line: bytes) -> None:
        self._noise += 1
        if self._noise <= NOISE_LOGGED:
            log.warning("a line is no message and was skipped", peer=self.name, bytes=len(line))
        if self._noise > NOISE_LIMIT:
            self._misbehaves = "does not speak JSON-RPC"

    def _settle(self, message: Mapping[str, object]) -> None:
        number = message.get("id")
        entry = self._pending.get(number) if isinstance(number, int | str) else None
        if entry is None or entry[1].done():
            return
        method, answer = entry
        error = message.get("error")
        if error is None:
            answer.set_result(message.get("result"))
            return
        details = error if isinstance(error, dict) else {"message": str(error)}
        code = details.get("code")
        answer.set_exception(
            RemoteError(
                number=code if isinstance(code, int) else 0,
                text=str(details.get("message", "")),
                data=details.get("data"),
                method=method,
            )
        )

    async def _answer(self, number: object, method: str, params: Params) -> None:
        try:
            reply: dict[str, object] = {"result": await self._on_request(method, params)}
        except MethodUnknown:
            reply = {"error": {"code": METHOD_NOT_FOUND, "message": f"unknown method {method}"}}
        except Refusal as refusal:
            error: dict[str, object] = {"code": refusal.number, "message": refusal.text}
            reply = {"error": error if refusal.data is None else error | {"data": refusal.data}}
        except Fault as fault:
            reply = {"error": {"code": INTERNAL_ERROR, "message": str(fault)}}
        except Exception as error:
            log.exception(
                "a request could not be handled", peer=self.name, method=method, error=type(error).__name__
            )
            reply = {"error": {"code": INTERNAL_ERROR, "message": "internal error"}}
        with suppress(Fault):
            await self._send({"id": number, **reply})

    def _fault(self, why: str) -> Fault:
        return PeerClosed(f"{self.name} {why}", code=self._closed_code)

    def _finish(self, why: str) -> None:
        if self._closed is not None:
            return
        self._closed = self._fault(why)
        for _method, answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self._closed)
        if self._on_close is not None:
            self._on_close()
        self._ended.set()
