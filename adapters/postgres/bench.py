"""How fast appends are, beside what they are measured by, in one run: ``scripts/bench append --json``.

Absolute values depend on the machine and on what else it does; the ratios are what counts (performance.md). Rounds of
all measures alternate, and each measure's value is the median of its rounds. The server flushes to disk (fsync on).

* ``limit``: one connection inserts 500 rows per transaction by ``unnest`` into a table like ours, and nothing else.
* ``ours_one_stream``, ``ours_four_streams``: 32 tasks append four events each through ``PostgresLog.append``, the
  whole way from domain events; each task's streams grow.
* ``library_save``: 32 threads save aggregates with four events each through the ``eventsourcing`` library's own
  application and PostgreSQL recorder, with a connection for each thread.
"""

import argparse
import asyncio
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import psycopg
import structlog
import uvloop
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from psycopg.conninfo import conninfo_to_dict

from adapters.postgres import arrays, embedded, migrations
from adapters.postgres.arrays import Bytes, Integers, Longs, Texts, Uuids
from adapters.postgres.connections import Session, conninfo, settings
from adapters.postgres.log import PostgresLog
from adapters.postgres.statements import statements
from domain.events import Event, fact
from domain.log import AppendRequest, Draft, Premise

TASKS = 32
EVENTS = 4
ROWS = 500
TEXT = (
    "a hundred and fifty characters or so, as an event of ours has them: ids, a reason, a digest " + "x" * 58
)
GOALS = {"one_stream_of_limit": 0.75, "four_streams_of_limit": 0.5, "one_stream_times_library": 20.0}


@fact
class BenchHappened(Event):
    """An event of a usual size."""

    n: int
    text: str


class Thing(Aggregate):
    """The library's aggregate with the same payload."""

    @event("Happened")
    def happen(self, n: int, text: str) -> None:
        """Take one event."""
        self.n, self.text = n, text


@dataclasses.dataclass(kw_only=True)
class Appender:
    """32 tasks that append; each remembers where its streams stand."""

    log: PostgresLog
    streams: int
    versions: list[int] = dataclasses.field(default_factory=lambda: [0] * TASKS)
    name: str = dataclasses.field(default_factory=lambda: uuid4().hex[:8])

    async def measure(self, seconds: float) -> float:
        """Events per second."""
        began = time.perf_counter()
        counts = await asyncio.gather(*(self._append(task, began + seconds) for task in range(TASKS)))
        return sum(counts) / (time.perf_counter() - began)

    async def _append(self, task: int, end: float) -> int:
        names = [f"bench:{self.name}:{task}:{k}" for k in range(self.streams)]
        count = 0
        while time.perf_counter() < end:
            version = self.versions[task]
            happened = [BenchHappened(n=n, text=TEXT) for n in range(EVENTS)]
            await self.log.append(
                AppendRequest(
                    request_id=uuid4(),
                    premises=tuple(Premise(name, version) for name in names),
                    drafts=tuple(
                        Draft(stream=names[n % self.streams], event=one) for n, one in enumerate(happened)
                    ),
                )
            )
            self.versions[task] += EVENTS // self.streams
            count += EVENTS
        return count


