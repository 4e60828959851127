import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from adapters.gitea.mcp import GiteaMcp, GiteaMcpFault
from domain.tool_dialects import object_id

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence" / "gitea-mcp"
VERSIONS = ("2025-06", "2026-02", "2026-03")
TOKEN = "gta_secret_0123456789"
HOST = "http://gitea.example.test"


def command(mode: str, version: str = "2026-03") -> list[str]:
    return [sys.executable, str(HERE / "bridge_scripted_mcp.py"), str(EVIDENCE / f"{version}.jsonl"), mode]


async def start(mode: str, version: str = "2026-03", *, timeout: float = 20.0) -> GiteaMcp:
    return await GiteaMcp.start(command(mode, version), HOST, TOKEN, timeout=timeout)


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_conversation(version: str) -> None:
    """Handshake, probe, comment and refusals go as recorded with each version."""
    async with await start("ok", version) as child:
        await child.probe(6)
        tools = await child.tools()
        assert len(tools) == {"2025-06": 37, "2026-02": 109, "2026-03": 49}[version]
        verb = child.dialect.create_comment
        assert verb is not None
        number = {"2025-06": 8, "2026-02": 9, "2026-03": 10}[version]
        body = "Hello from gitea-mcp.\n\n<!-- ccweb taskId=t1 turnId=u1 -->"
        done = await child.call(
            verb.tool, verb.arguments(owner="acme", repo="store", number=number, body=body), 20.0
        )
        assert done.outcome == "done"
        assert object_id(done.text) == {"2025-06": 129, "2026-02": 133, "2026-03": 138}[version]
        missing = await child.call(
            verb.tool, verb.arguments(owner="acme", repo="store", number=99999, body="x"), 20.0
        )
        assert (missing.outcome, missing.code) == ("refused", "gitea_refused")
        unknown = await child.call("no_such_tool", {}, 20.0)
        assert unknown.outcome == "refused"


@pytest.mark.parametrize(
    ("mode", "code"),
    [("exits", "gitea_mcp_exited"), ("foreign", "gitea_mcp_foreign"), ("no-tools", "gitea_mcp_unsupported")],
)
async def test_failing_starts_are_told_apart(mode: str, code: str) -> None:
    """A child that ends, is another program, or cannot comment is refused under its own code."""
    with pytest.raises(GiteaMcpFault) as caught:
        await start(mode)
    assert caught.value.code == code
    assert TOKEN not in str(caught.value)


async def test_missing_command() -> None:
    """A command that does not exist is missing, not exited."""
    with pytest.raises(GiteaMcpFault) as caught:
        await GiteaMcp.start(["no-such-gitea-mcp"], HOST, TOKEN)
    assert caught.value.code == "gitea_mcp_missing"


async def test_hanging_child_is_ended() -> None:
    """A child that does not answer the handshake is a time-out, and gone afterwards."""
    with pytest.raises(GiteaMcpFault) as caught:
        await start("hangs", timeout=1.0)
    assert caught.value.code == "gitea_mcp_timeout"


@pytest.mark.parametrize(
    ("mode", "version", "code", "cause"),
    [
        ("deaf", "2026-03", "gitea_mcp_timeout", None),
        ("dies", "2026-03", "gitea_mcp_exited", None),
        ("wrong-token", "2025-06", "gitea_mcp_exited", None),
        ("wrong-token", "2026-02", "gitea_mcp_refused", "token"),
        ("wrong-token", "2026-03", "gitea_mcp_refused", "token"),
        ("no-server", "2025-06", "gitea_mcp_exited", None),
        ("no-server", "2026-03", "gitea_mcp_refused", "unreachable"),
    ],
)
async def test_failing_probes_are_told_apart(mode: str, version: str, code: str, cause: str | None) -> None:
    """The handshake succeeds, and only the call tells: hanging, ending and refusing differ."""
    async with await start(mode, version) as child:
        with pytest.raises(GiteaMcpFault) as caught:
            await child.probe(6, timeout=1.0 if mode == "deaf" else 20.0)
    assert caught.value.code == code
    assert caught.value.params.get("cause") == cause
    assert "127.0.0.1" not in str(caught.value)


