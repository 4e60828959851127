"""An agent that obeys an attacker, in the real box, behind the real bridge."""

import asyncio
import hashlib
import http.client
import json
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from adapters.box_identity import start_time
from adapters.boxes import Boxes, BoxSpec, Limits, provably_dead
from adapters.simulated import agent as scripted
from adapters.simulated.gitea_state import Repo
from domain.bridge_policy import WITHOUT_REPOSITORY
from domain.tasks import BoxEnded, TaskTransitioned
from domain.turns import TurnItemSeen
from tests.e2e.world import Process, World, directive

MakeWorld = Callable[..., World]

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.bubblewrap,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here"),
]

HERE = Path(__file__).parent
CANARIES = {
    "TURNKEEPER_MODEL_API_KEY": "canary-model-key-5811",
    "TURNKEEPER_WEBHOOK_SECRET": "canary-webhook-secret-5812",
    "TURNKEEPER_ADMIN_TOKEN": "canary-admin-token-5813",
}
DATABASE_PASSWORD = "canary-database-password-5814"
FORBIDDEN_TOOLS = [
    "create_org_label", "create_repo", "delete_branch", "delete_file", "delete_issue_comment", "fork_repo",
    "get_file_content", "list_my_repos", "merge_pull_request", "search_repos", "update_file",
]  # fmt: skip
METHODS = ["create", "update", "add_comment", "delete", "merge", "get"]
DEFINED = ("succeeded", "blocked_workspace", "failed", "failed_reply")
RESIDENT_LIMIT = 384 * 1024 * 1024


class Hostile:
    """A world whose agent is the hostile one; its file has a name by which its processes are known."""

    def __init__(self, new_world: MakeWorld, folder: Path, **settings: str) -> None:
        self.name = f"hostile_{uuid.uuid4().hex[:12]}.py"
        program = folder / self.name
        shutil.copy(HERE / "hostile_agent.py", program)
        command = f"python3 {program} {Path(scripted.__file__).resolve()} app-server"
        self.world = new_world(command, **CANARIES, **settings)
        self.world.secret = CANARIES["TURNKEEPER_WEBHOOK_SECRET"]
        self.world.admin_token = CANARIES["TURNKEEPER_ADMIN_TOKEN"]
        self.world.database = make_conninfo(self.world.database, password=DATABASE_PASSWORD)

    @property
    def secrets(self) -> list[str]:
        """Everything that must not come out."""
        return [*CANARIES.values(), self.world.bot_token, DATABASE_PASSWORD]

    @property
    def state(self) -> Path:
        """The service's state directory."""
        return Path(self.world.environment()["TURNKEEPER_STATE_DIR"])

    def workspace(self, name: str) -> Path:
        """A repository's workspace, as the host sees it."""
        return self.state / "workspaces" / "default" / "alice" / name

    def report(self, step: str) -> Any:
        """What the agent wrote about a step into its workspace."""
        return json.loads((self.workspace("shop") / f"{step}.json").read_text())

    def alive(self) -> list[int]:
        """Processes of the agent that still run, in whichever box."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.name.encode() in (entry / "cmdline").read_bytes() and start_time(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def outside(self) -> dict[str, str]:
        """Every file of the service's state that is not the hostile repository's, with what it holds."""
        found = {}
        for path in sorted(self.state.rglob("*")):
            place = str(path.relative_to(self.state))
            if "shop" in place or place.startswith("bridges"):
                continue
            mode = path.lstat().st_mode
            if path.is_symlink():
                held = str(path.readlink())
            elif path.is_file():
                held = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                held = ""
            found[place] = f"{mode:o} {held}"
        return found

    def gitea(self, *own: Repo) -> dict[str, Any]:
        """Everything in Gitea but what the bot wrote below issues of ``own``."""
        state = self.world.sim.state
        ours = {repo.id for repo in own}
        kept = [
            each
            for each in state.comments.values()
            if each.poster_id != self.world.bot_id or state.issues[each.issue_id].repo_id not in ours
        ]
        refs = {
            path.name: subprocess.check_output(["git", "-C", path, "for-each-ref"], text=True)
            for path in sorted((self.world.root / "gitea").rglob("*.git"))
        }
        return {
            "comments": {each.id: (each.poster_id, each.kind, each.body) for each in kept},
            "issues": {each.id: (each.title, each.body, each.state) for each in state.issues.values()},
            "repositories": {
                each.id: (each.name, dict(each.collaborators), each.archived) for each in state.repos.values()
            },
            "hooks": sorted(state.hooks),
            "refs": refs,
        }

    async def answered(self, repo: Repo, number: int, text: str = "why?") -> TaskTransitioned:
        """Mention, and wait for the task's end."""
        head = (await self.world.everything())[-1:]
        self.world.mention(repo, number, text)
        task = await self.world.received(after=head[0].position if head else 0)
        return await self.world.reaches(task.task_id)


