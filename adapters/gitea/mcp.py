"""The official gitea-mcp as a child outside the box (facts/gitea.md, gitea-mcp).

``initialize`` and ``tools/list`` work with a wrong token and without a Gitea: only a call tells, so ``probe`` makes
one. The child dies with its stdin, is the leader of its own process group, and gets a minimal environment: the
token stands nowhere else. Its HOME is a private folder that is removed with it.

Faults (``GiteaMcpFault``), told apart by their code:

gitea_mcp_missing      the command cannot be started
gitea_mcp_exited       it ended instead of answering (versions of 2025 do so on a wrong token or an absent Gitea)
gitea_mcp_timeout      it does not answer
gitea_mcp_refused      it answered with an error; ``params.cause`` is ``token``, ``unreachable`` or ``other``
gitea_mcp_wrong_bot    it speaks for another user than the bot
gitea_mcp_foreign      another program under the same name (PyPI has one)
gitea_mcp_unsupported  it offers no tool to comment, or none that says who it is
"""

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

import structlog

from adapters.jsonrpc import PeerClosed, RemoteError, RequestTimeout
from adapters.mcp.client import McpClient
from domain.faults import Fault, Invalid, Unavailable
from domain.tool_dialects import Dialect, object_id
from domain.tools import ToolAnswer, ToolSchema

__all__ = ["Dialect", "GiteaMcp", "GiteaMcpFault"]

