"""The task's transition table, exhaustively."""

import itertools

import pytest

from domain import tasks, transitions
from domain.tasks import IllegalTransition, Task, TaskReceived

SEED = {
    "received": {"queued", "ignored", "duplicate", "rejected"},
    "queued": {"preparing", "cancelled"},
    "preparing": {"running", "blocked_workspace", "retry_wait", "failed"},
    "running": {"waiting_user", "verifying_reply", "retry_wait", "aborting", "failed"},
    "waiting_user": {"queued", "cancelled", "failed"},
    "verifying_reply": {"succeeded", "retry_wait", "failed_reply"},
    "retry_wait": {"preparing", "running", "verifying_reply", "failed"},
    "blocked_workspace": {"queued", "cancelled"},
    "aborting": {"aborted", "failed"},
}
"""Seed 000 §5.6, row by row."""

ADDED = {("verifying_reply", "succeeded_with_rest_fallback")}
"""What gitea-workflow.md, Task, adds to it."""


def received() -> TaskReceived:
    return TaskReceived(
        task_id="gitea-task-1",
        delivery_key="default:d",
        repo_key="default:acme/widget",
        resource_key="default:acme/widget:issue:1",
        session_key="default:acme/widget:issue:1",
        comment_id=1,
        trigger={"kind": "comment", "id": 1},
        author_id=3,
        instruction={"content": "c", "digest": "d", "length": 1},
        resource={"kind": "issue", "number": 1},
    )


@pytest.mark.parametrize(("source", "target"), list(itertools.product(transitions.STATES, repeat=2)))
def test_each_pair_of_states_is_as_the_seed_says(source: str, target: str) -> None:
    """Exactly the seed's edges and the one added edge are allowed; every other pair is refused with its event."""
    task = Task(received=received(), state=source, state_version=7)  # type: ignore[arg-type]
    if target in SEED.get(source, ()) or (source, target) in ADDED:
        event = tasks.transition(task, target, trigger="t")  # type: ignore[arg-type]
        assert (event.from_state, event.to_state, event.state_version) == (source, target, 8)
        assert tasks.evolve(task, event).state == target
    else:
        with pytest.raises(IllegalTransition) as refused:
            tasks.transition(task, target, trigger="t")  # type: ignore[arg-type]
        assert refused.value.refused.from_state == source
        assert refused.value.refused.to_state == target
        assert refused.value.refused.state_version == 7


def test_no_way_leads_out_of_a_terminal_state() -> None:
    """A terminal state has no outgoing edge, and each other state has one."""
    sources = {edge.source for edge in transitions.TABLE}
    assert not sources & transitions.TERMINAL
    assert sources | transitions.TERMINAL == set(transitions.STATES)


def test_the_table_names_each_edge_once_with_trigger_and_guard() -> None:
    """No edge stands twice, and none without its cause and its condition."""
    edges = [(edge.source, edge.target) for edge in transitions.TABLE]
    assert len(edges) == len(set(edges))
    assert all(edge.trigger and edge.guard for edge in transitions.TABLE)


def test_every_state_is_terminal_leased_waiting_or_named() -> None:
    """The three sets that decide about leases and the queue do not overlap."""
    assert not transitions.LEASED & transitions.TERMINAL
    assert not transitions.WAITING & transitions.LEASED
    assert not transitions.WAITING & transitions.TERMINAL
