"""The webhook's routes over a log in memory and over PostgreSQL."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx
import pytest

from adapters.gitea import webhook
from adapters.memory import MemoryLog
from adapters.postgres.log import PostgresLog
from domain import ids
from domain.deliveries import DeliveryReceived, DeliveryRefused, DeliveryRepeated, SignaturesRefused
from domain.faults import Unavailable
from domain.log import AppendRequest, Draft, Premise, Recorded
from domain.repositories import RepositoryDisabled, RepositoryRegistered
from domain.tasks import TaskReceived
from services.http.ingress import Limits, routes
from services.intake import Intake, Refusals
from services.ports import EventLog
from tests.conftest import fresh_schema
from tests.contract.ingress_door import RULES, SECRET, Door, Sent, comment, sample, signed

DERIVED = "/api/gitea/webhook/7"


@pytest.fixture(params=["memory", "postgres"])
async def event_log(request: pytest.FixtureRequest) -> AsyncIterator[EventLog]:
    """Each log in turn, empty."""
    if request.param == "memory":
        yield MemoryLog()
        return
    with fresh_schema(request.getfixturevalue("embedded_url")) as schema:
        log = await PostgresLog.open(schema.url, schema=schema.schema)
        yield log
        await log.close()


@pytest.fixture
def door() -> Door:
    """A door over a log in memory."""
    return Door(MemoryLog())


async def all_rows(log: EventLog) -> list[Recorded]:
    return list(await log.read(after=0, limit=10_000))


async def counts(log: EventLog) -> Counter[str]:
    return Counter(row.type for row in await all_rows(log))


async def test_a_mention_is_taken_in(event_log: EventLog) -> None:
    """A signed mention of a writer gets 202 and waits in the queue."""
    response = await Door(event_log).knock(signed(comment("@ccweb-bot fix it")))
    task_id = ids.task_id("default:d-1")
    assert response.status_code == 202
    assert response.json() == {
        "deliveryId": "d-1",
        "taskId": task_id,
        "state": "queued",
        "status": "accepted",
    }
    assert [row.task for row in await event_log.candidates(limit=10)] == [task_id]
    assert (await event_log.contents(["login:default:11"]))["login:default:11"] == "user11"


async def test_fifty_at_once_are_one_task(event_log: EventLog) -> None:
    """Fifty identical deliveries at once, twenty rounds, through two processes: one task each."""
    doors = [Door(event_log), Door(event_log)]
    for round_ in range(20):
        sent = signed(comment("@ccweb-bot fix it", ident=100 + round_), f"d-{round_}")
        answers = await asyncio.gather(*(doors[number % 2].knock(sent) for number in range(50)))
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 49}
        assert {answer.json()["taskId"] for answer in answers} == {ids.task_id(f"default:d-{round_}")}
    found = await counts(event_log)
    assert (found["TaskReceived"], found["DeliveryReceived"], found["MentionConsumed"]) == (20, 20, 20)
    assert found["DeliveryRepeated"] == 20 * 49


async def test_one_comment_under_fifty_ids_is_one_task(event_log: EventLog) -> None:
    """A comment that comes through many hooks at once, each with its own delivery id, is one task."""
    doors = [Door(event_log), Door(event_log)]
    payload = comment("@ccweb-bot fix it")
    answers = await asyncio.gather(
        *(doors[number % 2].knock(signed(payload, f"d-{number}")) for number in range(50))
    )
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 49}
    assert {answer.json()["taskId"] for answer in answers} == {
        answer.json()["taskId"] for answer in answers if answer.status_code == 202
    }
    assert {answer.json().get("reason") for answer in answers} == {None, "comment_already_handled"}
    assert (await counts(event_log))["TaskReceived"] == 1


async def test_many_repositories_at_once(event_log: EventLog) -> None:
    """Mentions that have nothing in common do not disturb each other, and each repository is registered once."""
    door = Door(event_log)
    sent = [
        signed(
            comment(
                "@ccweb-bot go", ident=number, number=number, repository=1 + number % 5, name=f"r{number % 5}"
            ),
            f"d-{number}",
        )
        for number in range(1, 31)
    ]
    answers = await asyncio.gather(*(door.knock(one) for one in sent))
    assert {answer.status_code for answer in answers} == {202}
    registered = [
        row.event for row in await all_rows(event_log) if isinstance(row.event, RepositoryRegistered)
    ]
    assert sorted(event.repo_key for event in registered) == [f"default:acme/r{n}" for n in range(5)]


async def test_the_derived_secret_is_worth_one_repository(door: Door) -> None:
    """A repository's own secret opens its own route for its own payloads, and nothing else."""
    secret = webhook.derived_secret(SECRET, 7)
    own = signed(comment("@ccweb-bot fix it"), secret=secret)
    assert (await door.knock(own, "/api/gitea/webhook")).status_code == 401
    assert (await door.knock(own, "/api/gitea/webhook/8")).status_code == 401
    assert (await door.knock(signed(comment("@ccweb-bot fix it")), DERIVED)).status_code == 401
    other = comment("@ccweb-bot fix it", repository=8, name="other")
    assert (await door.knock(signed(other, secret=secret), DERIVED)).status_code == 401
    assert not await all_rows(door.log)
    assert (await door.knock(own, DERIVED)).status_code == 202
    (fact,) = [row.event for row in await all_rows(door.log) if isinstance(row.event, DeliveryReceived)]
    assert fact.route == "derived"


