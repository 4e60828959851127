"""The shapes of tool calls, as they pass between the agent, the bridge and gitea-mcp."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

ToolSchema = Mapping[str, object]
"""One member of ``tools/list``: ``name``, ``description``, ``inputSchema``."""

Outcome = Literal["done", "refused", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
    """What the agent asks for. ``meta`` is MCP's ``_meta`` (Codex: ``x-codex-turn-metadata``, ``callId``)."""

    name: str
    arguments: Mapping[str, object]
    meta: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What gitea-mcp answered.

    ``done``: ``text`` is the result. ``refused``: nothing happened, ``code`` and ``message`` say why. ``unknown``:
    the answer was lost (time-out, end of the child, a broken connection behind it): a write may have happened.
    """

    outcome: Outcome
    text: str = ""
    code: str | None = None
    message: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What the agent is told: one or more text blocks; ``is_error`` marks a tool error."""

    texts: tuple[str, ...]
    is_error: bool = False


def tool_name(tool: ToolSchema) -> str:
    """The name of a tool, empty where there is none."""
    name = tool.get("name")
    return name if isinstance(name, str) else ""


def tool_properties(tool: ToolSchema) -> Mapping[str, object]:
    """The properties of a tool's input schema."""
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def tool_methods(tool: ToolSchema) -> tuple[str, ...]:
    """The values that a tool's ``method`` may have; empty where the tool has no ``method``."""
    method = tool_properties(tool).get("method")
    values = method.get("enum") if isinstance(method, Mapping) else None
    return (
        tuple(value for value in values if isinstance(value, str)) if isinstance(values, list | tuple) else ()
    )
