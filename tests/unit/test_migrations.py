"""Migrations: applied once, checked at every start, and with the service's role where the server allows one."""

import concurrent.futures
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from adapters.postgres import migrations
from adapters.postgres.log import PostgresLog
from adapters.postgres.migrations import Migration, known
from adapters.postgres.statements import parse
from domain.faults import Fault, Invalid
from tests.conformance.conftest import request
from tests.conftest import STATEMENTS, Schema, composed

Patch = Callable[[list[Migration]], list[Migration]]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Callable[[Patch], None]:
    """Pretend to be another version of the program."""

    def become(patch: Patch) -> None:
        changed = tuple(patch(list(known())))
        monkeypatch.setattr(migrations, "known", lambda: changed)

    return become


def refusal(schema: Schema) -> str:
    with pytest.raises(Fault) as caught:
        migrations.check(schema.url, schema.schema)
    return caught.value.code


def test_migrations_are_numbered_from_one() -> None:
    """Every file counts, none is left out."""
    assert [migration.number for migration in known()] == list(range(1, len(known()) + 1))


def test_a_schema_that_is_up_to_date_is_left_alone(schema: Schema) -> None:
    """The second run applies nothing, and the check is content."""
    assert migrations.migrate(schema.url, schema.schema) == []
    migrations.check(schema.url, schema.schema)


def test_a_schema_that_was_never_migrated_is_refused(embedded_url: str) -> None:
    """There is nothing to start on."""
    assert refusal(Schema(url=embedded_url, schema=f"none_{uuid4().hex[:8]}")) == "migration_missing"


def test_a_missing_migration_is_refused_and_then_applied(
    schema: Schema, versions: Callable[[Patch], None]
) -> None:
    """A newer version does not start on an older schema; migrating applies just what is new."""
    more = Migration(number=len(known()) + 1, name="more", text="create table more ()")
    versions(lambda found: [*found, more])
    assert refusal(schema) == "migration_missing"
    assert migrations.migrate(schema.url, schema.schema) == [f"{more.number:04}_more"]
    migrations.check(schema.url, schema.schema)


def test_a_changed_migration_is_refused(schema: Schema, versions: Callable[[Patch], None]) -> None:
    """Neither a start nor a migration goes on where a file is not the one that was applied."""
    versions(lambda found: [Migration(number=1, name="log", text=found[0].text + " "), *found[1:]])
    assert refusal(schema) == "migration_changed"
    with pytest.raises(Fault):
        migrations.migrate(schema.url, schema.schema)


def test_an_unknown_migration_is_refused(schema: Schema, versions: Callable[[Patch], None]) -> None:
    """An older version does not start on a newer schema."""
    versions(lambda found: found[:-1])
    assert refusal(schema) == "migration_unknown"


def test_a_failing_migration_leaves_nothing_behind(schema: Schema, versions: Callable[[Patch], None]) -> None:
    """All of a run's migrations are applied, or none."""
    first = len(known()) + 1
    versions(
        lambda found: [
            *found,
            Migration(number=first, name="good", text="create table good ()"),
            Migration(number=first + 1, name="bad", text="create table bad (no such type)"),
        ]
    )
    with pytest.raises(psycopg.Error):
        migrations.migrate(schema.url, schema.schema)
    assert schema.execute(STATEMENTS["table_named"], {"name": f"{schema.schema}.good"}) == [(None,)]


def test_processes_that_start_together_migrate_once(database_url: str) -> None:
    """One waits for the other; nothing is applied twice."""
    with concurrent.futures.ThreadPoolExecutor() as threads:
        applied = list(threads.map(lambda _: migrations.migrate(database_url), range(4)))
    assert sorted(map(len, applied)) == [0, 0, 0, len(known())]
    migrations.check(database_url)


def test_a_superuser_gets_role_and_trigger(schema: Schema) -> None:
    """Where a role can be made, the service takes it on."""
    assert migrations.protection(schema.url, schema.schema) == "role+trigger"


@pytest.fixture
def plain_user(database_url: str) -> Iterator[str]:
    """A database whose owner may neither make roles nor become one."""
    name = f"u_{uuid4().hex[:12]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(composed("create_user", name=name))
        connection.execute(composed("let_create", name=name, database=connection.info.dbname))
    yield make_conninfo(database_url, user=name)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(composed("drop_user", name=name))


async def test_a_server_without_roles_is_protected_by_triggers(plain_user: str) -> None:
    """The service runs as the owner, who cannot change the log either."""
    migrations.migrate(plain_user, "plain")
    migrations.check(plain_user, "plain")
    assert migrations.protection(plain_user, "plain") == "trigger"
    log = await PostgresLog.open(plain_user, schema="plain")
    await log.append(request("s", 1))
    await log.close()
    with pytest.raises(psycopg.Error) as caught:
        Schema(url=plain_user, schema="plain").execute(STATEMENTS["delete_event"])
    assert caught.value.sqlstate == "TK001"


async def test_an_owner_of_its_own_leaves_the_service_little(database_url: str, plain_user: str) -> None:
    """With a separate owner the service's user itself has no right to change the log."""
    migrations.migrate(plain_user, "owned", owner_url=database_url)
    assert migrations.protection(plain_user, "owned") == "role+trigger"
    log = await PostgresLog.open(plain_user, schema="owned")
    await log.append(request("s", 1))
    await log.close()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        Schema(url=plain_user, schema="owned").execute(STATEMENTS["delete_event"])


@pytest.mark.parametrize("name", ["Upper", "with space", "1st", "pg_mine", "x" * 41, 'q"uote'])
def test_a_schema_name_that_could_be_misread_is_refused(embedded_url: str, name: str) -> None:
    """Names of schemas are plain words."""
    with pytest.raises(Invalid):
        migrations.migrate(embedded_url, name)


def test_statements_are_found_by_name() -> None:
    """Comments are left out, and two of one name are a mistake."""
    assert parse("-- name: a\n-- why\nselect 1\n\n-- name: b\nselect 2\n") == {
        "a": b"select 1",
        "b": b"select 2",
    }
    with pytest.raises(ValueError, match="two statements"):
        parse("-- name: a\nselect 1\n-- name: a\nselect 2\n")
