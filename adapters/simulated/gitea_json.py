"""JSON as Go writes it."""

import json
from typing import Any


def go_json(value: Any, *, indent: bool) -> str:  # noqa: ANN401 - any JSON value
    """JSON as Go writes it: ``< > &`` and the Unicode line separators are escaped."""
    text = json.dumps(
        value, ensure_ascii=False, indent=2 if indent else None, separators=None if indent else (",", ":")
    )
    for sign, escape in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, escape)
    return text