async def test_wrong_bot() -> None:
    """A token of somebody else is refused, with both ids."""
    async with await start("ok") as child:
        with pytest.raises(GiteaMcpFault) as caught:
            await child.probe(7)
    assert caught.value.code == "gitea_mcp_wrong_bot"
    assert caught.value.params == {"found": 6, "expected": 7}


async def test_death_in_mid_call_is_unknown() -> None:
    """A child that ends during a call leaves the outcome unknown, for later calls too."""
    async with await start("dies") as child:
        first = await child.call("issue_write", {}, 20.0)
        assert (first.outcome, first.code) == ("unknown", "gitea_mcp_exited")
        assert not child.alive
        assert (await child.call("issue_write", {}, 20.0)).outcome == "unknown"


async def test_silence_is_unknown() -> None:
    """A call without an answer in time is unknown, and the child can still be asked."""
    async with await start("ok") as child:
        answer = await child.call("slow", {}, 0.2)
        assert (answer.outcome, answer.code) == ("unknown", "gitea_mcp_timeout")
        await child.probe(6)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ('create a/b/issue/1/comment err: Post "http://h/api": EOF', "unknown"),
        ('create a/b/issue/1/comment err: Post "http://h/api": context deadline exceeded', "unknown"),
        ("create a/b/issue/1/comment err: Unknown API Error: 502", "unknown"),
        (
            "create a/b/issue/1/comment err: Post: dial tcp 127.0.0.1:9: connect: connection refused",
            "refused",
        ),
        ("create timeout/EOF/issue/502/comment err: not found", "refused"),
        ("create a/b/issue/502/comment err: ", "refused"),
    ],
)
async def test_lost_answers_behind_it_are_unknown(text: str, outcome: str) -> None:
    """An error that says that Gitea's answer was lost is unknown; one that says what Gitea answered is not."""
    async with await start("ok") as child:
        answer = await child.call("fails", {"text": text}, 20.0)
    assert answer.outcome == outcome
    assert TOKEN not in (answer.message or "")


async def test_environment_is_minimal_and_the_token_stays_in_it() -> None:
    """The child gets address, token, a private home and little else; what it says on stderr is redacted."""
    os.environ["TURNKEEPER_TEST_CANARY"] = "canary"
    try:
        child = await start("ok")
    finally:
        del os.environ["TURNKEEPER_TEST_CANARY"]
    async with child:
        seen = json.loads((await child.call("environment", {}, 20.0)).text)
        home = Path(seen["HOME"])
        assert seen["GITEA_HOST"] == HOST
        assert "TURNKEEPER_TEST_CANARY" not in seen["names"]
        assert home.stat().st_mode & 0o777 == 0o700
        assert os.getpgid(child._process.pid) == child._process.pid
        assert TOKEN not in Path(f"/proc/{child._process.pid}/cmdline").read_text()
        while "the token is" not in child.stderr_tail:
            await asyncio.sleep(0)
        assert TOKEN not in child.stderr_tail
        assert "[redacted]" in child.stderr_tail
    assert not home.exists()


async def test_noise_is_skipped() -> None:
    """Lines that are no JSON do not stop the conversation."""
    async with await start("garbage") as child:
        await child.probe(6)


async def test_stop_ends_the_whole_group(tmp_path: Path) -> None:
    """Nothing that the child started survives it, and stopping twice is harmless."""
    held = tmp_path / "held"
    os.mkfifo(held)
    child = await GiteaMcp.start(command("grandchild"), HOST, TOKEN, environment={"HELD": str(held)})
    with await asyncio.to_thread(held.open, "rb") as reader:
        await child.stop(grace=0.2)
        await child.stop(grace=0.2)
        # The end comes when the last holder of the other end is gone.
        assert await asyncio.to_thread(reader.read) == b"x"
