"""The scripted agent: a stand-in for ``codex app-server`` that needs no model.

One file, standard library only, so that it runs in the same box as the real one (and therefore longer than our
modules are elsewhere):
``python3 -I -S agent.py app-server`` (arguments are ignored). It speaks the app-server's protocol on stdio as
recorded from codex 0.171, starts the configured MCP server, keeps its threads under ``$CODEX_HOME/sessions`` and
does what a directive in the user's text says; without one it looks at the workspace and posts one comment.

Directives (shared with ``adapters.simulated.model``): ``[[mock:NAME {json}]]``, the first one in the text counts.

    text       {"text", "chunks", "delay"}            an answer in pieces
    call       {"name", "namespace", "arguments", "text"}   one MCP tool call, then an answer
    comment    {"body", "text"}                       the comment tool as it is offered, then an answer
    exec       {"cmd", "text"}                        a shell command in the workspace, then an answer
    steps      [ {"do": "text|call|comment|exec|slow", ...}, ... ]   several of these in one turn
    slow       {"seconds"}                            a piece every 0.25 s
    hang       {}                                     silence until interrupted
    status     {"code", "message", "errcode"}         the model answers with this HTTP status
    cut | failed | incomplete                         the model's answer breaks off, fails, is cut short
    exit       {"code"}                               the process ends in mid-turn (here only)
    ask        {"method", "params"}                   a request to the client, then an answer (here only)

The place of the default comment stands in the prompt, on lines of their own:
``repository: <owner>/<name>`` and ``resource: issue <n>`` or ``resource: pull_request <n>``.
"""

import asyncio
import fcntl
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

VERSION = "0.171.0"
LINE_LIMIT = 64 * 1024 * 1024
DEFAULT_BODY = "The stand-in agent read {place} and changed nothing. {seen}"
USAGE = {
    "totalTokens": 120,
    "inputTokens": 100,
    "cachedInputTokens": 40,
    "cacheWriteInputTokens": 0,
    "outputTokens": 20,
    "reasoningOutputTokens": 5,
}
_DIRECTIVE = re.compile(r"\[\[mock:(\w+)\s*")
_REPOSITORY = re.compile(r"^\s*repository:\s*([\w.-]+)/([\w.-]+)\s*$", re.MULTILINE)
_RESOURCE = re.compile(r"^\s*resource:\s*(issue|pull_request)\s+#?(\d+)\s*$", re.MULTILINE)

Json = dict[str, Any]


def parse_directive(text: str) -> tuple[str, Any] | None:
    """Return the first directive in ``text`` as name and JSON value (``{}`` where it has none), or None."""
    for found in _DIRECTIVE.finditer(text):
        rest = text[found.end() :]
        if rest.startswith("]]"):
            return found[1], {}
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            continue
        if rest[end:].lstrip().startswith("]]"):
            return found[1], value
    return None


def parse_target(text: str) -> tuple[str, str, str, int] | None:
    """Return owner, name, kind and number from the prompt's two lines (see above), or None."""
    repository, resource = _REPOSITORY.search(text), _RESOURCE.search(text)
    if repository is None or resource is None:
        return None
    return repository[1], repository[2], resource[1], int(resource[2])


def comment_call(tools: list[Json], target: tuple[str, str, str, int], body: str) -> tuple[str, Json] | None:
    """Choose the comment tool by its schema; return its name and arguments, or None if there is none.

    ``tools`` are ``{"name", "schema"}``. gitea-mcp calls it ``create_issue_comment`` or ``issue_write`` with the
    method ``add_comment``, and its number ``index`` or ``issue_number``.
    """
    owner, repo, _kind, number = target
    for tool in tools:
        fields = tool["schema"].get("properties") or {}
        at = next((name for name in ("index", "issue_number") if name in fields), None)
        if at is None or not {"owner", "repo", "body"} <= set(fields):
            continue
        arguments: Json = {"owner": owner, "repo": repo, at: number, "body": body}
        methods = (fields.get("method") or {}).get("enum") or []
        if "add_comment" in methods:
            return tool["name"], {"method": "add_comment", **arguments}
        if not methods and re.search(r"(create|add)\w*comment", tool["name"]):
            return tool["name"], arguments
    return None


