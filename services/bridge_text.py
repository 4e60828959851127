"""What becomes of the agent's texts before they leave: redacted, without forged markers, bounded, marked. Pure."""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from domain.markers import strip_markers, with_marker

REDACTED = "[redacted]"
# A code block that is cut is closed by its own sign, if that is not longer than this.
FENCE_ROOM = 16
SHORTEST_SECRET = 4
# Texts that people read in Gitea, where a marker could be taken for ours; file contents stay as they are.
SPOKEN = frozenset({"body", "title", "message", "description"})
ENCODED = frozenset({"content_base64"})

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_MARKER = re.compile(r"<!--[^\S\n]*ccweb\b[^\n<]*?-->", re.IGNORECASE)


class Redactor:
    """Replaces known secrets, plain and percent-encoded, by ``[redacted]``. Very short ones are not looked for."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        forms = known | {quote(secret, safe="") for secret in known}
        # The longest first: a secret may hold another.
        self._pattern = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
        self._empty = not forms

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        return text if self._empty else self._pattern.sub(REDACTED, text)

    def arguments(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Arguments of a write: secrets redacted everywhere, markers taken out of what people read."""
        return {key: self._value(key, value) for key, value in arguments.items()}

    def _value(self, key: str, value: object) -> object:
        if isinstance(value, str):
            clean = self._decoded(value) if key in ENCODED else self.text(value)
            return strip_markers(clean)[0] if key in SPOKEN else clean
        if isinstance(value, Mapping):
            return {str(name): self._value(str(name), inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(key, inner) for inner in value]
        return value

    def _decoded(self, value: str) -> str:
        try:
            plain = base64.b64decode(value, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return self.text(value)
        clean = self.text(plain)
        return value if clean == plain else base64.b64encode(clean.encode()).decode()


def markers_in(body: str) -> tuple[str, ...]:
    """The markers in a text, as they stand."""
    return tuple(found[0] for found in _MARKER.finditer(body))


def marked(text: str, *markers: str) -> str:
    """``text`` with markers at its end, outside a code block that the text left open."""
    fence = _open_fence(text.split("\n"))
    body = text if fence is None else f"{text.rstrip()}\n{fence}"
    for marker in markers:
        body = with_marker(body, marker)
    return body


def split_body(body: str, limit: int) -> list[str]:
    """Parts of at most ``limit`` characters, cut at empty lines or lines where possible.

    A code block that is cut is closed in the one part and opened again in the next.
    """
    parts: list[str] = []
    rest = body
    while len(rest) > limit:
        cut = _cut(rest, max(limit - FENCE_ROOM, 1))
        head, rest = rest[:cut], rest[cut:]
        fence = _open_fence(head.split("\n"))
        if fence is not None and len(fence) < FENCE_ROOM and cut > FENCE_ROOM:
            head = f"{head.rstrip()}\n{fence}"
            rest = f"{fence}\n{rest.removeprefix(chr(10))}"
        parts.append(head.strip("\n"))
    return [part for part in [*parts, rest.strip("\n")] if part.strip()] or [body]


def body_hash(body: str) -> str:
    """``sha256:…`` of a text."""
    return "sha256:" + hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()


def canonical(value: object) -> str:
    """One spelling of a JSON value, for comparing and hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _cut(text: str, limit: int) -> int:
    for sign in ("\n\n", "\n", " "):
        at = text.rfind(sign, limit // 2, limit)
        if at > 0:
            return at
    return limit


def _open_fence(lines: Sequence[str]) -> str | None:
    opened: str | None = None
    for line in lines:
        found = _FENCE.match(line)
        if found is None:
            continue
        sign, after = found[1], found[2]
        if opened is None:
            if not (sign[0] == "`" and "`" in after):
                opened = sign
        elif sign[0] == opened[0] and len(sign) >= len(opened) and not after.strip():
            opened = None
    return opened
