"""The bookkeeping of a turn, the mapping of errors and the configuration file, without a process."""

import tomllib
from typing import Any

import pytest

from adapters.codex.errors import thread_fault, turn_error
from adapters.codex.home import ModelProvider, config_toml
from adapters.codex.protocol import ThreadSettings
from adapters.codex.threads import deviations
from adapters.codex.turns import TurnLedger
from adapters.jsonrpc import RemoteError

DANGER = {"approvalPolicy": "never", "sandbox": {"type": "dangerFullAccess"}, "cwd": "/workspace"}


def item(kind: str, item_id: str, **fields: Any) -> dict[str, Any]:
    return {"item": {"type": kind, "id": item_id, **fields}, "turnId": "t"}


def usage(total: int, last: int) -> dict[str, Any]:
    return {"tokenUsage": {"total": {"totalTokens": total}, "last": {"totalTokens": last}}}


def test_a_repeated_event_changes_nothing() -> None:
    """The same item and method twice is one event, and numbers have no gap."""
    ledger = TurnLedger()
    heard = [
        ledger.take("item/started", item("agentMessage", "m1", text="")),
        ledger.take("item/started", item("agentMessage", "m1", text="")),
        ledger.take("item/completed", item("agentMessage", "m1", text="hi")),
        ledger.take("item/completed", item("agentMessage", "m1", text="hi")),
        ledger.take("item/agentMessage/delta", {"delta": "h"}),
        ledger.take("codex/event/tomorrow", {}),
    ]
    assert [event.seq if event else None for event in heard] == [1, None, 2, None, None, None]


def test_the_final_message_is_the_last_that_is_no_commentary() -> None:
    """What the agent says on its way does not replace its answer."""
    ledger = TurnLedger()
    for number, (text, phase) in enumerate([("a", "commentary"), ("b", "final_answer"), ("c", "commentary")]):
        ledger.take("item/completed", item("agentMessage", f"m{number}", text=text, phase=phase))
    assert ledger.final_message == "b"


@pytest.mark.parametrize("spent", [{"totalTokens": 1000}, None])
def test_tokens_are_the_turns_own_although_the_old_total_is_repeated(spent: dict[str, int] | None) -> None:
    """0.130 repeats the thread's total under the new turn; it counts for nothing, known beforehand or not."""
    ledger = TurnLedger(spent=spent)
    ledger.take("thread/tokenUsage/updated", usage(1000, 300))
    ledger.take("item/started", item("agentMessage", "m", text=""))
    for total in (1120, 1120, 1240):
        ledger.take("thread/tokenUsage/updated", usage(total, 120))
    assert ledger.usage is not None
    assert ledger.usage.total_tokens == 240


def test_a_summary_is_bounded_and_leaves_arguments_out() -> None:
    """Long outputs are cut; a tool's arguments and results, which may hold anything, are not stored."""
    ledger = TurnLedger()
    call = ledger.take(
        "item/completed",
        item(
            "mcpToolCall",
            "c",
            server="gitea",
            tool="x",
            status="failed",
            arguments={"a": "S"},
            result={"r": "S"},
        ),
    )
    shell = ledger.take(
        "item/completed",
        item("commandExecution", "e", command="ls", aggregatedOutput="x" * 100_000, exitCode=0),
    )
    assert call is not None
    assert shell is not None
    assert "S" not in str(call.payload)
    assert len(str(shell.payload)) < 5000
    assert shell.payload["exitCode"] == 0


def test_a_collaboration_mode_without_effect_is_a_deviation() -> None:
    """Settings that Codex took in silence, and did not apply, are told."""
    wanted = {"mode": "default", "settings": {"model": "a", "reasoning_effort": "low"}}
    ledger = TurnLedger(wanted)
    took = {"mode": "default", "settings": {"model": "b", "reasoning_effort": "low"}}
    ledger.take("thread/settings/updated", {"threadSettings": {"collaborationMode": took}})
    assert [(each.name, each.wanted, each.got) for each in ledger.deviations] == [
        ("collaborationMode.model", "a", "b")
    ]


@pytest.mark.parametrize(
    ("info", "message", "code", "retryable"),
    [
        ("contextWindowExceeded", "x", "model_context_full", False),
        ("usageLimitExceeded", "x", "model_quota", False),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, "x", "model_unauthorised", False),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "x", "model_rate_limited", True),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 503}}, "x", "model_unavailable", True),
        ("internalServerError", "x", "model_unavailable", True),
        ("other", '{"error": {"message": "bad"}}', "model_invalid_request", False),
        ("other", "stream disconnected before completion: Transport error", "model_stream_cut", True),
        ("other", "Missing environment variable: `K`.", "codex_misconfigured", False),
        ("other", "Incomplete response returned, reason: max_output_tokens", "model_incomplete", True),
        ("tomorrows_word", "?", "codex_turn_failed", True),
    ],
)
def test_codexs_words_for_failures_have_codes(
    info: object, message: str, code: str, *, retryable: bool
) -> None:
    """Each recorded errorInfo has its code, and 400, 401, quota and context are never retried."""
    error = turn_error({"message": message, "codexErrorInfo": info})
    assert (error.code, error.retryable) == (code, retryable)


def test_an_error_tells_no_address() -> None:
    """The relay's address holds a capability: links are taken out of every message."""
    error = turn_error({"message": "unexpected status 401, url: http://127.0.0.1:9/cap/v1/responses"})
    assert "cap" not in error.message


@pytest.mark.parametrize(
    ("number", "text", "code"),
    [
        (-32600, "no rollout found for thread id 1", "thread_not_found"),
        (-32600, "thread 1 already has an active writer", "thread_busy"),
        (-32001, "overloaded", "codex_overloaded"),
        (-32603, "x: required MCP servers failed to initialize: gitea: gone", "mcp_start_failed"),
        (-32603, "error creating thread: disk full", "thread_resume_failed"),
    ],
)
def test_only_a_missing_rollout_proves_a_lost_thread(number: int, text: str, code: str) -> None:
    """Resume failures are told apart; what may pass is never thread_not_found."""
    assert thread_fault(RemoteError(number=number, text=text), resume=True).code == code


def test_settings_that_fell_back_in_silence_are_told() -> None:
    """A resume that lost policy, sandbox and folder answers so, and is found out."""
    settings = ThreadSettings(cwd="/workspace", model="m")
    fine = {**DANGER, "model": "m"}
    assert deviations(settings, fine, wanted_id="1", opened="1") == ()
    fallen = fine | {"approvalPolicy": "on-request", "sandbox": {"type": "workspaceWrite"}, "cwd": "/"}
    names = [each.name for each in deviations(settings, fallen, wanted_id="1", opened="2")]
    assert names == ["threadId", "cwd", "approvalPolicy", "sandbox"]


@pytest.mark.parametrize("model", ["plain", 'q"uo\\te', "new\nline\t\x00\x7f", "日本 é", '"\n[other]\nx = "'])
def test_the_configuration_says_what_was_meant_whatever_the_names(model: str) -> None:
    """Every value survives the way through TOML; none can begin a table of its own."""
    provider = ModelProvider(base_url=f"http://127.0.0.1:1/{model}/v1", name=model, env_key=None)
    read = tomllib.loads(config_toml(provider=provider, model=model, effort=model))
    assert (read["model"], read["model_provider"], read["model_reasoning_effort"]) == (model, model, model)
    assert read["model_providers"][model]["base_url"] == provider.base_url
    assert set(read) == {
        "model",
        "model_provider",
        "model_reasoning_effort",
        "check_for_update_on_startup",
        "analytics",
        "model_providers",
    }