def plan(name: str, value: Any) -> list[Json]:  # noqa: ANN401 - a directive's value is any JSON
    """Turn a directive into the steps of a turn, each ``{"do": kind, ...}``; the last is always an answer."""
    if name == "steps":
        steps = [dict(step) for step in value]
        return steps if steps and steps[-1].get("do") == "text" else [*steps, {"do": "text", "text": "Done."}]
    step = {"do": name, **value}
    if name in {"call", "comment", "exec", "ask"}:
        return [step, {"do": "text", "text": value.get("text", "Done.")}]
    return [step]


class RpcError(Exception):
    """A refused request, as the app-server words it."""

    def __init__(self, message: str, code: int = -32600) -> None:
        super().__init__(message)
        self.code = code


class Failed(Exception):
    """The model failed: the turn ends with this error."""

    def __init__(self, message: str, info: object) -> None:
        super().__init__(message)
        self.info = info


def uuid7() -> str:
    """Make an id that grows with time, like the real ones."""
    number = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    number = (number & ~(0xF << 76)) | (7 << 76)
    number = (number & ~(0x3 << 62)) | (2 << 62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class McpChild:
    """The configured MCP server: a child process, JSON-RPC by lines, one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.tools: list[Json] = []
        self._last = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, config: Json, cwd: str) -> "McpChild":
        """Start and shake hands. Raises ``OSError``, ``TimeoutError``, or ``RuntimeError`` with the real wording."""
        inherited = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            config["command"],
            *config.get("args", []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=inherited | config.get("env", {}),
            cwd=cwd,
            limit=LINE_LIMIT,
        )
        child = cls(process)
        try:
            async with asyncio.timeout(config.get("startup_timeout_sec", 30)):
                hello = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"elicitation": {}},
                    "clientInfo": {"name": "codex-mcp-client", "title": "Codex", "version": VERSION},
                }
                await child.ask("initialize", hello)
                child.send({"method": "notifications/initialized"})
                listed = await child.ask("tools/list", {})
        except BaseException:
            await child.stop()
            raise
        child.tools = [
            {"name": tool["name"], "schema": tool.get("inputSchema") or {}}
            for tool in listed.get("tools", [])
        ]
        return child

    def send(self, message: Json) -> None:
        """Write one message."""
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method: str, params: Json) -> Json:
        """Ask and wait for the answer. Raises ``RuntimeError`` with the server's words, or for a closed stream."""
        async with self._turn:
            self._last += 1
            self.send({"id": self._last, "method": method, "params": params})
            while self.process.stdout is not None and (line := await self.process.stdout.readline()):
                answer = json.loads(line)
                if answer.get("id") != self._last or "method" in answer:
                    continue
                if "error" in answer:
                    raise RuntimeError(str(answer["error"].get("message")))
                return dict(answer["result"])
            raise RuntimeError(
                "connection closed: initialize response" if self._last < 3 else "Transport closed"
            )

    async def stop(self) -> None:
        """End the child."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class Thread:
    """A thread: its settings, its rollout file and its lock."""

    def __init__(self, thread_id: str, path: Path, settings: Json) -> None:
        self.id = thread_id
        self.path = path
        self.settings = settings
        self.mcp: McpChild | None = None
        self.mcp_name = "gitea"
        self.turn: Turn | None = None
        self.calls = 0
        self.lock: int | None = None

    def record(self, entry: Json) -> None:
        """Append to the rollout; the file is born with the first turn."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            entry = {"type": "session_meta", "id": self.id, "settings": self.settings, "first": entry}
        with self.path.open("a") as rollout:
            rollout.write(json.dumps(entry) + "\n")

    def hold(self, home: Path) -> None:
        """Become the thread's only writer, or refuse."""
        locks = home / "thread-writer-locks"
        locks.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(locks / f"{self.id}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RpcError(f"thread {self.id} already has an active writer") from None


class Turn:
    """A turn in progress."""

    def __init__(self, thread: Thread, text: str) -> None:
        self.id = uuid7()
        self.thread = thread
        self.text = text
        self.begun = False
        self.message = ""
        self.client_id: str | None = None
        self.last_item: Json | None = None
        self.started_at = int(time.time())
        self.task: asyncio.Task[None] | None = None

    def view(self, status: str, error: Json | None = None) -> Json:
        """Show the turn as ``turn/start`` and ``turn/completed`` do."""
        over = status != "inProgress"
        items = [self.last_item] if self.last_item and status == "completed" else []
        return {
            "id": self.id,
            "rootTurnId": self.id,
            "items": items,
            "itemsView": "summary" if items else "notLoaded",
            "status": status,
            "error": error,
            "startedAt": self.started_at if self.begun else None,
            "completedAt": int(time.time()) if over else None,
            "durationMs": int(time.time() - self.started_at) * 1000 if over else None,
        }


class Agent:
    """The app-server's side of the conversation."""

    def __init__(self, home: Path, write: Callable[[Json], None]) -> None:
        self.home = home
        self.write = write
        self.client = ""
        self.threads: dict[str, Thread] = {}
        self.asked: dict[int, asyncio.Future[Json]] = {}
        self.model = self._configured("model") or "stand-in-model"
        self.tasks: set[asyncio.Task[None]] = set()
        self.methods: dict[str, Callable[[Json], Coroutine[Any, Any, Json]]] = {
            "initialize": self.initialize,
            "collaborationMode/list": self.list_modes,
            "experimentalFeature/enablement/set": self.enable,
            "thread/start": self.start_thread,
            "thread/resume": self.resume_thread,
            "thread/backgroundTerminals/clean": self.enable,
            "turn/start": self.start_turn,
            "turn/interrupt": self.interrupt,
        }

    def take(self, message: Json) -> None:
        """Handle one message of the client's."""
        method, number = message.get("method"), message.get("id")
        if method is None:
            waiting = self.asked.pop(number, None) if isinstance(number, int) else None
            if waiting is not None:
                waiting.set_result(message)
        elif number is not None:
            task = asyncio.create_task(self.answer(number, method, message.get("params")))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, number: int, method: str, params: Json | None) -> None:
        """Answer one request, with the recorded wording of refusals."""
        try:
            self.write({"id": number, "result": await self.serve(method, params)})
        except RpcError as error:
            self.write({"error": {"code": error.code, "message": str(error)}, "id": number})
            return
        if params is None:
            return
        if method == "thread/start":
            self.tell("thread/started", thread=self.view(next(reversed(self.threads.values()))))
        if method == "turn/start":
            turn = self.threads[params["threadId"]].turn
            if turn is not None and turn.task is None:
                turn.task = asyncio.create_task(self.run(turn))

    async def serve(self, method: str, params: Json | None) -> Json:
        """Do what a request asks for. Raises ``RpcError``."""
        if params is None:
            raise RpcError("Invalid request: missing field `params`")
        if method not in self.methods:
            raise RpcError(f"Invalid request: unknown variant `{method}`, expected one of `initialize`")
        if not self.client and method != "initialize":
            raise RpcError("Not initialized")
        return await self.methods[method](params)

    def tell(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.write({"method": method, "params": params, "emittedAtMs": int(time.time() * 1000)})

    async def initialize(self, params: Json) -> Json:
        """Answer as a server of our own name."""
        if self.client:
            raise RpcError("Already initialized")
        self.client = f"{params['clientInfo']['name']}; {params['clientInfo']['version']}"
        agent = f"turnkeeper-scripted/{VERSION} ({sys.platform}) unknown ({self.client})"
        return {
            "userAgent": agent,
            "codexHome": str(self.home),
            "platformFamily": "unix",
            "platformOs": "linux",
        }

    async def enable(self, _params: Json) -> Json:
        """Accept, and do nothing."""
        return {"enablement": {}}

    async def list_modes(self, _params: Json) -> Json:
        """Offer the two recorded modes."""
        names = (("Plan", "plan", "medium"), ("Default", "default", None))
        return {"data": [{"name": n, "mode": m, "model": None, "reasoning_effort": e} for n, m, e in names]}

    async def start_thread(self, params: Json) -> Json:
        """Make a thread; nothing is written before its first turn."""
        thread_id = uuid7()
        now = time.gmtime()
        name = f"rollout-{time.strftime('%Y-%m-%dT%H-%M-%S', now)}-{thread_id}.jsonl"
        path = self.home / "sessions" / time.strftime("%Y/%m/%d", now) / name
        return await self.open(Thread(thread_id, path, self.settings({}, params)), params)

    async def resume_thread(self, params: Json) -> Json:
        """Load a thread from its rollout, in whichever process."""
        thread_id = params["threadId"]
        if thread_id in self.threads:
            return self.opened(self.threads[thread_id])
        found = sorted((self.home / "sessions").glob(f"*/*/*/rollout-*-{thread_id}.jsonl"))
        if not found:
            raise RpcError(f"no rollout found for thread id {thread_id}")
        meta = json.loads(found[0].read_text().splitlines()[0])
        return await self.open(Thread(thread_id, found[0], self.settings(meta["settings"], params)), params)

    def settings(self, kept: Json, params: Json) -> Json:
        """What is sent wins, then what was kept."""
        names = ("cwd", "model", "approvalPolicy", "sandbox")
        usual = {
            "cwd": str(Path.cwd()),
            "model": self.model,
            "approvalPolicy": "on-request",
            "sandbox": "read-only",
        }
        found = usual | kept | {name: params[name] for name in names if params.get(name)}
        if effort := (params.get("config") or {}).get("model_reasoning_effort"):
            found["effort"] = effort
        return found

    async def open(self, thread: Thread, params: Json) -> Json:
        """Lock a thread and start its MCP server."""
        thread.hold(self.home)
        servers = (params.get("config") or {}).get("mcp_servers") or {}
        for name, config in servers.items():
            await self.start_mcp(thread, name, config)
        self.threads[thread.id] = thread
        return self.opened(thread)

    async def start_mcp(self, thread: Thread, name: str, config: Json) -> None:
        """Start one MCP server and tell; a required one that fails refuses the thread."""

        def status(word: str, error: str | None = None) -> None:
            self.tell(
                "mcpServer/startupStatus/updated",
                threadId=thread.id,
                name=name,
                environmentId=None,
                status=word,
                error=error,
                failureReason=None,
            )

        status("starting")
        try:
            thread.mcp, thread.mcp_name = await McpChild.start(config, thread.settings["cwd"]), name
        except (OSError, TimeoutError, RuntimeError) as error:
            if isinstance(error, TimeoutError):
                why = f"timed out handshaking with MCP server after {config.get('startup_timeout_sec', 30)}s"
            elif isinstance(error, OSError):
                why = f"{error.strerror} (os error {error.errno})"
            else:
                why = f"handshaking with MCP server failed: {error}"
            if config.get("required"):
                if thread.lock is not None:
                    os.close(thread.lock)
                head = "error creating thread: Fatal error: Failed to initialize session"
                text = f"{head}: required MCP servers failed to initialize: {name}: {why}"
                raise RpcError(text, -32603) from None
            status("failed", f"MCP client for `{name}` failed to start: MCP startup failed: {why}")
            return
        status("ready")

    def view(self, thread: Thread) -> Json:
        """Show a thread."""
        return {
            "id": thread.id,
            "sessionId": thread.id,
            "model": thread.settings["model"],
            "path": str(thread.path),
            "cwd": thread.settings["cwd"],
            "cliVersion": VERSION,
            "status": {"type": "active" if thread.turn else "idle"},
            "turns": [],
        }

    def opened(self, thread: Thread) -> Json:
        """Answer ``thread/start`` and ``thread/resume``."""
        words = {"danger-full-access": "dangerFullAccess", "workspace-write": "workspaceWrite"}
        settings = thread.settings
        return {
            "thread": self.view(thread),
            "model": settings["model"],
            "modelProvider": "scripted",
            "cwd": settings["cwd"],
            "approvalPolicy": settings["approvalPolicy"],
            "sandbox": {"type": words.get(settings["sandbox"], "readOnly")},
            "reasoningEffort": settings.get("effort"),
        }

    async def start_turn(self, params: Json) -> Json:
        """Begin a turn, or steer the running one, as the real server does in silence."""
        thread = self.threads.get(params["threadId"])
        if thread is None:
            raise RpcError(f"thread not found: {params['threadId']}")
        mode = (params.get("collaborationMode") or {"mode": "default"})["mode"]
        if mode not in {"plan", "code", "custom", "default", "execute", "pair_programming"}:
            raise RpcError(f"Invalid request: unknown variant `{mode}`, expected one of `plan`, `default`")
        if thread.turn is None:
            thread.turn = Turn(thread, "\n".join(part.get("text", "") for part in params["input"]))
            thread.turn.client_id = params.get("clientUserMessageId")
        return {"turn": thread.turn.view("inProgress")}

    async def interrupt(self, params: Json) -> Json:
        """Stop a turn that has begun."""
        thread = self.threads.get(params["threadId"])
        turn = thread.turn if thread else None
        if turn is None or turn.task is None or not turn.begun:
            raise RpcError("no active turn to interrupt")
        if turn.id != params["turnId"]:
            raise RpcError(f"expected active turn id {params['turnId']} but found {turn.id}")
        turn.task.cancel()
        return {}

    async def run(self, turn: Turn) -> None:
        """Run a turn from ``turn/started`` to ``turn/completed``."""
        thread, status, error = turn.thread, "completed", None
        turn.begun = True
        self.tell("thread/status/changed", threadId=thread.id, status={"type": "active", "activeFlags": []})
        self.tell("turn/started", threadId=thread.id, turn=turn.view("inProgress"))
        content = [{"type": "text", "text": turn.text, "text_elements": []}]
        try:
            self.item(turn, "userMessage", uuid7(), clientId=turn.client_id, content=content)
            thread.record({"type": "turn", "id": turn.id, "text": turn.text})
            for step in self.steps(turn):
                await self.perform(turn, step)
        except asyncio.CancelledError:
            status = "interrupted"
        except Failed as failure:
            status = "failed"
            error = {"message": str(failure), "codexErrorInfo": failure.info, "additionalDetails": None}
            self.tell("error", error=error, willRetry=False, threadId=thread.id, turnId=turn.id)
        thread.record({"type": "turn_end", "id": turn.id, "status": status})
        thread.turn = None
        self.tell("thread/status/changed", threadId=thread.id, status={"type": "idle"})
        self.tell("turn/completed", threadId=thread.id, turn=turn.view(status, error))

    def steps(self, turn: Turn) -> list[Json]:
        """Read the directive; without one: look around, comment, answer."""
        if directive := parse_directive(turn.text):
            return plan(*directive)
        look = {"do": "exec", "cmd": "git log --oneline -1 2>/dev/null; ls | head -20"}
        return [look, {"do": "comment"}, {"do": "text", "text": "Answered with one comment."}]

    def item(self, turn: Turn, kind: str, item_id: str, *, end: bool = True, **fields: object) -> Json:
        """Tell of an item's start, and of its end unless it is still to come."""
        item = {"type": kind, "id": item_id, **fields}
        place: Json = {"threadId": turn.thread.id, "turnId": turn.id}
        self.tell("item/started", item=item, **place)
        if end:
            self.tell("item/completed", item=item, **place)
        return item

    async def perform(self, turn: Turn, step: Json) -> None:
        """Do one step of the script."""
        kind = step["do"]
        if kind in {"text", "slow"}:
            await self.say(turn, step)
        elif kind == "exec":
            await self.shell(turn, step["cmd"])
        elif kind == "call":
            await self.call(turn, step["name"], step.get("arguments", {}))
        elif kind == "comment":
            target = parse_target(turn.text)
            tools = turn.thread.mcp.tools if turn.thread.mcp else []
            place = "the request" if target is None else f"{target[0]}/{target[1]}#{target[3]}"
            body = step.get("body") or DEFAULT_BODY.format(place=place, seen=turn.message)
            if target is not None and (chosen := comment_call(tools, target, body)):
                await self.call(turn, *chosen)
        elif kind == "hang":
            await asyncio.Event().wait()
        elif kind == "exit":
            sys.stdout.flush()
            os._exit(step.get("code", 1))
        elif kind == "ask":
            await self.ask(turn, step["method"], step.get("params", {}))
        else:
            raise failure(step)

    async def say(self, turn: Turn, step: Json) -> None:
        """Answer in pieces."""
        text, pause = step.get("text", "Done."), step.get("delay", 0.0)
        pieces = [text[at : at + 20] for at in range(0, len(text), 20)]
        if step["do"] == "slow":
            pieces, pause = [f"tick {at}. " for at in range(int(step.get("seconds", 30) * 4))], 0.25
        item = self.item(turn, "agentMessage", f"msg_{secrets.token_hex(6)}", end=False, text="", phase=None)
        place: Json = {"threadId": turn.thread.id, "turnId": turn.id}
        for piece in pieces:
            self.tell("item/agentMessage/delta", **place, itemId=item["id"], delta=piece)
            await asyncio.sleep(pause)
        turn.last_item = item | {"text": "".join(pieces)}
        self.tell("item/completed", item=turn.last_item, **place)
        turn.thread.calls += 1
        total = {name: count * turn.thread.calls for name, count in USAGE.items()}
        usage = {"total": total, "last": USAGE, "modelContextWindow": 258400}
        self.tell("thread/tokenUsage/updated", **place, tokenUsage=usage)

    async def shell(self, turn: Turn, command: str) -> None:
        """Run a shell command in the workspace."""
        item_id, cwd = f"call_{secrets.token_hex(6)}", turn.thread.settings["cwd"]
        fields = {"command": f"/bin/sh -c {command!r}", "cwd": cwd, "status": "inProgress"}
        item = self.item(turn, "commandExecution", item_id, end=False, **fields)
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        text = output.decode(errors="replace")
        turn.message = text.splitlines()[0][:200] if text.strip() else ""
        ended = "failed" if process.returncode else "completed"
        item |= {"status": ended, "aggregatedOutput": text[:20000], "exitCode": process.returncode}
        self.tell("item/completed", item=item, threadId=turn.thread.id, turnId=turn.id)

    async def call(self, turn: Turn, tool: str, arguments: Json) -> None:
        """Call an MCP tool; its error is the item's, the turn goes on."""
        item_id = f"call_{secrets.token_hex(6)}"
        fields = {
            "server": turn.thread.mcp_name,
            "tool": tool,
            "arguments": arguments,
            "status": "inProgress",
        }
        item = self.item(turn, "mcpToolCall", item_id, end=False, **fields)
        meta = {"x-codex-turn-metadata": {"thread_id": turn.thread.id, "turn_id": turn.id}, "callId": item_id}
        try:
            result = await self.use(turn.thread, {"name": tool, "arguments": arguments, "_meta": meta})
            ended: Json = {"status": "failed" if result.get("isError") else "completed", "result": result}
        except RuntimeError as error:
            ended = {"status": "failed", "error": {"message": f"tool call error: {error}"}}
        self.tell("item/completed", item=item | ended, threadId=turn.thread.id, turnId=turn.id)

    async def use(self, thread: Thread, params: Json) -> Json:
        """Send ``tools/call``. Raises ``RuntimeError``."""
        if thread.mcp is None:
            raise RuntimeError(f"unknown MCP server '{thread.mcp_name}'")
        return await thread.mcp.ask("tools/call", params)

    async def ask(self, turn: Turn, method: str, params: Json) -> None:
        """Ask the client and wait for its answer; ids count from 0."""
        number = len(self.asked)
        self.asked[number] = asyncio.get_running_loop().create_future()
        place = {"threadId": turn.thread.id, "turnId": turn.id, "itemId": f"call_{secrets.token_hex(6)}"}
        self.write({"method": method, "id": number, "params": place | params})
        turn.message = json.dumps(await self.asked[number])

    def _configured(self, name: str) -> str | None:
        file = self.home / "config.toml"
        found = re.search(rf'^{name} = "([^"]*)"', file.read_text() if file.exists() else "", re.MULTILINE)
        return found[1] if found else None


def failure(step: Json) -> Failed:
    """Make the recorded error of a model that answers with a status, breaks off, fails or stops short."""
    kind, code, message = step["do"], step.get("code"), step.get("message", "mock failure")
    if "insufficient_quota" in {code, step.get("errcode")}:
        return Failed("Quota exceeded. Check your plan and billing details.", "usageLimitExceeded")
    if kind == "status" and code == 429:
        info = {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}
        return Failed("exceeded retry limit, last status: 429 Too Many Requests", info)
    if kind == "status" and code == 400:
        return Failed(
            json.dumps({"error": {"message": message, "type": "server_error", "code": None}}), "other"
        )
    if kind == "status" and code in {401, 403}:
        info = {"httpConnectionFailed": {"httpStatusCode": code}}
        return Failed(f"unexpected status {code}: {message}, url: http://127.0.0.1:1/v1/responses", info)
    if kind == "status":
        return Failed(
            "We're currently experiencing high demand, which may cause temporary errors.",
            "internalServerError",
        )
    if kind == "failed" and code == "context_length_exceeded":
        return Failed("Codex ran out of room in the model's context window.", "contextWindowExceeded")
    if kind == "incomplete":
        return Failed(
            f"Incomplete response returned, reason: {step.get('reason', 'max_output_tokens')}", "other"
        )
    return Failed(f"stream disconnected before completion: {message}", "other")


async def serve_client(home: Path) -> None:
    """Serve the client on stdin and stdout until it leaves."""
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    def write(message: Json) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    agent = Agent(home, write)
    while line := await reader.readline():
        agent.take(json.loads(line))
    for thread in agent.threads.values():
        if thread.mcp is not None:
            await thread.mcp.stop()


def main() -> None:
    """Serve, if there is a CODEX_HOME to live in."""
    home = Path(os.environ.get("CODEX_HOME") or "/nonexistent")
    if not home.is_dir():
        sys.exit("CODEX_HOME must name a folder that exists")
    asyncio.run(serve_client(home))


if __name__ == "__main__":
    main()
