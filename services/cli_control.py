"""Commands by which an operator steers a running service: over HTTP, idempotent by a request id."""

import uuid
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

import typer

from domain.faults import Unavailable
from services.cli_output import emit, line, remark, table
from services.config import Settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option(help="Where the service is; default: TURNKEEPER_HOST and TURNKEEPER_PORT.")
]
Reason = Annotated[str, typer.Option(help="Why; it stands in the audit.")]
RequestId = Annotated[
    str | None,
    typer.Option(help="Send the same id again and nothing is done twice; default: a new one."),
]
TaskId = Annotated[str, typer.Argument(help="The task's id.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="default:owner/name, or owner/name.")]

BASE = "/api/gitea-workflow"


def register(app: typer.Typer, tasks: typer.Typer, settings: Callable[[], Settings]) -> None:
    """Add the commands to the program and to its ``tasks``; ``settings`` reads the configuration."""
    steering = Steering(settings)
    _on_service(app, steering)
    _on_tasks(tasks, steering)
    repos = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Repositories of the running service."
    )
    _on_repositories(repos, steering)
    app.add_typer(repos, name="repos")


class Steering:
    """Sends acts and tells what came of them."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    def act(self, path: str, *, reason: str, request_id: str | None, url: str | None) -> dict[str, Any]:
        """The answer to one act. Raises ``Invalid``, ``NotFound``, ``Conflict``, ``Unavailable``, ``Refused``."""
        from services import cli_client  # noqa: PLC0415 - help must be quick

        given = request_id or str(uuid.uuid4())
        body = {"requestId": given, "reason": reason}
        try:
            told: dict[str, Any] = cli_client.post(self._settings(), url, f"{BASE}/{path}", body)
        except Unavailable:
            remark(f"what came of it is not known: --request-id {given} asks again and does nothing twice")
            raise
        return told

    def show(self, told: dict[str, Any], sentence: str, *, as_json: bool) -> None:
        """The answer, as JSON or in a sentence."""
        if as_json:
            emit(told)
        else:
            line(f"{sentence} (position {told['position']}, request {told['requestId']})")

    def repositories(
        self, *, status: str | None, limit: int, cursor: str | None, url: str | None
    ) -> dict[str, Any]:
        """One page of repositories."""
        from services import cli_client  # noqa: PLC0415 - help must be quick

        given = {"status": status, "cursor": cursor}
        params: dict[str, str | int] = {name: value for name, value in given.items() if value}
        page: dict[str, Any] = cli_client.get(
            self._settings(), url, f"{BASE}/repositories", {**params, "limit": limit}
        )
        return page


def key_of(given: str) -> str:
    """A repository's key, from a key or from ``owner/name``."""
    return given if ":" in given else f"default:{given.lower()}"


def _on_service(app: typer.Typer, steering: Steering) -> None:
    @app.command()
    def pause(reason: Reason, request_id: RequestId = None, url: Url = None, *, json: Json = False) -> None:
        """Claim no more tasks; deliveries are taken in and running turns go on."""
        told = steering.act("control/pause", reason=reason, request_id=request_id, url=url)
        steering.show(told, "paused: nothing new is claimed", as_json=json)

    @app.command()
    def resume(reason: Reason, request_id: RequestId = None, url: Url = None, *, json: Json = False) -> None:
        """Claim tasks again."""
        told = steering.act("control/resume", reason=reason, request_id=request_id, url=url)
        steering.show(told, "resumed", as_json=json)


def _on_tasks(tasks: typer.Typer, steering: Steering) -> None:
    def on_task(
        act: str, task_id: str, reason: str, request_id: str | None, url: str | None
    ) -> dict[str, Any]:
        path = f"tasks/{quote(task_id, safe='')}/{act}"
        return steering.act(path, reason=reason, request_id=request_id, url=url)

    def command(act: str, help_text: str) -> None:
        @tasks.command(act, help=help_text)
        def run(
            task_id: TaskId,
            reason: Reason,
            request_id: RequestId = None,
            url: Url = None,
            *,
            json: Json = False,
        ) -> None:
            told = on_task(act, task_id, reason, request_id, url)
            sentence = f"{told['taskId']} is {told['state']}"
            if told.get("retryOf"):
                sentence += f", in the place of {told['retryOf']}"
            steering.show(told, sentence, as_json=json)

    command("cancel", "Cancel a task that is queued, waits for an answer or for its workspace.")
    command("abort", "End a task that is under way; its agent is interrupted.")
    command("unblock", "Queue a task again once its workspace was put in order: a clean tree is believed.")
    command("retry", "Make a new task in the place of one that failed, was aborted or cancelled.")


def _on_repositories(repos: typer.Typer, steering: Steering) -> None:
    @repos.command("list")
    def repos_list(
        status: Annotated[str | None, typer.Option(help="Only active, disabled or blocked ones.")] = None,
        limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 50,
        cursor: Annotated[str | None, typer.Option(help="Where the list goes on.")] = None,
        url: Url = None,
        *,
        json: Json = False,
    ) -> None:
        """List the repositories that deliveries came from."""
        page = steering.repositories(status=status, limit=limit, cursor=cursor, url=url)
        if json:
            emit(page)
            return
        table(
            ("KEY", "STATUS", "BLOCKED BY", "REASON", "UPDATED"),
            (
                (item["repoKey"], item["status"], item["blockedBy"], item["statusReason"], item["updatedAt"])
                for item in page["items"]
            ),
        )
        if page["nextCursor"]:
            remark(f"more: --cursor {page['nextCursor']}")

    def command(act: str, help_text: str) -> None:
        @repos.command(act, help=help_text)
        def run(
            key: Key, reason: Reason, request_id: RequestId = None, url: Url = None, *, json: Json = False
        ) -> None:
            path = f"repos/{quote(key_of(key), safe='')}/{act}"
            told = steering.act(path, reason=reason, request_id=request_id, url=url)
            steering.show(told, f"{told['repoKey']} is {told['status']}", as_json=json)

    command("disable", "Take no new tasks from a repository; its queued ones stay unclaimed.")
    command("enable", "Take tasks from a repository again.")
