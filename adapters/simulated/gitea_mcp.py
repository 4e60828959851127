"""A stand-in for the official gitea-mcp: ``python -m adapters.simulated.gitea_mcp -t stdio``.

It speaks MCP on stdin and stdout and calls the Gitea in ``GITEA_HOST`` with the token in ``GITEA_ACCESS_TOKEN``,
in one of three recorded dialects (``TURNKEEPER_SIMULATED_MCP_DIALECT``: 2025-06, 2026-02 or 2026-03, the default).
Tool lists and input schemas are the recorded ones; a listed tool that is not implemented here answers an error that
says so. Every answer comes from the Gitea it stands before; nothing is kept.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from adapters.simulated.gitea_json import go_json
from adapters.simulated.gitea_mcp_calls import (
    ClientError,
    GiteaClient,
    Operation,
    ToolCalls,
    ToolError,
)
from adapters.simulated.gitea_mcp_shapes import slim, struct

DIALECTS = ("2025-06", "2026-02", "2026-03")
VERSION = "dev"

_FLAT: Mapping[str, Operation] = {
    "get_my_user_info": ToolCalls.me,
    "search_users": ToolCalls.search_users,
    "search_repos": ToolCalls.search_repos,
    "list_my_repos": ToolCalls.my_repos,
    "fork_repo": ToolCalls.fork,
    "get_issue_by_index": ToolCalls.issue,
    "list_repo_issues": ToolCalls.issues,
    "create_issue": ToolCalls.create_issue,
    "edit_issue": ToolCalls.edit_issue,
    "get_issue_comments_by_index": ToolCalls.comments,
    "create_issue_comment": ToolCalls.create_comment,
    "edit_issue_comment": ToolCalls.edit_comment,
    "get_pull_request_by_index": ToolCalls.pull,
    "list_repo_pull_requests": ToolCalls.pulls,
    "create_pull_request": ToolCalls.create_pull,
    "edit_pull_request": ToolCalls.edit_pull,
    "merge_pull_request": ToolCalls.merge_pull,
    "get_pull_request_diff": ToolCalls.diff,
    "list_pull_request_reviews": ToolCalls.reviews,
    "get_pull_request_review": ToolCalls.review,
    "list_pull_request_review_comments": ToolCalls.review_comments,
    "create_pull_request_review": ToolCalls.create_review,
    "submit_pull_request_review": ToolCalls.submit_review,
    "list_branches": ToolCalls.branches,
    "create_branch": ToolCalls.create_branch,
    "delete_branch": ToolCalls.delete_branch,
    "list_repo_commits": ToolCalls.commits,
    "get_file_content": ToolCalls.file,
    "get_dir_content": ToolCalls.folder,
    "create_file": ToolCalls.write_file,
    "update_file": ToolCalls.write_file,
    "delete_file": ToolCalls.delete_file,
}
_GROUPED: Mapping[str, Operation] = {
    "get_me": ToolCalls.me,
    "search_users": ToolCalls.search_users,
    "search_repos": ToolCalls.search_repos,
    "list_my_repos": ToolCalls.my_repos,
    "fork_repo": ToolCalls.fork,
    "issue_read/get": ToolCalls.issue,
    "issue_read/get_comments": ToolCalls.comments,
    "issue_write/create": ToolCalls.create_issue,
    "issue_write/update": ToolCalls.edit_issue,
    "issue_write/add_comment": ToolCalls.create_comment,
    "issue_write/edit_comment": ToolCalls.edit_comment,
    "list_issues": ToolCalls.issues,
    "pull_request_read/get": ToolCalls.pull,
    "pull_request_read/get_diff": ToolCalls.diff,
    "pull_request_read/get_reviews": ToolCalls.reviews,
    "pull_request_read/get_review": ToolCalls.review,
    "pull_request_read/get_review_comments": ToolCalls.review_comments,
    "pull_request_write/create": ToolCalls.create_pull,
    "pull_request_write/update": ToolCalls.edit_pull,
    "pull_request_write/merge": ToolCalls.merge_pull,
    "pull_request_review_write/create": ToolCalls.create_review,
    "pull_request_review_write/submit": ToolCalls.submit_review,
    "list_pull_requests": ToolCalls.pulls,
    "list_branches": ToolCalls.branches,
    "create_branch": ToolCalls.create_branch,
    "delete_branch": ToolCalls.delete_branch,
    "list_commits": ToolCalls.commits,
    "get_file_contents": ToolCalls.file,
    "get_dir_contents": ToolCalls.folder,
    "create_or_update_file": ToolCalls.write_file,
    "delete_file": ToolCalls.delete_file,
}
_SERVER_VERSION = "get_gitea_mcp_server_version"


class RpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class GiteaMcp:
    """The server; ``handle`` answers one message."""

    def __init__(self, *, host: str, token: str, dialect: str) -> None:
        if dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {dialect!r}: one of {', '.join(DIALECTS)}")
        self.dialect = dialect
        self.grouped = dialect == "2026-03"
        self.tools: list[dict[str, Any]] = _load_tools(dialect)
        self.operations = _GROUPED if self.grouped else _FLAT
        self.calls = ToolCalls(GiteaClient(host, token), strings=dialect != "2025-06")

    def handle(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Answer a request; None for a notification. Raises ``SystemExit`` where the real one dies."""
        number = message.get("id")
        try:
            result = self._dispatch(str(message.get("method")), message.get("params") or {})
        except RpcError as error:
            if number is None:
                return None
            return {
                "jsonrpc": "2.0",
                "id": number,
                "error": {"code": error.code, "message": str(error)},
            }
        return None if number is None else {"jsonrpc": "2.0", "id": number, "result": result}

    def _dispatch(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return self._initialize(params)
        if method == "tools/list":
            return {"tools": self.tools}
        if method == "tools/call":
            text = self._call(str(params.get("name")), params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        if method == "ping" or method.startswith("notifications/"):
            return {}
        raise RpcError(-32601, f"Method {method} not found")

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        spoken = ["2024-11-05", "2025-03-26"] + (["2025-06-18"] if self.dialect != "2025-06" else [])
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in spoken else spoken[-1],
            "capabilities": {"logging": {}, "tools": {"listChanged": True}},
            "serverInfo": {"name": "Gitea MCP Server", "version": VERSION},
        }

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if not any(tool["name"] == name for tool in self.tools):
            raise RpcError(-32602, f"tool '{name}' not found: tool not found")
        key = name
        if f"{name}/" in {f"{k.partition('/')[0]}/" for k in self.operations if "/" in k}:
            key = f"{name}/{arguments.get('method')}"
        if name == _SERVER_VERSION:
            return self._text(name, {"version": VERSION})
        operation = self.operations.get(key)
        if operation is None:
            raise RpcError(-32603, f"the stand-in gitea-mcp does not implement {key}")
        try:
            return self._text(key, operation(self.calls, arguments))
        except ClientError as error:
            if self.dialect == "2025-06":
                sys.exit(1)
            raise RpcError(-32603, f"get gitea client err: create gitea client err: {error}") from error
        except ToolError as error:
            raise RpcError(-32603, str(error)) from error

    def _text(self, key: str, value: Any) -> str:  # noqa: ANN401 - any JSON value
        if self.grouped:
            value = slim(value, decode=key == "get_file_contents")
            return value if isinstance(value, str) else go_json(value, indent=False)
        return go_json({"Result": struct(value, html=self.dialect != "2025-06")}, indent=False)


def _load_tools(dialect: str) -> list[dict[str, Any]]:
    data = json.loads(Path(__file__).with_name("gitea_mcp_tools.json").read_text())
    tools: list[dict[str, Any]] = data[dialect]
    return tools


def serve(server: GiteaMcp, source: TextIO, target: TextIO) -> None:
    """Answer line by line, in order, until the input ends."""
    for line in source:
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError:
            answer: dict[str, Any] | None = {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32700, "message": "Parse error"},
            }
        else:
            answer = server.handle(message)
        if answer is not None:
            target.write(go_json(answer, indent=False) + "\n")
            target.flush()


def main() -> int:
    """Run on stdin and stdout; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gitea-mcp", allow_abbrev=False)
    parser.add_argument("-t", "--t", "-transport", "--transport", default="stdio")
    parser.add_argument("-host", "--host", "-H", default=os.environ.get("GITEA_HOST", "https://gitea.com"))
    options = parser.parse_args()
    transport = os.environ.get("MCP_MODE") or options.t
    if transport != "stdio":
        parser.error(f"the stand-in speaks stdio only, not {transport!r}")
    server = GiteaMcp(
        host=options.host,
        token=os.environ.get("GITEA_ACCESS_TOKEN", ""),
        dialect=os.environ.get("TURNKEEPER_SIMULATED_MCP_DIALECT") or DIALECTS[-1],
    )
    serve(server, sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
