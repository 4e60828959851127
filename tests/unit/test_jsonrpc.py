"""The peer, over real socket pairs."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.jsonrpc import MethodUnknown, Peer, Refusal, RemoteError
from domain.faults import Fault, Unavailable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Streams, Streams]]:
    one, two = socket.socketpair()
    ours = await asyncio.open_connection(sock=one)
    theirs = await asyncio.open_connection(sock=two)
    yield ours, theirs
    for _reader, writer in (ours, theirs):
        writer.close()


async def line(streams: Streams) -> Any:
    return json.loads(await streams[0].readline())


def say(streams: Streams, message: object) -> None:
    streams[1].write(json.dumps(message).encode() + b"\n")


async def test_answers_find_their_questions_in_any_order(pair: tuple[Streams, Streams]) -> None:
    """Two requests in flight each get their own answer, however these arrive."""
    ours, theirs = pair
    peer = Peer(*ours, name="t")
    peer.start()
    first = asyncio.create_task(peer.request("a", {}, timeout=10))
    second = asyncio.create_task(peer.request("b", {}, timeout=10))
    asked = {message["method"]: message["id"] for message in [await line(theirs), await line(theirs)]}
    say(theirs, {"id": asked["b"], "result": "B"})
    say(theirs, {"jsonrpc": "2.0", "id": asked["a"], "result": "A"})
    assert [await first, await second] == ["A", "B"]
    await peer.close()


@pytest.mark.parametrize("versioned", [True, False])
async def test_the_version_member_is_sent_only_where_wanted(
    pair: tuple[Streams, Streams], *, versioned: bool
) -> None:
    """Codex gets no jsonrpc member, MCP gets 2.0."""
    ours, theirs = pair
    peer = Peer(*ours, name="t", versioned=versioned)
    peer.start()
    await peer.notify("initialized")
    expected = {"jsonrpc": "2.0", "method": "initialized"} if versioned else {"method": "initialized"}
    assert await line(theirs) == expected
    await peer.close()


async def test_a_request_with_id_zero_is_answered_while_ours_has_the_same_id(
    pair: tuple[Streams, Streams],
) -> None:
    """Server ids start at 0 and overlap with ours: neither is taken for the other, and 0 is an id."""
    ours, theirs = pair

    async def serve(method: str, _params: object) -> object:
        return {"got": method}

    peer = Peer(*ours, name="t", on_request=serve)
    peer.start()
    asking = asyncio.create_task(peer.request("ours", {}, timeout=10))
    assert (await line(theirs))["id"] == 1
    for number in (0, 1):
        say(theirs, {"id": number, "method": "ask", "params": {}})
        assert await line(theirs) == {"id": number, "result": {"got": "ask"}}
    say(theirs, {"id": 1, "result": "fine"})
    assert await asking == "fine"
    await peer.close()


@pytest.mark.parametrize(
    ("failure", "code"),
    [(MethodUnknown("x"), -32601), (Refusal(-5, "no"), -5), (Fault("f"), -32603), (ValueError("v"), -32603)],
)
async def test_every_request_is_answered_whatever_its_handler_does(
    pair: tuple[Streams, Streams], failure: Exception, code: int
) -> None:
    """Unknown, refused and failing requests get an error, and no detail of an unexpected failure."""
    ours, theirs = pair

    async def serve(_method: str, _params: object) -> object:
        raise failure

    peer = Peer(*ours, name="t", on_request=serve)
    peer.start()
    say(theirs, {"id": "text-id", "method": "ask"})
    answer = await line(theirs)
    assert (answer["id"], answer["error"]["code"]) == ("text-id", code)
    await peer.close()


async def test_notifications_are_heard_in_order_and_before_a_later_answer(
    pair: tuple[Streams, Streams],
) -> None:
    """What was sent before an answer is known when the answer is."""
    ours, theirs = pair
    heard: list[str] = []
    peer = Peer(*ours, name="t", on_notification=lambda method, _params: heard.append(method))
    peer.start()
    asking = asyncio.create_task(peer.request("ask", {}, timeout=10))
    number = (await line(theirs))["id"]
    for method in ("one", "two", "three"):
        say(theirs, {"method": method, "params": {}, "emittedAtMs": 1})
    say(theirs, {"id": number, "result": None})
    await asking
    assert heard == ["one", "two", "three"]
    await peer.close()


async def test_the_end_of_the_stream_fails_whatever_is_pending(pair: tuple[Streams, Streams]) -> None:
    """After EOF every waiting and every later request fails with the owner's code."""
    ours, theirs = pair
    closed: list[bool] = []
    peer = Peer(*ours, name="t", closed_code="agent_exited", on_close=lambda: closed.append(True))
    peer.start()
    asking = asyncio.create_task(peer.request("ask", {}, timeout=10))
    await line(theirs)
    theirs[1].close()
    with pytest.raises(Unavailable, match="agent_exited"):
        await asking
    with pytest.raises(Unavailable, match="agent_exited"):
        await peer.request("again", {}, timeout=10)
    assert closed == [True]
    await peer.close()


