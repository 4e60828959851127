"""Every recorded delivery gets the answer that the page demands, with no Gitea to ask.

The tables are read off the page and the payloads. ``task`` is 202 with a task, ``deferred`` 202 without, ``401`` a
refusal, all else the reason of a 200; ``=NNN`` names the delivery whose task the answer points to.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adapters.memory import MemoryLog
from domain import ids, tasks
from domain.policy import Rules, TriggerPolicy
from tests.contract.ingress_door import EVIDENCE, Door

POLICIES: tuple[TriggerPolicy, ...] = ("write", "anyone")

# Each on a fresh database; alice, who writes them all, may write: both policies agree.
SAMPLES = {
    "01": "task",
    "02": "task",
    "03": "task",
    "04": "deferred",
    "05": "deferred",
    "06": "deferred",
    "07": "deferred",
    "08": "task",
    "09": "not_a_trigger",
    "10": "own_event",
    "11": "task",
    "12": "task",
    "13": "task",
    "14": "task",
    "15": "task",
    "16": "401",
    "17": "task",
    "18": "task",
    "19": "task",
}

# 01, 18 and 19 are one comment's creation, 08 an edit that brings the mention in, 09 its deletion.
ORDERS = [
    "01 task | 18 comment_already_handled=01 | 19 comment_already_handled=01",
    "18 task | 01 comment_already_handled=18 | 19 comment_already_handled=18",
    "19 task | 18 comment_already_handled=19 | 01 comment_already_handled=19",
    "01 task | 08 comment_already_handled=01 | 09 trigger_deleted=01 | 18 comment_already_handled=01",
    "08 task | 01 comment_already_handled=08 | 19 comment_already_handled=08 | 09 trigger_deleted=08",
    "09 not_a_trigger | 01 task | 18 comment_already_handled=01",
    "01 task | 09 trigger_deleted=01 | 08 comment_already_handled=01 | 09 trigger_deleted=01",
    "01 task | 16 401 | 10 own_event | 04 deferred | 04 deferred | 01 task=01",
]

# One table for both versions: step, then what it gets under ``write`` and under ``anyone``. Alice owns, dave is an
# admin; bob and carol may only read. Numbers are those of 1.27.0; 1.22.6 sent a few others (see MOVED).
STEPS = """
001 issue_opened.main                          not_permitted           task
002 drain.main                                 not_a_trigger           trigger_deleted=001
003 issue_body_edited.main                     not_permitted           comment_already_handled=001
004 comment_mention.all                        not_permitted           task
005 comment_mention.form                       not_permitted           comment_already_handled=004
006 comment_mention.nosecret                   401                     401
007 comment_mention.main                       not_permitted           comment_already_handled=004
008 comment_mention.org                        not_permitted           comment_already_handled=004
009 comment_edited.main                        not_a_trigger           instruction_amended=004
010 comment_edited.org                         not_a_trigger           not_a_trigger
011 comment_crlf_unicode.main                  not_permitted           task
012 comment_by_bot_with_marker.main            own_event               own_event
013 comment_deleted.main                       not_a_trigger           trigger_deleted=011
014 comment_by_outsider_dave_admin.main        task                    task
015 issue_closed.main                          not_a_trigger           not_a_trigger
016 comment_on_closed.main                     not_permitted           task
017 issue_reopened.main                        not_a_trigger           not_a_trigger
018 comment_60k.main                           task                    task
019 drain_big.main                             own_event               own_event
020 drain_edits.main                           own_event               own_event
021 drain_edits.main                           own_event               own_event
022 drain_lock.main                            own_event               own_event
023 pr_opened.main                             task                    task
024 pr_comment.all                             not_permitted           task
025 pr_comment.form                            not_permitted           comment_already_handled=024
026 pr_comment.nosecret                        401                     401
027 pr_comment.main                            not_permitted           comment_already_handled=024
028 pr_comment_edited.main                     not_a_trigger           instruction_amended=024
029 review_comment.main                        deferred                deferred
030 review_comment_inline.main                 deferred                deferred
031 review_rejected.main                       deferred                deferred
032 review_approved.main                       deferred                deferred
033 review_approved_empty.main                 deferred                deferred
034 review_submitted.main                      deferred                deferred
035 pr_from_fork_opened.main                   no_mention              no_mention
036 pr_fork_comment.main                       not_permitted           task
037 pr_fork_branch_deleted_comment.main        not_permitted           task
038 pr_fork_branch_deleted_comment.main        not_a_trigger           not_a_trigger
039 pr_fork_repo_deleted_comment.main          not_permitted           task
040 pr_merged.main                             not_a_trigger           not_a_trigger
041 pr_comment_after_merge.main                not_permitted           task
042 pr_by_bot.main                             own_event               own_event
043 comment_to_troubled_receivers.main         not_permitted           task
044 comment_to_troubled_receivers.slow         not_permitted           comment_already_handled=043
045 comment_to_troubled_receivers.drop         not_permitted           comment_already_handled=043
046 comment_to_troubled_receivers.redirect     not_permitted           comment_already_handled=043
047 comment_to_troubled_receivers.fails        not_permitted           comment_already_handled=043
048 comment_to_troubled_receivers.refuses      not_permitted           comment_already_handled=043
049 web_replay.main                            not_permitted           comment_already_handled=043
050 burst_create_edit_delete.main              not_permitted           task
051 burst_create_edit_delete.org               not_permitted           comment_already_handled=050
052 burst_create_edit_delete.main              not_a_trigger           instruction_amended=050
053 burst_create_edit_delete.org               not_a_trigger           not_a_trigger
054 burst_create_edit_delete.main              not_a_trigger           instruction_amended=050
055 burst_create_edit_delete.org               not_a_trigger           not_a_trigger
056 burst_create_edit_delete.main              not_a_trigger           instruction_amended=050
057 burst_create_edit_delete.org               not_a_trigger           not_a_trigger
058 burst_create_edit_delete.main              not_a_trigger           instruction_amended=050
059 burst_create_edit_delete.org               not_a_trigger           not_a_trigger
060 burst_create_edit_delete.main              not_a_trigger           trigger_deleted=050
061 burst_create_edit_delete.org               not_a_trigger           not_a_trigger
062 alice_edits_bobs_comment.main              not_a_trigger           not_a_trigger
063 mention_added_by_another_user.main         task                    comment_already_handled=004
064 comment_by_renamed.main                    not_permitted           task
065 comment_after_rename.main                  not_permitted           task
066 comment_in_private.main                    task                    task
067 issue_deleted.main                         not_a_trigger           not_a_trigger
"""

# What 1.22.6 sent otherwise: an edit without a change, no replay, no comment on a locked issue, no deleted issue.
ONLY_1_27 = {"022", "049", "067"}
ONLY_1_22 = "011 comment_same_text_edit.main not_a_trigger not_a_trigger"
BEFORE_IN_1_22 = "010"

ADDRESSES = {"1.22.6": "http://127.0.0.1:3101", "1.27.0": "http://127.0.0.1:3100"}
SECRET = "turnkeeper-evidence-secret"


def table(version: str) -> list[tuple[str, str, str, str]]:
    """Rows (name of the table, step, write, anyone) of one version, in order of arrival."""
    rows: list[tuple[str, str, str, str]] = []
    for line in STEPS.strip().splitlines():
        number, step, write, anyone = line.split()
        if version == "1.22.6" and number in ONLY_1_27:
            continue
        rows.append((number, step, write, anyone))
        if version == "1.22.6" and number == BEFORE_IN_1_22:
            _, step, write, anyone = ONLY_1_22.split()
            rows.append(("same", step, write, anyone))
    return rows


def recorded(folder: Path) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Every recorded delivery of a folder in order: name, body, headers."""
    for path in sorted(folder.glob("*.headers.json")):
        stem = path.name.removesuffix(".headers.json")
        body = next(
            candidate for suffix in (".json", ".form") if (candidate := folder / f"{stem}{suffix}").exists()
        )
        yield stem, body.read_bytes(), json.loads(path.read_bytes())