def resident(service: Process) -> int:
    """The most memory that a service has held so far, bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


async def ready(service: Process) -> int:
    """The status of ``/readyz``."""

    def ask() -> int:
        connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=10)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


def routes() -> list[str]:
    """Every path that the service serves, parameters filled in."""
    from services.http.query import ACCEPTED  # noqa: PLC0415 - used here only

    return [
        "/metrics", "/api/gitea/webhook", "/api/gitea/webhook/1", "/api/v1/overview", "/api/v1/tasks/x",
        *(f"/api/v1/{view}" for view in ACCEPTED),
        "/api/v1/tasks/x/abort", "/api/v1/control/pause", "/", "/docs", "/../etc/passwd",
    ]  # fmt: skip


async def test_an_obedient_hostile_agent_gains_nothing_and_changes_nothing(
    new_world: MakeWorld, tmp_path: Path
) -> None:
    """It spies, begs, batters the bridge and plants traps: no secret comes out, nothing changes."""
    hostile = Hostile(new_world, tmp_path)
    async with hostile.world as world:
        service = await world.serve()
        shop, other, secret = world.repository("shop"), world.repository("other"), world.repository("secret")
        number, elsewhere = world.issue(shop), world.issue(other)
        world.issue(secret)
        theirs = world.sim.state.comment("bob", shop, number, "what bob thinks")
        world.sim.state.comment("bob", other, elsewhere, "what bob thinks elsewhere")
        first = await hostile.answered(other, elsewhere)
        assert first.to_state == "succeeded"
        sockets = conninfo_to_dict(world.database).get("host", "/tmp")
        spying = {
            "do": "spy",
            "service": int(service.url.rsplit(":", 1)[1]),
            "gitea": int(world.sim.url.rsplit(":", 1)[1]),
            "sockets": [f"{sockets}/.s.PGSQL.5432"],
            "routes": routes(),
            "guesses": ["", "admin", "null"],
        }
        begging = {
            "do": "beg",
            "foreign": "alice/secret",
            "comment": theirs.id,
            "task": first.task_id,
            "names": FORBIDDEN_TOOLS,
            "methods": METHODS,
        }
        steps = [
            begging,
            spying,
            {"do": "batter", "calls": 10_000},
            {"do": "plant", "outside": str(hostile.state)},
        ]
        head = (await world.everything())[-1].position
        world.mention(shop, number, directive("steps", steps))
        task = await world.received(after=head)
        files, gitea = hostile.outside(), hostile.gitea(shop)
        ended = await world.reaches(task.task_id)
        assert (ended.to_state, ended.error_code) == ("succeeded", None)

        loot = (hostile.workspace("shop") / "loot.txt").read_text()
        told = "\n".join(each.body for each in world.comments(shop, number))
        assert "PATH=" in loot
        assert "config.toml" in loot
        assert len(told) > 20_000  # it did tell
        assert [each for each in hostile.secrets if each in loot or each in told] == []
        assert str(world.root) not in json.loads(loot)["files"]["env"]
        _nothing_answered(json.loads(loot))
        _nothing_given(hostile.report("beg"))
        _nothing_broken(hostile.report("batter"))
        assert "written" not in hostile.report("plant").values()
        assert hostile.outside() == files
        assert hostile.gitea(shop) == gitea
        assert len(world.finals(other, elsewhere, first.task_id)) == 1
        assert world.finals(shop, number, first.task_id) == []  # what it forged is not there

        assert await ready(service) == 200
        assert (await hostile.answered(other, elsewhere)).to_state == "succeeded"
        head = (await world.everything())[-1].position
        world.mention(shop, number, "and now?")
        again = await world.received(after=head)
        assert (await world.reaches(again.task_id, *DEFINED)).to_state in DEFINED[:2]
        sprung = (hostile.workspace("shop") / "trapped.txt").read_text()
        assert {line for line in sprung.splitlines() if line.isdigit()} == {"1000"}  # only ever in a box
        assert [each for each in hostile.secrets if each in sprung] == []
        assert list(hostile.state.glob("escaped")) == []
        assert resident(service) < RESIDENT_LIMIT
        assert await ready(service) == 200


async def test_a_box_that_takes_without_end_is_ended_and_others_are_served(
    new_world: MakeWorld, tmp_path: Path
) -> None:
    """Two GiB on disk and in memory, thousands of deaf processes: the box ends whole, the service goes on."""
    hostile = Hostile(new_world, tmp_path)
    async with hostile.world as world:
        service = await world.serve()
        shop, other = world.repository("shop"), world.repository("other")
        number, elsewhere = world.issue(shop), world.issue(other)
        assert (await hostile.answered(other, elsewhere)).to_state == "succeeded"
        steps = [
            {"do": "comment", "body": "before the end"},
            {"do": "plant", "outside": str(hostile.state), "broken": True},
            {"do": "fill", "bytes": 2 << 30},
            {"do": "breed", "processes": 3_000},
        ]
        head = (await world.everything())[-1].position
        world.mention(shop, number, directive("steps", steps))
        task = await world.received(after=head)
        files, gitea = hostile.outside(), hostile.gitea(shop)
        await world.seen(TurnItemSeen, task.task_id, method="item/completed", item_type="mcpToolCall")
        assert (await hostile.answered(other, elsewhere)).to_state == "succeeded"  # meanwhile
        box = (await world.seen(BoxEnded, task.task_id)).event
        assert box
        ended = await world.reaches(task.task_id, *DEFINED)
        assert ended.to_state in DEFINED[:2]
        assert "box_ended_for_its_limits" in service.errors.read_text()
        assert hostile.alive() == []
        filled = hostile.report("fill")
        assert all(size <= 1 << 30 and why != "all of it" for size, why in filled.values()), filled
        assert filled["/dev/full-too"] == [0, "Read-only file system"]
        assert {k: v for k, v in hostile.outside().items() if "other" not in k} == {
            k: v for k, v in files.items() if "other" not in k
        }
        assert hostile.gitea(shop, other)["refs"] == gitea["refs"]
        assert resident(service) < RESIDENT_LIMIT
        assert await ready(service) == 200
        head = (await world.everything())[-1].position
        world.mention(shop, number, "and now?")
        again = await world.received(after=head)
        assert (await world.reaches(again.task_id, *DEFINED)).to_state in DEFINED[:2]
        assert (await hostile.answered(other, elsewhere)).to_state == "succeeded"


async def test_a_flood_of_events_does_not_fill_the_services_memory(
    new_world: MakeWorld, tmp_path: Path
) -> None:
    """An agent that tells more than can be stored is stopped, or slowed down, before its words fill the memory."""
    hostile = Hostile(new_world, tmp_path)
    async with hostile.world as world:
        service = await world.serve()
        shop, other = world.repository("shop"), world.repository("other")
        number, elsewhere = world.issue(shop), world.issue(other)
        steps = [
            {"do": "comment", "body": "before the flood"},
            {"do": "flood", "events": 15_000, "bytes": 20_000},
        ]
        assert (await hostile.answered(shop, number, directive("steps", steps))).to_state in DEFINED
        assert resident(service) < RESIDENT_LIMIT
        assert await ready(service) == 200
        assert (await hostile.answered(other, elsewhere)).to_state == "succeeded"


async def test_an_answer_after_the_lease_is_gone_is_refused(new_world: MakeWorld, tmp_path: Path) -> None:
    """What the agent says while its service has lost the lease is written nowhere, also when the service wakes up."""
    hostile = Hostile(new_world, tmp_path)
    async with hostile.world as world:
        service = await world.serve()
        shop = world.repository("shop")
        number = world.issue(shop)
        steps = [{"do": "linger"}, {"do": "comment", "body": "in time"}]
        world.mention(shop, number, directive("steps", steps))
        task = await world.received()
        lingered = hostile.workspace("shop") / "lingered"
        await _exists(lingered)
        await world.seen(TurnItemSeen, task.task_id, method="item/completed", item_type="userMessage")
        box = (await world.task(task.task_id)).box
        assert box is not None
        service.process.send_signal(signal.SIGSTOP)
        await _exists(hostile.workspace("shop") / "late")
        await world.serve(TURNKEEPER_PORT="0")
        await world.seen(BoxEnded, task.task_id)
        assert start_time(box.identity["pid"]) != box.identity["start_time"]
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        assert hostile.alive() == []
        service.process.send_signal(signal.SIGCONT)
        await _says(service, "the lease")
        finals = world.finals(shop, number, task.task_id)
        assert [each.body.splitlines()[0] for each in finals] == ["in time"]
        assert not any("too late" in each.body for each in world.sim.state.comments.values())
        await service.end()  # it has done what it could
        assert not any("too late" in each.body for each in world.sim.state.comments.values())


async def test_without_a_box_the_same_look_finds_secrets(new_world: MakeWorld, tmp_path: Path) -> None:
    """The search is sharp: an agent that is not isolated reads the service's environment, and all of it is found."""
    short = tempfile.TemporaryDirectory(prefix="tk-")  # a socket's address holds 107 bytes
    hostile = Hostile(new_world, tmp_path, TURNKEEPER_ISOLATION="none", TURNKEEPER_STATE_DIR=short.name)
    with short:
        await _finds_all(hostile)


