"""Servers and schemas that tests share. One embedded PostgreSQL serves a whole run, all workers of it included."""

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from adapters.postgres import embedded, migrations
from adapters.postgres.statements import parse

STATE = "TURNKEEPER_TEST_STATE"
SECOND_SERVER = "TURNKEEPER_TEST_DATABASE_URL"
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
STATEMENTS = parse((Path(__file__).parent / "sql" / "fixtures.sql").read_text(encoding="utf-8"))


def pytest_configure(config: pytest.Config) -> None:
    """Make the directory that all workers of this run share."""
    if not hasattr(config, "workerinput"):
        state = tempfile.mkdtemp(prefix="turnkeeper-tests-")
        Path(state).chmod(0o711)  # as root the servers run under another account, which must pass through
        os.environ[STATE] = state


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait until the servers of this run have stopped, then take their directory away."""
    state = os.environ.get(STATE)
    if hasattr(config, "workerinput") or state is None:
        return
    for lock in Path(state).glob("*/postgres/supervisor.lock"):
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    shutil.rmtree(state, ignore_errors=True)
    del os.environ[STATE]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """A migrated schema of a test's own, on a server that others use too."""

    url: str
    schema: str

    def execute(self, query: sql.Composed | bytes, params: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement as the owner, with this schema on the search path."""
        with psycopg.connect(
            self.url, autocommit=True, options=f"-c search_path={self.schema}"
        ) as connection:
            cursor = connection.execute(query, params)
            return cursor.fetchall() if cursor.description is not None else []

    def advance(self, seconds: float) -> None:
        """Move the log's clock."""
        self.execute(composed("shift_clock", schema=self.schema, seconds=seconds))


def composed(statement: str, /, **values: str | float) -> sql.Composed:
    """A statement of ``tests/sql/fixtures.sql`` with its names filled in."""
    return sql.SQL(STATEMENTS[statement].decode()).format(
        **{
            key: sql.Identifier(value) if isinstance(value, str) else sql.Literal(value)
            for key, value in values.items()
        }
    )


def _server(name: str, binaries: Path | None = None) -> embedded.Embedded:
    return embedded.start_blocking(
        Path(os.environ[STATE]) / name, settings=FAST, linger_s=0.5, binaries=binaries, timeout_s=90
    )


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    """The connection string of the embedded server."""
    server = _server("embedded")
    yield server.url
    server.close()


@pytest.fixture(scope="session")
def second_url() -> Iterator[str]:
    """The connection string of another PostgreSQL: one that was given, or the machine's own programs."""
    if given := os.environ.get(SECOND_SERVER):
        yield given
        return
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip(f"no second PostgreSQL: set {SECOND_SERVER}, or install the server's programs")
    server = _server("second", found[0].parent)
    yield server.url
    server.close()


@contextlib.contextmanager
def fresh_schema(url: str) -> Iterator[Schema]:
    """A migrated schema, dropped afterwards."""
    name = f"t_{uuid.uuid4().hex[:16]}"
    migrations.migrate(url, name)
    schema = Schema(url=url, schema=name)
    try:
        yield schema
    finally:
        schema.execute(
            composed("drop_schema", schema=name, views=f"{name}_views", role=migrations.role_name(name))
        )


@pytest.fixture
def schema(embedded_url: str) -> Iterator[Schema]:
    """A migrated schema of the test's own on the embedded server."""
    with fresh_schema(embedded_url) as made:
        yield made


@pytest.fixture
def database_url(embedded_url: str) -> Iterator[str]:
    """An empty database of the test's own on the embedded server, for what needs a whole one."""
    name = f"d_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(embedded_url, autocommit=True) as connection:
        connection.execute(composed("create_database", name=name))
    yield make_conninfo(embedded_url, dbname=name)
    with psycopg.connect(embedded_url, autocommit=True) as connection:
        connection.execute(composed("drop_database", name=name))
