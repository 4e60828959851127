"""The dialects of gitea-mcp: which tool does what, read from ``tools/list`` and its input schemas.

Never chosen from a version number, which may be ``dev`` (facts/gitea.md). Recorded are ``create_issue_comment
{index}`` (2025-06, 2026-02) and ``issue_write {method: add_comment, index}`` (2026-03); a later version names the
index ``issue_number``. Results are wrapped in ``Result`` up to 0.x; a comment's ``user`` is an object or a login.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence

from domain.tools import ToolSchema, tool_methods, tool_name, tool_properties

NUMBER_NAMES = ("index", "issue_number", "issueNumber", "issue_index", "number")
COMMENT_ID_NAMES = ("commentID", "comment_id", "commentId")
WHOAMI_NAMES = ("get_me", "get_my_user_info")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verb:
    """One operation in a dialect: the tool, its ``method`` where it has one, and how it names its number."""

    tool: str
    number: str
    method: str | None = None

    @property
    def label(self) -> str:
        """How events name it: ``issue_write.add_comment``."""
        return self.tool if self.method is None else f"{self.tool}.{self.method}"

    def matches(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Whether a call is this operation."""
        return name == self.tool and (self.method is None or arguments.get("method") == self.method)

    def arguments(self, *, owner: str, repo: str, number: int, body: str | None = None) -> dict[str, object]:
        """The call's arguments. ``number`` is the issue's, or the comment's id for an edit."""
        made: dict[str, object] = {"owner": owner, "repo": repo, self.number: number}
        if self.method is not None:
            made["method"] = self.method
        if body is not None:
            made["body"] = body
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """What a set of tools offers; None where it does not."""

    create_comment: Verb | None = None
    edit_comment: Verb | None = None
    list_comments: Verb | None = None
    read_issue: Verb | None = None
    whoami: str | None = None

    @classmethod
    def detect(cls, tools: Sequence[ToolSchema]) -> "Dialect":
        """Read the dialect from the answer to ``tools/list``."""
        names = {tool_name(tool) for tool in tools}
        return cls(
            create_comment=_find(tools, _CREATE, NUMBER_NAMES, needs_body=True),
            edit_comment=_find(tools, _EDIT, COMMENT_ID_NAMES, needs_body=True),
            list_comments=_find(tools, _LIST, NUMBER_NAMES),
            read_issue=_find(tools, _READ, NUMBER_NAMES),
            whoami=next((name for name in WHOAMI_NAMES if name in names), None),
        )


# Tool names that are the operation by themselves, and ``method`` values of the issue tools that are it.
_CREATE = (("create_issue_comment", "add_issue_comment"), ("add_comment", "create_comment"))
_EDIT = (("edit_issue_comment", "update_issue_comment"), ("edit_comment", "update_comment"))
_LIST = (
    ("get_issue_comments_by_index", "get_issue_comments", "list_issue_comments"),
    ("get_comments", "list_comments"),
)
_READ = (("get_issue_by_index", "get_issue"), ("get",))
_ISSUE_TOOLS = ("issue_write", "issue_read")


def _find(
    tools: Sequence[ToolSchema],
    known: tuple[tuple[str, ...], tuple[str, ...]],
    numbers: Sequence[str],
    *,
    needs_body: bool = False,
) -> Verb | None:
    names, methods = known
    for tool in tools:
        name, properties = tool_name(tool), tool_properties(tool)
        number = next((known for known in numbers if known in properties), None)
        if (
            number is None
            or not {"owner", "repo"} <= properties.keys()
            or (needs_body and "body" not in properties)
        ):
            continue
        offered = tool_methods(tool)
        if name in names and not offered:
            return Verb(tool=name, number=number)
        method = next((method for method in methods if method in offered), None)
        if name in _ISSUE_TOOLS and method is not None:
            return Verb(tool=name, number=number, method=method)
    return None


def unwrap(text: str) -> object:
    """A result's JSON without the ``Result`` of older versions; None if it is no JSON."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and value.keys() == {"Result"}:
        return value["Result"]
    return value


def whole_number(value: object) -> int | None:
    """A positive whole number as gitea-mcp takes it: a number, or digits in a string (from 2026-02 on)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        return None
    return value


def object_id(text: str) -> int | None:
    """The id of the object that a result holds (a comment, the user), None if there is none."""
    value = unwrap(text)
    return whole_number(value.get("id")) if isinstance(value, dict) else None


def object_number(text: str) -> int | None:
    """The number of the issue or pull request that a result holds, None if there is none."""
    value = unwrap(text)
    return whole_number(value.get("number")) if isinstance(value, dict) else None


def written_by(text: str, *, user_id: int, login: str) -> bool:
    """Whether the object in a result was written by this user (an object with an id, or only a login)."""
    value = unwrap(text)
    user = value.get("user") if isinstance(value, dict) else None
    if isinstance(user, dict):
        return whole_number(user.get("id")) == user_id
    return isinstance(user, str) and user.casefold() == login.casefold()
