import io
import json
from pathlib import Path

import pytest
import structlog

from domain.faults import Fault
from services.config import Settings, unknown_variables
from services.telemetry import chain, configure_logging, logger

SERVE = {
    "TURNKEEPER_GITEA_URL": "https://gitea.example/",
    "TURNKEEPER_REPOSITORIES": "acme/widget, tools/*",
    "TURNKEEPER_WEBHOOK_SECRET": "canary-webhook",
    "TURNKEEPER_GITEA_TOKEN": "canary-gitea",
    "TURNKEEPER_ADMIN_TOKEN": "canary-admin",
    "TURNKEEPER_MODEL_API_KEY": "canary-model",
    "DATABASE_URL": "postgresql://u:canary-database@db.example/x",
}
CANARIES = ("canary-webhook", "canary-gitea", "canary-admin", "canary-model", "canary-database")


def test_the_environment_is_read() -> None:
    """Text of the environment becomes typed values, lists by comma, addresses without their last slash."""
    settings = Settings.load({**SERVE, "TURNKEEPER_REPLY_GRACE": "0, 0.02,0.1", "TURNKEEPER_BOT_ID": "6"})
    assert settings.gitea_url == "https://gitea.example"
    assert settings.public_url == "https://gitea.example"
    assert settings.repositories == ("acme/widget", "tools/*")
    assert settings.reply_grace == (0, 0.02, 0.1)
    assert settings.bot_id == 6
    settings.require_serve()


def test_an_argument_beats_the_environment_which_beats_a_file(tmp_path: Path) -> None:
    """The order of the sources holds, and ``explain`` names where each value came from."""
    file = tmp_path / "turnkeeper.toml"
    file.write_text('port = 1\nhost = "0.0.0.0"\nlocale = "zh"\nrepositories = ["a/b"]\n')
    environ = {"TURNKEEPER_CONFIG": str(file), "TURNKEEPER_PORT": "2", "TURNKEEPER_HOST": "127.0.0.2"}
    settings = Settings.load(environ, host="127.0.0.3")
    rows = {row["name"]: row for row in settings.explain()}
    assert (settings.host, settings.port, settings.locale) == ("127.0.0.3", 2, "zh")
    assert rows["TURNKEEPER_HOST"]["source"] == "argument"
    assert rows["TURNKEEPER_PORT"]["source"] == "environment"
    assert rows["TURNKEEPER_LOCALE"]["source"] == f"file {file}"
    assert rows["TURNKEEPER_ISOLATION"]["source"] == "default"
    assert settings.repositories == ("a/b",)


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    """Each secret is read from the file that ``…_FILE`` names, without its line end."""
    file = tmp_path / "secret"
    file.write_text("one,two\n")
    settings = Settings.load({"TURNKEEPER_WEBHOOK_SECRET_FILE": str(file), "DATABASE_URL_FILE": str(file)})
    assert settings.webhook_secrets == ("one", "two")
    assert settings.database_url is not None


@pytest.mark.parametrize(
    "missing", [name for name in SERVE if name not in ("DATABASE_URL", "TURNKEEPER_MODEL_API_KEY")]
)
def test_serve_is_refused_without_what_it_needs(missing: str) -> None:
    """One sentence names the variable that is missing; an empty one counts as missing."""
    with pytest.raises(Fault) as caught:
        Settings.load({**SERVE, missing: ""}).require_serve()
    assert caught.value.code == "configuration_invalid"
    assert caught.value.params["name"] == missing.removeprefix("TURNKEEPER_").lower()
    assert missing in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TURNKEEPER_PORT": "canary-value"}, "port"),
        ({"TURNKEEPER_LEASE_TTL": "19", "TURNKEEPER_LEASE_HEARTBEAT": "10"}, "lease_ttl"),
        ({"TURNKEEPER_GITEA_URL": "https://u:canary-value@gitea.example"}, "gitea_url"),
        ({"TURNKEEPER_TRIGGER_POLICY": "canary-value"}, "trigger_policy"),
        ({"TURNKEEPER_TURN_STALL": "0"}, "turn_stall"),
        ({"TURNKEEPER_REPLY_GRACE": "2,1"}, "reply_grace"),
        ({"TURNKEEPER_BRANCH_PATTERN": "main"}, "branch_pattern"),
        ({"TURNKEEPER_RECEIPT_TEMPLATES": "{"}, "receipt_templates"),
        ({"TURNKEEPER_ADMIN_TOKEN": "canary-value", "TURNKEEPER_ADMIN_TOKEN_FILE": "x"}, "admin_token"),
        ({"TURNKEEPER_ADMIN_TOKEN_FILE": "/nonexistent/canary"}, "admin_token"),
        ({"TURNKEEPER_CONFIG": "/nonexistent"}, "config"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(environ: dict[str, str], name: str) -> None:
    """The sentence names the setting and never repeats the value, which may be a secret."""
    with pytest.raises(Fault) as caught:
        Settings.load(environ)
    assert caught.value.code == "configuration_invalid"
    assert caught.value.params["name"] == name
    assert "canary-value" not in str(caught.value)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"TURNKEEPER_TRIGGER_POLICY": "allow-list"}, "allow"),
        ({"TURNKEEPER_WEBHOOK_SECRET": "a,b,c"}, "webhook_secret"),
        ({"TURNKEEPER_WEBHOOK_SECRET": ","}, "webhook_secret"),
    ],
)
def test_contradictions_keep_serve_from_starting(environ: dict[str, str], name: str) -> None:
    """What contradicts itself is named before anything starts."""
    assert [problem.name for problem in Settings.load({**SERVE, **environ}).problems()] == [name]


