"""Intake with everything that decides later, over a log in memory and the stand-in Gitea; deliveries come by hand."""

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from adapters.gitea.rest import GiteaRest
from adapters.memory import MemoryLog
from adapters.simulated.gitea import SimulatedGitea
from adapters.simulated.gitea_hooks import GiteaDelivery
from adapters.simulated.gitea_state import Issue, Repo
from domain import ids, tasks
from domain.deliveries import DeliveryDecided
from domain.events import Event
from domain.policy import Rules
from domain.processes import endings
from projections.views import VIEWS
from services.admissions import Admissions
from services.gitea_watch import GiteaWatch
from services.ledger import Ledger
from services.projector import Projector
from services.reconciler import Reconciler
from services.rights import Rights
from services.view_store import MemoryViews
from tests.contract.ingress_door import Door

BOT = "turnkeeper-bot"
SECRET = "the stage's secret"
NOWHERE = "http://127.0.0.1:9/hook"


@dataclasses.dataclass(kw_only=True)
class Stage:
    """``alice`` owns what is made here."""

    sim: SimulatedGitea
    log: MemoryLog
    views: MemoryViews
    projector: Projector
    rest: GiteaRest
    rules: Rules
    rights: Rights
    admissions: Admissions
    reconciler: Reconciler
    door: Door
    brought: int = 0

    def tick(self, seconds: float = 1.0) -> None:
        """Move the stand-in's clock: Gitea counts whole seconds."""
        before = self.sim.state.clock
        self.sim.state.clock = lambda: before() + timedelta(seconds=seconds)

    def repository(self, name: str = "shop", *, owner: str = "alice", bot: str = "write") -> Repo:
        """A repository of alice's with an issue; the bot has this right in it."""
        repo = self.sim.state.add_repo(owner, name)
        self.sim.state.collaborator(f"{owner}/{name}", BOT, bot)
        self.sim.state.open_issue("bob", repo, "It fails", "see the log")
        return repo

    def pull(self, repo: Repo, *, by: str = "alice") -> Issue:
        """A pull request."""
        state = self.sim.state
        state.commit_files(by, repo, "topic", {"new.py": "one\ntwo\n"})
        return state.open_pull(by, repo, title="New", head="topic", base="main", body="please look")

    async def bring(
        self, *deliveries: GiteaDelivery, path: str = "/api/gitea/webhook"
    ) -> list[httpx.Response]:
        """Bring these deliveries, by default all that were caused since the last time, in order."""
        wanted: Sequence[GiteaDelivery] = deliveries or self.sim.hooks.log[self.brought :]
        self.brought = len(self.sim.hooks.log)
        return [await self.door.send(each.body, each.headers, path) for each in wanted]

    def lose(self) -> None:
        """What was caused since the last time is never delivered."""
        self.brought = len(self.sim.hooks.log)

    async def events(self, *kinds: type[Event]) -> list[Any]:
        """All events of some kinds, oldest first."""
        rows = await self.log.read(after=0, limit=100_000)
        return [row.event for row in rows if isinstance(row.event, kinds)]

    async def decided(self, key: str) -> DeliveryDecided:
        """The present outcome of a delivery."""
        rows = await self.log.read_stream(ids.delivery_stream(key))
        found = [row.event for row in rows if isinstance(row.event, DeliveryDecided)]
        return found[-1]

    async def state_of(self, task_id: str) -> str:
        """A task's state."""
        rows = await self.log.read_stream(ids.task_stream(task_id))
        return tasks.fold(row.event for row in rows).state

    async def settle_all(self) -> None:
        """Decide everything that is deferred now."""
        for key in await self.admissions._left():
            await self.admissions.settle(key)


@contextlib.asynccontextmanager
async def stage(
    root: Path, *, version: str = "1.27.0", grace: float = -3600.0, **rules: Any
) -> AsyncIterator[Stage]:
    """A stage with alice, bob, mallory and the bot, and a hook for the whole Gitea.

    ``grace`` is the reconciler's: below 0, since the stand-in's clock may be moved ahead (``Stage.tick``).
    """
    sim = SimulatedGitea(root=root / "gitea", version=version)
    await sim.start()
    for login in ("alice", "bob", "mallory", BOT):
        sim.state.add_user(login)
    token = sim.state.add_token(BOT, ("write:issue", "write:repository", "read:user"))
    sim.state.add_hook(NOWHERE, secret=SECRET)
    await sim.hooks.stop()
    log, views = MemoryLog(), MemoryViews()
    projector = Projector(log, views, VIEWS)
    await projector.start()
    bot_id = sim.state.user(BOT).id
    made: dict[str, Any] = {
        "bot_login": BOT,
        "bot_id": bot_id,
        "gitea_urls": (sim.url,),
        "repositories": ("*",),
        **rules,
    }
    settled = Rules(**made)
    door = Door(log, settled, secrets=(SECRET,))

    async def caught_up() -> None:
        await projector.wait_for(await log.head(), 20.0)

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(sim.stop)
        stack.push_async_callback(projector.close)
        rest = await stack.enter_async_context(GiteaRest(sim.url, token))
        ledger = Ledger(log, rules=endings.Rules(), runner_id="r", new_id=uuid.uuid4)
        watch = GiteaWatch(gitea=rest, ledger=ledger, pause=0.05)
        watching = asyncio.create_task(watch.run())
        stack.callback(watching.cancel)
        rights = Rights(event_log=log, views=views, gitea=rest, caught_up=caught_up, allow_age=86400)
        admissions = Admissions(
            event_log=log,
            views=views,
            gitea=rest,
            watch=watch,
            intake=door.intake,
            rights=rights,
            rules=lambda: settled,
            bot_id=bot_id,
            caught_up=caught_up,
            first_pause=0.02,
        )
        reconciler = Reconciler(
            event_log=log,
            views=views,
            gitea=rest,
            watch=watch,
            admissions=admissions,
            rights=rights,
            rules=lambda: settled,
            bot_id=bot_id,
            caught_up=caught_up,
            interval=0.05,
            grace=grace,
        )
        yield Stage(
            sim=sim,
            log=log,
            views=views,
            projector=projector,
            rest=rest,
            rules=settled,
            rights=rights,
            admissions=admissions,
            reconciler=reconciler,
            door=door,
        )
