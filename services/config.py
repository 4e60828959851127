"""The configuration: one typed model from the environment, a TOML file and secret files.

Where a value comes from, the first that has one: an argument of the caller; ``TURNKEEPER_<NAME>`` (the database also
``DATABASE_URL``); for secrets the file named by ``TURNKEEPER_<NAME>_FILE``; ``<name>`` in the TOML file named by
``TURNKEEPER_CONFIG``; the default. An empty variable counts as none. Durations are seconds. Nothing is decided at
import, and what only ``serve`` needs is asked by ``Settings.require_serve``.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from services.config_sources import PREFIX, environment, flagged, gather, variable
from services.config_values import (
    MASK,
    Problem,
    Seconds,
    Words,
    decode_table,
    first_problem,
    plain,
    split_numbers,
    split_words,
    unslashed,
)

OTHER_VARIABLES = frozenset({"TURNKEEPER_CONFIG", "TURNKEEPER_OWNER_TOKEN"})
"""Variables of ours that are no settings."""

Trigger = Literal["comment", "review", "issue", "pull_request"]


def _secret(description: str) -> Any:  # noqa: ANN401 - like pydantic's Field, which stands for any type
    return Field(default=None, description=description, json_schema_extra={"secret": True})


def _local(default: object, description: str) -> Any:  # noqa: ANN401 - the same
    return Field(default=default, description=description, json_schema_extra={"local": True})


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path("~").expanduser() / ".local" / "state")
    return Path(base) / "turnkeeper"


class Settings(BaseSettings):
    """Every setting, with its unit and meaning in its description. Frozen; secrets are ``SecretStr``."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    # Where it runs
    database_url: SecretStr | None = _secret("PostgreSQL 15 or later; empty: the embedded server")
    database_owner_url: SecretStr | None = _secret(
        "the owner's address, for migrations only; empty: the same"
    )
    database_schema: str = Field(
        default="turnkeeper", pattern=r"^[a-z_][a-z0-9_]{0,40}$", description="its schema"
    )
    state_dir: Annotated[Path, Field(json_schema_extra={"local": True})] = Field(
        default_factory=_default_state_dir, description="what the service keeps on this host"
    )
    workspace_root: Path | None = _local(
        None, "mirrors' checkouts; empty: `workspaces` in the state directory"
    )
    host: str = _local("127.0.0.1", "address to listen on")
    port: int = Field(
        default=8787,
        ge=0,
        le=65535,
        description="port to listen on, 0 for any",
        json_schema_extra={"local": True},
    )
    admin_token: SecretStr | None = _secret("the bearer of every API route")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level logged"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: JSON off a terminal"
    )

    # Gitea
    gitea_url: Annotated[str | None, BeforeValidator(unslashed)] = Field(
        default=None, description="Gitea as this service reaches it, http(s)"
    )
    gitea_public_url: Annotated[str | None, BeforeValidator(unslashed)] = Field(
        default=None, description="Gitea's own ROOT_URL; empty: the same as gitea_url"
    )
    gitea_token: SecretStr | None = _secret("the bot account's access token")
    repositories: Words = Field(default=(), description="which repositories: patterns owner/name, * for all")
    bot_login: str | None = Field(default=None, description="the bot's login; empty: read from Gitea")
    bot_id: int | None = Field(default=None, ge=1, description="the bot's user id; empty: read from Gitea")
    shared_account: bool = Field(default=False, description="a person writes with the bot's account too")
    other_bots: Words = Field(default=(), description="logins of other bots: their mentions are refused")
    allowed_bots: Words = Field(default=(), description="which of the other bots may trigger all the same")
    webhook_secret: SecretStr | None = _secret(
        "the webhook's secret; two, separated by a comma, while changing it"
    )

    # Who may trigger, and what
    trigger_policy: Literal["write", "admin", "allow-list", "anyone"] = Field(
        default="write", description="who may trigger"
    )
    allow: Words = Field(default=(), description="allow-list: logins or login:id")
    triggers: Annotated[tuple[Trigger, ...], BeforeValidator(split_words)] = Field(
        default=("comment", "review", "issue", "pull_request"), description="what may carry a mention"
    )
    allow_age: Seconds = Field(default=86400, description="how long a right stated by a signed comment holds")
    rate_limit: int = Field(
        default=60,
        ge=0,
        le=100,
        description="tasks per issue or pull request and window, 0: no limit",
    )
    rate_limit_window: Seconds = Field(default=3600, description="the window of rate_limit")
    disabled_answer: Literal["conflict", "ignore"] = Field(
        default="conflict", description="a disabled repository's delivery: 409, or 200 ignored"
    )

    # Limits
    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="largest webhook body, bytes")
    max_in_flight_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1024, description="webhook bodies at once, bytes"
    )
    comment_limit: int = Field(
        default=60_000, ge=200, description="longest comment before it is split, characters"
    )
    disk_floor_bytes: int = Field(
        default=512 * 1024 * 1024, ge=0, description="free disk below which no run starts, bytes"
    )

    # The agent
    codex_command: str = _local("codex app-server", "how the agent's app-server is started")
    codex_model: str | None = Field(default=None, description="the model; empty: Codex's own default")
    codex_effort: str | None = Field(
        default=None, description="the reasoning effort; empty: Codex's own default"
    )
    codex_login_dir: Path | None = _local(None, "a home with a Codex login, bound into the boxes")
    collaboration_mode: str | None = Field(default=None, description="a collaboration mode to ask for")
    model_base_url: Annotated[str | None, BeforeValidator(unslashed)] = _local(None, "the model's API")
    model_api_key: SecretStr | None = _secret("the model's key; it stays outside the boxes")
    model_request_retries: int = Field(
        default=4, ge=0, le=100, description="Codex's own retries of a request"
    )
    model_stream_retries: int = Field(
        default=5, ge=0, le=100, description="Codex's own retries of a broken answer"
    )
    gitea_mcp_command: str = _local("gitea-mcp", "how gitea-mcp is started")
    bridge_policy: Literal["repository", "comment-only", "open"] = Field(
        default="repository", description="what the agent may do in Gitea"
    )
    branch_pattern: str = Field(default="turnkeeper/{task}", description="branches that the agent publishes")
    publish_bytes: int = Field(
        default=100 * 1024 * 1024, ge=1024, description="largest publication of commits, packed, bytes"
    )
    isolation: Literal["bubblewrap", "none"] = Field(
        default="bubblewrap", description="the box around the agent"
    )
    locale: Literal["en", "zh"] = Field(default="en", description="language of the receipts")
    receipt_templates: Annotated[dict[str, str], BeforeValidator(decode_table)] = Field(
        default_factory=dict,
        description="receipts of your own by status (JSON), {code} stands for the error code",
    )

    # Durations, seconds
    lease_ttl: Seconds = Field(default=30, description="a repository's lease without a heartbeat")
    lease_heartbeat: Seconds = Field(default=10, description="between two renewals of a lease")
    retry_delay: Seconds = Field(default=30, description="before the one execution retry")
    turn_stall: Seconds = Field(default=600, description="a turn without an event counts as stalled")
    turn_deadline: Seconds = Field(default=3600, description="a turn's total time")
    interrupt_confirm: Seconds = Field(default=30, description="for an interrupted turn to end")
    rpc_timeout: Seconds = Field(default=30, description="for the app-server's answer")
    mcp_handshake: Seconds = Field(default=15, description="for gitea-mcp's handshake and first call")
    mcp_timeout: Seconds = Field(default=60, description="for gitea-mcp's answer to a call")
    gitea_timeout: Seconds = Field(default=10, description="for Gitea's answer")
    git_timeout: Seconds = Field(default=120, description="for a git command")
    box_timeout: Seconds = Field(default=15, description="for a box to start, and to end")
    reply_grace: Annotated[tuple[float, ...], BeforeValidator(split_numbers)] = Field(
        default=(0, 2, 10), description="when the comments are listed after a turn, before a reply is missing"
    )
    reply_unknown_limit: Seconds = Field(default=60, description="how long a listing that fails is repeated")
    drain_deadline: Seconds = Field(default=60, description="how long a stop waits for running turns")
    poll: Seconds = Field(default=1, description="looking for work or events whose notice was lost")
    view_wait: Seconds = Field(default=2, description="how long a query waits for min_position")
    embedded_linger: Seconds = Field(default=30, description="the embedded server after its last user")
    waiting_timeout: Seconds = Field(
        default=14 * 86400, description="how long a question waits for its answer"
    )
    gitea_away_limit: Seconds = Field(
        default=86400, description="how long Gitea may be away before a task fails"
    )
    gitea_away_pause: Seconds = Field(default=30, description="between two looks at a Gitea that is away")
    reconcile_interval: Seconds = Field(
        default=300, description="between two looks for comments whose delivery was missed"
    )
    denial_receipt_interval: Seconds = Field(
        default=3600, description="between receipts to one denied author"
    )
    view_retention: Seconds = Field(
        default=90 * 86400, description="rows of deliveries and audit in the lists"
    )
    raw_body_retention: Annotated[float, Field(ge=0)] = Field(
        default=0, description="raw webhook bodies; 0: none kept"
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then ours (``gather``)."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, _Gathered(settings_cls)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> "Settings":  # noqa: ANN401 - as the model
        """Read everything; ``environ`` instead of the process's own. Raises ``Fault`` ``configuration_invalid``."""
        with environment(environ):
            gathered = gather(cls.model_fields)
            try:
                settings = cls(**overrides)
            except ValidationError as error:
                raise first_problem(error, variable).fault() from None
        settings._origins.update({name: origin for name, (_, origin) in gathered.items()})
        settings._origins.update(dict.fromkeys(overrides, "argument"))
        return settings

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        if self.lease_ttl < 2 * self.lease_heartbeat:
            raise ValueError("lease_ttl must be at least twice lease_heartbeat")
        if self.max_in_flight_bytes < self.max_body_bytes:
            raise ValueError("max_in_flight_bytes must not be smaller than max_body_bytes")
        if list(self.reply_grace) != sorted(self.reply_grace) or not self.reply_grace:
            raise ValueError("reply_grace must list rising numbers of seconds")
        if "{task}" not in self.branch_pattern:
            raise ValueError("branch_pattern must contain {task}")
        return self

    def problems(self) -> tuple[Problem, ...]:
        """What keeps ``serve`` from starting, in the order of mending it."""
        found = [
            Problem(name=name, sentence=f"{variable(name)} is missing: {why}")
            for name, why in _NEEDED
            if not plain(getattr(self, name))
        ]
        if self.webhook_secret is not None and not 1 <= len(self.webhook_secrets) <= 2:
            found.append(
                Problem(
                    name="webhook_secret",
                    sentence="TURNKEEPER_WEBHOOK_SECRET holds one secret, or two by a comma",
                )
            )
        if self.trigger_policy == "allow-list" and not self.allow:
            found.append(
                Problem(
                    name="allow",
                    sentence="TURNKEEPER_TRIGGER_POLICY=allow-list needs names in TURNKEEPER_ALLOW",
                )
            )
        return tuple(found)

    def require_serve(self) -> None:
        """Raise ``configuration_invalid`` for the first of ``problems``."""
        for problem in self.problems():
            raise problem.fault()

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The valid webhook secrets, the present one first."""
        return split_words(self.webhook_secret.get_secret_value()) if self.webhook_secret else ()

    @property
    def public_url(self) -> str:
        """Gitea's address as people and payloads name it."""
        return self.gitea_public_url or self.gitea_url or ""

    @property
    def workspaces(self) -> Path:
        """Where the workspaces are."""
        return self.workspace_root or self.state_dir / "workspaces"

    def secrets(self) -> tuple[str, ...]:
        """Every secret that must never be shown, for masking and for the bridge's redaction."""
        found: list[str] = list(self.webhook_secrets)
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                found.append(value.get_secret_value())
        found += [urlsplit(text).password or "" for text in found if text.startswith("postgres")]
        return tuple(dict.fromkeys(secret for secret in found if secret))

    def explain(self) -> list[dict[str, Any]]:
        """Each setting as ``{name, value, source, default, description}``; secrets masked, values as JSON."""
        return [
            {
                "name": variable(name),
                "value": MASK
                if flagged(field, "secret") and getattr(self, name)
                else plain(getattr(self, name)),
                "source": self._origins.get(name, "default"),
                "default": plain(field.get_default(call_default_factory=True, validated_data={})),
                "description": field.description or "",
            }
            for name, field in type(self).model_fields.items()
        ]

    def public_values(self) -> dict[str, Any]:
        """What ``ConfigurationActivated`` records: no secrets, nothing of this host."""
        return {
            name: plain(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if not flagged(field, "secret") and not flagged(field, "local")
        }

    def public_hash(self) -> str:
        """``sha256:…`` over ``public_values`` as sorted JSON."""
        text = orjson.dumps(self.public_values(), option=orjson.OPT_SORT_KEYS)
        return "sha256:" + hashlib.sha256(text).hexdigest()


_NEEDED: tuple[tuple[str, str], ...] = (
    ("gitea_url", "the address of your Gitea, as https://gitea.example"),
    ("repositories", "the repositories that may be served, as owner/name or owner/*, * for all"),
    ("webhook_secret", "without it nobody could tell Gitea's deliveries from forged ones"),
    ("gitea_token", "the access token of the bot's account"),
    ("admin_token", "the token that every API request must carry"),
)


class _Gathered(PydanticBaseSettingsSource):
    """``gather`` as a source of pydantic-settings."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        del field
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        return {name: value for name, (value, _) in gather(self.settings_cls.model_fields).items()}


def unknown_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Variables with our prefix that mean nothing: most likely misspelt."""
    known = {variable(name) for name in Settings.model_fields} | OTHER_VARIABLES | {"TURNKEEPER_DATABASE_URL"}
    known |= {
        f"{variable(name)}_FILE" for name, field in Settings.model_fields.items() if flagged(field, "secret")
    }
    given = os.environ if environ is None else environ
    return tuple(
        sorted(
            key
            for key in given
            if key.startswith(PREFIX) and not key.startswith("TURNKEEPER_TEST_") and key not in known
        )
    )