def test_an_unknown_setting_in_the_file_is_refused(tmp_path: Path) -> None:
    """A misspelt name in the file is an error; in the environment it is reported."""
    file = tmp_path / "turnkeeper.toml"
    file.write_text("prot = 1\n")
    with pytest.raises(Fault, match="prot"):
        Settings.load({"TURNKEEPER_CONFIG": str(file)})
    given = {"TURNKEEPER_PROT": "1", "TURNKEEPER_PORT": "1", "TURNKEEPER_GITEA_TOKEN_FILE": "x", "HOME": "/"}
    assert unknown_variables(given) == ("TURNKEEPER_PROT",)


def test_no_secret_leaves_the_settings() -> None:
    """Neither ``explain`` nor ``public_values`` nor ``repr`` shows a secret; ``secrets`` lists them all."""
    settings = Settings.load(SERVE)
    shown = json.dumps([settings.explain(), settings.public_values()]) + repr(settings)
    assert not [canary for canary in CANARIES if canary in shown]
    assert set(CANARIES) <= set(settings.secrets())


def test_the_public_values_are_stable() -> None:
    """The hash depends on what decides, not on secrets, addresses of this host or the order of variables."""
    first = Settings.load(SERVE)
    same = Settings.load(
        {**dict(reversed(SERVE.items())), "TURNKEEPER_PORT": "1", "TURNKEEPER_ADMIN_TOKEN": "other"}
    )
    other = Settings.load({**SERVE, "TURNKEEPER_TRIGGER_POLICY": "anyone"})
    assert first.public_hash() == same.public_hash() != other.public_hash()
    assert not {"state_dir", "workspace_root", "host", "port", "gitea_token"} & set(first.public_values())


def test_every_setting_is_explained() -> None:
    """Each setting has a description, and every variable of the contract is a setting."""
    rows = Settings.load({}).explain()
    assert all(row["description"] for row in rows)
    names = {row["name"] for row in rows}
    contract = (
        "STATE_DIR HOST PORT GITEA_URL GITEA_PUBLIC_URL REPOSITORIES GITEA_TOKEN BOT_LOGIN BOT_ID WEBHOOK_SECRET "
        "WORKSPACE_ROOT CODEX_COMMAND CODEX_MODEL CODEX_EFFORT MODEL_BASE_URL MODEL_API_KEY GITEA_MCP_COMMAND "
        "TRIGGER_POLICY ALLOW ISOLATION LOCALE ADMIN_TOKEN"
    )
    assert {"DATABASE_URL", *(f"TURNKEEPER_{name}" for name in contract.split())} <= names


def test_a_terminal_gets_lines_without_secrets_and_values() -> None:
    """On a terminal a traceback is plain: no values of variables, where a token could stand."""
    out = io.StringIO()
    configure_logging(style="console", secrets=CANARIES, stream=out)
    try:
        held = "the-value-of-a-variable"
        try:
            raise RuntimeError("canary-gitea leaked")  # noqa: TRY301 - the traceback is the point
        except RuntimeError:
            logger("runner").exception("failed", length=len(held))
    finally:
        structlog.reset_defaults()
    assert "RuntimeError: ********" in out.getvalue()
    assert "canary" not in out.getvalue()
    assert "the-value-of" not in out.getvalue().replace('"the-value-of', "")


def test_a_log_line_is_json_with_the_chain_and_without_secrets() -> None:
    """Ids bound by ``chain`` stand on each line; secrets are masked in values and in tracebacks."""
    out = io.StringIO()
    configure_logging(style="json", secrets=CANARIES, stream=out)
    try:
        with chain(taskId="gitea-task-1", turnId=None):
            try:
                raise RuntimeError("canary-gitea leaked")  # noqa: TRY301 - the traceback is the point
            except RuntimeError:
                logger("runner").exception("failed", header={"authorization": ["canary-admin"]})
        logger("runner").info("after")
    finally:
        structlog.reset_defaults()
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["taskId"], first["part"], first["event"]) == ("gitea-task-1", "runner", "failed")
    assert "turnId" not in first
    assert "RuntimeError" in first["exception"]
    assert "taskId" not in second
    assert "canary" not in out.getvalue()
