"""What is answered to Codex's own requests: all declined at once, none left open.

Under ``approvalPolicy: never`` Codex asks nothing; other modes and older versions after a resume do
(approvals, elicitations, questions), and a turn waits for ever on an open question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from adapters.jsonrpc import MethodUnknown


@dataclass(frozen=True, kw_only=True)
class Answer:
    """``result`` goes to Codex, ``decision`` is the word that is recorded."""

    decision: str
    result: Mapping[str, object]


class AnswerPolicy(Protocol):
    """Decides every request of Codex's, without waiting for anybody."""

    def answer(self, method: str, params: Mapping[str, object]) -> Answer:
        """The answer, or ``MethodUnknown`` (Codex then gets -32601)."""
        ...


_DECLINED: dict[str, Answer] = {
    "item/commandExecution/requestApproval": Answer(decision="declined", result={"decision": "decline"}),
    "item/fileChange/requestApproval": Answer(decision="declined", result={"decision": "decline"}),
    "item/permissions/requestApproval": Answer(
        decision="declined", result={"permissions": {}, "scope": "turn"}
    ),
    "mcpServer/elicitation/request": Answer(
        decision="declined", result={"action": "decline", "content": None, "_meta": None}
    ),
    "item/tool/requestUserInput": Answer(decision="unanswered", result={"answers": {}}),
    "item/tool/call": Answer(decision="declined", result={"contentItems": [], "success": False}),
    "execCommandApproval": Answer(decision="declined", result={"decision": "denied"}),
    "applyPatchApproval": Answer(decision="declined", result={"decision": "denied"}),
}


class DeclineAll:
    """The policy of unattended runs: approvals and elicitations are declined, questions get no answer."""

    def answer(self, method: str, _params: Mapping[str, object]) -> Answer:
        """The recorded way to say no to ``method``; ``MethodUnknown`` for tomorrow's requests."""
        if (answer := _DECLINED.get(method)) is None:
            raise MethodUnknown(method)
        return answer


def question(params: Mapping[str, object]) -> dict[str, object]:
    """What was asked, bounded: enough to record the question, without arguments that may hold anything."""
    found: dict[str, object] = {
        name: str(params[name])[:1000]
        for name in ("message", "command", "reason", "serverName")
        if params.get(name)
    }
    questions = params.get("questions")
    if isinstance(questions, list):
        found["questions"] = [
            str(each.get("question"))[:1000] for each in questions[:10] if isinstance(each, dict)
        ]
    return found
