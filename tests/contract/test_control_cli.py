"""The commands by which an operator steers: what they send, print and end with."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog

from services import cli_client
from services.cli import main

COMMANDS = (
    "pause",
    "resume",
    "tasks cancel",
    "tasks abort",
    "tasks unblock",
    "tasks retry",
    "repos list",
    "repos disable",
    "repos enable",
)
TASK = "gitea-task-0123456789abcdef01234567"
ACTS = [
    (("pause",), "/control/pause"),
    (("resume",), "/control/resume"),
    *((("tasks", act, TASK), f"/tasks/{TASK}/{act}") for act in ("cancel", "abort", "unblock", "retry")),
    (("repos", "disable", "default:acme/widget"), "/repos/default%3Aacme%2Fwidget/disable"),
    (("repos", "enable", "Acme/Widget"), "/repos/default%3Aacme%2Fwidget/enable"),
]


class Service:
    """Stands where the running service would be."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer: httpx.Response | httpx.HTTPError | None = None

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Remember what was asked; answer as was set, else with an act's answer."""
        self.requests.append(request)
        if isinstance(self.answer, httpx.HTTPError):
            raise self.answer
        if self.answer is not None:
            return self.answer
        told = {
            "requestId": json.loads(request.content)["requestId"],
            "action": "act",
            "taskId": TASK,
            "repoKey": "default:acme/widget",
            "state": "queued",
            "status": "active",
            "retryOf": "gitea-task-old",
            "control": {},
            "position": 77,
        }
        return httpx.Response(200, json=told)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that answers, and a configuration to find it with."""
    made = Service()

    def send(method: str, url: str, **parts: Any) -> httpx.Response:
        try:
            with httpx.Client(transport=httpx.MockTransport(made.handle)) as client:
                return client.request(method, url, **parts)
        except httpx.HTTPError:
            raise cli_client.Unavailable("the service does not answer", code="service_unreachable") from None

    monkeypatch.setattr(cli_client, "_send", send)
    monkeypatch.setenv("TURNKEEPER_ADMIN_TOKEN", "canary-admin")
    monkeypatch.setenv("TURNKEEPER_PORT", "4711")
    yield made
    structlog.reset_defaults()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; no secret in either."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert "canary" not in out + err
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Each command explains itself, offers ``--json``, and an act wants its reason."""
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    assert "--json" in out
    assert ("--reason" in out) == (command != "repos list")


@pytest.mark.parametrize(("arguments", "path"), ACTS, ids=[path for _, path in ACTS])
def test_each_act_is_one_request(
    capsys: pytest.CaptureFixture[str], service: Service, arguments: tuple[str, ...], path: str
) -> None:
    """The route, the bearer, the reason and a request id: the given one, else a new one each time."""
    code, out, _ = run(capsys, *arguments, "--reason", "because", "--json")
    assert (code, json.loads(out)["position"]) == (0, 77)
    code, out, _ = run(capsys, *arguments, "--reason", "because", "--request-id", "r-1")
    assert code == 0
    assert "position 77, request r-1" in out
    first, second = service.requests
    assert first.method == "POST"
    assert first.url.raw_path.decode() == f"/api/gitea-workflow{path}"
    assert first.headers["authorization"] == "Bearer canary-admin"
    assert set(json.loads(first.content)) == {"requestId", "reason"}
    assert uuid.UUID(json.loads(first.content)["requestId"])
    assert json.loads(second.content) == {"requestId": "r-1", "reason": "because"}


@pytest.mark.parametrize("arguments", [each for each, _ in ACTS])
def test_an_act_without_a_reason_is_not_sent(
    capsys: pytest.CaptureFixture[str], service: Service, arguments: tuple[str, ...]
) -> None:
    """Every act carries a reason: without one the command line is wrong."""
    assert run(capsys, *arguments)[0] == 2
    assert service.requests == []


@pytest.mark.parametrize(
    ("status", "code", "ends"),
    [
        (400, "invalid_field", 2),
        (404, "task_not_found", 1),
        (409, "invalid_state", 1),
        (409, "request_conflict", 1),
        (401, "unauthorised", 1),
        (503, "database_unavailable", 3),
    ],
)
def test_refusals_end_with_stable_codes(
    capsys: pytest.CaptureFixture[str], service: Service, status: int, code: str, ends: int
) -> None:
    """The service's own code and sentence, and an exit code by kind."""
    told = {"code": code, "message": "it says why", "params": {"state": "running"}, "traceId": "t"}
    service.answer = httpx.Response(status, json=told)
    found, out, err = run(capsys, "tasks", "cancel", TASK, "--reason", "because", "--json")
    assert (found, out) == (ends, "")
    assert json.loads(err.splitlines()[-1])["code"] == code


def test_an_act_of_unknown_outcome_names_its_request(
    capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    """If the answer was lost, the command says how to ask again without doing it twice."""
    service.answer = httpx.ReadTimeout("canary-detail")
    code, _, err = run(capsys, "pause", "--reason", "because")
    assert code == 3
    sent = json.loads(service.requests[0].content)["requestId"]
    assert f"--request-id {sent}" in err


def test_repositories_are_listed(capsys: pytest.CaptureFixture[str], service: Service) -> None:
    """A table with status and what blocks it; ``--json`` gives the page."""
    item = {
        "repoKey": "default:acme/widget",
        "status": "blocked",
        "blockedBy": TASK,
        "statusReason": None,
        "updatedAt": "2026-08-24T08:00:00.000Z",
    }
    service.answer = httpx.Response(200, json={"items": [item], "nextCursor": "next"})
    code, out, err = run(capsys, "repos", "list", "--status", "blocked")
    assert (code, "default:acme/widget" in out, TASK in out, "--cursor next" in err) == (0, True, True, True)
    assert service.requests[0].url.params["status"] == "blocked"
    code, out, _ = run(capsys, "repos", "list", "--json")
    assert json.loads(out)["items"] == [item]
