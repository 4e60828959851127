"""How commands speak: results on stdout, remarks and errors on stderr, JSON where asked for, stable exit codes.

Exit codes: 0 done, 1 it failed, 2 the command line or the configuration is wrong, 3 something does not answer.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from domain.faults import Fault

FAILED = 1
USAGE = 2
UNAVAILABLE = 3


def exit_code(fault: Fault) -> int:
    """The exit code that a fault ends a command with."""
    if fault.code == "configuration_invalid" or fault.status == 400:
        return USAGE
    return UNAVAILABLE if fault.status == 503 else FAILED


def emit(value: Any) -> None:  # noqa: ANN401 - JSON
    """One JSON value on one line of stdout."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def line(text: str = "") -> None:
    """One line of stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """One line of stderr, for people."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(fault: Fault, *, as_json: bool) -> None:
    """A fault in one sentence, or as JSON, on stderr."""
    if as_json:
        body = {"code": fault.code, "message": fault.message, "params": fault.params}
        remark(orjson.dumps(body, default=str).decode())
    else:
        remark(f"turnkeeper: {' '.join(fault.message.split())} [{fault.code}]")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; off a terminal it is not cut to any width."""
    from rich.console import Console  # noqa: PLC0415 - most commands need no tables
    from rich.table import Table  # noqa: PLC0415 - the same
    from rich.text import Text  # noqa: PLC0415 - the same

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 500, highlight=False)
    made = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console.print(made)