class Limit:
    """Plain inserts of 500 rows, the practical limit of any log on this server."""

    def __init__(self, url: str, schema: str) -> None:
        session = Session(url=url, schema=schema, application_name="turnkeeper bench")
        self._connection = psycopg.connect(conninfo(session), autocommit=True)
        arrays.register(self._connection)
        self._connection.execute(settings(session), prepare=False)
        self._connection.execute(statements("bench.sql")["create_limit"], prepare=False)
        self._position = 0
        self._version = 0

    def measure(self, seconds: float) -> float:
        """Rows per second."""
        began, count = time.perf_counter(), 0
        insert = statements("bench.sql")["insert_limit"]
        while time.perf_counter() < began + seconds:
            self._connection.execute(insert, self._rows(), prepare=True)
            count += ROWS
        return count / (time.perf_counter() - began)

    def _rows(self) -> Sequence[Any]:
        position, version = self._position, self._version
        self._position += ROWS
        self._version += EVENTS
        request_id: UUID = uuid4()
        metadata = orjson.dumps(
            {"actor": "system", "rules_version": 1, "instance_id": "default", "request_id": request_id,
             "logId": request_id}
        )  # fmt: skip
        body = orjson.dumps({"n": 1, "text": TEXT})
        streams = [f"limit:{n // EVENTS}".encode() for n in range(ROWS)]
        return (
            Longs(range(position + 1, position + ROWS + 1)), Texts(streams),
            Longs([version + n % EVENTS + 1 for n in range(ROWS)]), Texts([b"BenchHappened"] * ROWS),
            Integers([1] * ROWS), Bytes([body] * ROWS), Bytes([metadata] * ROWS), Uuids([request_id] * ROWS),
        )  # fmt: skip

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Library:
    """The library's own way: its application, its aggregates, its PostgreSQL recorder."""

    def __init__(self, url: str, schema: str) -> None:
        given = conninfo_to_dict(url)
        self._application: Application[UUID] = Application(
            env={
                "PERSISTENCE_MODULE": "eventsourcing.postgres",
                "POSTGRES_DBNAME": str(given.get("dbname") or "postgres"),
                "POSTGRES_HOST": str(given.get("host") or "127.0.0.1"),
                "POSTGRES_PORT": str(given.get("port") or "5432"),
                "POSTGRES_USER": str(given.get("user") or "postgres"),
                "POSTGRES_PASSWORD": str(given.get("password") or ""),
                "POSTGRES_SCHEMA": schema,
                "POSTGRES_POOL_SIZE": str(TASKS),
            }
        )

    def measure(self, seconds: float) -> float:
        """Events per second."""
        began = time.perf_counter()
        counts = [0] * TASKS

        def save(number: int) -> None:
            while time.perf_counter() < began + seconds:
                thing = Thing()
                for n in range(EVENTS - 1):
                    thing.happen(n, TEXT)
                self._application.save(thing)
                counts[number] += EVENTS

        threads = [threading.Thread(target=save, args=(number,)) for number in range(TASKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - began)

    def close(self) -> None:
        """Close its connections."""
        self._application.close()


async def append(url: str, *, rounds: int = 4, seconds: float = 1.0) -> Mapping[str, Any]:
    """Measure in turns and return values (events per second), ratios and goals."""
    schema = f"bench_{uuid4().hex[:8]}"
    await asyncio.to_thread(migrations.migrate, url, schema)
    log = await PostgresLog.open(url, schema=schema)
    limit = await asyncio.to_thread(Limit, url, schema)
    library = await asyncio.to_thread(Library, url, schema)
    one, four = Appender(log=log, streams=1), Appender(log=log, streams=EVENTS)

    def threaded(measure: Callable[[float], float]) -> Callable[[float], Coroutine[Any, Any, float]]:
        return lambda duration: asyncio.to_thread(measure, duration)

    measures = {
        "limit": threaded(limit.measure),
        "ours_one_stream": one.measure,
        "ours_four_streams": four.measure,
        "library_save": threaded(library.measure),
    }
    values: dict[str, list[float]] = {name: [] for name in measures}
    for measure in measures.values():  # plans, caches and connections are made before anything counts
        await measure(seconds / 4)
    for _ in range(rounds):
        for name, measure in measures.items():
            values[name].append(await measure(seconds))
    await log.close()
    limit.close()
    library.close()
    await asyncio.to_thread(_drop, url, schema)
    median = {name: statistics.median(rates) for name, rates in values.items()}
    ratios = {
        "one_stream_of_limit": median["ours_one_stream"] / median["limit"],
        "four_streams_of_limit": median["ours_four_streams"] / median["limit"],
        "one_stream_times_library": median["ours_one_stream"] / median["library_save"],
        "four_streams_times_library": median["ours_four_streams"] / median["library_save"],
    }
    return {
        "benchmark": "append",
        "tasks": TASKS,
        "events_per_request": EVENTS,
        "rounds": rounds,
        "seconds_per_round": seconds,
        "events_per_second": {name: round(value) for name, value in median.items()},
        "rounds_events_per_second": {name: [round(rate) for rate in rates] for name, rates in values.items()},
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "goals": GOALS,
        "reached": {name: ratios[name] >= goal for name, goal in GOALS.items()},
    }


def _drop(url: str, schema: str) -> None:
    names = {
        "schema": psycopg.sql.Identifier(schema),
        "views": psycopg.sql.Identifier(f"{schema}_views"),
        "role": psycopg.sql.Identifier(migrations.role_name(schema)),
    }
    drop = psycopg.sql.SQL(statements("bench.sql")["drop"].decode()).format(**names)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(drop)


def main(arguments: Sequence[str]) -> int:
    """Run from the command line: on ``--database-url``, or on a server of its own."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("what", choices=["append"])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measure in each round")
    given = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
    state = Path(tempfile.mkdtemp(prefix="turnkeeper-bench-"))
    state.chmod(0o711)  # as root the server runs under another account, which must pass through
    try:
        server = embedded.start_blocking(state, linger_s=0)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(append(server.url, rounds=given.rounds, seconds=given.seconds))
        server.close()
        embedded.wait_until_stopped(server.place)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name, value in found["events_per_second"].items():
            sys.stdout.write(f"{name:20} {value:>9,} events/s\n")
        for name, ratio in found["ratios"].items():
            sys.stdout.write(f"{name:30} {ratio:8.2f}   goal {GOALS.get(name, '-')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
