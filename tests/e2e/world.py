"""A whole world for stories: a stand-in Gitea and model in this process, the service in processes of its own."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from adapters.postgres.log import PostgresLog
from adapters.simulated.gitea import SimulatedGitea
from adapters.simulated.gitea_state import Comment, Repo
from adapters.simulated.model import SimulatedModel
from domain import ids, markers, tasks
from domain.events import Event
from domain.log import Recorded
from domain.tasks import Task, TaskReceived, TaskTransitioned
from domain.transitions import TERMINAL

ROOT = Path(__file__).resolve().parents[2]
BOT = "turnkeeper-bot"
FILES = {"README.md": "# shop\n", "price.py": "def price(value):\n    return value\n"}
LIMIT_S = 90.0

Predicate = Callable[[Recorded], bool]


class Process:
    """One running service."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, errors: Path) -> None:
        self.process = process
        self.url = url
        self.errors = errors

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


class World:
    """What a story plays in. ``settings`` are environment variables beside the usual ones."""

    def __init__(
        self, root: Path, *, database: str, schema: str, agent: str, settings: dict[str, str] | None = None
    ) -> None:
        self.root = root
        self.sim = SimulatedGitea(root=root / "gitea")
        self.secret = secrets.token_hex(16)
        self.admin_token = secrets.token_hex(16)
        self.agent = agent
        self.database = database
        self.schema = schema
        self.settings = settings or {}
        self.processes: list[Process] = []
        self.model: SimulatedModel
        self.log: PostgresLog
        self.bot_token = ""
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.sim.start()
        self.model = await SimulatedModel.start()
        self.log = await PostgresLog.open(self.database, schema=self.schema)
        state = self.sim.state
        for login in ("alice", "bob", BOT):
            state.add_user(login)
        self.bot_token = state.add_token(BOT, ("write:issue", "write:repository", "read:user"))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for process in self.processes:
            await process.end(signal.SIGKILL)
        await self.log.close()
        await self.model.stop()
        await self.sim.stop()

    @property
    def bot_id(self) -> int:
        """The bot's user id."""
        return self.sim.state.user(BOT).id

    def repository(self, name: str, *, owner: str = "alice") -> Repo:
        """A repository that the bot may write, with a file or two."""
        repo = self.sim.state.add_repo(owner, name, files=FILES)
        self.sim.state.collaborator(f"{owner}/{name}", BOT, "write")
        return repo

    def issue(self, repo: Repo, title: str = "Prices are wrong") -> int:
        """An issue of bob's."""
        return self.sim.state.open_issue("bob", repo, title, "price(1) is wrong").number

    def mention(self, repo: Repo, number: int, text: str, *, by: str = "alice") -> Comment:
        """A comment that mentions the bot; its delivery is on its way."""
        return self.sim.state.comment(by, repo, number, f"@{BOT} {text}")

    def environment(self, **more: str) -> dict[str, str]:
        """The service's environment."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.root),
            "PYTHONPATH": str(ROOT),
            "DATABASE_URL": self.database,
            "TURNKEEPER_DATABASE_SCHEMA": self.schema,
            "TURNKEEPER_STATE_DIR": str(self.root / "state"),
            "TURNKEEPER_HOST": "127.0.0.1",
            "TURNKEEPER_PORT": str(self._port),
            "TURNKEEPER_GITEA_URL": self.sim.url,
            "TURNKEEPER_REPOSITORIES": "*",
            "TURNKEEPER_GITEA_TOKEN": self.bot_token,
            "TURNKEEPER_WEBHOOK_SECRET": self.secret,
            "TURNKEEPER_ADMIN_TOKEN": self.admin_token,
            "TURNKEEPER_CODEX_COMMAND": self.agent,
            "TURNKEEPER_CODEX_MODEL": "stand-in-model",
            "TURNKEEPER_MODEL_BASE_URL": self.model.base_url,
            "TURNKEEPER_GITEA_MCP_COMMAND": "simulated",
            "TURNKEEPER_REPLY_GRACE": "0,0.2,0.5",
            "TURNKEEPER_RETRY_DELAY": "0.2",
            "TURNKEEPER_LEASE_TTL": "4",
            "TURNKEEPER_LEASE_HEARTBEAT": "1",
            "TURNKEEPER_DRAIN_DEADLINE": "20",
            "TURNKEEPER_LOG_FORMAT": "json",
            "TURNKEEPER_ISOLATION": "bubblewrap" if shutil.which("bwrap") else "none",
            **self.settings,
            **more,
        }

    async def serve(self, **more: str) -> Process:
        """Start a service and wait until it says that it is ready; later ones take the same address."""
        errors = self.root / f"service-{len(self.processes)}.log"
        with errors.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services",
                "serve",
                env=self.environment(**more),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert "http://" in line, f"not ready: {line!r}\n{errors.read_text()[-3000:]}"
        url = "http://" + line.split("http://", 1)[1].split()[0].rstrip("/.,")
        started = Process(process, url, errors)
        self.processes.append(started)
        if not self._port:
            self._port = int(url.rsplit(":", 1)[1])
            self.sim.state.add_hook(f"{url}/api/gitea/webhook", secret=self.secret)
        return started

    async def until(self, wanted: Predicate, *, after: int = 0, limit: float = LIMIT_S) -> Recorded:
        """The first event after a position that fulfils ``wanted``; fails with the log's end if none comes."""
        last: list[Recorded] = []
        try:
            async with asyncio.timeout(limit):
                async for batch in self.log.tail(after=after):
                    for recorded in batch:
                        last = [*last[-25:], recorded]
                        if wanted(recorded):
                            return recorded
        except TimeoutError:
            pass
        told = "\n".join(f"{each.position} {each.stream} {each.type} {each.body[:300]!r}" for each in last)
        logs = "\n".join(process.errors.read_text()[-2000:] for process in self.processes)
        raise AssertionError(f"what was waited for did not come; the log ends with\n{told}\n{logs}")

    async def received(self, *, after: int = 0) -> TaskReceived:
        """The next task that is admitted."""
        found = await self.until(lambda each: each.type == "TaskReceived", after=after)
        assert isinstance(found.event, TaskReceived)
        return found.event

    async def reaches(self, task_id: str, *states: str) -> TaskTransitioned:
        """Wait until a task reaches one of ``states`` (none given: any end)."""
        wanted = states or tuple(TERMINAL)
        found = await self.until(
            lambda each: (
                isinstance(each.event, TaskTransitioned)
                and each.event.task_id == task_id
                and each.event.to_state in wanted
            )
        )
        assert isinstance(found.event, TaskTransitioned)
        return found.event

    async def seen(self, kind: type[Event], task_id: str, *, after: int = 0, **fields: Any) -> Recorded:
        """Wait for an event of this type about a task, with these fields."""
        return await self.until(
            lambda each: (
                isinstance(each.event, kind)
                and getattr(each.event, "task_id", None) == task_id
                and all(getattr(each.event, name) == value for name, value in fields.items())
            ),
            after=after,
        )

    async def task(self, task_id: str) -> Task:
        """The task as its stream stands."""
        return tasks.fold(row.event for row in await self.log.read_stream(ids.task_stream(task_id)))

    async def everything(self) -> list[Recorded]:
        """The whole log."""
        return list(await self.log.read(after=0, limit=100_000))

    def comments(self, repo: Repo, number: int) -> list[Comment]:
        """What stands below an issue."""
        issue = self.sim.state.find_issue(repo, number)
        assert issue is not None
        found = [each for each in self.sim.state.comments.values() if each.issue_id == issue.id]
        return sorted((each for each in found if each.kind == "comment"), key=lambda each: each.id)

    def finals(self, repo: Repo, number: int, task_id: str) -> list[Comment]:
        """The bot's final comments of a task, as a reader of the issue sees them."""
        return [each for each in self._marked(repo, number, task_id) if self._marker(each).final]

    def receipts(self, repo: Repo, number: int, task_id: str) -> list[str]:
        """The statuses of a task's receipts."""
        found = [self._marker(each).status for each in self._marked(repo, number, task_id)]
        return [status for status in found if status is not None]

    def _marked(self, repo: Repo, number: int, task_id: str) -> list[Comment]:
        found = []
        for comment in self.comments(repo, number):
            marker = markers.our_marker(comment.body)
            if comment.poster_id == self.bot_id and marker is not None and marker.task_id == task_id:
                found.append(comment)
        return found

    @staticmethod
    def _marker(comment: Comment) -> markers.Marker:
        marker = markers.our_marker(comment.body)
        assert marker is not None
        return marker


def directive(name: str, value: Any) -> str:
    """A script for the stand-in agent or model, hidden in the request's text."""
    return f"please [[mock:{name} {json.dumps(value)}]]"


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    """The world with one service in it."""
    async with world:
        await world.serve()
        yield world
