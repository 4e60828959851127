"""Which agents the stories are played with."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.world import World

AGENTS = {
    "scripted": None,
    "codex": "TURNKEEPER_TEST_CODEX",
    "codex-old": "TURNKEEPER_TEST_CODEX_OLD",
}


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name == "scripted" else pytest.mark.codex) for name in AGENTS]
)
def agent(request: pytest.FixtureRequest) -> str:
    """The command of an agent: the scripted one, and each real binary that was given."""
    return agent_command(request.param)


def agent_command(name: str) -> str:
    """The command behind a name of ``AGENTS``; skips where the binary was not given."""
    variable = AGENTS[name]
    if variable is None:
        return "scripted"
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"set {variable} to a codex binary")
    return f"{found} app-server"


@pytest.fixture
def new_world(tmp_path: Path, schema: "Schema") -> Callable[..., World]:  # type: ignore[name-defined]  # noqa: F821
    """Make worlds on a schema of the test's own."""

    def make(agent: str = "scripted", **settings: str) -> World:
        root = tmp_path / "world"
        root.mkdir()
        return World(root, database=schema.url, schema=schema.schema, agent=agent, settings=settings)

    return make