SERVER_NAME = "gitea mcp server"
TAIL_BYTES = 4096
MESSAGE_LIMIT = 2000
PASSED_ON = ("PATH", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

# Go's words when a request left and no answer came back: the write may have happened.
_LOST = re.compile(
    r"\bEOF\b|deadline exceeded|timed? ?out|timeout|connection reset|broken pipe|connection was forcibly|"
    r"use of closed network|server closed|unexpected end|API Error: 50[234]\b|Bad Gateway|Gateway Time|"
    r"Service Unavailable",
    re.IGNORECASE,
)
# The same, but before anything was sent.
_NOT_SENT = re.compile(
    r"connection refused|no such host|no route to host|get gitea client err|network is unreachable"
)
_TOKEN = re.compile(
    r"invalid username, password or token|token is required|\b401\b|unauthori[sz]ed", re.IGNORECASE
)

log = structlog.get_logger(__name__)


class GiteaMcpFault(Unavailable):
    """gitea-mcp cannot be used; the code says how it fails."""

    code = "gitea_mcp_exited"


class GiteaMcp:
    """A running child. Made by ``start``, ended by ``stop`` (or ``async with``)."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        home: "tempfile.TemporaryDirectory[str]",
        token: str,
    ) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise TypeError("the child needs pipes")
        self._process = process
        self._home = home
        self._token = token
        self._client = McpClient(process.stdout, process.stdin, name="gitea-mcp")
        self._tail = bytearray()
        self._draining = asyncio.create_task(self._drain(process.stderr), name="gitea-mcp-stderr")
        self._tools: Sequence[ToolSchema] = ()
        self.dialect = Dialect()

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        host: str,
        token: str,
        *,
        timeout: float = 15.0,  # noqa: ASYNC109 - the deadline of the handshake
        environment: Mapping[str, str] | None = None,
    ) -> "GiteaMcp":
        """Start ``command -t stdio`` and shake hands within ``timeout`` seconds.

        ``host`` is Gitea's address. ``environment`` is added to the child's. Raises ``GiteaMcpFault`` (codes
        ``gitea_mcp_missing``, ``_exited``, ``_timeout``, ``_refused``, ``_foreign``, ``_unsupported``); the child is
        gone then.
        """
        home = tempfile.TemporaryDirectory(prefix="turnkeeper-gitea-mcp-", ignore_cleanup_errors=True)
        minimal = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        minimal.setdefault("PATH", DEFAULT_PATH)
        minimal |= {"HOME": home.name, "GITEA_HOST": host, "GITEA_ACCESS_TOKEN": token, **(environment or {})}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "-t",
                "stdio",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=minimal,
                cwd=home.name,
                start_new_session=True,
            )
        except OSError as error:
            home.cleanup()
            raise GiteaMcpFault(
                f"{command[0]} cannot be started: {error.strerror}; install gitea-mcp or set its command",
                code="gitea_mcp_missing",
            ) from None
        child = cls(process, home, token)
        try:
            await child._handshake(timeout)
        except BaseException:
            await child.stop(grace=0.0)
            raise
        return child

    @property
    def alive(self) -> bool:
        """Whether the child can still be asked."""
        return self._process.returncode is None and not self._client.closed

    @property
    def stderr_tail(self) -> str:
        """The last 4 KiB that the child said on stderr, without the token."""
        return self._clean(bytes(self._tail).decode("utf-8", "replace"))

    async def tools(self) -> Sequence[ToolSchema]:
        """List the tools, as the child listed them at the handshake."""
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, object], timeout: float) -> ToolAnswer:  # noqa: ASYNC109 - a deadline per call
        """Call a tool, ``timeout`` in seconds. Raises nothing of its own: the answer says what is known."""
        try:
            called = await self._client.call(name, arguments, timeout=timeout)
        except RequestTimeout:
            return ToolAnswer(
                outcome="unknown", code="gitea_mcp_timeout", message="gitea-mcp did not answer in time"
            )
        except PeerClosed:
            return ToolAnswer(
                outcome="unknown", code="gitea_mcp_exited", message="gitea-mcp ended during the call"
            )
        except RemoteError as error:
            return self._refusal(error.text)
        except Invalid as error:
            return ToolAnswer(outcome="unknown", code=error.code, message=error.message)
        if called.is_error:
            return self._refusal(called.text)
        return ToolAnswer(outcome="done", text=called.text)

    async def probe(self, bot_id: int, *, timeout: float = 15.0) -> None:  # noqa: ASYNC109 - the deadline of the call
        """Ask who it is: the id must be the bot's. Raises ``GiteaMcpFault``."""
        name = self.dialect.whoami
        if name is None:
            raise GiteaMcpFault("gitea-mcp has no tool that says who it is", code="gitea_mcp_unsupported")
        answer = await self.call(name, {}, timeout)
        if answer.outcome == "unknown":
            raise GiteaMcpFault(f"{answer.message} (who am I)", code=answer.code)
        if answer.outcome == "refused":
            raise _refused(answer.message or "")
        found = object_id(answer.text)
        if found != bot_id:
            raise GiteaMcpFault(
                f"gitea-mcp speaks for the user {found}, the bot is {bot_id}: check the token and the bot's id",
                code="gitea_mcp_wrong_bot",
                params={"found": found, "expected": bot_id},
            )

    async def stop(self, *, grace: float = 2.0) -> None:
        """Close its stdin, wait ``grace`` seconds, then kill its group. Idempotent."""
        await self._client.close()
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sign)
            try:
                async with asyncio.timeout(grace if sign is not signal.SIGKILL else 10.0):
                    await self._process.wait()
                break
            except TimeoutError:
                continue
        # Whatever it started stays in its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._draining.cancel()
        await asyncio.gather(self._draining, return_exceptions=True)
        # The pipes' ends may not have been read yet: asyncio offers no other way to let them go now.
        self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001
        await asyncio.sleep(0)
        self._home.cleanup()

    async def __aenter__(self) -> Self:
        """It runs already."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop it."""
        await self.stop()

    async def _handshake(self, timeout: float) -> None:  # noqa: ASYNC109 - the deadline of the handshake
        try:
            await self._client.initialize(timeout=timeout)
            if self._client.server_name.strip().lower() != SERVER_NAME:
                raise GiteaMcpFault(
                    f"the command is not the official gitea-mcp: it calls itself {self._client.server_name[:80]!r}",
                    code="gitea_mcp_foreign",
                )
            self._tools = await self._client.tools(timeout=timeout)
        except RequestTimeout:
            raise GiteaMcpFault("gitea-mcp does not answer the handshake", code="gitea_mcp_timeout") from None
        except PeerClosed:
            status = await self._status()
            raise GiteaMcpFault(
                f"gitea-mcp ended during the handshake (exit status {status})",
                code="gitea_mcp_exited",
                params={"exit_status": status},
            ) from None
        except RemoteError as error:
            raise _refused(self._clean(error.text)) from None
        except Invalid:
            raise GiteaMcpFault(
                "the command does not speak MCP as gitea-mcp does", code="gitea_mcp_foreign"
            ) from None
        self.dialect = Dialect.detect(self._tools)
        if self.dialect.create_comment is None:
            raise GiteaMcpFault(
                "gitea-mcp offers no tool that comments on an issue", code="gitea_mcp_unsupported"
            )

    async def _status(self) -> int | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                return await self._process.wait()
        return None

    def _refusal(self, text: str) -> ToolAnswer:
        message = self._clean(text)
        # "create acme/store/issue/8/comment err: …": names in front of it are not Gitea's words.
        said = text.rpartition(" err: ")[2]
        if _LOST.search(said) and not _NOT_SENT.search(text):
            return ToolAnswer(outcome="unknown", code="gitea_answer_lost", message=message)
        return ToolAnswer(outcome="refused", code="gitea_refused", message=message)

    def _clean(self, text: str) -> str:
        return (text.replace(self._token, "[redacted]") if self._token else text)[:MESSAGE_LIMIT]

    async def _drain(self, stderr: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while chunk := await stderr.read(65536):
                self._tail += chunk
                # Keep enough before the tail that a token cut in half is still recognised.
                del self._tail[: -(TAIL_BYTES + len(self._token))]


def _refused(message: str) -> Fault:
    if _TOKEN.search(message):
        cause, advice = "token", "Gitea refuses the token"
    elif _NOT_SENT.search(message) or _LOST.search(message) or "dial tcp" in message:
        cause, advice = "unreachable", "it cannot reach Gitea"
    else:
        cause, advice = "other", "it answers with an error"
    # The words themselves hold addresses, which no fault carries.
    return GiteaMcpFault(
        f"gitea-mcp does not work: {advice}", code="gitea_mcp_refused", params={"cause": cause}
    )
