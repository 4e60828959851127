"""One turn as it is followed: what was heard, in order, and what it amounts to.

``TurnLedger`` is pure bookkeeping over Codex's notifications (numbering, dropping repetitions, final message,
usage, error); ``ActiveTurn`` is the mailbox between the reader and the task that follows the turn.
"""

import asyncio
from collections.abc import Mapping

from adapters.codex.errors import turn_error, without_links
from adapters.codex.protocol import Answered, Deviation, TokenUsage, TurnDelta, TurnError, TurnEvent

Params = Mapping[str, object]
TEXT_LIMIT = 4000  # characters of one summarised value
DELTAS_QUEUED = 2_000  # pieces of text that may wait; later ones are dropped, losing nothing
EVENTS_QUEUED = 20_000  # events that may wait, before the agent is taken for one that floods
CHARACTERS_QUEUED = 16 * 1024 * 1024  # of events that may wait, before the same is said
MESSAGE_LIMIT = 200_000  # characters of an agent's message that are kept

_STORED = frozenset(
    {
        "turn/started",
        "turn/completed",
        "item/started",
        "item/completed",
        "thread/tokenUsage/updated",
        "error",
    }
)
_ITEM_FIELDS = {
    "commandExecution": ("command", "status", "exitCode", "durationMs", "aggregatedOutput"),
    "mcpToolCall": ("server", "tool", "status", "durationMs", "error"),
    "agentMessage": ("text", "phase"),
    "fileChange": ("status", "changes"),
    "webSearch": ("query",),
    "plan": ("text",),
}


def as_map(value: object) -> Params:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text_or_none(value: object) -> str | None:
    """``value`` if it is a text, else None."""
    return value if isinstance(value, str) else None


def turn_id_of(params: Params) -> str | None:
    """The turn that a notification belongs to: ``turnId``, or ``turn.id``."""
    return text_or_none(params.get("turnId")) or text_or_none(as_map(params.get("turn")).get("id"))


def delta_of(method: str, params: Params) -> TurnDelta | None:
    """The piece of text in a delta notification, None for anything else."""
    if method.endswith(("/delta", "Delta")) and isinstance(text := params.get("delta"), str):
        return TurnDelta(method=method, item_id=text_or_none(params.get("itemId")), text=text)
    return None


class TurnLedger:
    """What one turn has said so far. Feed it with ``take``; read the attributes when ``status`` is set."""

    def __init__(self, collaboration: Params | None = None, *, spent: Params | None = None) -> None:
        """``spent`` is the thread's token total before this turn (``{}`` for none), None if unknown."""
        self.status: str | None = None
        self.events = 0
        self.final_message: str | None = None
        self.usage: TokenUsage | None = None
        self.error: TurnError | None = None
        self.retrying: TurnError | None = None
        self.deviations: tuple[Deviation, ...] = ()
        self._wanted = collaboration
        self._seen: set[tuple[str, str]] = set()
        self._final_phase = False
        self._base = spent
        self._answering = False

    def take(self, method: str, params: Params) -> TurnEvent | None:
        """Note a notification of this turn; return the event to store, None for all else and for repetitions."""
        if method == "thread/settings/updated":
            self._compare(as_map(as_map(params.get("threadSettings")).get("collaborationMode")))
            return None
        if method not in _STORED:
            return None
        item = as_map(params.get("item"))
        item_id = text_or_none(item.get("id"))
        if method not in {"thread/tokenUsage/updated", "error"}:
            key = (method, item_id or "")
            if key in self._seen:
                return None
            self._seen.add(key)
        payload = self._note(method, params, item)
        return (
            None if payload is None else self.number(method, payload, item_id, text_or_none(item.get("type")))
        )

    def number(
        self, method: str, payload: Params, item_id: str | None = None, item_type: str | None = None
    ) -> TurnEvent:
        """Give the next number."""
        self.events += 1
        return TurnEvent(
            seq=self.events, method=method, item_id=item_id, item_type=item_type, payload=payload
        )

    def _note(self, method: str, params: Params, item: Params) -> Params | None:
        match method:
            case "thread/tokenUsage/updated":
                return self._count(as_map(params.get("tokenUsage")))
            case "error":
                self.retrying = turn_error(as_map(params.get("error")))
                return {
                    "code": self.retrying.code,
                    "message": self.retrying.message,
                    "willRetry": params.get("willRetry") is True,
                }
            case "turn/completed":
                turn = as_map(params.get("turn"))
                self.status = text_or_none(turn.get("status")) or "failed"
                if self.status == "failed":
                    self.error = turn_error(as_map(turn.get("error")))
                code = self.error.code if self.error else None
                return {"status": self.status, "errorCode": code, "durationMs": turn.get("durationMs")}
            case "turn/started":
                return {}
        self.retrying = None
        self._answering = self._answering or item.get("type") != "userMessage"
        if method == "item/completed" and item.get("type") == "agentMessage":
            self._message(item)
        return summary(item)

    def _message(self, item: Params) -> None:
        text = text_or_none(item.get("text"))
        final = item.get("phase") not in {"commentary", "preamble"}
        if text and (final or not self._final_phase):
            self.final_message = text[:MESSAGE_LIMIT]
            self._final_phase = final

    def _count(self, usage: Params) -> Params | None:
        # ``total`` counts the whole thread. 0.130 repeats the old total at the start of each turn, under the
        # new turn's id; so an unknown base is that total, or what remains without the first answer's share.
        total, last = as_map(usage.get("total")), as_map(usage.get("last"))
        if self._base is None:
            own = last if self._answering else {}
            self._base = {name: _number(total, name) - _number(own, name) for name in total}
        base = self._base

        def share(name: str) -> int:
            return max(0, _number(total, name) - _number(base, name))

        window = usage.get("modelContextWindow")
        now = TokenUsage(
            input_tokens=share("inputTokens"),
            cached_input_tokens=share("cachedInputTokens"),
            output_tokens=share("outputTokens"),
            reasoning_output_tokens=share("reasoningOutputTokens"),
            total_tokens=share("totalTokens"),
            context_window=window if isinstance(window, int) else None,
        )
        if now == self.usage:
            return None
        self.usage = now
        return {
            "inputTokens": now.input_tokens,
            "cachedInputTokens": now.cached_input_tokens,
            "outputTokens": now.output_tokens,
            "reasoningOutputTokens": now.reasoning_output_tokens,
            "totalTokens": now.total_tokens,
        }

    def _compare(self, took: Params) -> None:
        if self._wanted is None or not took:
            return
        wanted, settings = as_map(self._wanted.get("settings")), as_map(took.get("settings"))
        pairs = [("mode", self._wanted.get("mode"), took.get("mode"))]
        pairs += [
            (name, wanted[name], settings.get(name))
            for name in ("model", "reasoning_effort")
            if name in wanted
        ]
        self.deviations = tuple(
            Deviation(name=f"collaborationMode.{name}", wanted=str(want), got=str(got))
            for name, want, got in pairs
            if want is not None and want != got
        )


