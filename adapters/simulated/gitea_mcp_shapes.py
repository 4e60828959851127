"""How the versions of gitea-mcp show what Gitea answered: whole structures (2025, early 2026) or short ones.

Recorded: users, comments and issues. Of other things the short form keeps the fields that an agent needs.
"""

import base64
from collections.abc import Mapping
from typing import Any

_USER = (
    "id",
    "login",
    "login_name",
    "source_id",
    "full_name",
    "email",
    "avatar_url",
    "html_url",
    "language",
    "is_admin",
    "last_login",
    "created",
    "restricted",
    "active",
    "prohibit_login",
    "location",
    "website",
    "description",
    "visibility",
    "followers_count",
    "following_count",
    "starred_repos_count",
)
_COMMENT = (
    "id",
    "html_url",
    "pull_request_url",
    "issue_url",
    "user",
    "original_author",
    "original_author_id",
    "body",
    "created_at",
    "updated_at",
)
_ISSUE = (
    "id",
    "url",
    "html_url",
    "number",
    "user",
    "original_author",
    "original_author_id",
    "title",
    "body",
    "ref",
    "labels",
    "milestone",
    "assignees",
    "state",
    "is_locked",
    "comments",
    "created_at",
    "updated_at",
    "closed_at",
    "due_date",
    "pull_request",
    "repository",
)
_PULL_REQUEST_META = ("merged", "merged_at")


def struct(value: Any, *, html: bool) -> Any:  # noqa: ANN401 - any JSON value
    """The library's structures: known kinds keep its fields in its order, others pass. ``html``: users have pages."""
    if isinstance(value, list):
        return [struct(item, html=html) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields: tuple[str, ...] = tuple(value)
    if _is_user(value):
        fields = tuple(f for f in _USER if html or f != "html_url")
    elif _is_comment(value):
        fields = _COMMENT
    elif _is_issue(value):
        fields = _ISSUE
    elif "merged" in value and "draft" in value and "base" not in value:
        fields = _PULL_REQUEST_META
    return {key: struct(value[key], html=html) for key in fields if key in value}


def slim(value: Any, *, decode: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """The short forms of 2026-03, keys sorted; ``decode`` shows a file's content as text."""
    if isinstance(value, list):
        return [slim(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    shown = _slim_one(value, decode=decode)
    return {key: shown[key] for key in sorted(shown)}


def _slim_one(value: Mapping[str, Any], *, decode: bool) -> dict[str, Any]:
    if _is_user(value):
        return _pick(value, "avatar_url", "email", "full_name", "html_url", "id", "is_admin", "login")
    if _is_comment(value):
        return _pick(value, "body", "created_at", "html_url", "id", "updated_at") | {"user": _login(value)}
    if _is_issue(value):
        kept = _pick(
            value,
            "body",
            "closed_at",
            "comments",
            "created_at",
            "html_url",
            "number",
            "state",
            "title",
            "updated_at",
        )
        return kept | {"labels": _labels(value), "user": _login(value)}
    if "merge_base" in value:
        return _slim_pull(value)
    if "clone_url" in value:
        kept = _pick(
            value, "id", "full_name", "description", "html_url", "clone_url", "default_branch", "private"
        )
        return kept | {"archived": value.get("archived"), "owner": value.get("owner", {}).get("login")}
    if "effective_branch_protection_name" in value:
        return _pick(value, "name", "protected") | {"commit_sha": value["commit"]["id"]}
    if "download_url" in value:
        return _slim_file(value, decode=decode)
    if "submitted_at" in value:
        kept = _pick(value, "id", "state", "body", "commit_id", "comments_count", "submitted_at", "html_url")
        return kept | {"user": _login(value)}
    if "diff_hunk" in value:
        kept = _pick(
            value, "id", "body", "path", "position", "diff_hunk", "created_at", "updated_at", "html_url"
        )
        return kept | {"user": _login(value)}
    return {key: slim(item) for key, item in value.items()}


def _slim_pull(value: Mapping[str, Any]) -> dict[str, Any]:
    kept = _pick(
        value,
        "number",
        "title",
        "body",
        "state",
        "draft",
        "merged",
        "mergeable",
        "html_url",
        "comments",
        "created_at",
        "updated_at",
        "closed_at",
    )
    for side in ("base", "head"):
        kept[side] = _pick(value[side], "ref", "sha")
    if value.get("merged"):
        kept |= _pick(value, "merged_at", "merge_commit_sha")
    return kept | {"labels": _labels(value), "user": _login(value)}


def _slim_file(value: Mapping[str, Any], *, decode: bool) -> dict[str, Any]:
    kept = _pick(value, "name", "path", "sha", "type", "size", "html_url")
    if value.get("content") is None:
        return kept
    if not decode:
        return kept | _pick(value, "content", "encoding")
    return kept | {"content": base64.b64decode(value["content"]).decode(errors="replace")}


def _pick(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value.get(name) for name in names}


def _labels(value: Mapping[str, Any]) -> list[str] | None:
    return [label["name"] for label in value.get("labels") or []] or None


def _login(value: Mapping[str, Any]) -> str:
    user = value.get("user") or {}
    return str(user.get("login", ""))


def _is_user(value: Mapping[str, Any]) -> bool:
    return "login_name" in value


def _is_comment(value: Mapping[str, Any]) -> bool:
    return "issue_url" in value and "pull_request_url" in value


def _is_issue(value: Mapping[str, Any]) -> bool:
    return "pin_order" in value and "merge_base" not in value
