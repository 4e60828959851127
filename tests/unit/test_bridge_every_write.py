import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.faults import LeaseStale
from domain.tools import ToolAnswer
from services.bridge_ports import ActiveTurn, BridgeSettings
from tests.unit.bridge_stage import DIALECTS, Stage

ANSWERS = st.sampled_from(
    [
        None,
        None,
        ToolAnswer(outcome="refused", code="gitea_refused", message="no"),
        ToolAnswer(outcome="unknown", code="gitea_mcp_exited", message="gone"),
        ToolAnswer(outcome="done", text="not json"),
    ]
)
STEPS = st.one_of(
    st.tuples(st.just("comment"), st.sampled_from([42, 42, 7]), st.text(max_size=300)),
    st.tuples(st.just("edit"), st.integers(100, 104), st.text(max_size=20)),
    st.tuples(
        st.just("tool"),
        st.sampled_from(
            ["create_branch", "delete_branch", "list_branches", "get_me", "create_repo", "nothing"]
        ),
        st.sampled_from(["acme", "Acme", "other"]),
    ),
    st.tuples(st.just("ask"), st.just(0), st.text(max_size=5)),
    st.tuples(st.just("turn"), st.just(0), st.sampled_from(["u1", "u2", ""])),
    st.tuples(st.just("lease"), st.booleans(), st.just("")),
)


@settings(max_examples=150, deadline=None)
@given(
    dialect=st.sampled_from(DIALECTS),
    steps=st.lists(st.tuples(STEPS, ANSWERS, st.sampled_from([None, "k1", "k2"])), max_size=12),
    at_once=st.booleans(),
)
def test_every_write_has_one_intent_and_one_result(dialect: str, steps: list[Any], at_once: bool) -> None:  # noqa: FBT001
    """Whatever is called, what reaches gitea-mcp for writing is exactly what has an intent, each with one result."""
    asyncio.run(_play(dialect, steps, at_once=at_once))


async def _play(dialect: str, steps: list[Any], *, at_once: bool) -> None:
    stage = Stage(dialect, settings=BridgeSettings(comment_limit=240))
    stage.gitea.add(42, 2, "of somebody else")
    waiting = []
    for (kind, what, text), planned, call_id in steps:
        if kind == "turn":
            stage.turn = ActiveTurn(turn_id=text) if text else None
            continue
        if kind == "lease":
            stage.ledger.intend_fault = LeaseStale("gone") if what else None
            continue
        meta = {"callId": call_id} if call_id else {}
        if not at_once:
            stage.backend.next_answers = [planned]
        if kind == "comment":
            doing = stage.comment(text, what, meta=meta)
        elif kind == "edit":
            doing = stage.edit(what, text)
        elif kind == "ask":
            doing = stage.call("ask_user", question=text)
        else:
            doing = stage.call(what, meta, owner=text, repo="widget", branch="b", old_branch="main")
        waiting.append(asyncio.create_task(doing))
        if not at_once:
            await waiting[-1]
    results = await asyncio.gather(*waiting)
    await stage.bridge.drain()

    reading = {"list_branches", "get_me", "issue_read", "get_issue_by_index"}
    written = [(name, arguments) for name, arguments in stage.backend.calls if name not in reading]
    assert len(stage.ledger.intents) == len(stage.ledger.results) == len(written)
    assert sorted(intent for intent, _result in stage.ledger.results) == sorted(stage.ledger.intents)
    keys = [(intent["key"], intent["operation"]) for intent in stage.ledger.intents.values()]
    assert len(keys) == len(set(keys))
    assert all(str(arguments["owner"]).lower() == "acme" for _name, arguments in written)
    assert all(name not in {"delete_branch", "create_repo"} for name, _arguments in written)
    assert all(result.texts for result in results)
    # The other's comment stands as it was, and one reply at most was begun without its answer having been lost.
    assert stage.gitea.comments[100].body == "of somebody else"
    firsts = [
        c
        for c in stage.gitea.on(42)
        if "taskId=t1" in c.body and ("part=" not in c.body or "part=1/" in c.body)
    ]
    assert len(firsts) <= 1