def check(response: httpx.Response, expected: str, task_ids: dict[str, str], name: str) -> None:
    """Compare an answer with a cell of a table, and remember whose task it made."""
    wanted, _, of = expected.partition("=")
    body = response.json()
    told = (response.status_code, body["status"], body.get("reason"))
    if wanted == "task":
        assert (body["status"], body["state"]) == ("accepted", "queued"), told
        assert response.status_code == (200 if of else 202), told
    elif wanted == "deferred":
        assert (body["taskId"], body["state"], *told[1:]) == (None, "received", "deferred", "deferred"), told
    elif wanted == "401":
        assert told == (401, "rejected", "invalid_signature")
    else:
        status = "accepted" if wanted in {"trigger_deleted", "instruction_amended"} else "ignored"
        assert told == (200, status, wanted), f"{name}: {told}"
    if of:
        assert body["taskId"] == task_ids[of], name
    elif wanted == "task":
        assert body["taskId"] == ids.task_id(f"default:{body['deliveryId']}")
        assert body["taskId"] not in task_ids.values()
        task_ids[name] = body["taskId"]


def sample_rules(policy: TriggerPolicy) -> Rules:
    return Rules(
        bot_login="ccweb-bot",
        gitea_urls=("https://git.example.com",),
        repositories=("*",),
        trigger_policy=policy,
    )


