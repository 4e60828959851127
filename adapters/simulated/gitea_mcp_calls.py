"""What the tools of the stand-in gitea-mcp do: one REST call each (sometimes two) to the Gitea it stands before.

Sources: exchanges recorded from gitea-mcp of 2025-06, 2026-02 and 2026-03. Recorded are: who am I, comments,
issues and the refusal of a second pull request; the texts of other tools follow the same pattern.
"""

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

Arguments = Mapping[str, Any]


class ToolError(Exception):
    """A call that ends as JSON-RPC error -32603 with this text."""


class ClientError(ToolError):
    """Gitea refused the very first question, or did not answer it; the year 2025 dies of this."""


class RefusedError(Exception):
    """Gitea's own words."""


class GiteaClient:
    """REST with a token. Each tool call asks for the version first, as the official server's library does."""

    def __init__(self, host: str, token: str) -> None:
        self.host = host.rstrip("/")
        self._token = token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def connect(self) -> None:
        """Ask for the version; raises ``ClientError``."""
        try:
            answer = self.ask("GET", "/version")
        except RefusedError as error:
            raise ClientError(str(error)) from error
        version = str(answer.get("version", ""))
        if not version[:1].isdigit():
            raise ClientError(f"Malformed version: {version}")

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - any JSON value
        """One request; raises ``RefusedError`` with Gitea's message."""
        address = f"{self.host}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"token {self._token}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(address, data=data, headers=headers, method=method)  # noqa: S310 - GITEA_HOST is configuration
        try:
            with self._opener.open(request) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(_message(error.read(), error.code)) from None
        except (OSError, http.client.HTTPException) as error:
            raise RefusedError(f'{method.capitalize()} "{address}": {self._why(error)}') from None
        try:
            return json.loads(raw) if raw.strip() else None
        except ValueError:
            return raw.decode(errors="replace")

    def _why(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ConnectionRefusedError):
            place = urlsplit(self.host)
            port = place.port or (443 if place.scheme == "https" else 80)
            return f"dial tcp {place.hostname}:{port}: connect: connection refused"
        return "EOF"


def _message(raw: bytes, status: int) -> str:
    try:
        return str(json.loads(raw).get("message", ""))
    except (ValueError, AttributeError):
        return f"unknown API error: {status}"


