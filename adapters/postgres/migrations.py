"""Numbered migrations with checksums, and the role under which the service writes.

The service refuses to start on a schema where one is missing, was changed after it was applied, or is not known to
this version (issue 3, deliverable 2).
"""

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, Literal

import psycopg
import structlog
from psycopg import sql

from adapters.postgres.connections import Session, checked_schema, checked_url, conninfo, translated
from adapters.postgres.statements import statements
from domain.faults import Fault

log = structlog.get_logger(__name__)

Protection = Literal["role+trigger", "trigger"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Migration:
    """One file of ``sql/migrations``. ``checksum`` is the SHA-256 of its bytes, in hex."""

    number: int
    name: str
    text: str = dataclasses.field(repr=False)

    @property
    def checksum(self) -> str:
        """What is recorded beside an applied migration."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@functools.cache
def known() -> Sequence[Migration]:
    """All migrations of this version, in order. They are numbered from 1 without a hole."""
    folder = resources.files(__package__).joinpath("sql", "migrations")
    found = [
        Migration(number=int(match[1]), name=match[2], text=entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name))
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise RuntimeError("the migrations of this version are not numbered without a hole")
    return tuple(found)


def migrate(url: str, schema: str = "turnkeeper", *, owner_url: str | None = None) -> Sequence[str]:
    """Bring a schema up to this version and return the names of what was applied (none: it was up to date).

    ``owner_url`` connects as the owner of the schema where the service's own user may not create one. Two at once are
    safe: one waits for the other. Raises ``Fault`` as ``check`` does for changed and unknown migrations, and
    ``Unavailable``.
    """
    with _connection(owner_url or url, schema) as connection:
        with connection.transaction():
            connection.execute(_statement("lock", schema), prepare=False)
            connection.execute(_statement("prepare", schema), prepare=False)
            applied = _applied(connection)
            _compare(applied)
            fresh = [migration for migration in known() if migration.number not in applied]
            for migration in fresh:
                connection.execute(migration.text.encode(), prepare=False)
                connection.execute(
                    statements("migrate.sql")["record"],
                    {"number": migration.number, "name": migration.name, "checksum": migration.checksum},
                )
        _grant(connection, schema, _user(url) if owner_url else None)
    return [f"{migration.number:04}_{migration.name}" for migration in fresh]


def check(url: str, schema: str = "turnkeeper") -> None:
    """Raise a ``Fault`` unless exactly the migrations of this version were applied.

    Codes: ``migration_missing``, ``migration_changed``, ``migration_unknown``; ``database_unavailable``.
    """
    with _connection(url, schema) as connection:
        applied = _applied(connection)
    _compare(applied)
    missing = [migration.number for migration in known() if migration.number not in applied]
    if missing:
        raise Fault(
            "the database is older than this version: run `turnkeeper migrate`",
            code="migration_missing",
            params={"missing": missing},
        )


def protection(url: str, schema: str = "turnkeeper") -> Protection:
    """What keeps the log append-only: a role without the privilege and a trigger, or only the trigger."""
    with _connection(url, schema) as connection:
        return "role+trigger" if _role(connection) else "trigger"


def server_version(url: str) -> str:
    """The server's own version, as ``18.1``."""
    with translated(), psycopg.connect(checked_url(url), autocommit=True) as connection:
        return connection.info.parameter_status("server_version") or "unknown"


def role_name(schema: str) -> str:
    """The role that the service runs under."""
    return f"{schema}_service"


@contextlib.contextmanager
def _connection(url: str, schema: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    session = Session(
        url=checked_url(url), schema=checked_schema(schema), application_name="turnkeeper migrate"
    )
    with translated():
        connection = psycopg.connect(conninfo(session), autocommit=True)
    with connection:
        connection.execute(_statement("enter", schema), prepare=False)
        yield connection


def _statement(name: str, schema: str, **names: str) -> sql.Composed:
    parts = {key: sql.Identifier(value) for key, value in names.items()}
    return sql.SQL(statements("migrate.sql")[name].decode()).format(
        schema=sql.Identifier(schema), views=sql.Identifier(f"{schema}_views"), **parts
    )


def _applied(connection: psycopg.Connection[tuple[Any, ...]]) -> dict[int, str]:
    try:
        return dict(connection.execute(statements("migrate.sql")["applied"]).fetchall())
    except psycopg.errors.UndefinedTable:
        return {}


def _compare(applied: dict[int, str]) -> None:
    checksums = {migration.number: migration.checksum for migration in known()}
    unknown = sorted(applied.keys() - checksums.keys())
    if unknown:
        raise Fault(
            "the database was migrated by a newer version: start that version",
            code="migration_unknown",
            params={"unknown": unknown},
        )
    changed = sorted(number for number, checksum in applied.items() if checksums[number] != checksum)
    if changed:
        raise Fault(
            "a migration was changed after it had been applied: start the version that applied it",
            code="migration_changed",
            params={"changed": changed},
        )


def _role(connection: psycopg.Connection[tuple[Any, ...]]) -> str | None:
    row = connection.execute(statements("migrate.sql")["service_role"]).fetchone()
    return None if row is None else str(row[0])


def _user(url: str) -> str:
    with translated(), psycopg.connect(checked_url(url), autocommit=True) as connection:
        row = connection.execute(statements("migrate.sql")["user"]).fetchone()
    return str(row[0]) if row else ""


def _grant(connection: psycopg.Connection[tuple[Any, ...]], schema: str, service_user: str | None) -> None:
    """Give the service its privileges.

    A service with a user of its own (there is an owner URL) gets them itself; else it takes a role on that has them.
    Where the server allows no roles, the triggers alone protect the log.
    """
    role = service_user or role_name(schema)
    try:
        with connection.transaction():
            connection.execute(_statement("lock", schema), prepare=False)
            if not service_user:
                _take_role(connection, schema, role)
            connection.execute(_statement("grant", schema, role=role), prepare=False)
            connection.execute(statements("migrate.sql")["remember_role"], {"role": role})
    except psycopg.errors.InsufficientPrivilege:
        log.warning("service_role_refused", schema=schema)
        connection.execute(_statement("views_without_role", schema), prepare=False)


def _take_role(connection: psycopg.Connection[tuple[Any, ...]], schema: str, role: str) -> None:
    """See that the role exists and that the connecting user may take it on.

    Roles belong to the whole server, so another database's migration may be making the same one.
    """
    query, params = statements("migrate.sql")["role_state"], {"role": role}
    exists, member = connection.execute(query, params).fetchone() or (False, False)
    if not exists:
        with (
            contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation),
            connection.transaction(),
        ):
            connection.execute(_statement("create_role", schema, role=role), prepare=False)
        exists, member = connection.execute(query, params).fetchone() or (False, False)
    if not member:
        connection.execute(_statement("join_role", schema, role=role), prepare=False)