async def test_a_foreign_delivery_id_tells_nothing(door: Door) -> None:
    """An administrator of one repository learns nothing about another's delivery by sending its id."""
    assert (await door.knock(signed(comment("@ccweb-bot fix it"), "known"))).status_code == 202
    secret = webhook.derived_secret(SECRET, 8)
    payload = comment("@ccweb-bot fix it", repository=7)
    response = await door.knock(signed(payload, "known", secret=secret), "/api/gitea/webhook/8")
    assert response.status_code == 401
    assert "taskId" not in response.json()


async def test_two_secrets_may_be_valid(door: Door) -> None:
    """While a secret is changed, the old and the new one are both taken, on both routes."""
    both = Door(MemoryLog(), secrets=("new secret", SECRET))
    assert (await both.knock(signed(comment("@ccweb-bot a", ident=1), "d-1"))).status_code == 202
    new = signed(comment("@ccweb-bot b", ident=2), "d-2", secret="new secret")
    assert (await both.knock(new)).status_code == 202
    old = signed(comment("@ccweb-bot c", ident=3), "d-3", secret=webhook.derived_secret(SECRET, 7))
    assert (await both.knock(old, DERIVED)).status_code == 202
    assert (await door.knock(new)).status_code == 401


def test_no_secret_no_service() -> None:
    """Without a secret there are no routes."""
    log = MemoryLog()
    with pytest.raises(ValueError, match="secret"):
        routes(
            intake=Intake(log, lambda: RULES),
            reading=webhook,
            secrets=lambda: ["", ""],
            refusals=Refusals(log),
        )


def without(sent: Sent, name: str, value: str | None = None) -> Mapping[str, str]:
    headers = {key: known for key, known in sent.headers.items() if key != name}
    return headers if value is None else {**headers, name: value}


