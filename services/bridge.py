"""The bridge of one run: what the agent may do in Gitea, and how it is done and recorded.

Between the MCP endpoint in front of the box and gitea-mcp behind it. Every call passes the same gates: how many, how
large, for which turn, allowed or not (``domain.bridge_policy``). Reading goes through. Every write has an intent
before it, made under the run's fence, and a result after it; it is carried out in a task of its own, so that a box
that dies in mid-call does not cut off the result. A comment on the run's own issue is the task's final reply
(``services.bridge_replies``). Honest limits: the agent may put a secret that it somehow knows into a text in a form
which redaction does not know (reversed, encrypted); results of other writes than comments cannot be reconciled.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from domain.bridge_policy import Allowed, Needs, Refused, judge, may_publish, offer, operation
from domain.faults import Fault, NotFound
from domain.markers import strip_markers
from domain.tool_dialects import NUMBER_NAMES, Dialect, object_id, object_number, whole_number, written_by
from domain.tools import ToolCall, ToolResult, ToolSchema, tool_name
from services.bridge_effects import LEASE_FAULTS, LEASE_LOST, Effect, Write, carry_out, of_answer
from services.bridge_ports import (
    ActiveTurn,
    ActiveTurnSource,
    BridgeRun,
    BridgeSettings,
    Comments,
    EffectLedger,
    Publishing,
    ToolBackend,
)
from services.bridge_publishing import PUBLISH, PUBLISH_BRANCH, BranchPublishing, is_twin, twin
from services.bridge_replies import FinalReply, comment_result
from services.bridge_text import Redactor, body_hash, canonical, marked, markers_in

__all__ = ["ActiveTurn", "Bridge", "BridgeRun", "BridgeSettings", "Comments", "EffectLedger", "ToolBackend"]

ASK_USER: ToolSchema = {
    "name": "ask_user",
    "description": (
        "Ask the people of this issue or pull request a question that you cannot go on without. The question is "
        "posted as a comment. After this call stop at once: the answer comes as a new turn."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "The question, in Markdown"}},
        "required": ["question"],
    },
}
ASKED = (
    "The question was recorded and will be posted. Stop now: end your turn without any further work or comment; the "
    "answer comes as a new turn."
)
CREATING = frozenset(
    {"create_issue", "create_pull_request", "issue_write.create", "pull_request_write.create"}
)
REFUSALS_RECORDED = 100
TURN_METADATA = "x-codex-turn-metadata"

log = structlog.get_logger(__name__)


class _No(Exception):
    """The call is refused: ``code`` and ``reason``."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason


