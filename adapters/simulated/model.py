"""A stand-in for the model's Responses API (streaming), served inside this process.

Stateless: what to answer is read from the last message of the user's in the request's ``input``, by the
directives of ``adapters.simulated.agent`` (without ``exit`` and ``ask``); the step within a turn is the number of
tool outputs after that message. Without a directive it calls the comment tool that the request offers, on the
place named in the prompt, and then answers; where there is no such tool or place it only answers.

``status`` and ``cut`` take ``times``: after so many requests of the same text the answer is a plain one.
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from adapters.codex.loopback import LoopbackServer
from adapters.simulated.agent import comment_call, parse_directive, parse_target, plan

Json = dict[str, Any]
ALWAYS = 1_000_000
CONTEXT_TAGS = ("<environment_context", "<turn_aborted", "<user_instructions", "# AGENTS.md")
KEEPALIVE = 1.0  # seconds
TICK = 0.25  # seconds
USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 40},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 120,
}


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request as it arrived: for tests that ask what the agent really sent."""

    path: str
    authorization: str | None
    body: Json = field(default_factory=dict)


class SimulatedModel:
    """See the module. ``await SimulatedModel.start()``; its address is ``base_url``, ending in ``/v1``."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self._times: Counter[str] = Counter()
        self._server: LoopbackServer | None = None

    @classmethod
    async def start(cls) -> "SimulatedModel":
        """Listen on 127.0.0.1."""
        model = cls()
        routes = [
            Route("/v1/models", model.models, methods=["GET"]),
            Route("/v1/responses", model.respond, methods=["POST"]),
        ]
        model._server = await LoopbackServer.start(Starlette(routes=routes))
        return model

    @property
    def base_url(self) -> str:
        """The address that an agent's provider configuration names."""
        if self._server is None:
            raise RuntimeError("the model was not started")
        return f"http://127.0.0.1:{self._server.port}/v1"

    async def stop(self) -> None:
        """End it; a hanging answer is cut."""
        if self._server is not None:
            await self._server.stop()

    async def models(self, _request: Request) -> Response:
        """List one model."""
        return JSONResponse({"object": "list", "data": [{"id": "stand-in-model", "object": "model"}]})

    async def respond(self, request: Request) -> Response:
        """Answer one request of a turn."""
        body: Json = json.loads(await request.body())
        self.exchanges.append(
            Exchange(path=request.url.path, authorization=request.headers.get("authorization"), body=body)
        )
        text, outputs = last_user_text(body.get("input") or [])
        step = next_step(text, outputs, offered_tools(body.get("tools") or []))
        self._times[text] += 1
        if step["do"] in {"status", "cut"} and self._times[text] > step.get("times", ALWAYS):
            step = {"do": "text", "text": "Recovered."}
        if step["do"] == "status":
            error = {
                "message": step.get("message", "mock failure"),
                "type": "server_error",
                "code": step.get("errcode"),
            }
            return JSONResponse({"error": error}, status_code=step.get("code", 500))
        return StreamingResponse(_stream(step), media_type="text/event-stream")


def last_user_text(items: list[Json]) -> tuple[str, int]:
    """Return the user's last own message and how many tool outputs follow it."""
    text, outputs = "", 0
    for item in items:
        if item.get("role") == "user":
            content = item.get("content")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            said = "\n".join(part.get("text", "") for part in parts)
            if not said.lstrip().startswith(CONTEXT_TAGS):
                text, outputs = said, 0
        elif str(item.get("type", "")).endswith("_output"):
            outputs += 1
    return text, outputs


def offered_tools(tools: list[Json]) -> list[Json]:
    """Flatten the request's tools to ``{"name", "namespace", "schema"}``; namespaces exist from 0.130 on."""
    found: list[Json] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            found += [entry | {"namespace": tool["name"]} for entry in offered_tools(tool.get("tools") or [])]
        elif tool.get("type") == "function":
            found.append({"name": tool["name"], "namespace": None, "schema": tool.get("parameters") or {}})
    return found


