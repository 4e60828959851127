"""What the agent may do through the bridge (gitea-workflow, The MCP bridge).

Three policies: ``repository`` (default), ``comment-only``, ``open``. How a call is judged:

1. **Foreign never, under any policy.** A tool must name ``owner`` and ``repo``, and they must be the run's own
   (case-insensitively). A tool that names no repository reaches further (search, one's own list of repositories,
   organisations, creating or forking a repository) and is refused, except for who-am-I and the server's version.
   A pull request's ``head`` of another owner and a path or name with a ``..`` segment count as foreign.
2. A tool that writes files on the service's own machine (``output_path``) is refused under any policy.
3. ``open`` allows the rest, also deleting, merging and settings.
4. ``comment-only`` allows reading and commenting on the run's own issue or pull request.
5. ``repository`` allows reading, except settings, and the writes of ``ALLOWED_WRITES``. **A write that stands in no
   table is refused**: a new version of gitea-mcp must not widen what an agent may do. Reading is recognised by the
   tool's name (``get_``, ``list_``, ``search_``, ``…_read``), since no version's annotations tell.
   Some writes are allowed only on what is the bot's own, which the bridge has to look up (``Needs``).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from domain.tools import ToolSchema, tool_methods, tool_name, tool_properties

Policy = Literal["repository", "comment-only", "open"]
Needs = Literal["own_comment", "own_item"]
"""``own_comment``: the comment must be the bot's own; ``own_item``: the issue or pull request must be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """The run's own repository and the policy that it runs under."""

    owner: str
    repo: str
    policy: Policy = "repository"

    def owns(self, owner: object, repo: object) -> bool:
        """Whether these arguments name the run's own repository."""
        return (
            isinstance(owner, str)
            and isinstance(repo, str)
            and (owner.lower(), repo.lower()) == (self.owner.lower(), self.repo.lower())
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Allowed:
    """The call may be made, where ``needs`` holds."""

    writes: bool
    needs: Needs | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """The call may not be made: ``code`` for events, ``reason`` for the agent."""

    code: str
    reason: str


Verdict = Allowed | Refused

WITHOUT_REPOSITORY = frozenset({"get_me", "get_my_user_info", "get_gitea_mcp_server_version"})
COMMENTING = frozenset({"create_issue_comment", "add_issue_comment", "issue_write.add_comment"})
EDITING_COMMENTS = frozenset({"edit_issue_comment", "update_issue_comment", "issue_write.edit_comment"})
EDITING_ITEMS = frozenset(
    {"edit_issue", "edit_pull_request", "issue_write.update", "pull_request_write.update"}
)
EDITING_MILESTONES = frozenset({"edit_milestone", "milestone_write.edit"})
ALLOWED_WRITES = (
    COMMENTING
    | EDITING_COMMENTS
    | EDITING_ITEMS
    | EDITING_MILESTONES
    | frozenset(
        {
            "create_branch", "create_file", "update_file", "create_or_update_file", "create_tag", "create_release",
            "create_issue", "issue_write.create",
            "add_issue_labels", "remove_issue_label", "replace_issue_labels", "clear_issue_labels",
            "issue_write.add_labels", "issue_write.remove_label", "issue_write.replace_labels",
            "issue_write.clear_labels",
            "create_repo_label", "edit_repo_label", "label_write.create_repo_label", "label_write.edit_repo_label",
            "create_milestone", "milestone_write.create",
            "create_pull_request", "pull_request_write.create",
            "create_pull_request_reviewer", "pull_request_write.add_reviewers",
            "create_pull_request_review", "submit_pull_request_review",
            "pull_request_review_write.create", "pull_request_review_write.submit",
            "create_wiki_page", "update_wiki_page", "wiki_write.create", "wiki_write.update",
            "add_tracked_time", "start_stopwatch", "stop_stopwatch", "timetracking_write.add_time",
            "timetracking_write.start_stopwatch", "timetracking_write.stop_stopwatch",
            "dispatch_repo_action_workflow", "rerun_repo_action_run",
            "actions_run_write.dispatch_workflow", "actions_run_write.rerun_run",
        }
    )
)  # fmt: skip

_READING = re.compile(r"(get|list|search)_|.*_read$")
_REASONS: tuple[tuple[str, str, str], ...] = (
    (
        r"secret|variable|config|hook|_keys?(_|$)|collaborator|protection|permission|setting|admin|runner|transfer",
        "settings_not_allowed",
        "settings, hooks, keys and administration of the repository are not for the agent",
    ),
    (r"(^|[._])(delete|remove_reviewers)", "deleting_not_allowed", "the agent must not delete anything"),
    (r"(^|[._])merge", "merging_not_allowed", "merging is left to people"),
    (
        r"(^|[._])(dismiss|cancel|close|lock)",
        "closing_not_allowed",
        "the agent must not close or end what others have begun",
    ),
)
_SETTINGS = re.compile(_REASONS[0][0])
# Text that people read; everything else is a name, a path or a reference.
_PROSE = frozenset(
    {"body", "title", "message", "description", "content", "content_base64", "value", "query", "data"}
)


def operation(name: str, arguments: Mapping[str, object], tool: ToolSchema) -> str | None:
    """``issue_write.add_comment`` for tools with a ``method``, else the tool's name; None for an unknown method."""
    methods = tool_methods(tool)
    if not methods:
        return name if "method" not in tool_properties(tool) else None
    method = arguments.get("method")
    return f"{name}.{method}" if isinstance(method, str) and method in methods else None


def may_publish(scope: Scope) -> bool:
    """Whether the agent's commits may be pushed to the branch of its task (``publish_branch``)."""
    return scope.policy in ("repository", "open")


def is_reading(name: str) -> bool:
    """Whether a tool only reads, by its name. What is not surely reading counts as writing."""
    return _READING.match(name) is not None


def judge(name: str, arguments: Mapping[str, object], tool: ToolSchema, scope: Scope) -> Verdict:
    """Decide one call. ``tool`` is its entry of ``tools/list``. Which issue a comment goes to is the bridge's."""
    what = operation(name, arguments, tool)
    if what is None:
        return Refused(
            code="method_unknown", reason=f"{name} needs one of its methods: {', '.join(tool_methods(tool))}"
        )
    verdict = _judge_operation(what, tool, scope)
    if isinstance(verdict, Refused):
        return verdict
    foreign = None if what in WITHOUT_REPOSITORY else _foreign(arguments, scope)
    if foreign is not None:
        return foreign
    if scope.policy == "open":
        return verdict
    if what in EDITING_COMMENTS:
        return dataclasses.replace(verdict, needs="own_comment")
    if what in EDITING_ITEMS and (_closes(arguments) or arguments.get("body") is not None):
        return dataclasses.replace(verdict, needs="own_item")
    if what in EDITING_MILESTONES and _closes(arguments):
        return Refused(code="closing_not_allowed", reason="the agent must not close a milestone")
    return verdict


def offer(tool: ToolSchema, scope: Scope) -> ToolSchema | None:
    """The tool as the agent sees it: without methods that are refused, None if nothing of it is allowed."""
    name, methods = tool_name(tool), tool_methods(tool)
    if not methods:
        refused = "method" in tool_properties(tool) or isinstance(
            _judge_operation(name, tool, scope), Refused
        )
        return None if refused else tool
    kept = [
        method for method in methods if isinstance(_judge_operation(f"{name}.{method}", tool, scope), Allowed)
    ]
    if not kept:
        return None
    schema, method = tool["inputSchema"], tool_properties(tool)["method"]
    if not isinstance(schema, Mapping) or not isinstance(method, Mapping):
        return None
    properties = {**tool_properties(tool), "method": {**method, "enum": kept}}
    properties.pop("output_path", None)
    return {**tool, "inputSchema": {**schema, "properties": properties}}


def _judge_operation(what: str, tool: ToolSchema, scope: Scope) -> Verdict:
    name = what.partition(".")[0]
    writes = not is_reading(name)
    if what in WITHOUT_REPOSITORY:
        return Allowed(writes=False)
    if _reaches_further(what, tool):
        return Refused(code="foreign_repository", reason=f"{what} reaches beyond the run's own repository")
    if "download" in what:
        return Refused(
            code="local_file", reason=f"{what} writes a file outside the workspace; read the preview instead"
        )
    if scope.policy == "open":
        return Allowed(writes=writes)
    if writes and scope.policy == "comment-only" and what not in COMMENTING | EDITING_COMMENTS:
        return Refused(code="comment_only", reason="only reading and commenting are allowed in this run")
    if what in ALLOWED_WRITES or (not writes and not _SETTINGS.search(what)):
        return Allowed(writes=writes)
    for pattern, code, reason in _REASONS:
        if re.search(pattern, what):
            return Refused(code=code, reason=f"{what}: {reason}")
    return Refused(code="write_not_known", reason=f"{what} is not among the writes that this service knows")


def _reaches_further(what: str, tool: ToolSchema) -> bool:
    words = set(re.split(r"[._]", what))
    if words & {"org", "orgs", "my", "fork"} or what == "create_repo":
        return True
    return not {"owner", "repo"} <= tool_properties(tool).keys()


def _foreign(arguments: Mapping[str, object], scope: Scope) -> Refused | None:
    own = f"{scope.owner}/{scope.repo}"
    if not scope.owns(arguments.get("owner"), arguments.get("repo")):
        return Refused(code="foreign_repository", reason=f"this run may only reach {own}")
    if arguments.get("org"):
        return Refused(
            code="foreign_repository", reason=f"this run may only reach {own}, not an organisation"
        )
    if arguments.get("output_path") is not None:
        return Refused(code="local_file", reason="output_path writes a file outside the workspace")
    head = arguments.get("head")
    if isinstance(head, str) and ":" in head:
        place = head.split(":", 1)[0].lower()
        if place not in (scope.owner.lower(), own.lower()):
            return Refused(code="foreign_repository", reason=f"the head must be a branch of {own}")
    if head is not None and not isinstance(head, str):
        return Refused(code="foreign_repository", reason=f"the head must be a branch of {own}")
    for key, value in arguments.items():
        if isinstance(value, str) and key not in _PROSE and _escapes(value):
            return Refused(
                code="invalid_argument", reason=f"{key} must not hold '..' segments or control characters"
            )
    return None


def _escapes(value: str) -> bool:
    return ".." in re.split(
        r"[/\\]", re.sub(r"%2[fF]", "/", value.replace("%2e", ".").replace("%2E", "."))
    ) or any(ord(sign) < 32 or ord(sign) == 127 for sign in value)


def _closes(arguments: Mapping[str, object]) -> bool:
    state = arguments.get("state")
    return state is not None and state != "open"
