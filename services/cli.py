"""The command line. Commands call functions of ``services.wiring`` or ask the running service; all speak ``--json``.

Exit codes are stable: see ``services.cli_output``. A failure is one sentence, never a traceback.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from domain.faults import Fault
from services import cli_control
from services.cli_output import FAILED, UNAVAILABLE, USAGE, complain, emit, exit_code, line, remark, table
from services.config import Settings, unknown_variables
from services.telemetry import configure_logging, logger

app = typer.Typer(
    name="turnkeeper",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Turns mentions on Gitea issues and pull requests into agent runs with one confirmed reply each.",
)
hooks = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="A repository's own webhook.")
tasks = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Tasks of the running service.")
simulate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Stand-ins to try Turnkeeper with.")
app.add_typer(hooks, name="hooks")
app.add_typer(tasks, name="tasks")
app.add_typer(simulate, name="simulate")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option(help="Where the service is; default: TURNKEEPER_HOST and TURNKEEPER_PORT.")
]
Repository = Annotated[str, typer.Argument(metavar="OWNER/REPO", help="The repository.")]


def _settings(**overrides: Any) -> Settings:  # noqa: ANN401 - as the settings
    settings = Settings.load(**{name: value for name, value in overrides.items() if value is not None})
    configure_logging(level=settings.log_level, style=settings.log_format, secrets=settings.secrets())
    for name in unknown_variables():
        logger("configuration").warning("unknown_variable", name=name)
    return settings


def _run(work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - whatever the work gives
    return asyncio.run(work)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any.")] = None,
    *,
    json: Json = False,
) -> None:
    """Run the service until it is told to stop; prints its address when it is ready."""
    settings = _settings(host=host, port=port)
    settings.require_serve()
    from services.cli_wiring import wiring  # noqa: PLC0415 - what is refused above is refused at once

    def announce(url: str) -> None:
        if json:
            emit({"url": url})
        else:
            line(f"turnkeeper is ready at {url}")

    _run(wiring().serve(settings, announce))


@app.command()
def demo(
    agent: Annotated[str, typer.Option(help="auto, codex or scripted.")] = "auto",
    *,
    json: Json = False,
) -> None:
    """Play the main job from mention to confirmed reply, with stand-ins for Gitea and the model."""
    if agent not in ("auto", "codex", "scripted"):
        raise typer.BadParameter("--agent is auto, codex or scripted")
    settings = Settings.load()
    configure_logging(
        level="error" if settings.log_level == "info" else settings.log_level, style=settings.log_format
    )
    from services.cli_wiring import wiring  # noqa: PLC0415 - help must be quick
    from services.story import Line  # noqa: PLC0415 - the same

    def show(told: Line) -> None:
        if json:
            emit({"position": told.position, "at": told.at, "chapter": told.chapter, "text": told.text})
        else:
            line(f"{told.position:>5}  {told.at[11:23]}  {told.chapter:<10}  {told.text}")

    summary = _run(wiring().demo(settings, agent=agent, show=show, say=remark))
    if json:
        emit(summary)
    else:
        line()
        for name, value in summary.items():
            line(f"{name:>15}  {value}")
    done = summary.get("outcome") in ("succeeded", "succeeded_with_rest_fallback")
    if not done or len(summary.get("final_comments", ())) != 1:
        raise typer.Exit(FAILED)


@app.command()
def doctor(*, json: Json = False) -> None:
    """Look at database, isolation, git, codex, Gitea, gitea-mcp and disk; say what is missing and its cure."""
    settings = _settings()
    from services.cli_wiring import wiring  # noqa: PLC0415 - help must be quick
    from services.doctor import examine, worst  # noqa: PLC0415 - the same

    async def look() -> Any:  # noqa: ANN401 - a list of checks
        async with wiring().doctor_probes(settings) as probes:
            return await examine(settings, probes)

    checks = _run(look())
    status = worst(checks)
    if json:
        emit({"status": status, "checks": [check.as_json() for check in checks]})
    else:
        for check in checks:
            line(f"{check.status:<5} {check.name:<14} {check.detail}")
            if check.cure:
                line(f"{'':<20} -> {check.cure}")
    if status == "fail":
        raise typer.Exit(FAILED)


@app.command()
def migrate(*, json: Json = False) -> None:
    """Bring the database's schema up to this version."""
    settings = _settings()
    from services.cli_wiring import wiring  # noqa: PLC0415 - help must be quick

    applied = list(_run(wiring().migrate(settings)))
    if json:
        emit({"applied": applied})
    else:
        line("applied " + ", ".join(applied) if applied else "nothing to do: the schema is up to date")