def sample_door(policy: TriggerPolicy) -> Door:
    secret = (EVIDENCE / "gitea" / "SECRET.txt").read_text(encoding="utf-8").strip()
    return Door(MemoryLog(), sample_rules(policy), secrets=(secret,))


SAMPLE_FILES = {name[:2]: (body, headers) for name, body, headers in recorded(EVIDENCE / "gitea")}


def test_the_tables_name_every_file() -> None:
    """No recorded delivery is left out, and none is named that is not there."""
    assert SAMPLES.keys() == SAMPLE_FILES.keys()
    for version in ADDRESSES:
        files = [name for name, _, _ in recorded(EVIDENCE / "gitea-real" / version / "deliveries")]
        assert [step for _, step, _, _ in table(version)] == [name.partition("_")[2] for name in files]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("number", SAMPLES)
async def test_each_sample_alone(number: str, policy: TriggerPolicy) -> None:
    """Each sample gets its answer on a fresh database, and the same one again when it is repeated."""
    door = sample_door(policy)
    first = await door.send(*SAMPLE_FILES[number])
    check(first, SAMPLES[number], {}, number)
    again = await door.send(*SAMPLE_FILES[number])
    assert again.json() == first.json()
    assert again.status_code == (200 if first.status_code == 202 else first.status_code)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
async def test_samples_in_the_orders_that_matter(order: str, policy: TriggerPolicy) -> None:
    """What several deliveries about one comment get depends on what came before."""
    door = sample_door(policy)
    task_ids: dict[str, str] = {}
    for entry in order.split(" | "):
        number, expected = entry.split()
        check(await door.send(*SAMPLE_FILES[number]), expected, task_ids, number)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("version", ADDRESSES)
async def test_a_real_gitea_in_order_of_arrival(version: str, policy: TriggerPolicy) -> None:
    """Everything that a running Gitea sent gets its answer, and the rename keeps the repository's key."""
    rules = Rules(
        bot_login="codex-bot",
        bot_id=6,
        gitea_urls=(ADDRESSES[version],),
        repositories=("acme/*",),
        trigger_policy=policy,
    )
    log = MemoryLog()
    door = Door(log, rules, secrets=(SECRET,))
    task_ids: dict[str, str] = {}
    deliveries = list(recorded(EVIDENCE / "gitea-real" / version / "deliveries"))
    for (number, _, write, anyone), (name, body, headers) in zip(table(version), deliveries, strict=True):
        response = await door.send(body, headers)
        check(response, write if policy == "write" else anyone, task_ids, number)
        if response.status_code != 401:
            assert response.json()["deliveryId"] == headers["X-Gitea-Delivery"], name
    for task_id in task_ids.values():
        task = tasks.fold(row.event for row in await log.read_stream(ids.task_stream(task_id)))
        assert task.received is not None
        assert task.received.repo_key == "default:acme/shop"
    again = [(await door.send(body, headers)).json() for _, body, headers in deliveries]
    tasks_of = {row.stream for row in await log.read(after=0, limit=10**6) if row.stream.startswith("task:")}
    assert tasks_of == {ids.task_stream(task_id) for task_id in task_ids.values()}
    assert len(again) == len(deliveries)


async def test_another_address_is_foreign() -> None:
    """A delivery whose clone address is not our Gitea's is ignored before anything else is asked."""
    door = Door(
        MemoryLog(),
        Rules(
            bot_login="codex-bot", bot_id=6, gitea_urls=("https://gitea.example",), repositories=("acme/*",)
        ),
        secrets=(SECRET,),
    )
    for _, body, headers in recorded(EVIDENCE / "gitea-real" / "1.27.0" / "deliveries"):
        response = await door.send(body, headers)
        if response.status_code != 401:
            assert response.json()["reason"] == "foreign_instance"
