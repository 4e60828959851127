"""The command line: what it prints, how it ends, and that no secret and no traceback is ever shown."""

import contextlib
import hmac
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from domain.faults import Fault, Unavailable
from domain.gitea import Hook
from services import cli_client, cli_wiring, hooks
from services.cli import main
from services.config import Settings
from services.doctor import BotFound, DatabaseFound, DiskFound, IsolationFound, Probes
from services.story import Line

EVIDENCE = Path(__file__).parent.parent / "evidence"
SECRETS = {
    "TURNKEEPER_WEBHOOK_SECRET": "canary-webhook",
    "TURNKEEPER_GITEA_TOKEN": "canary-gitea",
    "TURNKEEPER_ADMIN_TOKEN": "canary-admin",
    "TURNKEEPER_OWNER_TOKEN": "canary-owner",
}
COMMANDS = (
    "serve",
    "demo",
    "doctor",
    "migrate",
    "config",
    "deliver",
    "hooks install",
    "hooks check",
    "tasks list",
    "tasks show",
    "simulate gitea",
)


class Hands:
    """An owner's hands on a Gitea that holds these hooks."""

    def __init__(self, *held: Hook) -> None:
        self.held = list(held)
        self.done: list[tuple[str, str, str]] = []

    async def repository_id(self, owner: str, name: str) -> int:
        """Always the same."""
        assert (owner, name) == ("acme", "widget")
        return 12

    async def hooks(self, owner: str, name: str) -> list[Hook]:
        """What is held."""
        del owner, name
        return self.held

    async def create_hook(self, owner: str, name: str, *, url: str, secret: str) -> Hook:
        """Make one."""
        del owner, name
        self.done.append(("create", url, secret))
        self.held.append(hook(url))
        return self.held[-1]

    async def update_hook(self, owner: str, name: str, hook_id: int, *, url: str, secret: str) -> Hook:
        """Set one right."""
        del owner, name, hook_id
        self.done.append(("update", url, secret))
        return hook(url)

    def derived_secret(self, repository_id: int) -> str:
        """Made up."""
        return f"derived-{repository_id}"


def hook(url: str, **parts: Any) -> Hook:
    """A hook as this service wants it, but for ``parts``."""
    return Hook(
        **{"id": 5, "url": url, "content_type": "json", "events": hooks.EVENTS, "active": True, **parts}
    )


