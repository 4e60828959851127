"""No secret ever leaves the place where it is needed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.turns import TurnItemSeen
from tests.conftest import composed
from tests.e2e.world import World, directive

MakeWorld = Callable[..., World]

pytestmark = [pytest.mark.timeout(240), pytest.mark.bubblewrap]

LOOK = (
    "env; for f in /proc/*/environ /proc/*/cmdline; do tr '\\0' '\\n' < $f; done; "
    "cat /codex-home/config.toml; find / -xdev -type f -size -200k -not -path '/usr/*' -not -path '/proc/*' "
    "-not -path '/lib*' 2>/dev/null | head -300 | xargs cat 2>/dev/null | tr -d '\\0'; "
    "git config --list --show-origin; "
    "ls -la / /workspace /bridge /codex-home"
)


async def test_no_secret_is_found_anywhere_but_where_it_is_needed(new_world: MakeWorld) -> None:
    """Keys, tokens and passwords stand in no box, log, event, view, file, argv, git configuration or comment."""
    canaries = {
        "TURNKEEPER_MODEL_API_KEY": "canary-model-key-4711",
        "TURNKEEPER_WEBHOOK_SECRET": "canary-webhook-secret-4712",
        "TURNKEEPER_ADMIN_TOKEN": "canary-admin-token-4713",
    }
    world = new_world("scripted", TURNKEEPER_LOG_LEVEL="debug", **canaries)
    world.secret = canaries["TURNKEEPER_WEBHOOK_SECRET"]
    world.database = _with_password(world.database, "canary-database-password-4714")
    async with world:
        service = await world.serve()
        argv = Path(f"/proc/{service.process.pid}/cmdline").read_bytes()
        repo = world.repository("shop")
        number = world.issue(repo)
        script = [
            {"do": "exec", "cmd": LOOK},
            {"do": "comment", "body": "x"},
            {"do": "exec", "cmd": "sleep 3"},
        ]
        world.mention(repo, number, directive("steps", script))
        task = await world.received()
        looked = await world.seen(
            TurnItemSeen, task.task_id, method="item/completed", item_type="commandExecution"
        )
        assert "PATH=" in looked.event.summary["aggregatedOutput"]  # the agent did look
        children = b"".join(
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _descendants(service.process.pid)
        )
        assert (await world.reaches(task.task_id)).to_state == "succeeded"
        await service.end()
        secrets = [*canaries.values(), world.bot_token, "canary-database-password-4714"]
        places = {
            "the log's events": b"".join(row.body + row.metadata_bytes for row in await world.everything()),
            "the database": _dump(world),
            "the service's output": service.errors.read_bytes(),
            "argv": argv + children,
            "comments": "\n".join(each.body for each in world.comments(repo, number)).encode(),
            "the state directory": _files(world.root / "state"),
            "the model's requests": b"".join(str(each.body).encode() for each in world.model.exchanges),
        }
        found = [
            (place, secret) for place, text in places.items() for secret in secrets if secret.encode() in text
        ]
        assert found == []
        config = _files(world.root / "state", pattern="config")
        assert not re.search(rb"https?://[^/\s]*@", config)


def _with_password(url: str, password: str) -> str:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - used here only

    return make_conninfo(url, password=password)


def _descendants(pid: int) -> list[int]:
    found = []
    for child in (int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        found += [child, *_descendants(child)]
    return found


def _files(root: Path, pattern: str = "*") -> bytes:
    """Every file of the service's state, the database's own files left out: they are read through ``_dump``."""
    return b"\n".join(
        str(path).encode() + path.read_bytes()
        for path in root.rglob(pattern)
        if path.is_file() and not path.is_symlink()
    )


def _dump(world: World) -> bytes:
    import psycopg  # noqa: PLC0415 - used here only

    with psycopg.connect(world.database) as connection:
        text = [
            str(row)
            for schema in (world.schema, f"{world.schema}_views")
            for (table,) in connection.execute(composed("tables_of"), {"schema": schema}).fetchall()
            for row in connection.execute(composed("rows_of", schema=schema, table=table)).fetchall()
        ]
    assert any("TaskReceived" in row for row in text)
    return "\n".join(text).encode()