async def _finds_all(hostile: Hostile) -> None:
    async with hostile.world as world:
        service = await world.serve()
        shop = world.repository("shop")
        number = world.issue(shop)
        look = [
            {"do": "exec", "cmd": f"cat /proc/{service.process.pid}/environ > loot.txt"},
            {"do": "comment"},
        ]
        ended = await hostile.answered(shop, number, directive("steps", look))
        assert ended.to_state == "succeeded", (ended, service.errors.read_text())
        loot = (hostile.workspace("shop") / "loot.txt").read_text()
        assert all(each in loot for each in hostile.secrets)


@pytest.mark.parametrize(
    ("limits", "command", "reason"),
    [
        (
            Limits(written_bytes=64 << 20),
            "i=0; while :; do head -c 8388608 /dev/zero >f$i; i=$((i+1)); sleep 0.02; done",
            "it wrote more than",
        ),
        (Limits(processes=50), "while :; do sleep 100 & sleep 0.005; done", "it ran more than 50"),
        (Limits(free_bytes=1 << 62), "sleep 100", "were left on the disk"),
    ],
    ids=["disk", "processes", "free"],
)
async def test_a_box_over_its_limits_is_ended_and_says_why(
    tmp_path: Path, limits: Limits, command: str, reason: str
) -> None:
    """Whatever is watched ends the whole box."""
    spec = BoxSpec(argv=("/bin/sh", "-c", command), workspace=tmp_path, limits=limits)
    box = await Boxes().start(spec)
    await asyncio.wait_for(box.wait(), 60)
    assert reason in box.overrun
    assert reason.encode() in box.stderr
    assert provably_dead(box.identity)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 8 << 30