class FakeWiring:
    """Stands where ``services.wiring`` would be."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.fault: Exception | None = None
        self.probes = probes()
        self.tokens: list[str] = []

    def _raise(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def serve(self, settings: Settings, announce: Callable[[str], None]) -> None:
        """Be ready, and end."""
        self._raise()
        announce(f"http://{settings.host}:{settings.port}")

    async def migrate(self, settings: Settings) -> list[str]:
        """Apply two."""
        del settings
        self._raise()
        return ["0001_log", "0002_clock"]

    async def demo(self, settings: Settings, *, agent: str, show: Any, say: Any) -> dict[str, Any]:
        """Tell one line."""
        del settings
        self._raise()
        say("bubblewrap is not here")
        show(Line(position=1, at="2026-08-24T08:00:00.000Z", chapter="delivery", text="accepted"))
        return {"outcome": "succeeded", "final_comments": [2], "receipts": [1], "agent": agent}

    @contextlib.asynccontextmanager
    async def doctor_probes(self, settings: Settings) -> AsyncIterator[Probes]:
        """What was set."""
        del settings
        yield self.probes

    @contextlib.asynccontextmanager
    async def hook_hands(self, settings: Settings, owner_token: str) -> AsyncIterator[Hands]:
        """What was set."""
        del settings
        self.tokens.append(owner_token)
        self._raise()
        yield self.hands

    def derived_secret(self, secret: str, repository_id: int) -> str:
        """Made up."""
        return f"{secret}-{repository_id}"

    async def simulate_gitea(
        self, *, host: str, port: int, version: str, ready: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """Be ready, and end."""
        ready({"url": f"http://{host}:{port}", "version": version, "tokens": {"alice": "t"}})


def probes(**changed: Any) -> Probes:
    """A machine in good order, but for ``changed``: a value to give, or a fault to raise."""
    good: dict[str, Any] = {
        "database": DatabaseFound(server="18.1", embedded=True, protection="role+trigger"),
        "isolation": IsolationFound(ok=True, version="0.9"),
        "codex": "codex 0.171.0",
        "gitea_mcp": "gitea-mcp 1.0",
        "bot": BotFound(id=6, login="codex-bot", gitea_version="1.27.0"),
        "git": "git 2.47",
        "disk": DiskFound(free=10 * 2**30),
        **changed,
    }

    def probe(name: str) -> Any:
        async def look(*_args: object) -> Any:
            if isinstance(good[name], Exception):
                raise good[name]
            return good[name]

        return look

    return Probes(**{name: probe(name) for name in good})


class Shell:
    """Runs commands with a fake wiring."""

    def __init__(self, capsys: pytest.CaptureFixture[str], wiring: FakeWiring) -> None:
        self.wiring = wiring
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        code = main(arguments)
        out, err = self._capsys.readouterr()
        assert "canary" not in out + err
        assert "Traceback" not in out + err
        return code, out, err

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The last line of stdout as JSON."""
        found, out, err = self.run(*arguments, "--json")
        assert found == code, err
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Commands with a complete configuration."""
    wiring = FakeWiring()
    monkeypatch.setattr(cli_wiring, "wiring", lambda: wiring)
    monkeypatch.setattr("services.cli_hooks.wiring", lambda: wiring)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURNKEEPER_GITEA_URL", "https://gitea.example")
    monkeypatch.setenv("TURNKEEPER_REPOSITORIES", "*")
    yield Shell(capsys, wiring)
    structlog.reset_defaults()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(shell: Shell, command: str) -> None:
    """Each command explains itself and offers ``--json``."""
    code, out, _ = shell.run(*command.split(), "--help")
    assert code == 0
    assert "--json" in out


@pytest.mark.parametrize(
    "arguments", [("zzz",), ("serve", "--port", "x"), ("tasks", "list", "--limit", "500"), ("deliver",)]
)
def test_a_wrong_command_line_is_one_sentence(shell: Shell, arguments: tuple[str, ...]) -> None:
    """Usage errors end with 2 and one line."""
    code, out, err = shell.run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    code, _, err = shell.run(*arguments, "--json")
    assert (code, json.loads(err)["code"]) == (2, "usage")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("runs can't be isolated", code="isolation_unavailable"), 1),
        (Unavailable("the database does not answer", code="database_unavailable"), 3),
        (RuntimeError("unexpected canary-gitea"), 1),
    ],
)
def test_failures_are_sentences_with_stable_codes(shell: Shell, fault: Exception, code: int) -> None:
    """A fault ends a command with its code; what nobody expected ends with 1, masked."""
    shell.wiring.fault = fault
    found, out, err = shell.run("migrate")
    assert (found, out) == (code, "")
    assert err.count("\n") == 1
    if isinstance(fault, Fault):
        assert fault.message in err
        assert fault.code in err


def test_serve_prints_its_address_when_ready(shell: Shell) -> None:
    """One line, the address in it; with ``--json`` an object."""
    code, out, _ = shell.run("serve", "--port", "4711")
    assert (code, out) == (0, "turnkeeper is ready at http://127.0.0.1:4711\n")
    assert shell.json("serve", "--port", "4711") == {"url": "http://127.0.0.1:4711"}


def test_serve_is_refused_before_anything_is_started(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a secret nothing starts: 2, and the variable's name."""
    monkeypatch.delenv("TURNKEEPER_WEBHOOK_SECRET")
    code, out, err = shell.run("serve")
    assert (code, out) == (2, "")
    assert "TURNKEEPER_WEBHOOK_SECRET" in err


def test_the_demo_tells_and_sums_up(shell: Shell) -> None:
    """Lines as they happen, remarks on stderr, with ``--json`` the summary as the last line."""
    code, out, err = shell.run("demo", "--agent", "scripted")
    assert code == 0
    assert "delivery" in out
    assert "bubblewrap" in err
    assert shell.json("demo")["final_comments"] == [2]
    assert shell.run("demo", "--agent", "other")[0] == 2


def test_migrate_names_what_it_applied(shell: Shell) -> None:
    """The names of the migrations."""
    assert shell.json("migrate") == {"applied": ["0001_log", "0002_clock"]}


