"""Events as they stand in the log."""

import dataclasses
import pkgutil
import subprocess
import sys
from pathlib import Path

import domain
from domain import catalogue
from domain.events import Event

ROOT = Path(__file__).resolve().parents[2]


def test_whoever_can_read_the_log_knows_every_event_type() -> None:
    """A process that imports nothing but the log's language knows every type that any module declares."""
    every = "; ".join(
        f"import {module.name}" for module in pkgutil.walk_packages(domain.__path__, "domain.") if module.name
    )
    count = "from domain.events import event_types; print(len(event_types()))"
    counts = {
        subprocess.run(
            [sys.executable, "-c", f"{imports}; {count}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for imports in ("import domain.log", every)
    }
    assert len(counts) == 1


def test_every_event_is_frozen_of_one_class_and_starts_at_a_schema() -> None:
    """Each declared event is a frozen dataclass, a fact, a derived event or a note, with a schema from 1."""
    types = catalogue.event_types()
    assert len(types) > 30
    for name, cls in types.items():
        assert issubclass(cls, Event)
        assert cls.__name__ == name
        assert cls.event_class in {"fact", "derived", "note"}
        assert cls.schema >= 1
        parameters = cls.__dataclass_params__  # type: ignore[attr-defined]
        assert parameters.frozen
        assert all(field.kw_only for field in dataclasses.fields(cls))  # type: ignore[arg-type]
