"""SQL lives in ``.sql`` files. Each statement of one stands under ``-- name: <name>`` and a line of purpose."""

import functools
import re
from collections.abc import Mapping
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


def parse(text: str) -> Mapping[str, bytes]:
    """Statements by name, without their comments, as psycopg takes them. ``ValueError`` for two of one name."""
    parts = _NAME.split(text)[1:]
    found: dict[str, bytes] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in found:
            raise ValueError(f"two statements are named {name}")
        found[name] = _COMMENT.sub("", body).strip().encode()
    return found


@functools.cache
def statements(file: str) -> Mapping[str, bytes]:
    """The statements of ``sql/<file>``."""
    return parse(resources.files(__package__).joinpath("sql", file).read_text(encoding="utf-8"))
