"""The grammar that the scripted agent and the stand-in model share."""

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.simulated import agent
from adapters.simulated.agent import comment_call, parse_directive, parse_target, plan, uuid7
from adapters.simulated.model import last_user_text, next_step, offered_tools

EVIDENCE = Path(__file__).parents[1] / "evidence" / "gitea-mcp"
TARGET = ("acme", "widget", "issue", 42)
PLACE = "repository: acme/widget\nresource: issue 42"


def recorded_tools(name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (EVIDENCE / name).read_text().splitlines()]
    [listed] = [line["answer"]["result"]["tools"] for line in lines if line["note"] == "tools/list"]
    return [{"name": tool["name"], "schema": tool["inputSchema"]} for tool in listed]


@pytest.mark.parametrize(
    ("recording", "tool", "method"),
    [
        ("2025-06.jsonl", "create_issue_comment", None),
        ("2026-02.jsonl", "create_issue_comment", None),
        ("2026-03.jsonl", "issue_write", "add_comment"),
    ],
)
def test_the_comment_tool_is_found_in_each_recorded_dialect(
    recording: str, tool: str, method: str | None
) -> None:
    """By schema, never by version: the right tool out of a hundred, with its own argument names."""
    chosen = comment_call(recorded_tools(recording), TARGET, "hello")
    assert chosen is not None
    name, arguments = chosen
    assert name == tool
    assert arguments.pop("method", None) == method
    assert arguments == {"owner": "acme", "repo": "widget", "index": 42, "body": "hello"}


def test_no_comment_tool_is_no_call() -> None:
    """Where nothing fits, nothing is called; the model then only answers."""
    assert comment_call([{"name": "get_me", "schema": {}}], TARGET, "x") is None
    assert next_step(PLACE, 0, [])["do"] == "text"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a [[mock:hang]] b", ("hang", {})),
        ('[[mock:text {"text": "]] }"}]] [[mock:hang]]', ("text", {"text": "]] }"})),
        ('[[mock:steps [{"do": "slow"}]\n]]', ("steps", [{"do": "slow"}])),
        ("[[mock:text {broken]] [[mock:hang {}]]", ("hang", {})),
        ("mock:hang", None),
    ],
)
def test_the_first_whole_directive_counts(text: str, expected: object) -> None:
    """JSON may hold brackets; what is broken is passed over."""
    assert parse_directive(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLACE, TARGET),
        ("x\n  repository:  a.b/c-d \n\nresource: pull_request #7\n", ("a.b", "c-d", "pull_request", 7)),
        ("repository: acme/widget", None),
        ("see repository: acme/widget\nresource: issue x", None),
    ],
)
def test_the_place_stands_on_lines_of_their_own(text: str, expected: object) -> None:
    """Both lines or none."""
    assert parse_target(text) == expected


def test_a_script_ends_with_an_answer() -> None:
    """Steps without a last text get one, so that every turn ends."""
    assert plan("steps", [{"do": "exec", "cmd": "ls"}])[-1] == {"do": "text", "text": "Done."}
    assert [step["do"] for step in plan("call", {"name": "x"})] == ["call", "text"]


def test_the_last_word_of_the_user_counts_and_its_steps_are_counted_from_there() -> None:
    """Context that Codex adds under the user's name is nobody's instruction."""
    said: list[dict[str, Any]] = [
        {"role": "user", "content": [{"text": "old"}]},
        {"type": "function_call_output"},
        {"role": "user", "content": [{"text": "new"}]},
        {"role": "user", "content": [{"text": "<environment_context>…"}]},
        {"type": "function_call"},
        {"type": "function_call_output"},
    ]
    assert last_user_text(said) == ("new", 1)


def test_a_namespace_is_used_as_it_is_offered() -> None:
    """0.130 and 0.171 name it differently; the tool of the request decides."""
    inner = {"type": "function", "name": "issue_write", "parameters": {"properties": {}}}
    tools = offered_tools([{"type": "namespace", "name": "mcp__gitea__", "tools": [inner]}])
    step = next_step('[[mock:call {"name": "issue_write", "namespace": "mcp__gitea"}]]', 0, tools)
    assert step["namespace"] == "mcp__gitea__"


def test_ids_grow_with_time_and_are_of_version_7() -> None:
    """As recorded: the thirteenth digit is 7, later ids sort later by the millisecond."""
    first, second = uuid7(), uuid7()
    assert first[14] == second[14] == "7"
    assert first[:13] <= second[:13]
    assert first != second


def test_the_agent_needs_nothing_but_the_standard_library() -> None:
    """In its box there is one file and a Python: nothing else may be imported."""
    tree = ast.parse(Path(agent.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