@pytest.mark.parametrize("value", [None, "", "0" * 64, "sha256=" + "0" * 64, "ü"])
async def test_an_unsigned_request_leaves_only_a_count(door: Door, value: str | None) -> None:
    """A missing, empty or wrong signature is 401, and the log gets one aggregated event without payload."""
    sent = signed(comment("@ccweb-bot fix it"))
    headers = [
        (key.encode(), text.encode()) for key, text in without(sent, "X-Gitea-Signature", value).items()
    ]
    transport = httpx.ASGITransport(app=door.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        for _ in range(3):
            response = await client.post("/api/gitea/webhook", content=sent.content, headers=headers)
            assert response.status_code == 401
    assert not await all_rows(door.log)
    assert await door.refusals.flush(seconds=60) == 1
    (row,) = await all_rows(door.log)
    assert row.event == SignaturesRefused(count=3, seconds=60, reason="invalid_signature")
    assert await door.refusals.flush() == 0
    assert door.counted == [("rejected", "invalid_signature")] * 3


async def test_other_headers_do_not_stand_in_for_the_signature(door: Door) -> None:
    """Only X-Gitea-Signature counts, whatever its copies say."""
    sent = signed(comment("@ccweb-bot fix it"))
    copies = {
        **without(sent, "X-Gitea-Signature"),
        "X-Gogs-Signature": sent.headers["X-Gitea-Signature"],
        "X-Hub-Signature-256": f"sha256={sent.headers['X-Gitea-Signature']}",
    }
    assert (await door.send(sent.content, copies)).status_code == 401


@pytest.mark.parametrize(
    "content_type", ["text/plain", "", "application/xml", "multipart/form-data; boundary=x"]
)
async def test_other_content_types_are_not_taken(door: Door, content_type: str) -> None:
    """Only JSON and Gitea's form are read, and the type is judged before the signature."""
    sent = signed(comment("@ccweb-bot fix it"), secret="wrong", content_type=content_type)
    response = await door.knock(sent)
    assert (response.status_code, response.json()["reason"]) == (415, "unsupported_media_type")
    assert not await all_rows(door.log)


async def test_gitea_form_is_taken(door: Door) -> None:
    """A form's signature covers its decoded payload."""
    plain = signed(comment("@ccweb-bot a+b = c & 100% <ok>"))
    form = urlencode({"payload": plain.content.decode()}).encode()
    headers = {**plain.headers, "Content-Type": "application/x-www-form-urlencoded"}
    assert (await door.send(form, headers)).status_code == 202


async def test_a_large_request_is_refused_before_all_else() -> None:
    """More bytes than the limit are 413, declared or streamed, also unsigned ones and other content types."""
    door = Door(MemoryLog(), limits=Limits(body=1000, in_flight=1000))
    large = signed(b"x" * 1001, secret="wrong", content_type="text/plain")
    assert (await door.knock(large)).status_code == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    transport = httpx.ASGITransport(app=door.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        for _ in range(2):  # what the first one held was given back
            streamed = await client.post("/api/gitea/webhook", content=chunks(), headers=large.headers)
            assert streamed.status_code == 413
    assert door.counted == [("rejected", "too_large")] * 3
    assert not await all_rows(door.log)


async def test_a_comment_of_three_megabytes_is_taken(door: Door) -> None:
    """Gitea limits neither comments nor bodies: what fits the limit is decided, and 64 KiB of it are kept."""
    response = await door.knock(signed(comment("@ccweb-bot " + "<" * 3_000_000)))
    assert response.status_code == 202
    (fact,) = [row.event for row in await all_rows(door.log) if isinstance(row.event, DeliveryReceived)]
    assert fact.text is not None
    texts = await door.log.contents([fact.text["content"]])
    assert len(texts[fact.text["content"]]) == 65_536


async def test_bodies_in_flight_are_bounded_together() -> None:
    """While others hold the memory, a delivery is sent away with 503, and taken once they are gone."""
    door = Door(MemoryLog(), limits=Limits(body=20_000, in_flight=20_000))
    sent = signed(comment("@ccweb-bot fix it"))
    assert 5_000 < len(sent.content) < 18_000
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 15_000
        arrived.set()
        await go_on.wait()

    transport = httpx.ASGITransport(app=door.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        first = asyncio.create_task(
            client.post("/api/gitea/webhook", content=slow(), headers={"content-type": "text/plain"})
        )
        await arrived.wait()
        busy = await door.knock(sent)
        assert (busy.status_code, busy.json()["reason"], busy.headers["retry-after"]) == (503, "busy", "1")
        go_on.set()
        assert (await first).status_code == 415
        assert (await door.knock(sent)).status_code == 202


async def test_a_request_that_never_ends_is_given_up() -> None:
    """A sender that stops in the middle does not hold its memory for ever."""
    door = Door(MemoryLog(), limits=Limits(body=20_000, in_flight=20_000, read_s=0.05))

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x" * 15_000
        await asyncio.Event().wait()

    transport = httpx.ASGITransport(app=door.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        response = await client.post("/api/gitea/webhook", content=stuck())
    assert (response.status_code, response.json()["reason"]) == (400, "request_timeout")
    assert (await door.knock(signed(comment("@ccweb-bot fix it")))).status_code == 202


class Broken(MemoryLog):
    """A log that can be read but not written."""

    async def append(self, request: Any) -> Any:
        """Nobody answers."""
        del request
        raise Unavailable("the database does not answer")


async def test_a_log_that_cannot_be_written_is_503_never_202() -> None:
    """What could not be stored is never claimed to be taken in."""
    door = Door(Broken())
    for payload in (comment("@ccweb-bot fix it"), comment("no mention"), b"no JSON"):
        response = await door.knock(signed(payload))
        assert (response.status_code, response.json()["reason"]) == (503, "unavailable")
        assert "taskId" not in response.json()


async def test_counts_survive_a_log_that_cannot_be_written() -> None:
    """Refused signatures are recorded later if the log is away."""
    door = Door(Broken())
    door.refusals.count("invalid_signature")
    assert await door.refusals.flush() == 0
    log = MemoryLog()
    door.refusals._log = log
    assert await door.refusals.flush() == 1
    assert (await counts(log))["SignaturesRefused"] == 1


@pytest.mark.parametrize(
    "content", [b"", b"no JSON", b"[1]", b'{"action": "created", "issue": {}, "comment": 1}'], ids=str
)
async def test_what_cannot_be_read_is_400_and_stays_so(event_log: EventLog, content: bytes) -> None:
    """A signed payload that makes no sense is refused and recorded; a repeat gets the same answer."""
    door = Door(event_log)
    first = await door.knock(signed(content))
    assert (first.status_code, first.json()["reason"]) == (400, "invalid_payload")
    again = await door.knock(signed(comment("@ccweb-bot fix it")))
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert {type(row.event) for row in await all_rows(event_log)} == {DeliveryRefused, DeliveryRepeated}


async def test_a_name_that_gitea_would_not_allow_is_400(door: Door) -> None:
    """A repository whose name cannot be a folder is refused, and nothing of it is registered."""
    payload = comment("@ccweb-bot fix it")
    payload["repository"] |= {"name": "..", "clone_url": "https://git.example.com/acme/x.git"}
    response = await door.knock(signed(payload))
    assert (response.status_code, response.json()["reason"]) == (400, "invalid_repository_name")
    assert {type(row.event) for row in await all_rows(door.log)} == {DeliveryRefused}


async def test_without_a_delivery_id_a_reliable_payload_id_serves(door: Door) -> None:
    """A comment can be told by its own id; what has none is 400 and leaves nothing."""
    payload = comment("@ccweb-bot fix it")
    first = await door.knock(signed(payload, None))
    again = await door.knock(signed(payload, None))
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json() == again.json()
    head = await door.log.head()
    review = await door.knock(signed(sample("04_pr_review_comment"), None))
    odd = await door.knock(signed(payload, "an odd id"))
    assert (review.status_code, review.json()["reason"]) == (400, "delivery_id_missing")
    assert (odd.status_code, odd.json()["reason"]) == (400, "delivery_id_invalid")
    assert await door.log.head() == head


async def test_the_test_button_gets_200(door: Door) -> None:
    """Gitea's test delivery is a push, and any unknown event is ignored as politely."""
    push = {"ref": "refs/heads/main", "commits": [], "repository": sample()["repository"]}
    for number, (event, payload) in enumerate(
        [("push", push), ("wiki", {"action": "created"}), ("fork", {})]
    ):
        response = await door.knock(signed(payload, f"d-{number}", event=event))
        assert response.status_code == 200
        assert response.json() == {
            "deliveryId": f"d-{number}",
            "status": "ignored",
            "reason": "not_a_trigger",
        }


async def test_a_disabled_repository_refuses_and_stays_so(event_log: EventLog) -> None:
    """A delivery for a disabled repository is 409, also when it is repeated after the repository is enabled."""
    door = Door(event_log)
    assert (await door.knock(signed(comment("hello"), "d-0"))).json()["reason"] == "no_mention"
    stream = ids.repo_stream("default:acme/widget")
    disabled = RepositoryDisabled(
        repo_key="default:acme/widget", actor="admin:root", reason="maintenance", request_id="r-1"
    )
    await append(event_log, stream, disabled)
    first = await door.knock(signed(comment("@ccweb-bot fix it")))
    assert (first.status_code, first.json()["reason"]) == (409, "repository_disabled")
    again = await door.knock(signed(comment("@ccweb-bot fix it")))
    assert (again.status_code, again.json()) == (409, first.json())
    assert not [row for row in await all_rows(event_log) if isinstance(row.event, TaskReceived)]


async def append(log: EventLog, stream: str, event: Any) -> None:
    """An operator's act, recorded behind what is there."""
    version = len(await log.read_stream(stream))
    await log.append(
        AppendRequest(
            request_id=uuid4(),
            premises=(Premise(stream, version),),
            drafts=(Draft(stream=stream, event=event),),
        )
    )


async def test_a_denied_attempt_does_not_block_a_rightful_one(event_log: EventLog) -> None:
    """The mention key is consumed by admission only: an edit by one who may is admitted later."""
    door = Door(event_log)
    denied = await door.knock(signed(comment("look", push=False), "d-0"))
    assert denied.json()["reason"] == "no_mention"
    denied = await door.knock(
        signed(comment("@ccweb-bot look", action="edited", before="look", push=False, sender=21), "d-1")
    )
    assert denied.json()["reason"] == "not_permitted"
    rightful = await door.knock(signed(comment("@ccweb-bot look", action="edited", before="look"), "d-2"))
    assert rightful.status_code == 202


async def test_a_task_follows_its_comment(event_log: EventLog) -> None:
    """Amended by an edit of the present text, left alone by a stale one, cancelled when the comment is deleted."""
    door = Door(event_log)
    texts = ["@ccweb-bot one", "@ccweb-bot two", "@ccweb-bot three"]
    assert (await door.knock(signed(comment(texts[0]), "d-0"))).status_code == 202
    reasons = []
    for number, (before, now) in enumerate([(0, 1), (0, 2), (1, 2)], 1):
        payload = comment(texts[now], action="edited", before=texts[before])
        reasons.append((await door.knock(signed(payload, f"d-{number}"))).json()["reason"])
    assert reasons == ["instruction_amended", "not_a_trigger", "instruction_amended"]
    gone = await door.knock(signed(comment(texts[2], action="deleted"), "d-9"))
    assert gone.json() == {
        "deliveryId": "d-9",
        "status": "accepted",
        "reason": "trigger_deleted",
        "taskId": ids.task_id("default:d-0"),
        "state": "cancelled",
    }
    assert not await event_log.candidates(limit=10)


async def test_the_right_route_and_method_only(door: Door) -> None:
    """Nothing but POST on the two addresses is answered here."""
    sent = signed(comment("@ccweb-bot fix it"))
    for path in (
        "/api/gitea/webhook/",
        "/api/gitea/webhook/x",
        "/api/gitea/webhook/-7",
        "/api/gitea/webhook/7/8",
    ):
        assert (await door.knock(sent, path)).status_code in (307, 401, 404)
    transport = httpx.ASGITransport(app=door.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        assert (await client.get("/api/gitea/webhook")).status_code == 405
    assert (await door.knock(sent, f"/api/gitea/webhook/{2**70}")).status_code == 401
    assert not await all_rows(door.log)


async def test_no_text_of_a_stranger_stands_in_an_event(event_log: EventLog) -> None:
    """Bodies and logins are content; what is stored for good holds neither them nor the secret."""
    door = Door(event_log)
    await door.knock(signed(comment("@ccweb-bot the-canary-text"), "d-0"))
    await door.knock(
        signed(
            comment("@ccweb-bot other-canary", action="edited", before="@ccweb-bot the-canary-text"), "d-1"
        )
    )
    written = b"".join(row.body + row.metadata_bytes for row in await all_rows(event_log))
    for canary in (b"canary", b"user11", SECRET.encode()):
        assert canary not in written


async def test_odd_characters_are_taken(event_log: EventLog) -> None:
    """NUL is replaced before it meets a database; lone halves of pairs, which are no JSON, are 400."""
    payload = comment("@ccweb-bot \x00 fix it")
    payload["issue"]["title"] = "a\x00b"
    payload["sender"]["login"] = payload["comment"]["user"]["login"] = "al\x00ice"
    payload["repository"]["default_branch"] = "ma\x00in"
    response = await Door(event_log).knock(signed(payload))
    assert response.status_code == 202
    halves = await Door(event_log).knock(signed(comment("@ccweb-bot \ud800", ident=2), "d-2"))
    assert (halves.status_code, halves.json()["reason"]) == (400, "invalid_payload")


async def test_counts_are_written_by_themselves() -> None:
    """The security event is appended every interval, and what is left when the service stops."""
    log = MemoryLog()
    refusals = Refusals(log, interval_s=0.01)
    running = asyncio.create_task(refusals.run())
    refusals.count("invalid_signature")
    async for batch in log.tail(after=0):
        assert [type(row.event) for row in batch] == [SignaturesRefused]
        break
    refusals.count("invalid_signature")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await counts(log))["SignaturesRefused"] == 2