@app.command()
def config(
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every setting with its source and meaning.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the configuration, secrets masked, and what keeps `serve` from starting."""
    settings = Settings.load()
    rows = settings.explain()
    shown = rows if explain else [row for row in rows if row["source"] != "default"]
    problems = [problem.sentence for problem in settings.problems()]
    if json:
        emit({"settings": shown, "problems": problems, "unknown": list(unknown_variables())})
        return
    if explain:
        table(
            ("SETTING", "VALUE", "SOURCE", "DEFAULT", "MEANING"),
            (
                (row["name"], _cell(row["value"]), row["source"], _cell(row["default"]), row["description"])
                for row in shown
            ),
        )
    else:
        table(
            ("SETTING", "VALUE", "SOURCE"),
            ((row["name"], _cell(row["value"]), row["source"]) for row in shown),
        )
    for sentence in problems:
        remark(f"serve would refuse: {sentence}")
    for name in unknown_variables():
        remark(f"{name} means nothing to this service")


@app.command()
def deliver(
    file: Annotated[
        Path, typer.Argument(help="The payload; headers may stand beside it in <name>.headers.json.")
    ],
    event: Annotated[
        str | None, typer.Option(help="Gitea's event; default: guessed from the payload.")
    ] = None,
    delivery_id: Annotated[
        str | None, typer.Option(help="The delivery's id; default: recorded, or new.")
    ] = None,
    repository_id: Annotated[
        int | None, typer.Option(help="Use this repository's own address and secret.")
    ] = None,
    url: Url = None,
    *,
    json: Json = False,
) -> None:
    """Send a signed test delivery to the running service."""
    settings = _settings()
    from services import cli_client  # noqa: PLC0415 - help must be quick

    derived = None
    if repository_id is not None and settings.webhook_secrets:
        from services.cli_wiring import wiring  # noqa: PLC0415 - the same

        derived = wiring().derived_secret(settings.webhook_secrets[0], repository_id)
    told = cli_client.deliver(
        settings,
        file,
        url=url,
        event=event,
        delivery_id=delivery_id,
        repository_id=repository_id,
        derived=derived,
    )
    if json:
        emit(told)
    else:
        line(f"HTTP {told['httpStatus']} for delivery {told['deliveryId']}")
        for name, value in (told["answer"] or {}).items():
            line(f"  {name}: {value}")
    if told["httpStatus"] >= 400:
        raise typer.Exit(UNAVAILABLE if told["httpStatus"] == 503 else FAILED)


@hooks.command("install")
def hooks_install(
    repository: Repository,
    url: Annotated[str | None, typer.Option(help="This service as Gitea reaches it.")] = None,
    repository_id: Annotated[
        int | None, typer.Option(help="Print what to enter by hand for this id.")
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Make the repository's webhook with an owner's token, or print what to enter by hand.

    The token comes from TURNKEEPER_OWNER_TOKEN or a prompt; it is used for this call and kept nowhere.
    """
    from services import cli_hooks  # noqa: PLC0415 - help must be quick

    settings = _settings()
    if repository_id is not None:
        cli_hooks.by_hand(settings, repository, repository_id, url, as_json=json)
    else:
        cli_hooks.install(settings, repository, _owner_token(), url, as_json=json)


@hooks.command("check")
def hooks_check(
    repository: Repository,
    url: Annotated[str | None, typer.Option(help="This service as Gitea reaches it.")] = None,
    *,
    json: Json = False,
) -> None:
    """Look at the repository's webhook with an owner's token and say what is wrong with it."""
    from services import cli_hooks  # noqa: PLC0415 - help must be quick

    if not cli_hooks.check(_settings(), repository, _owner_token(), url, as_json=json):
        raise typer.Exit(FAILED)


def _owner_token() -> str:
    token = os.environ.get("TURNKEEPER_OWNER_TOKEN", "")
    if not token and sys.stdin.isatty():
        token = typer.prompt("Access token of an owner of the repository", hide_input=True, err=True)
    if not token.strip():
        raise Fault(
            "an owner's access token is needed: set TURNKEEPER_OWNER_TOKEN for this call, or give --repository-id to"
            " see what to enter by hand",
            code="configuration_invalid",
            params={"name": "owner_token"},
        )
    return token.strip()


@simulate.command("gitea")
def simulate_gitea(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, 0 for any.")] = 0,
    version: Annotated[str, typer.Option(help="Which Gitea to speak like: 1.22.x or 1.27.x.")] = "1.27.0",
    *,
    json: Json = False,
) -> None:
    """Run a stand-in Gitea with one repository, until told to stop."""
    configure_logging(level="warning")
    from services.cli_wiring import wiring  # noqa: PLC0415 - help must be quick

    def ready(world: Any) -> None:  # noqa: ANN401 - a mapping
        if json:
            emit(dict(world))
            return
        for name, value in world.items():
            if name != "tokens":
                line(f"{name:<14} {value}")
        for login, token in world["tokens"].items():
            line(f"{'token':<14} {login}: {token}")

    _run(wiring().simulate_gitea(host=host, port=port, version=version, ready=ready))


@tasks.command("list")
def tasks_list(  # noqa: PLR0917 - options, which nobody gives by place
    repo: Annotated[str | None, typer.Option(help="Only this repository key (default:owner/name).")] = None,
    state: Annotated[str | None, typer.Option(help="Only these states, separated by commas.")] = None,
    author: Annotated[str | None, typer.Option(help="Only of this login or user id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the list goes on.")] = None,
    url: Url = None,
    *,
    json: Json = False,
) -> None:
    """List tasks of the running service, the newest first."""
    from services import cli_client  # noqa: PLC0415 - help must be quick

    given = {"repoKey": repo, "state": state, "author": author, "cursor": cursor}
    params: dict[str, str | int] = {name: value for name, value in given.items() if value}
    page = cli_client.get(_settings(), url, "/api/gitea-workflow/tasks", {**params, "limit": limit})
    if json:
        emit(page)
        return
    table(
        ("TASK", "STATE", "RESOURCE", "AUTHOR", "CREATED", "ERROR"),
        (
            (
                item["taskId"],
                item["state"],
                item["resourceKey"],
                item["author"] or item["authorId"],
                item["createdAt"],
                item["errorCode"],
            )
            for item in page["items"]
        ),
    )
    if page["nextCursor"]:
        remark(f"more: --cursor {page['nextCursor']}")


@tasks.command("show")
def tasks_show(
    task_id: Annotated[str, typer.Argument(help="The task's id.")], url: Url = None, *, json: Json = False
) -> None:
    """Show one task with its turns and comments."""
    from urllib.parse import quote  # noqa: PLC0415 - only here

    from services import cli_client  # noqa: PLC0415 - help must be quick

    task = cli_client.get(_settings(), url, f"/api/gitea-workflow/tasks/{quote(task_id, safe='')}")
    if json:
        emit(task)
        return
    for name, value in task.items():
        if name not in ("turns", "comments") and value is not None:
            line(f"{name:<16} {_cell(value)}")
    for name, columns in (
        ("turns", ("turnId", "kind", "status", "eventSeq", "startedAt", "completedAt", "errorCode")),
        ("comments", ("commentKey", "kind", "status", "commentId", "errorCode")),
    ):
        line()
        table(columns, ((item.get(column) for column in columns) for item in map(dict, task[name])))  # type: ignore[misc]


cli_control.register(app, tasks, _settings)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return str(value)


def _unexpected(error: Exception) -> str:
    """What kind of thing happened and where, without its text, which may hold anything."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    place = f"{frames[-1].f_globals.get('__name__')}:{frames[-1].f_lineno}" if frames else "nowhere"
    return f"something went wrong ({type(error).__name__} at {place}); TURNKEEPER_LOG_LEVEL=debug shows more"


def _usage(error: TyperException, *, as_json: bool) -> None:
    spoken = getattr(error, "format_message", None)  # usage errors say more than their text
    told = str(spoken() if spoken else error)
    if type(error).__name__ == "NoArgsIsHelpError":
        remark(told)
    elif told:
        complain(Fault(told, code="usage"), as_json=as_json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; the console script exits with it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        code = app(given, prog_name="turnkeeper", standalone_mode=False)
    except TyperException as error:
        _usage(error, as_json=as_json)
        return USAGE
    except Fault as fault:
        complain(fault, as_json=as_json)
        return exit_code(fault)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a sentence, the rest is in the log
        logger("command").debug("command_failed", exc_info=True)
        complain(Fault(_unexpected(error)), as_json=as_json)
        return FAILED
    return code if isinstance(code, int) else 0