def test_config_explains_without_secrets(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting with source and meaning, secrets masked, misspelt names reported."""
    monkeypatch.setenv("TURNKEEPER_PROT", "1")
    told = shell.json("config", "--explain")
    rows = {row["name"]: row for row in told["settings"]}
    assert rows["TURNKEEPER_GITEA_TOKEN"]["value"] == "********"
    assert rows["TURNKEEPER_GITEA_TOKEN"]["source"] == "environment"
    assert (told["problems"], told["unknown"]) == ([], ["TURNKEEPER_PROT"])
    code, out, err = shell.run("config", "--explain")
    assert code == 0
    assert "TURNKEEPER_LEASE_TTL" in out
    assert "TURNKEEPER_PROT" in err


def test_the_doctor_finds_a_healthy_machine_healthy(shell: Shell) -> None:
    """All checks are there and ok."""
    told = shell.json("doctor")
    assert told["status"] == "ok"
    names = ["configuration", "database", "isolation", "git", "codex", "gitea", "gitea-mcp", "disk"]
    assert [check["name"] for check in told["checks"]] == names


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"database": Unavailable("the database does not answer")}, "database"),
        (
            {"isolation": IsolationFound(ok=False, version="", reason="bubblewrap is not installed")},
            "isolation",
        ),
        ({"codex": Fault("codex was not found", code="codex_missing")}, "codex"),
        ({"gitea_mcp": Unavailable("gitea-mcp was not found")}, "gitea-mcp"),
        ({"bot": Unavailable("Gitea does not answer")}, "gitea"),
        ({"git": FileNotFoundError(2, "No such file or directory")}, "git"),
        ({"disk": DiskFound(free=1)}, "disk"),
    ],
)
def test_the_doctor_names_the_ill_and_the_cure(shell: Shell, changed: dict[str, Any], name: str) -> None:
    """What does not work is a failed check with its cure, and exit code 1; the others are still made."""
    shell.wiring.probes = probes(**changed)
    told = shell.json("doctor", code=1)
    failed = {check["name"]: check for check in told["checks"] if check["status"] == "fail"}
    assert set(failed) == {name}
    assert failed[name]["cure"]
    assert len(told["checks"]) == 8


def test_the_doctor_sees_another_bot(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of somebody else than the configured bot is a failure, weaker protection a warning."""
    monkeypatch.setenv("TURNKEEPER_BOT_ID", "7")
    weaker = DatabaseFound(server="15.1", embedded=False, protection="trigger")
    shell.wiring.probes = probes(database=weaker)
    statuses = {check["name"]: check["status"] for check in shell.json("doctor", code=1)["checks"]}
    assert (statuses["gitea"], statuses["database"]) == ("fail", "warn")


def test_isolation_that_was_waived_keeps_warning(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """``TURNKEEPER_ISOLATION=none`` is a warning each time."""
    monkeypatch.setenv("TURNKEEPER_ISOLATION", "none")
    told = shell.json("doctor")
    assert told["status"] == "warn"


def test_hooks_are_made_once_with_the_derived_secret(shell: Shell) -> None:
    """A first install creates, a second sets right; the secret is the repository's own; the token is used once."""
    first = shell.json("hooks", "install", "acme/widget", "--url", "http://turnkeeper.example/")
    second = shell.json("hooks", "install", "acme/widget", "--url", "http://turnkeeper.example")
    url = "http://turnkeeper.example/api/gitea/webhook/12"
    assert (first["outcome"], first["url"], second["outcome"]) == ("created", url, "updated")
    assert shell.wiring.hands.done == [("create", url, "derived-12"), ("update", url, "derived-12")]
    assert shell.wiring.tokens == ["canary-owner"] * 2
    assert (
        shell.json("hooks", "check", "acme/widget", "--url", "http://turnkeeper.example")["outcome"] == "ok"
    )


@pytest.mark.parametrize(
    ("held", "outcome", "finding"),
    [
        ([], "missing", None),
        ([{"active": False}], "wrong", "switched off"),
        ([{"content_type": "form"}], "wrong", "form"),
        ([{"events": ("push",)}], "wrong", "issue_comment"),
        ([{}, {}], "wrong", "2 hooks"),
    ],
)
def test_hooks_check_says_what_is_wrong(
    shell: Shell, held: list[dict[str, Any]], outcome: str, finding: str | None
) -> None:
    """Each wrong setting is named; the exit code is 1."""
    url = hooks.hook_url("http://turnkeeper.example", 12)
    shell.wiring.hands = Hands(*(hook(url, **parts) for parts in held))
    told = shell.json("hooks", "check", "acme/widget", "--url", "http://turnkeeper.example", code=1)
    assert told["outcome"] == outcome
    assert finding is None or finding in " ".join(told["findings"])
    assert shell.wiring.hands.done == []


def test_reviews_as_newer_gitea_lists_them_are_enough() -> None:
    """Gitea 1.27 lists three kinds of reviews where older ones list one name."""
    newer = ("pull_request_review_approved", "pull_request_review_rejected", "pull_request_review_comment")
    events = tuple(event for event in hooks.EVENTS if event != "pull_request_review")
    assert hooks.judge(hook("u", events=(*events, *newer))) == ()
    assert hooks.judge(hook("u", events=(*events, *newer[:2]))) != ()


def test_hooks_need_a_token_or_tell_what_to_enter(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token the command says where to put it; with an id it prints what an owner enters by hand."""
    monkeypatch.setenv("TURNKEEPER_WEBHOOK_SECRET", "plain")
    monkeypatch.delenv("TURNKEEPER_OWNER_TOKEN")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    code, _, err = shell.run("hooks", "install", "acme/widget")
    assert code == 2
    assert "TURNKEEPER_OWNER_TOKEN" in err
    told = shell.json("hooks", "install", "acme/widget", "--repository-id", "12")
    assert (told["secret"], told["contentType"]) == ("plain-12", "application/json")
    assert told["url"].endswith("/api/gitea/webhook/12")
    assert shell.run("hooks", "install", "acme", "--repository-id", "12")[0] == 2


def test_the_stand_in_tells_how_to_reach_it(shell: Shell) -> None:
    """Its address and its own made-up tokens."""
    told = shell.json("simulate", "gitea", "--port", "3000")
    assert told == {"url": "http://127.0.0.1:3000", "version": "1.27.0", "tokens": {"alice": "t"}}


class Service:
    """Answers the client's requests in the service's place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[httpx.Request] = []
        self.answer = httpx.Response(200, json={"items": [], "nextCursor": None})

        def handle(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return self.answer

        client = httpx.Client

        def make(**parts: Any) -> httpx.Client:
            return client(**parts, transport=httpx.MockTransport(handle))

        monkeypatch.setattr(cli_client.httpx, "Client", make)


TASK = {
    "taskId": "gitea-task-1",
    "state": "queued",
    "resourceKey": "default:a/b:issue:1",
    "author": "alice",
    "authorId": 7,
    "createdAt": "2026-08-24T08:00:00.000Z",
    "errorCode": None,
    "turns": [],
    "comments": [{"commentKey": "k", "kind": "status", "status": "sent", "commentId": 5}],
}


def test_tasks_are_asked_of_the_running_service(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the admin token in a header, filters as parameters, the answer as it came."""
    service = Service(monkeypatch)
    service.answer = httpx.Response(200, json={"items": [TASK], "nextCursor": "abc"})
    told = shell.json("tasks", "list", "--state", "queued", "--repo", "default:a/b", "--limit", "7")
    assert told["items"] == [TASK]
    (request,) = service.requests
    assert request.headers["authorization"] == "Bearer canary-admin"
    assert dict(request.url.params) == {"state": "queued", "repoKey": "default:a/b", "limit": "7"}
    code, out, err = shell.run("tasks", "list")
    assert code == 0
    assert "gitea-task-1" in out
    assert "abc" in err


def test_one_task_is_shown(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fields, turns and comments; an unknown one is 1 with the service's own code."""
    service = Service(monkeypatch)
    service.answer = httpx.Response(200, json=TASK)
    assert shell.json("tasks", "show", "gitea-task-1") == TASK
    code, out, _ = shell.run("tasks", "show", "gitea-task-1")
    assert code == 0
    assert "alice" in out
    service.answer = httpx.Response(404, json={"code": "task_not_found", "message": "no such task"})
    code, _, err = shell.run("tasks", "show", "x/../y")
    assert code == 1
    assert "task_not_found" in err
    assert b"x%2F..%2Fy" in service.requests[-1].url.raw_path


@pytest.mark.parametrize(("status", "code"), [(401, 1), (503, 3), (500, 1)])
def test_what_the_service_refuses(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    """The exit code tells whether to try again."""
    service = Service(monkeypatch)
    service.answer = httpx.Response(status, json={"code": "some_code", "message": "some sentence"})
    found, _, err = shell.run("tasks", "list")
    assert found == code
    assert "some sentence" in err


def test_no_service_is_3(shell: Shell) -> None:
    """Nobody listens: a sentence and exit code 3."""
    code, _, err = shell.run("tasks", "list", "--url", "http://127.0.0.1:1")
    assert code == 3
    assert "service_unreachable" in err


RECORDED = sorted(
    path
    for path in EVIDENCE.glob("gitea*/**/*.json")
    if path.with_name(path.name.removesuffix(".json") + ".headers.json").is_file()
)


@pytest.mark.parametrize("file", RECORDED, ids=lambda path: path.name)
def test_a_recorded_delivery_is_signed_anew(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    """The recorded headers go along, the body as it is, signed with this service's secret and nothing older."""
    service = Service(monkeypatch)
    service.answer = httpx.Response(202, json={"taskId": "gitea-task-1", "state": "queued"})
    told = shell.json("deliver", str(file))
    recorded = json.loads(file.with_name(file.name.removesuffix(".json") + ".headers.json").read_bytes())
    (request,) = service.requests
    assert request.content == file.read_bytes()
    expected = hmac.digest(b"canary-webhook", file.read_bytes(), "sha256").hex()
    assert request.headers["x-gitea-signature"] == expected
    assert "x-hub-signature-256" not in request.headers
    assert request.headers["x-gitea-event"] == recorded["X-Gitea-Event"]
    assert told["deliveryId"] == recorded["X-Gitea-Delivery"]
    assert told["httpStatus"] == 202


@pytest.mark.parametrize("file", RECORDED, ids=lambda path: path.name)
def test_events_are_guessed_as_gitea_names_them(file: Path) -> None:
    """Without headers beside it, a payload's event is what Gitea sent it as (labels and the like apart)."""
    recorded = json.loads(file.with_name(file.name.removesuffix(".json") + ".headers.json").read_bytes())
    assert cli_client.guess_event(file.read_bytes())[0] == recorded["X-Gitea-Event"]


def test_a_payload_of_ones_own(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bare file gets an event, a new id, and with a repository's id that repository's address and secret."""
    service = Service(monkeypatch)
    service.answer = httpx.Response(401, json={"status": "rejected", "reason": "invalid_signature"})
    file = tmp_path / "own.json"
    file.write_text('{"comment": {"id": 1}, "is_pull": true}')
    ids = {shell.json("deliver", str(file), "--repository-id", "12", code=1)["deliveryId"] for _ in range(2)}
    assert len(ids) == 2
    request = service.requests[-1]
    assert request.url.path == "/api/gitea/webhook/12"
    assert request.headers["x-gitea-event-type"] == "pull_request_comment"
    expected = hmac.digest(b"canary-webhook-12", file.read_bytes(), "sha256").hex()
    assert request.headers["x-gitea-signature"] == expected
    assert shell.run("deliver", str(tmp_path / "absent.json"))[0] == 2


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104 - nothing listens here
        ("::1", "http://[::1]:80"),
        ("::", "http://127.0.0.1:80"),
        ("box", "http://box:80"),
    ],
)
def test_where_the_service_is(host: str, url: str) -> None:
    """An address to listen on everywhere is asked on the loopback."""
    assert cli_client.service_url(Settings.load({}, host=host, port=80)) == url


def test_help_does_not_load_the_service() -> None:
    """Adapters and the database driver are loaded only by the commands that need them."""
    code = (
        "import sys; from services.cli import main; main(['--help']); "
        "sys.exit(any(name in sys.modules for name in ('psycopg', 'uvicorn', 'services.wiring', 'httpx')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, cwd=EVIDENCE.parent.parent
    )
    assert done.returncode == 0, done.stderr.decode()