async def test_a_box_has_no_room_that_nobody_bounds(tmp_path: Path) -> None:
    """``/dev`` can't be written, ``/dev/shm`` has a size, and no user namespace gives a mount of one's own."""
    command = (
        "touch /dev/x 2>/dev/null && echo dev; head -c 3000000 /dev/zero >/dev/shm/x 2>/dev/null && echo shm; "
        "unshare -Urm true 2>/dev/null && echo nested; cat /proc/self/oom_score_adj"
    )
    spec = BoxSpec(argv=("/bin/sh", "-c", command), workspace=tmp_path, limits=Limits(tmpfs_bytes=1 << 20))
    done = await Boxes().run(spec, 30)
    assert done.text.split() == ["800"]


async def test_a_box_that_has_ended_left_nobody_behind(tmp_path: Path) -> None:
    """A command that leaves a crowd behind has not ended before the crowd has."""
    command = "i=0; while [ $i -lt 40 ]; do (setsid sleep 100 &) ; i=$((i+1)); done"
    for _ in range(5):
        box = await Boxes().start(BoxSpec(argv=("/bin/sh", "-c", command), workspace=tmp_path))
        await box.wait()
        assert provably_dead(box.identity)


async def _exists(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.05)


async def _says(service: Process, words: str) -> None:
    async with asyncio.timeout(60):
        while words not in service.errors.read_text():
            await asyncio.sleep(0.05)


def _nothing_answered(loot: dict[str, Any]) -> None:
    """No route without its token, no database without its password, no relay of another run."""
    for asked, (status, _body) in loot["http"].items():
        whom, method = asked.split()[:2]
        if whom == "service":
            assert status in (400, 401, 404, 405, 415), asked
            assert not (method == "GET" and status == 400), asked
        elif whom == "gitea":
            assert status in (401, 403, 404), asked
        else:
            assert status in (401, 404), asked
    assert any(asked.startswith("relay") for asked in loot["http"])
    assert any(status == 401 for status, _body in loot["http"].values())
    for place, said in loot["postgres"].items():
        assert not said.startswith(("b'R\\x00\\x00\\x00\\x08\\x00\\x00\\x00\\x00", "b'Z")), place


def _nothing_given(answers: dict[str, str]) -> None:
    """What is not the run's own was refused, each with a reason."""
    for asked, answer in answers.items():
        if asked == "forged" or asked.split()[1] in WITHOUT_REPOSITORY:
            continue
        assert '"isError": true' in answer or answer.startswith("error: "), asked
    assert any("foreign_repository" in answer for answer in answers.values())
    assert any("not_own_comment" in answer for answer in answers.values())
    assert '"isError": false' in answers["forged"]


def _nothing_broken(answers: dict[str, Any]) -> None:
    """The bridge still talked after all the nonsense, and refused what was too much."""
    assert "arguments_too_large" in answers["gigantic"]
    assert "too_many_calls" in answers["last call"]