class ToolCalls:
    """The operations behind the tools. ``strings`` says whether ``index`` may be a string (from 2026 on)."""

    def __init__(self, client: GiteaClient, *, strings: bool) -> None:
        self.client = client
        self.strings = strings

    # Arguments

    def text(self, arguments: Arguments, name: str, *, may_be_empty: bool = False) -> str:
        """A string that must be there."""
        value = arguments.get(name)
        if not isinstance(value, str) or not (value or may_be_empty):
            raise ToolError(f"{name} is required")
        return value

    def number(self, arguments: Arguments, name: str = "index") -> int:
        """A number that must be there; from 2026 on it may come as a string."""
        value = arguments.get(name)
        if isinstance(value, str) and self.strings and value.strip().lstrip("-").isdigit():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ToolError(f"{name} is required")
        return int(value)

    def where(self, arguments: Arguments) -> str:
        """``owner/repo``."""
        return f"{self.text(arguments, 'owner')}/{self.text(arguments, 'repo')}"

    def send(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - any JSON value
        """Connect and ask; refusals become ``{what} err: {message}``."""
        self.client.connect()
        try:
            return self.client.ask(method, path, body, query)
        except RefusedError as error:
            raise ToolError(f"{what} err: {error}") from error

    @staticmethod
    def page(arguments: Arguments, size: str = "perPage") -> dict[str, Any]:
        """Page and size under the names of any version."""
        limit = arguments.get(size) or arguments.get("pageSize") or arguments.get("page_size") or 30
        return {"page": int(arguments.get("page") or 1), "limit": int(limit)}

    # People and repositories

    def me(self, _: Arguments) -> Any:  # noqa: ANN401 - any JSON value
        """Who the token belongs to."""
        return self.send("get user info", "GET", "/user")

    def search_users(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Users by a part of their name."""
        query = {"q": arguments.get("keyword") or "", **self.page(arguments)}
        return self.send("search users", "GET", "/users/search", query=query)["data"]

    def search_repos(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Repositories by a part of their name."""
        query = {"q": arguments.get("keyword") or "", **self.page(arguments)}
        return self.send("search repos", "GET", "/repos/search", query=query)["data"]

    def my_repos(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Repositories of the token's owner."""
        return self.send("list my repositories", "GET", "/user/repos", query=self.page(arguments))

    def fork(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Fork a repository."""
        where = f"{self.text(arguments, 'user')}/{self.text(arguments, 'repo')}"
        name = {"name": arguments["name"]} if arguments.get("name") else {}
        return self.send("fork repository error:", "POST", f"/repos/{where}/forks", name)

    # Issues and comments

    def issue(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """One issue."""
        where, index = self.where(arguments), self.number(arguments)
        return self.send(f"get {where}/issue/{index}", "GET", f"/repos/{where}/issues/{index}")

    def issues(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Issues of a repository."""
        where = self.where(arguments)
        query = {"state": arguments.get("state") or "all", **self.page(arguments)}
        return self.send(f"get {where}/issues", "GET", f"/repos/{where}/issues", query=query)

    def create_issue(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Open an issue."""
        where = self.where(arguments)
        body = {
            "title": self.text(arguments, "title"),
            "body": self.text(arguments, "body", may_be_empty=True),
        }
        return self.send(f"create {where}/issue", "POST", f"/repos/{where}/issues", body)

    def edit_issue(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Change an issue's title, body or state."""
        where, index = self.where(arguments), self.number(arguments)
        body = {key: arguments[key] for key in ("title", "body", "state") if arguments.get(key)}
        return self.send(f"edit {where}/issue/{index}", "PATCH", f"/repos/{where}/issues/{index}", body)

    def comments(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Comments of an issue or pull request."""
        where, index = self.where(arguments), self.number(arguments)
        path = f"/repos/{where}/issues/{index}/comments"
        return self.send(f"get {where}/issues/{index}/comments", "GET", path)

    def create_comment(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Write a comment; an empty body is refused before Gitea is asked."""
        where, index = self.where(arguments), self.number(arguments)
        body = self.text(arguments, "body", may_be_empty=True)
        what = f"create {where}/issue/{index}/comment"
        if not body:
            raise ToolError(f"{what} err: body is empty")
        return self.send(what, "POST", f"/repos/{where}/issues/{index}/comments", {"body": body})

    def edit_comment(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Change a comment."""
        where, comment = self.where(arguments), self.number(arguments, "commentID")
        body = self.text(arguments, "body", may_be_empty=True)
        what = f"edit {where}/issues/comments/{comment}"
        if not body:
            raise ToolError(f"{what} err: body is empty")
        return self.send(what, "PATCH", f"/repos/{where}/issues/comments/{comment}", {"body": body})

    # Pull requests

    def pull(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """One pull request."""
        where, index = self.where(arguments), self.number(arguments)
        return self.send(f"get {where}/pr/{index}", "GET", f"/repos/{where}/pulls/{index}")

    def pulls(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Pull requests of a repository."""
        where = self.where(arguments)
        query = {"state": arguments.get("state") or "all", **self.page(arguments)}
        return self.send(f"list {where}/pull_requests", "GET", f"/repos/{where}/pulls", query=query)

    def create_pull(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Open a pull request."""
        where = self.where(arguments)
        body = {
            "title": self.text(arguments, "title"),
            "body": self.text(arguments, "body", may_be_empty=True),
            "head": self.text(arguments, "head"),
            "base": self.text(arguments, "base"),
        }
        return self.send(f"create {where}/pull_request", "POST", f"/repos/{where}/pulls", body)

    def edit_pull(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Change a pull request's title, body or state."""
        where, index = self.where(arguments), self.number(arguments)
        body = {key: arguments[key] for key in ("title", "body", "state") if arguments.get(key)}
        return self.send(f"edit {where}/pr/{index}", "PATCH", f"/repos/{where}/pulls/{index}", body)

    def merge_pull(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Merge a pull request."""
        where, index = self.where(arguments), self.number(arguments)
        body = {"Do": arguments.get("merge_style") or "merge"}
        self.send(f"merge {where}/pr/{index}", "POST", f"/repos/{where}/pulls/{index}/merge", body)
        return {"merged": True}

    def diff(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """The difference of a pull request as text."""
        where, index = self.where(arguments), self.number(arguments)
        return self.send(f"get {where}/pr/{index} diff", "GET", f"/repos/{where}/pulls/{index}.diff")

    def reviews(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Reviews of a pull request."""
        where, index = self.where(arguments), self.number(arguments)
        return self.send(f"list {where}/pr/{index} reviews", "GET", f"/repos/{where}/pulls/{index}/reviews")

    def review(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """One review."""
        where, index = self.where(arguments), self.number(arguments)
        path = f"/repos/{where}/pulls/{index}/reviews/{self.number(arguments, 'review_id')}"
        return self.send(f"get {where}/pr/{index} review", "GET", path)

    def review_comments(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Inline comments of a review."""
        where, index = self.where(arguments), self.number(arguments)
        path = f"/repos/{where}/pulls/{index}/reviews/{self.number(arguments, 'review_id')}/comments"
        return self.send(f"list {where}/pr/{index} review comments", "GET", path)

    def create_review(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Review a pull request."""
        where, index = self.where(arguments), self.number(arguments)
        inline = [
            {
                "path": entry.get("path"),
                "body": entry.get("body"),
                "new_position": entry.get("new_line_num"),
                "old_position": entry.get("old_line_num"),
            }
            for entry in arguments.get("comments") or []
        ]
        body = {
            "event": arguments.get("state") or "PENDING",
            "body": arguments.get("body") or "",
            "comments": inline,
        }
        what = f"create {where}/pr/{index} review"
        return self.send(what, "POST", f"/repos/{where}/pulls/{index}/reviews", body)

    def submit_review(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Publish a pending review."""
        where, index = self.where(arguments), self.number(arguments)
        path = f"/repos/{where}/pulls/{index}/reviews/{self.number(arguments, 'review_id')}"
        body = {"event": self.text(arguments, "state"), "body": arguments.get("body") or ""}
        return self.send(f"submit {where}/pr/{index} review", "POST", path, body)

    # Branches, commits, files

    def branches(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Branches of a repository."""
        where = self.where(arguments)
        return self.send("list branches", "GET", f"/repos/{where}/branches", query=self.page(arguments))

    def create_branch(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Create a branch."""
        where = self.where(arguments)
        body = {
            "new_branch_name": self.text(arguments, "branch"),
            "old_branch_name": arguments.get("old_branch") or "",
        }
        self.send("create branch", "POST", f"/repos/{where}/branches", body)
        return "Branch Created"

    def delete_branch(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Delete a branch."""
        where, branch = self.where(arguments), self.text(arguments, "branch")
        self.send("delete branch", "DELETE", f"/repos/{where}/branches/{quote(branch)}")
        return "Branch Deleted"

    def commits(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Commits of a branch."""
        where = self.where(arguments)
        query = self.page(arguments) | ({"sha": arguments["sha"]} if arguments.get("sha") else {})
        return self.send("list repo commits", "GET", f"/repos/{where}/commits", query=query)

    def file(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """A file with its content in Base64, as Gitea answers."""
        return self._contents(arguments, "get file")

    def folder(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """The entries of a folder."""
        return self._contents(arguments, "get dir content")

    def _contents(self, arguments: Arguments, what: str) -> Any:  # noqa: ANN401
        where, path = self.where(arguments), arguments.get("filePath")
        if not isinstance(path, str):
            raise ToolError("filePath is required")
        query = {"ref": arguments["ref"]} if arguments.get("ref") else None
        return self.send(what, "GET", f"/repos/{where}/contents/{quote(path.strip('/'))}", query=query)

    def write_file(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Create a file, or change it where ``sha`` is given."""
        where, path = self.where(arguments), self.text(arguments, "filePath")
        content = self.text(arguments, "content", may_be_empty=True)
        body = {
            "content": base64.b64encode(content.encode()).decode(),
            "message": self.text(arguments, "message"),
            "branch": self.text(arguments, "branch_name"),
        }
        if arguments.get("new_branch_name"):
            body["new_branch"] = arguments["new_branch_name"]
        if arguments.get("sha"):
            body["sha"] = arguments["sha"]
        method = "PUT" if arguments.get("sha") else "POST"
        self.send("write file", method, f"/repos/{where}/contents/{quote(path)}", body)
        return "Update file success" if arguments.get("sha") else "Create file success"

    def delete_file(self, arguments: Arguments) -> Any:  # noqa: ANN401
        """Delete a file."""
        where, path = self.where(arguments), self.text(arguments, "filePath")
        body = {
            "message": self.text(arguments, "message"),
            "branch": self.text(arguments, "branch_name"),
            "sha": arguments.get("sha") or "",
        }
        self.send("delete file", "DELETE", f"/repos/{where}/contents/{quote(path)}", body)
        return "Delete file success"


Operation = Callable[[ToolCalls, Arguments], Any]