class Bridge:
    """Policy and operations for one run. ``tools`` and ``call`` are what the MCP endpoint needs."""

    def __init__(
        self,
        *,
        run: BridgeRun,
        backend: ToolBackend,
        ledger: EffectLedger,
        comments: Comments,
        active_turn: ActiveTurnSource,
        settings: BridgeSettings | None = None,
        publishing: Publishing | None = None,
    ) -> None:
        self._run = run
        self._settings = settings or BridgeSettings()
        self._backend = backend
        self._ledger = ledger
        self._comments = comments
        self._active_turn = active_turn
        self._redactor = Redactor(run.secrets)
        self._reply = FinalReply(
            run=run, settings=self._settings, backend=backend, ledger=ledger, comments=comments
        )
        self._publishing = BranchPublishing(run, publishing, ledger) if publishing is not None else None
        self._calls = 0
        self._refusals = 0
        self._asked_in: str | None = None
        self._made: set[int] = set()
        self._writes: dict[str, tuple[str, asyncio.Future[ToolResult]]] = {}

    async def tools(self) -> Sequence[ToolSchema]:
        """List what the policy allows, ``ask_user``, and ``publish_branch`` where commits may leave."""
        offered = [offer(tool, self._run.scope) for tool in await self._backend.tools()]
        own = [ASK_USER, PUBLISH_BRANCH] if self._publishes else [ASK_USER]
        return [*[tool for tool in offered if tool is not None and tool_name(tool) != PUBLISH], *own]

    @property
    def _publishes(self) -> bool:
        return self._publishing is not None and may_publish(self._run.scope)

    async def call(self, call: ToolCall) -> ToolResult:
        """Do one call, or say as a tool error why not. Whatever it raises is a defect."""
        dialect = Dialect.detect(await self._backend.tools())
        comments = dialect.create_comment is not None and dialect.create_comment.matches(
            call.name, call.arguments
        )
        turn: ActiveTurn | None = None
        try:
            turn = self._gate(call)
            result = await self._dispatch(call, turn, dialect)
        except _No as no:
            await self._record_refusal(call.name, no.code, turn)
            code, reason = no.code, no.reason
        except LEASE_FAULTS as fault:
            code, reason = "lease_lost", LEASE_LOST
            log.warning(
                "a write of the agent was refused", tool=call.name, task=self._run.task_id, fault=fault.code
            )
        except Fault as fault:
            code, reason = fault.code, fault.message
        else:
            return self._clean(result)
        return self._clean(comment_result(None, code, reason) if comments else _error(code, reason))

    async def drain(self) -> None:
        """Wait for the writes that are at work: each then has its result. Call it when the run's box is gone."""
        await asyncio.gather(*(task for _print, task in self._writes.values()), return_exceptions=True)

    def _gate(self, call: ToolCall) -> ActiveTurn:
        self._calls += 1
        if self._calls > self._settings.calls_per_run:
            raise _No("too_many_calls", f"a run may make {self._settings.calls_per_run} calls; stop now")
        size = len(canonical(call.arguments).encode("utf-8", "replace"))
        if size > self._settings.argument_bytes:
            raise _No(
                "arguments_too_large", f"at most {self._settings.argument_bytes} bytes, these are {size}"
            )
        turn = self._active_turn()
        if turn is None:
            raise _No("no_active_turn", "there is no active turn that this call could belong to")
        said = call.meta.get(TURN_METADATA)
        if isinstance(said, Mapping):
            for key, active in (("turn_id", turn.codex_turn_id), ("thread_id", turn.thread_id)):
                if active is not None and said.get(key) not in (None, active):
                    raise _No("turn_not_active", "the call belongs to another turn than the active one")
        return turn

    async def _dispatch(self, call: ToolCall, turn: ActiveTurn, dialect: Dialect) -> ToolResult:
        if call.name == "ask_user":
            return await self._ask(call, turn)
        if call.name == PUBLISH:
            return await self._publish(call, turn)
        tool = next((tool for tool in await self._backend.tools() if tool_name(tool) == call.name), None)
        if tool is None:
            raise _No("unknown_tool", f"there is no tool {call.name[:80]!r}")
        verdict = judge(call.name, call.arguments, tool, self._run.scope)
        if isinstance(verdict, Refused):
            raise _No(verdict.code, verdict.reason)
        if not verdict.writes:
            return self._told(
                of_answer(await self._backend.call(call.name, call.arguments, self._settings.call_timeout_s))
            )
        self._demand_no_question(turn)
        what = operation(call.name, call.arguments, tool) or call.name
        return await self._once(call, lambda key: self._write(call, turn, dialect, verdict, what, key))

    async def _publish(self, call: ToolCall, turn: ActiveTurn) -> ToolResult:
        publishing = self._publishing
        if publishing is None:
            raise _No("unknown_tool", "commits cannot be published from here")
        if not self._publishes:
            raise _No("comment_only", "only reading and commenting are allowed in this run")
        self._demand_no_question(turn)
        return await self._once(call, lambda _key: publishing.publish(turn))

    def _demand_no_question(self, turn: ActiveTurn) -> None:
        if self._asked_in == turn.turn_id:
            raise _No(
                "waiting_for_user", "a question was asked in this turn: stop now and wait for the answer"
            )

    async def _once(self, call: ToolCall, write: Callable[[str], Awaitable[ToolResult]]) -> ToolResult:
        """Carry a write out in a task of its own; the same call id again gets the same answer."""
        call_id = call.meta.get("callId")
        key = call_id[:200] if isinstance(call_id, str) and call_id else f"call-{self._calls}"
        same = canonical([call.name, call.arguments])
        known = self._writes.get(key)
        if known is not None and known[0] != same:
            key = f"{key}#{self._calls}"
            known = None
        if known is None:
            task = asyncio.ensure_future(write(key))
            task.add_done_callback(_look_at)
            known = self._writes[key] = (same, task)
        return await asyncio.shield(known[1])

    async def _write(  # noqa: PLR0917 - what the gates have found out about one call
        self, call: ToolCall, turn: ActiveTurn, dialect: Dialect, verdict: Allowed, what: str, key: str
    ) -> ToolResult:
        if dialect.create_comment is not None and dialect.create_comment.matches(call.name, call.arguments):
            return await self._comment(call, turn, dialect, key)
        if dialect.edit_comment is not None and dialect.edit_comment.matches(call.name, call.arguments):
            return await self._edit_comment(call, turn, dialect, verdict.needs, key)
        if verdict.needs == "own_item":
            await self._demand_own_item(call.arguments, dialect)
        elif verdict.needs is not None:
            raise _No("not_own_comment", f"{what}: this comment cannot be found to be the bot's own")
        arguments = self._redactor.arguments(call.arguments)
        effect = await self._send(
            call.name, arguments, tool=what, target=self._target(arguments), key=key, turn=turn
        )
        if is_twin(what, effect):
            number = await twin(
                arguments, await self._backend.tools(), self._backend, self._settings.call_timeout_s
            )
            return _error(
                "pull_request_exists",
                f"pull request {f'#{number}' if number else 'for these branches'} is open already: what you publish"
                f" appears in it; update it instead of opening another ({effect.text})",
            )
        made = object_number(effect.text) if effect.status == "succeeded" and what in CREATING else None
        if made is not None:
            self._made.add(made)
        return self._told(effect)

    async def _comment(self, call: ToolCall, turn: ActiveTurn, dialect: Dialect, key: str) -> ToolResult:
        verb = dialect.create_comment
        if verb is None:
            raise _No("unknown_tool", "this gitea-mcp cannot comment")
        number = whole_number(call.arguments.get(verb.number))
        if number is None:
            raise _No("invalid_argument", f"{verb.number} must be the number of an issue or pull request")
        body = self._body(call)
        if number == self._run.number:
            return await self._reply.post(body, dialect=dialect, key=key, turn=turn)
        if self._run.scope.policy == "comment-only":
            raise _No("comment_only", f"only #{self._run.number} may be commented on in this run")
        scope = self._run.scope
        effect = await self._send(
            verb.tool,
            verb.arguments(owner=scope.owner, repo=scope.repo, number=number, body=body),
            tool=verb.label,
            target=f"{scope.owner}/{scope.repo}#{number}",
            key=key,
            turn=turn,
        )
        if effect.status == "succeeded":
            return comment_result(
                object_id(effect.text), None, f"commented on #{number}: not this task's reply"
            )
        return comment_result(None, _code(effect), _reason(effect))

    async def _edit_comment(
        self, call: ToolCall, turn: ActiveTurn, dialect: Dialect, needs: Needs | None, key: str
    ) -> ToolResult:
        verb = dialect.edit_comment
        comment_id = whole_number(call.arguments.get(verb.number)) if verb else None
        if verb is None or comment_id is None:
            raise _No("invalid_argument", "the comment's id must be a number")
        body = self._body(call)
        finals = await self._reply.ids()
        if finals and comment_id == finals[0]:
            return await self._reply.post(body, dialect=dialect, key=key, turn=turn)
        try:
            own = await self._comments.author_of(comment_id) == self._run.bot_id
            kept = markers_in(await self._comments.body_of(comment_id)) if own else ()
        except NotFound:
            raise _No("not_found", f"there is no comment {comment_id} in this repository") from None
        if needs is not None and not own:
            raise _No("not_own_comment", f"comment {comment_id} is not the bot's own and must not be changed")
        if comment_id in finals:
            raise _No(
                "part_of_reply", f"comment {comment_id} is a part of this task's reply: edit {finals[0]}"
            )
        scope = self._run.scope
        text = marked(body, *kept) if kept else body
        effect = await self._send(
            verb.tool,
            verb.arguments(owner=scope.owner, repo=scope.repo, number=comment_id, body=text),
            tool=verb.label,
            target=f"{scope.owner}/{scope.repo}:comment:{comment_id}",
            key=key,
            turn=turn,
        )
        if effect.status == "succeeded":
            return comment_result(comment_id, None)
        return comment_result(None, _code(effect), _reason(effect))

    async def _send(
        self,
        name: str,
        arguments: Mapping[str, object],
        *,
        tool: str,
        target: str,
        key: str,
        turn: ActiveTurn,
    ) -> Effect:
        async def send() -> Effect:
            effect = of_answer(await self._backend.call(name, arguments, self._settings.call_timeout_s))
            made = object_id(effect.text) if effect.status == "succeeded" else None
            return (
                effect if made is None else Effect(status="succeeded", text=effect.text, outside_id=str(made))
            )

        body = arguments.get("body")
        return await carry_out(
            Write(
                operation="mcp.write",
                tool=tool,
                target=target,
                key=key,
                body_hash=body_hash(body if isinstance(body, str) else canonical(arguments)),
                turn_id=turn.turn_id,
                send=send,
            ),
            self._ledger,
        )

    async def _demand_own_item(self, arguments: Mapping[str, object], dialect: Dialect) -> None:
        verb, scope = dialect.read_issue, self._run.scope
        number = _number(arguments)
        if number in self._made:
            return
        if verb is not None and number is not None:
            asked = verb.arguments(owner=scope.owner, repo=scope.repo, number=number)
            answer = await self._backend.call(verb.tool, asked, self._settings.call_timeout_s)
            if answer.outcome == "done" and written_by(
                answer.text, user_id=self._run.bot_id, login=self._run.bot_login
            ):
                return
        raise _No(
            "not_own_item", f"#{number} was opened by somebody else: it must not be closed or rewritten"
        )

    async def _ask(self, call: ToolCall, turn: ActiveTurn) -> ToolResult:
        question = call.arguments.get("question")
        text = self._redactor.text(strip_markers(question)[0]).strip() if isinstance(question, str) else ""
        if not text or len(text) > self._settings.question_limit:
            raise _No(
                "invalid_argument",
                f"question must be a text of 1 to {self._settings.question_limit} characters",
            )
        if self._asked_in == turn.turn_id:
            raise _No("waiting_for_user", "a question was asked in this turn already: stop now")
        await self._ledger.ask(text)
        self._asked_in = turn.turn_id
        return ToolResult(texts=(ASKED,))

    def _body(self, call: ToolCall) -> str:
        body = call.arguments.get("body")
        text = self._redactor.text(strip_markers(body)[0]) if isinstance(body, str) else ""
        if not text.strip():
            raise _No("empty_body", "body must be a text")
        return text

    def _target(self, arguments: Mapping[str, object]) -> str:
        number = _number(arguments)
        own = f"{self._run.scope.owner}/{self._run.scope.repo}"
        return own if number is None else f"{own}#{number}"

    def _clean(self, result: ToolResult) -> ToolResult:
        return dataclasses.replace(result, texts=tuple(self._redactor.text(text) for text in result.texts))

    @staticmethod
    def _told(effect: Effect) -> ToolResult:
        if effect.status == "succeeded":
            return ToolResult(texts=(effect.text,))
        return _error(_code(effect), _reason(effect))

    async def _record_refusal(self, tool: str, code: str, turn: ActiveTurn | None) -> None:
        self._refusals += 1
        if self._refusals > REFUSALS_RECORDED:
            return
        try:
            await self._ledger.refused(tool=tool[:80], reason=code, turn_id=turn.turn_id if turn else None)
        except Fault as fault:
            log.warning("a refusal could not be recorded", task=self._run.task_id, fault=fault.code)


def _number(arguments: Mapping[str, object]) -> int | None:
    return next((whole_number(arguments[name]) for name in NUMBER_NAMES if name in arguments), None)


def _error(code: str, reason: str) -> ToolResult:
    return ToolResult(texts=(f"{code}: {reason}",), is_error=True)


def _code(effect: Effect) -> str:
    return "outcome_unknown" if effect.status == "unknown" else effect.code or "gitea_refused"


def _reason(effect: Effect) -> str:
    if effect.status == "unknown":
        return f"no answer came ({effect.code}): it may or may not have happened. Look before you try again"
    return effect.text


def _look_at(task: asyncio.Future[ToolResult]) -> None:
    """Nobody may be left to take a failure after the box is gone."""
    if not task.cancelled():
        task.exception()
