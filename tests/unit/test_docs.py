"""The documentation holds: what it names exists, and what it draws is what the code does."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

from domain.failures import retried
from domain.transitions import LEASED, STATES, TABLE, TERMINAL, WAITING

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_EDGE = re.compile(r"^    (\w+) --> (\w+): (\w+)$", re.MULTILINE)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def _tests_of(path: Path) -> frozenset[str]:
    """Names of test functions and classes, wherever they stand in the file."""
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in found if isinstance(node, kinds))


def _rows(text: str, heading: str) -> list[tuple[str, ...]]:
    """The rows of the first table under a heading, without its head."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), section.splitlines())
    table = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in itertools.takewhile(lambda line: line.startswith("|"), lines)
    ]
    return table[2:]


def _missing(text: str) -> list[str]:
    return [
        f"{file}::{name}"
        for file, name in _REFERENCE.findall(text)
        if not (ROOT / file).is_file() or name not in _tests_of(ROOT / file)
    ]


def test_every_named_test_exists() -> None:
    """A test that a page names as proof is there."""
    assert {page.name: missing for page in PAGES if (missing := _missing(page.read_text("utf-8")))} == {}


def test_a_test_that_is_not_there_is_noticed() -> None:
    """The check above finds a file, and a function, that do not exist."""
    here = "tests/unit/test_docs.py"
    text = f"`{here}::test_every_named_test_exists` `{here}::test_x` `tests/unit/test_nowhere.py::test_y`"
    assert _missing(text) == [f"{here}::test_x", "tests/unit/test_nowhere.py::test_y"]


def test_every_guarantee_names_its_proof() -> None:
    """Each promise has its limits and at least one test, or says that there is none yet."""
    text = _text("docs/guarantees.md")
    promises = text.split("\n### ")[1:]
    assert len(promises) >= 20
    for promise in promises:
        title = promise.splitlines()[0]
        assert "\nLimits: " in promise, title
        assert _REFERENCE.search(promise) or "\nHeld by: no test yet" in promise, title


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """A relative link of a page names a file of the project."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_drawn_states_are_the_tables() -> None:
    """The diagram and the list of edges in the docs equal the transition table, edge for edge and in order."""
    text = _text("docs/states.md")
    assert _EDGE.findall(text) == [(edge.source, edge.target, edge.trigger) for edge in TABLE]
    edges = [(edge.source, edge.target, edge.trigger, edge.guard) for edge in TABLE]
    assert _rows(text, "Every edge") == edges


def test_the_drawn_kinds_of_states_are_the_tables() -> None:
    """Each state stands in the docs under its kind, and the terminal ones end the diagram."""
    text = _text("docs/states.md")
    kinds = {kind: tuple(states.split(", ")) for kind, states, _ in _rows(text, "Kinds of states")}
    resting = frozenset(STATES) - TERMINAL - LEASED - WAITING
    wanted = {"waiting": WAITING, "leased": LEASED, "resting": resting, "terminal": TERMINAL}
    assert kinds == {
        kind: tuple(state for state in STATES if state in members) for kind, members in wanted.items()
    }
    ends = re.findall(r"^    (\w+) --> \[\*\]$", text, re.MULTILINE)
    assert frozenset(ends) == TERMINAL


def test_the_readme_draws_the_same_ways() -> None:
    """The short list of states in the README has the ways of the table."""
    ways: dict[str, tuple[str, ...]] = {}
    for edge in TABLE:
        ways[edge.source] = (*ways.get(edge.source, ()), edge.target)
    rows = _rows(_text("README.md"), "States of a task")
    assert {state.strip("`"): tuple(targets.split(", ")) for state, targets in rows} == ways


def test_every_documented_error_code_is_one() -> None:
    """A code that the operations page explains stands in the code."""
    rooms = ("domain", "projections", "adapters", "services")
    sources = "\n".join(path.read_text("utf-8") for room in rooms for path in (ROOT / room).rglob("*.py"))
    known = frozenset(re.findall(r'"([a-z][a-z0-9_]+)"', sources))
    codes = [row[0].strip("`") for row in _rows(_text("docs/operations.md"), "Error codes")]
    assert len(codes) >= 30
    assert [code for code in codes if code not in known] == []
    assert len(codes) == len(frozenset(codes))


def test_documented_retries_are_the_domains() -> None:
    """The column that says whether a failure is retried agrees with what decides it."""
    rows = _rows(_text("docs/operations.md"), "Error codes")
    told = {code.strip("`"): retry for code, retry, *_ in rows if retry in ("once", "no")}
    assert len(told) >= 30
    assert {code for code, retry in told.items() if retry == "once"} == {c for c in told if retried(c)}