async def test_a_late_answer_is_a_timeout_and_disturbs_nothing(pair: tuple[Streams, Streams]) -> None:
    """A request past its deadline fails; its answer, arriving later, is ignored."""
    ours, theirs = pair
    peer = Peer(*ours, name="t")
    peer.start()
    with pytest.raises(Unavailable, match="request_timeout"):
        await peer.request("slow", {}, timeout=0.01)
    say(theirs, {"id": (await line(theirs))["id"], "result": "late"})
    asking = asyncio.create_task(peer.request("next", {}, timeout=10))
    say(theirs, {"id": (await line(theirs))["id"], "result": "in time"})
    assert await asking == "in time"
    await peer.close()


async def test_an_error_object_is_raised_with_its_own_words(pair: tuple[Streams, Streams]) -> None:
    """The other side's number and text are kept apart from our message."""
    ours, theirs = pair
    peer = Peer(*ours, name="t")
    peer.start()
    asking = asyncio.create_task(peer.request("ask", {}, timeout=10))
    say(theirs, {"id": (await line(theirs))["id"], "error": {"code": -32001, "message": "overloaded"}})
    with pytest.raises(RemoteError) as caught:
        await asking
    assert (caught.value.number, caught.value.text) == (-32001, "overloaded")
    await peer.close()


async def test_long_lines_pass_and_endless_ones_end_the_conversation(pair: tuple[Streams, Streams]) -> None:
    """A line far beyond asyncio's limit is read; one beyond ours fails what is pending."""
    ours, theirs = pair
    heard: list[int] = []
    peer = Peer(
        *ours,
        name="t",
        line_limit=1_000_000,
        on_notification=lambda _method, params: heard.append(len(str(params["text"]))),
    )
    peer.start()
    say(theirs, {"method": "long", "params": {"text": "x" * 500_000}})
    asking = asyncio.create_task(peer.request("ask", {}, timeout=20))
    await line(theirs)
    theirs[1].write(b"y" * 1_500_000)
    with pytest.raises(Unavailable, match="more than 1000000 bytes"):
        await asking
    assert heard == [500_000]
    await peer.close()


async def test_a_line_that_is_no_message_is_skipped(pair: tuple[Streams, Streams]) -> None:
    """Noise between the lines, and a lone surrogate in what we say, break nothing."""
    ours, theirs = pair
    peer = Peer(*ours, name="t")
    peer.start()
    theirs[1].write(b"not json\n[1]\n\n\xff\xfe\n")
    asking = asyncio.create_task(peer.request("ask", {"text": "a\ud800b"}, timeout=10))
    asked = await line(theirs)
    assert asked["params"]["text"] == "a?b"
    say(theirs, {"id": asked["id"], "result": 1})
    assert await asking == 1
    await peer.close()


async def test_endless_noise_ends_the_conversation(pair: tuple[Streams, Streams]) -> None:
    """A process that speaks something else is given up, not read for ever."""
    ours, theirs = pair
    peer = Peer(*ours, name="t")
    peer.start()
    asking = asyncio.create_task(peer.request("ask", {}, timeout=20))
    await line(theirs)
    theirs[1].write(b"noise\n" * 1001)
    with pytest.raises(Unavailable, match="does not speak JSON-RPC"):
        await asking
    await peer.close()
