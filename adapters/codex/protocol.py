"""What is said to Codex and what is learnt from it, as frozen types. No I/O."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["completed", "interrupted", "failed", "stalled", "deadline_exceeded"]


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """The answer to ``initialize``: ``version`` is three numbers, ``user_agent`` the server's own words."""

    version: tuple[int, int, int]
    user_agent: str

    @property
    def version_text(self) -> str:
        """The version as people write it, ``0.171.0``."""
        return ".".join(str(part) for part in self.version)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What the best-effort probes found. A refusal is no failure: its text stands in ``notes``."""

    goals: bool = False
    collaboration_modes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """A stdio MCP server that Codex starts itself, under ``config.mcp_servers.<name>``."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    name: str = "gitea"
    startup_timeout: float = 15.0  # seconds
    required: bool = True

    def as_config(self) -> dict[str, object]:
        """The value of ``config.mcp_servers`` in ``thread/start`` and ``thread/resume``."""
        return {
            self.name: {
                "command": self.command,
                "args": list(self.args),
                "env": dict(self.env),
                "required": self.required,
                "startup_timeout_sec": self.startup_timeout,
            }
        }


@dataclass(frozen=True, kw_only=True)
class ThreadSettings:
    """Everything that is sent at start and again, whole, at each resume.

    Older versions keep none of it over a resume, and newer ones forget the MCP servers.
    ``cwd`` must be absolute and exist: Codex checks neither.
    """

    cwd: str
    model: str | None = None
    effort: str | None = None
    developer_instructions: str | None = None
    mcp_server: McpServer | None = None
    approval_policy: str = "never"
    sandbox: str = "danger-full-access"

    def as_params(self) -> dict[str, object]:
        """The parameters shared by ``thread/start`` and ``thread/resume``."""
        config: dict[str, object] = {}
        if self.mcp_server is not None:
            config["mcp_servers"] = self.mcp_server.as_config()
        if self.effort is not None:
            config["model_reasoning_effort"] = self.effort
        params: dict[str, object] = {
            "cwd": self.cwd,
            "approvalPolicy": self.approval_policy,
            "sandbox": self.sandbox,
        }
        if self.model is not None:
            params["model"] = self.model
        if self.developer_instructions is not None:
            params["developerInstructions"] = self.developer_instructions
        if config:
            params["config"] = config
        return params


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A setting that did not take effect: ``wanted`` was sent, ``got`` was answered."""

    name: str
    wanted: str
    got: str


@dataclass(frozen=True, kw_only=True)
class ThreadInfo:
    """A thread that stands and whose MCP server is ready. ``deviations`` is empty when all took effect."""

    thread_id: str
    resumed: bool
    model: str
    effort: str | None
    path: str | None
    deviations: tuple[Deviation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TurnEvent:
    """One stored event of a turn, numbered from 1 by us. ``payload`` is a bounded summary.

    ``method`` is Codex's, or ``serverRequest`` for a question that was answered. Deltas are never events.
    """

    seq: int
    method: str
    item_id: str | None = None
    item_type: str | None = None
    payload: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TurnDelta:
    """A piece of text on its way, for the live view only; losing it loses nothing."""

    method: str
    item_id: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens of one turn (the sum of its model calls), as Codex counts them."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    total_tokens: int = 0
    context_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class TurnError:
    """Why a turn failed: ``code`` is ours and stable, ``message`` Codex's (bounded, links removed)."""

    code: str
    message: str
    retryable: bool
    http_status: int | None = None


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """How a turn ended.

    ``outcome`` is Codex's status, or ``stalled`` / ``deadline_exceeded`` where we interrupted it.
    ``downgraded`` tells that the collaboration mode was refused and a plain turn ran instead;
    ``deviations`` what of the collaboration mode was taken but silently had no effect.
    """

    outcome: Outcome
    codex_turn_id: str
    final_message: str | None = None
    error: TurnError | None = None
    usage: TokenUsage | None = None
    events: int = 0
    downgraded: bool = False
    downgrade_reason: str | None = None
    deviations: tuple[Deviation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A request of Codex's (approval, question) and what was answered at once."""

    method: str
    thread_id: str | None
    turn_id: str | None
    item_id: str | None
    decision: str
    payload: Mapping[str, object] = field(default_factory=dict)


EventSink = Callable[[TurnEvent], Awaitable[None]]
StartedSink = Callable[[str], Awaitable[None]]
InterruptSink = Callable[[str], Awaitable[None]]
DeltaSink = Callable[[TurnDelta], None]
AnsweredSink = Callable[[Answered], None]
UnsolicitedSink = Callable[[str, str], None]
