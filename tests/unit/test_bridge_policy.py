from typing import Any

import pytest

from domain.bridge_policy import Allowed, Policy, Refused, Scope, Verdict, is_reading, judge, offer, operation
from domain.tool_dialects import Dialect, object_id, unwrap, whole_number, written_by
from domain.tools import tool_methods, tool_name
from tests.unit.bridge_stage import DIALECTS, VERSIONS, recorded_tools, recording

OWN = {"owner": "acme", "repo": "widget"}
SCOPES: dict[Policy, Scope] = {
    policy: Scope(owner="acme", repo="widget", policy=policy)
    for policy in ("repository", "comment-only", "open")
}


def verdict(dialect: str, name: str, policy: Policy = "repository", **arguments: Any) -> Verdict:
    tool = next(tool for tool in recorded_tools(dialect) if tool["name"] == name)
    return judge(name, {**OWN, **arguments}, tool, SCOPES[policy])


@pytest.mark.parametrize(
    ("dialect", "create", "edit", "listing", "whoami"),
    [
        (
            "2025-06",
            ("create_issue_comment", None, "index"),
            ("edit_issue_comment", None, "commentID"),
            "get_issue_comments_by_index",
            "get_my_user_info",
        ),
        (
            "2026-02",
            ("create_issue_comment", None, "index"),
            ("edit_issue_comment", None, "commentID"),
            "get_issue_comments_by_index",
            "get_my_user_info",
        ),
        (
            "2026-03",
            ("issue_write", "add_comment", "index"),
            ("issue_write", "edit_comment", "commentID"),
            "issue_read.get_comments",
            "get_me",
        ),
        (
            "issue_number",
            ("issue_write", "add_comment", "issue_number"),
            ("issue_write", "edit_comment", "commentID"),
            "issue_read.get_comments",
            "get_me",
        ),
    ],
)
def test_dialect_is_read_from_the_schemas(
    dialect: str, create: tuple[Any, ...], edit: tuple[Any, ...], listing: str, whoami: str
) -> None:
    """The operations of each recorded list of tools are found by their schemas."""
    found = Dialect.detect(recorded_tools(dialect))
    assert found.create_comment is not None
    assert found.edit_comment is not None
    assert found.list_comments is not None
    assert found.read_issue is not None
    assert (found.create_comment.tool, found.create_comment.method, found.create_comment.number) == create
    assert (found.edit_comment.tool, found.edit_comment.method, found.edit_comment.number) == edit
    assert found.list_comments.label == listing
    assert found.whoami == whoami


def test_no_tools_no_dialect() -> None:
    """Where no tool comments, none is made up."""
    assert Dialect.detect([]) == Dialect()
    assert Dialect.detect([{"name": "create_issue_comment"}, {}, {"name": 7}]) == Dialect()


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_results_are_understood(version: str) -> None:
    """The id of a recorded comment and of the bot is found, wrapped or not, and its author recognised."""
    texts = {
        entry["note"]: entry["answer"]["result"]["content"][0]["text"]
        for entry in recording(version)
        if entry["note"] in {"comment", "who am I"}
    }
    assert object_id(texts["who am I"]) == 6
    assert object_id(texts["comment"]) == {"2025-06": 129, "2026-02": 133, "2026-03": 138}[version]
    assert written_by(texts["comment"], user_id=6, login="Codex-Bot")
    assert not written_by(texts["comment"], user_id=7, login="alice")
    assert unwrap("no json") is None


def test_numbers_as_the_agent_writes_them() -> None:
    """Whole positive numbers and their digits are numbers; nothing else is."""
    assert [whole_number(value) for value in (7, "7", 7.0)] == [7, 7, 7]
    wrong: tuple[object, ...] = (0, -1, "", "-1", "7/../8", 7.5, True, None, [], "٣", "9" * 30, 2**70)
    assert [whole_number(value) for value in wrong] == [None] * len(wrong)


