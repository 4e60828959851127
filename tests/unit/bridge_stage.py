"""The bridge's surroundings for tests: a gitea-mcp in each recorded dialect, a ledger and comments, in memory."""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domain.bridge_policy import Policy, Scope
from domain.effects import Operation
from domain.faults import Fault, NotFound
from domain.tool_dialects import Dialect
from domain.tools import ToolAnswer, ToolCall, ToolResult, ToolSchema
from services.bridge import Bridge
from services.bridge_ports import ActiveTurn, BridgeRun, BridgeSettings, EffectStatus

EVIDENCE = Path(__file__).parent.parent / "evidence" / "gitea-mcp"
VERSIONS = ("2025-06", "2026-02", "2026-03")
DIALECTS = (*VERSIONS, "issue_number")
BOT = 6
SECRET = "gta_0123456789abcdef"


def recording(version: str) -> list[dict[str, Any]]:
    lines = (EVIDENCE / f"{version}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def recorded_tools(dialect: str) -> list[dict[str, Any]]:
    """The recorded list; ``issue_number`` is the newest one with its announced renaming."""
    version = "2026-03" if dialect == "issue_number" else dialect
    entry = next(entry for entry in recording(version) if entry["note"] == "tools/list")
    tools: list[dict[str, Any]] = entry["answer"]["result"]["tools"]
    if dialect == "issue_number":
        for tool in tools:
            properties = tool["inputSchema"]["properties"]
            if tool["name"].startswith("issue_"):
                properties["issue_number"] = properties.pop("index")
    return tools


@dataclasses.dataclass
class Comment:
    number: int
    author: int
    body: str


class Gitea:
    """Comments and authors, as far as the bridge sees them."""

    def __init__(self) -> None:
        self.comments: dict[int, Comment] = {}
        self.issue_authors: dict[int, int] = {}
        self._ids = itertools.count(100)

    def add(self, number: int, author: int, body: str) -> int:
        made = next(self._ids)
        self.comments[made] = Comment(number, author, body)
        return made

    def on(self, number: int) -> list[Comment]:
        return [comment for comment in self.comments.values() if comment.number == number]


class Backend:
    """A gitea-mcp: lists the recorded tools, does comments for real, answers other calls with ``{}``."""

    def __init__(self, dialect: str, gitea: Gitea) -> None:
        self.listed: Sequence[ToolSchema] = recorded_tools(dialect)
        self.dialect = Dialect.detect(self.listed)
        self.wrapped = dialect in {"2025-06", "2026-02"}
        self.gitea = gitea
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.next_answers: list[ToolAnswer | None] = []

    async def tools(self) -> Sequence[ToolSchema]:
        return self.listed

    async def call(self, name: str, arguments: Mapping[str, object], timeout: float) -> ToolAnswer:
        del timeout
        self.calls.append((name, dict(arguments)))
        if self.next_answers and (planned := self.next_answers.pop(0)) is not None:
            return planned
        create, edit, read = self.dialect.create_comment, self.dialect.edit_comment, self.dialect.read_issue
        if create and create.matches(name, arguments):
            number = arguments[create.number]
            assert isinstance(number, int)
            made = self.gitea.add(number, BOT, str(arguments["body"]))
            return self._done({"id": made, "body": arguments["body"], "user": self._user(BOT)})
        if edit and edit.matches(name, arguments):
            comment_id = arguments[edit.number]
            assert isinstance(comment_id, int)
            if comment_id not in self.gitea.comments:
                return ToolAnswer(
                    outcome="refused", code="gitea_refused", message="edit comment err: not found"
                )
            self.gitea.comments[comment_id].body = str(arguments["body"])
            return self._done({"id": comment_id, "user": self._user(BOT)})
        if read and read.matches(name, arguments):
            author = self.gitea.issue_authors.get(int(str(arguments[read.number])), 2)
            return self._done({"number": arguments[read.number], "user": self._user(author)})
        return self._done({"id": 900, "number": 77})

    def _user(self, user: int) -> object:
        login = "codex-bot" if user == BOT else "alice"
        return {"id": user, "login": login} if self.wrapped else login

    def _done(self, value: object) -> ToolAnswer:
        return ToolAnswer(outcome="done", text=json.dumps({"Result": value} if self.wrapped else value))


class Ledger:
    """Intents and results in the order in which they came."""

    def __init__(self) -> None:
        self.intents: dict[str, dict[str, Any]] = {}
        self.results: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[tuple[str, str]] = []
        self.questions: list[str] = []
        self.finals: list[int] = []
        self.intend_fault: Fault | None = None
        self.conclude_fault: Fault | None = None
        self.ask_fault: Fault | None = None

    async def intend(
        self, *, operation: Operation, tool: str, target: str, key: str, body_hash: str | None, turn_id: str
    ) -> str:
        if self.intend_fault is not None:
            raise self.intend_fault
        intent = f"i{len(self.intents) + 1}"
        self.intents[intent] = {
            "operation": operation, "tool": tool, "target": target,
            "key": key, "body_hash": body_hash, "turn_id": turn_id,
        }  # fmt: skip
        return intent

    async def conclude(
        self,
        intent_id: str,
        *,
        status: EffectStatus,
        outside_id: str | None,
        error_code: str | None,
        http_status: int | None,
    ) -> None:
        self.results.append(
            (
                intent_id,
                {
                    "status": status,
                    "outside_id": outside_id,
                    "error_code": error_code,
                    "http_status": http_status,
                },
            )
        )
        if self.conclude_fault is not None:
            raise self.conclude_fault
        if status == "succeeded" and self.intents[intent_id]["operation"] == "comment.create" and outside_id:
            self.finals.append(int(outside_id))

    async def final_comments(self) -> Sequence[int]:
        return list(self.finals)

    async def refused(self, *, tool: str, reason: str, turn_id: str | None) -> None:
        del turn_id
        self.refusals.append((tool, reason))

    async def ask(self, question: str) -> None:
        if self.ask_fault is not None:
            raise self.ask_fault
        self.questions.append(question)

    @property
    def statuses(self) -> list[str]:
        return [result["status"] for _intent, result in self.results]


class RestComments:
    def __init__(self, gitea: Gitea) -> None:
        self.gitea = gitea
        self.edits = 0

    def _found(self, comment_id: int) -> Comment:
        if comment_id not in self.gitea.comments:
            raise NotFound("there is no such comment")
        return self.gitea.comments[comment_id]

    async def edit(self, comment_id: int, body: str) -> None:
        self._found(comment_id).body = body
        self.edits += 1

    async def create(self, number: int, body: str) -> int:
        return self.gitea.add(number, BOT, body)

    async def author_of(self, comment_id: int) -> int:
        return self._found(comment_id).author

    async def body_of(self, comment_id: int) -> str:
        return self._found(comment_id).body


class Stage:
    """A bridge with its surroundings; the run is task ``t1`` on acme/widget#42, its turn ``u1``."""

    def __init__(
        self,
        dialect: str = "2026-03",
        *,
        policy: Policy = "repository",
        settings: BridgeSettings | None = None,
    ) -> None:
        self.gitea = Gitea()
        self.backend = Backend(dialect, self.gitea)
        self.ledger = Ledger()
        self.rest = RestComments(self.gitea)
        self.turn: ActiveTurn | None = ActiveTurn(turn_id="u1", codex_turn_id="c1")
        self.run = BridgeRun(
            task_id="t1",
            scope=Scope(owner="acme", repo="widget", policy=policy),
            number=42,
            bot_id=BOT,
            bot_login="codex-bot",
            secrets=(SECRET,),
        )
        self.settings = settings or BridgeSettings()
        self.bridge = self.fresh_bridge()

    def fresh_bridge(self) -> Bridge:
        return Bridge(
            run=self.run,
            backend=self.backend,
            ledger=self.ledger,
            comments=self.rest,
            active_turn=lambda: self.turn,
            settings=self.settings,
        )

    async def call(
        self, name: str, meta: Mapping[str, object] | None = None, **arguments: object
    ) -> ToolResult:
        return await self.bridge.call(ToolCall(name=name, arguments=arguments, meta=meta or {}))

    async def comment(
        self, text: str, number: int = 42, *, meta: Mapping[str, object] | None = None, **more: object
    ) -> ToolResult:
        verb = self.backend.dialect.create_comment
        assert verb is not None
        arguments = verb.arguments(owner="acme", repo="widget", number=number, body=text) | more
        return await self.bridge.call(ToolCall(name=verb.tool, arguments=arguments, meta=meta or {}))

    async def edit(self, comment_id: int, body: str) -> ToolResult:
        verb = self.backend.dialect.edit_comment
        assert verb is not None
        arguments = verb.arguments(owner="acme", repo="widget", number=comment_id, body=body)
        return await self.bridge.call(ToolCall(name=verb.tool, arguments=arguments))


def answer(result: ToolResult) -> dict[str, Any]:
    """The JSON that the model gets for a comment."""
    read: dict[str, Any] = json.loads(result.texts[0])
    return read
