"""The text of the ``config.toml`` in a run's private CODEX_HOME.

Provider and model stand there and not in ``-c`` options, which 0.77 ignores. No secret stands in it except
the run's own relay capability, which is part of ``base_url`` and dies with the run.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelProvider:
    """Where the model is reached. Retries are Codex's own, per request and per broken stream."""

    base_url: str
    name: str = "turnkeeper"
    env_key: str | None = None
    request_max_retries: int = 4
    stream_max_retries: int = 5
    stream_idle_timeout_ms: int = 300_000


def config_toml(*, provider: ModelProvider, model: str | None = None, effort: str | None = None) -> str:
    """The whole file; without a model Codex takes its own default. Every value is escaped as a TOML basic string."""
    lines = [f"model_provider = {quoted(provider.name)}"]
    if model is not None:
        lines.insert(0, f"model = {quoted(model)}")
    if effort is not None:
        lines.append(f"model_reasoning_effort = {quoted(effort)}")
    lines += [
        "check_for_update_on_startup = false",
        "",
        "[analytics]",
        "enabled = false",
        "",
        f"[model_providers.{quoted(provider.name)}]",
        f"name = {quoted(provider.name)}",
        f"base_url = {quoted(provider.base_url)}",
        'wire_api = "responses"',
        "requires_openai_auth = false",
        f"request_max_retries = {provider.request_max_retries}",
        f"stream_max_retries = {provider.stream_max_retries}",
        f"stream_idle_timeout_ms = {provider.stream_idle_timeout_ms}",
    ]
    if provider.env_key is not None:
        lines.append(f"env_key = {quoted(provider.env_key)}")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """``text`` as a TOML basic string (TOML 1.0, section "String")."""
    named = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    pieces = [
        named.get(sign) or (f"\\u{ord(sign):04X}" if ord(sign) < 0x20 or ord(sign) == 0x7F else sign)
        for sign in text.encode("utf-8", "replace").decode()
    ]
    return '"' + "".join(pieces) + '"'