@pytest.mark.parametrize(
    ("dialect", "name", "arguments", "code"),
    [
        ("2026-02", "delete_branch", {}, "deleting_not_allowed"),
        ("2026-02", "delete_pull_request_review", {}, "deleting_not_allowed"),
        ("2026-02", "merge_pull_request", {}, "merging_not_allowed"),
        ("2026-02", "dismiss_pull_request_review", {}, "closing_not_allowed"),
        ("2026-02", "edit_milestone", {"state": "closed"}, "closing_not_allowed"),
        ("2026-02", "upsert_repo_action_secret", {}, "settings_not_allowed"),
        ("2026-02", "list_repo_action_variables", {}, "settings_not_allowed"),
        ("2026-02", "create_org_label", {"org": "acme"}, "foreign_repository"),
        ("2026-02", "search_repos", {}, "foreign_repository"),
        ("2026-02", "create_repo", {}, "foreign_repository"),
        ("2026-02", "fork_repo", {"user": "acme"}, "foreign_repository"),
        ("2026-02", "list_my_repos", {}, "foreign_repository"),
        ("2026-02", "get_my_times", {}, "foreign_repository"),
        ("2026-02", "download_repo_action_job_log", {}, "local_file"),
        ("2026-03", "pull_request_write", {"method": "merge"}, "merging_not_allowed"),
        ("2026-03", "pull_request_write", {"method": "remove_reviewers"}, "deleting_not_allowed"),
        ("2026-03", "wiki_write", {"method": "delete"}, "deleting_not_allowed"),
        ("2026-03", "label_write", {"method": "create_org_label"}, "foreign_repository"),
        ("2026-03", "actions_config_write", {"method": "upsert_repo_secret"}, "settings_not_allowed"),
        ("2026-03", "actions_run_write", {"method": "cancel_run"}, "closing_not_allowed"),
        ("2026-03", "actions_run_read", {"method": "download_job_log"}, "local_file"),
        ("2026-03", "actions_run_read", {"method": "list_runs", "output_path": "/x"}, "local_file"),
        ("2026-03", "timetracking_read", {"method": "get_my_times"}, "foreign_repository"),
        ("2026-03", "search_issues", {}, "foreign_repository"),
        ("2026-03", "issue_write", {"method": "transfer"}, "method_unknown"),
        ("2026-03", "issue_write", {}, "method_unknown"),
        ("2026-03", "get_file_contents", {"repo": "secret"}, "foreign_repository"),
        ("2026-03", "get_file_contents", {"owner": ["acme"]}, "foreign_repository"),
        ("2026-03", "get_file_contents", {"filePath": "../../../acme/secret/contents/a"}, "invalid_argument"),
        ("2026-03", "get_file_contents", {"filePath": "a/%2e%2E%2fb"}, "invalid_argument"),
        ("2026-03", "get_file_contents", {"ref": "main\nx"}, "invalid_argument"),
        ("2026-03", "pull_request_write", {"method": "create", "head": "mallory:main"}, "foreign_repository"),
        ("2026-02", "create_pull_request", {"head": "acme/other:main"}, "foreign_repository"),
        ("2026-02", "create_pull_request", {"head": ["mallory:main"]}, "foreign_repository"),
    ],
)
def test_refused(dialect: str, name: str, arguments: dict[str, Any], code: str) -> None:
    """What the policy ``repository`` refuses, and why."""
    decided = verdict(dialect, name, **arguments)
    assert isinstance(decided, Refused)
    assert decided.code == code
    assert len(decided.reason) > 20


@pytest.mark.parametrize(
    ("dialect", "name", "arguments", "writes"),
    [
        ("2026-02", "create_issue", {}, True),
        ("2026-02", "create_pull_request", {"head": "turnkeeper/t1"}, True),
        ("2026-02", "create_pull_request", {"head": "Acme:turnkeeper/t1"}, True),
        ("2026-02", "create_pull_request", {"head": "acme/widget:turnkeeper/t1"}, True),
        ("2026-02", "edit_pull_request", {"title": "x", "state": "open"}, True),
        ("2026-02", "get_pull_request_diff", {"index": 3}, False),
        ("2026-02", "get_my_user_info", {}, False),
        ("2026-03", "pull_request_write", {"method": "create", "body": "see ../a"}, True),
        ("2026-03", "pull_request_review_write", {"method": "create"}, True),
        ("2026-03", "get_file_contents", {"owner": "ACME", "filePath": "a..b/c"}, False),
        ("2026-03", "issue_read", {"method": "get_comments"}, False),
        ("2026-03", "get_me", {"owner": "", "repo": ""}, False),
    ],
)
def test_allowed(dialect: str, name: str, arguments: dict[str, Any], writes: bool) -> None:  # noqa: FBT001
    """What the policy ``repository`` allows without a further look, and whether it writes."""
    assert verdict(dialect, name, **arguments) == Allowed(writes=writes)


