"""What must hold before a thread is used: its settings took effect, and its MCP server is ready."""

import asyncio
from collections import deque

from adapters.codex.errors import without_links
from adapters.codex.protocol import Deviation, McpServer, ThreadSettings
from adapters.codex.turns import Params, as_map
from domain.faults import Fault, Unavailable

SANDBOX_NAMES = {
    "dangerFullAccess": "danger-full-access",
    "workspaceWrite": "workspace-write",
    "readOnly": "read-only",
}
WORDS_KEPT = 200
GRACE = 5.0  # seconds on top of the server's own start-up time


class McpWatch:
    """Collects ``mcpServer/startupStatus/updated`` and waits for the word that matters.

    It may come before the answer to ``thread/start`` (0.171), or after it and without a thread id (0.130).
    """

    def __init__(self) -> None:
        self._words: deque[Params] = deque(maxlen=WORDS_KEPT)
        self._changed = asyncio.Event()
        self._closed = False

    def reset(self) -> None:
        """Forget what was said for earlier threads."""
        self._words.clear()

    def hear(self, word: Params) -> None:
        """Put a status aside."""
        self._words.append(word)
        self._changed.set()

    def close(self) -> None:
        """Let a waiter go: nothing more will be said."""
        self._closed = True
        self._changed.set()

    async def ready(self, server: McpServer, thread_id: str) -> None:
        """Return when ``server`` is ready. Raises ``mcp_start_failed``, or ``agent_exited``."""
        try:
            async with asyncio.timeout(server.startup_timeout + GRACE):
                while not self._told_ready(server, thread_id):
                    if self._closed:
                        raise Unavailable("codex ended while its MCP server started", code="agent_exited")
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Fault(
                f"the MCP server {server.name} did not become ready", code="mcp_start_failed"
            ) from None

    def _told_ready(self, server: McpServer, thread_id: str) -> bool:
        for word in self._words:
            if word.get("name") != server.name or word.get("threadId") not in {None, thread_id}:
                continue
            if word.get("status") == "ready":
                return True
            if word.get("status") in {"failed", "cancelled"}:
                raise Fault(without_links(str(word.get("error"))), code="mcp_start_failed")
        return False


def deviations(
    settings: ThreadSettings, answer: Params, *, wanted_id: str | None, opened: str
) -> tuple[Deviation, ...]:
    """What of ``settings`` the answer to ``thread/start`` or ``thread/resume`` does not show."""
    sandbox = as_map(answer.get("sandbox")).get("type")
    pairs = [
        ("threadId", wanted_id, opened),
        ("cwd", settings.cwd, answer.get("cwd")),
        ("approvalPolicy", settings.approval_policy, answer.get("approvalPolicy")),
        ("sandbox", settings.sandbox, SANDBOX_NAMES.get(str(sandbox), sandbox)),
        ("model", settings.model, answer.get("model")),
        ("effort", settings.effort, answer.get("reasoningEffort")),
    ]
    return tuple(
        Deviation(name=name, wanted=str(wanted), got=str(got))
        for name, wanted, got in pairs
        if wanted is not None and wanted != got
    )