def summary(item: Params) -> dict[str, object]:
    """The fields of an item worth storing, each bounded; other types give only their status."""
    names = _ITEM_FIELDS.get(str(item.get("type")), ("status",))
    found: dict[str, object] = {}
    for name in names:
        value = item.get(name)
        if value is None:
            continue
        if name == "changes" and isinstance(value, list):
            found[name] = [
                {"path": str(as_map(change).get("path"))[:500], "kind": _kind(as_map(change).get("kind"))}
                for change in value[:100]
            ]
        elif name == "error":
            found[name] = without_links(str(as_map(value).get("message") or value))
        elif isinstance(value, int | bool):
            found[name] = value
        else:
            found[name] = str(value)[:TEXT_LIMIT]
    return found


def _kind(value: object) -> str:
    return str(as_map(value).get("type") or value)[:40]


def _number(values: Params, name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else 0


class Mailbox(asyncio.Queue[tuple[str, Params] | Answered | None]):
    """A queue that knows how many characters of texts wait in it."""

    characters = 0

    def _put(self, item: tuple[str, Params] | Answered | None) -> None:
        self.characters += _characters(item)
        super()._put(item)

    def _get(self) -> tuple[str, Params] | Answered | None:
        item = super()._get()
        self.characters -= _characters(item)
        return item


def _characters(value: object) -> int:
    """Characters of all texts in a JSON value, however deep they stand."""
    found, waiting = 0, [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                found += len(text)
            case dict() as fields:
                waiting += [*fields.keys(), *fields.values()]
            case list() | tuple() as parts:
                waiting += parts
            case _:
                found += 8
    return found


class ActiveTurn:
    """The mailbox of a turn: filled by the reader, emptied in order by the task that follows it.

    ``started`` and ``done`` are set as soon as Codex says so, whatever the follower is busy with;
    ``last_progress`` is the loop's time of the last sign of life, retry notices excepted.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.turn_id: str | None = None
        self.started = asyncio.Event()
        self.done = asyncio.Event()
        self.queue = Mailbox()
        self.last_progress = asyncio.get_running_loop().time()
        self.flooded = False
        self._started_ids: list[str] = []
        self._ended_ids: set[str] = set()

    def hear(self, method: str, params: Params) -> None:
        """Put a notification of the turn's thread aside, and note its signals."""
        turn_id = turn_id_of(params)
        if method == "turn/started" and turn_id is not None:
            self._started_ids.append(turn_id)
        if method == "turn/completed" and turn_id is not None:
            self._ended_ids.add(turn_id)
        if method != "error":
            self.alive()
        self._signal()
        known = method in _STORED or method == "thread/settings/updated"
        room = EVENTS_QUEUED if known else DELTAS_QUEUED
        if known or delta_of(method, params) is not None:
            if self.queue.qsize() < room and self.queue.characters < CHARACTERS_QUEUED:
                self.queue.put_nowait((method, params))
            elif known:
                self.flooded = True

    def alive(self) -> None:
        """Note a sign of life."""
        self.last_progress = asyncio.get_running_loop().time()

    def bind(self, turn_id: str) -> list[str]:
        """Learn the turn's id; return the ids of turns that began meanwhile without being asked for."""
        self.turn_id = turn_id
        self._signal()
        return [other for other in self._started_ids if other != turn_id and other not in self._ended_ids]

    def owns(self, turn_id: str | None) -> bool:
        """Whether a turn id is this turn's, or may still turn out to be."""
        return self.turn_id is None or turn_id == self.turn_id

    def release(self) -> None:
        """Let everybody go who waits for this turn."""
        self.started.set()
        self.done.set()

    def _signal(self) -> None:
        if self.turn_id in self._started_ids:
            self.started.set()
        if self.turn_id in self._ended_ids:
            self.release()