def next_step(text: str, outputs: int, tools: list[Json]) -> Json:
    """Return the step to answer with: a ``call`` with ``name``, ``namespace``, ``arguments``, or one that ends."""
    directive = parse_directive(text)
    script = (
        plan(*directive)
        if directive
        else [{"do": "comment"}, {"do": "text", "text": "Answered with one comment."}]
    )
    for step in script[outputs:]:
        if step["do"] == "comment":
            target = parse_target(text)
            body = step.get("body") or "The stand-in model read the request and changed nothing."
            chosen = comment_call(tools, target, body) if target else None
            if chosen is not None:
                space = next(tool["namespace"] for tool in tools if tool["name"] == chosen[0])
                return {"do": "call", "name": chosen[0], "namespace": space, "arguments": chosen[1]}
        elif step["do"] == "exec":
            return _exec_call(step["cmd"], tools)
        elif step["do"] == "call":
            # The namespace is ``mcp__gitea`` in 0.171 and ``mcp__gitea__`` in 0.130: the offered one counts.
            offered = [tool["namespace"] for tool in tools if tool["name"] == step["name"]]
            return step | ({"namespace": offered[0]} if offered else {})
        else:
            return step
    return {"do": "text", "text": "Done."}


def _exec_call(command: str, tools: list[Json]) -> Json:
    # The shell tool has changed its name and form: exec_command{cmd}, shell_command{command}, shell{command[]}.
    names = {tool["name"] for tool in tools}
    if "exec_command" in names or not names & {"shell_command", "shell"}:
        return {"do": "call", "name": "exec_command", "arguments": {"cmd": command}}
    if "shell_command" in names:
        return {"do": "call", "name": "shell_command", "arguments": {"command": command}}
    return {"do": "call", "name": "shell", "arguments": {"command": ["/bin/sh", "-c", command]}}


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


async def _stream(step: Json) -> AsyncIterator[bytes]:
    response: Json = {"id": f"resp_{secrets.token_hex(6)}", "object": "response", "output": []}
    yield _event("response.created", response=response | {"status": "in_progress"})
    match step["do"]:
        case "call":
            item = {
                "type": "function_call",
                "id": f"fc_{secrets.token_hex(6)}",
                "call_id": f"call_{secrets.token_hex(6)}",
                "name": step["name"],
                "arguments": json.dumps(step.get("arguments", {})),
                "status": "completed",
            }
            if step.get("namespace"):
                item["namespace"] = step["namespace"]
            yield _event("response.output_item.added", output_index=0, item=item)
            yield _event("response.output_item.done", output_index=0, item=item)
        case "hang":
            while True:
                await asyncio.sleep(KEEPALIVE)
                yield b": \n\n"
        case "failed":
            error = {"code": step.get("code", "server_error"), "message": step.get("message", "mock failed")}
            yield _event("response.failed", response=response | {"status": "failed", "error": error})
            return
        case "incomplete":
            async for part in _message(["partial "], 0.0):
                yield part
            details = {"reason": step.get("reason", "max_output_tokens")}
            ended = response | {"status": "incomplete", "incomplete_details": details}
            yield _event("response.incomplete", response=ended)
            return
        case "cut":
            async for part in _message(["partial ", "answer"], 0.0):
                yield part
            raise ConnectionAbortedError("cut on purpose")
        case "slow":
            ticks = [f"tick {at}. " for at in range(int(step.get("seconds", 30) / TICK))]
            async for part in _message(ticks, TICK):
                yield part
        case _:
            text = str(step.get("text", "Done."))
            size = max(1, len(text) // max(1, step.get("chunks", 3)))
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            async for part in _message(pieces, step.get("delay", 0.0)):
                yield part
    yield _event("response.completed", response=response | {"status": "completed", "usage": USAGE})


async def _message(pieces: list[str], pause: float) -> AsyncIterator[bytes]:
    item: Json = {"type": "message", "id": f"msg_{secrets.token_hex(6)}", "role": "assistant"}
    yield _event(
        "response.output_item.added", output_index=0, item=item | {"status": "in_progress", "content": []}
    )
    for piece in pieces:
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        yield _event("response.output_text.delta", **place, delta=piece)
        await asyncio.sleep(pause)
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
    yield _event(
        "response.output_item.done", output_index=0, item=item | {"status": "completed", "content": content}
    )