def test_writes_on_what_others_made_need_a_look() -> None:
    """Editing comments, closing and rewriting need a look at who made them; under ``open`` they do not."""
    assert verdict("2026-02", "edit_issue_comment", commentID=1) == Allowed(writes=True, needs="own_comment")
    assert verdict("2026-02", "edit_issue", state="closed") == Allowed(writes=True, needs="own_item")
    assert verdict("2026-03", "pull_request_write", method="update", body="x") == Allowed(
        writes=True, needs="own_item"
    )
    assert verdict("2026-02", "edit_issue", "open", state="closed") == Allowed(writes=True)


def test_open_still_stays_in_the_repository() -> None:
    """``open`` allows deleting and settings, but neither foreign repositories nor files of the service's machine."""
    assert verdict("2026-02", "delete_branch", "open") == Allowed(writes=True)
    assert verdict("2026-02", "merge_pull_request", "open") == Allowed(writes=True)
    for name in (
        "search_repos",
        "create_repo",
        "fork_repo",
        "delete_org_label",
        "download_repo_action_job_log",
    ):
        assert isinstance(verdict("2026-02", name, "open"), Refused)
    assert isinstance(verdict("2026-02", "delete_branch", "open", repo="other"), Refused)


@pytest.mark.parametrize("name", ["frobnicate", "create_deploy_thing", "pin_issue"])
def test_unknown_write_is_refused(name: str) -> None:
    """A write of tomorrow's gitea-mcp is refused until it is known here."""
    tool = {"name": name, "inputSchema": {"properties": {"owner": {}, "repo": {}}}}
    decided = judge(name, OWN, tool, SCOPES["repository"])
    assert isinstance(decided, Refused)
    assert decided.code == "write_not_known"
    assert not is_reading(name)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("policy", list(SCOPES))
def test_what_is_offered_is_what_is_allowed(dialect: str, policy: Policy) -> None:
    """A tool or method is offered exactly if a call on the own repository could be allowed."""
    for tool in recorded_tools(dialect):
        offered = offer(tool, SCOPES[policy])
        shown = set() if offered is None else set(tool_methods(offered) or [""])
        for method in tool_methods(tool) or ("",):
            arguments = {**OWN, **({"method": method} if method else {})}
            decided = judge(tool["name"], arguments, tool, SCOPES[policy])
            assert (method in shown) == isinstance(decided, Allowed), (tool["name"], method)


@pytest.mark.parametrize(("dialect", "most"), [("2025-06", 28), ("2026-02", 70), ("2026-03", 36)])
def test_list_of_tools_shrinks(dialect: str, most: int) -> None:
    """The agent is offered fewer tools than gitea-mcp has, and never one that deletes, merges or reaches further."""
    tools = recorded_tools(dialect)
    offered = [tool for tool in (offer(tool, SCOPES["repository"]) for tool in tools) if tool is not None]
    assert len(offered) <= most < len(tools)
    operations = {
        operation(tool_name(tool), {"method": method}, tool) or ""
        for tool in offered
        for method in tool_methods(tool) or ("",)
    }
    assert not [
        name
        for name in operations
        if "delete" in name or "merge" in name or "secret" in name or "org" in name
    ]
    fewer = [tool for tool in (offer(tool, SCOPES["comment-only"]) for tool in tools) if tool is not None]
    assert len(fewer) < len(offered)


def test_methods_that_are_refused_are_not_shown() -> None:
    """A tool of several methods is shown without those that are refused, and stays otherwise as it is."""
    tool = next(tool for tool in recorded_tools("2026-03") if tool["name"] == "pull_request_write")
    offered = offer(tool, SCOPES["repository"])
    assert offered is not None
    assert tool_methods(offered) == ("create", "update", "add_reviewers")
    assert "merge" in tool_methods(tool)
