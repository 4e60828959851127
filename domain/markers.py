"""Our marker in a comment: ``<!-- ccweb taskId=… turnId=… -->`` (seed 000 §6.4), by which a reply is found again.

Further attributes come only behind these two: ``part=1/3``, ``kind=question``, ``status=<state>``. A marker proves
nothing by itself: who looks for one also compares the author's id and the resource.

Markers are looked for by their own spelling, not as HTML: a reply that leaves a code fence open must not hide the
marker behind it, else the reply would be taken for missing and written twice. Only block quotes are parsed away, for
a person who quotes our reply repeats its marker.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from domain.mentions import quoted_lines

MarkerKind = Literal["question"]

REACH = 128 * 1024
"""How many characters of a comment's end are searched: twice what one of our comments holds."""

_VALUE = r"[A-Za-z0-9._:~/+-]{1,200}"
_MARKER = re.compile(rf"<!--[ \t]*ccweb((?:[ \t]+[A-Za-z]{{1,20}}={_VALUE}){{1,8}})[ \t]*-->")
_ATTRIBUTE = re.compile(rf"([A-Za-z]{{1,20}})=({_VALUE})")
_FORGED = re.compile(r"<!--\s*ccweb\b[^<>]*(?:-->|>|(?=<)|\Z)", re.IGNORECASE)
_PART = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")
_FULL = re.compile(_VALUE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marker:
    """One marker. ``part`` is (number, of how many); ``kind`` and ``status`` None: a final reply."""

    task_id: str
    turn_id: str
    part: tuple[int, int] | None = None
    kind: str | None = None
    status: str | None = None

    @property
    def final(self) -> bool:
        """Whether it marks a final reply: receipts carry a status, questions a kind."""
        return self.kind is None and self.status is None


def format_marker(
    *,
    task_id: str,
    turn_id: str,
    part: tuple[int, int] | None = None,
    kind: MarkerKind | None = None,
    status: str | None = None,
) -> str:
    """The marker's text. Values are letters, digits and ``._:~/+-``, else ``ValueError``; so is an odd part."""
    attributes = {"taskId": task_id, "turnId": turn_id}
    if part is not None:
        number, of = part
        if not 1 <= number <= of <= 9999:
            raise ValueError("a part is one of as many as there are")
        attributes["part"] = f"{number}/{of}"
    if kind is not None:
        attributes["kind"] = kind
    if status is not None:
        attributes["status"] = status
    for name, value in attributes.items():
        if not _FULL.fullmatch(value) or "--" in value:
            raise ValueError(f"{name} cannot stand in a marker")
    return "<!-- ccweb " + " ".join(f"{name}={value}" for name, value in attributes.items()) + " -->"


def parse_markers(body: str, *, outside_quotes: bool = True) -> tuple[Marker, ...]:
    """All well-formed markers in ``body``, in order; those in block quotes only with ``outside_quotes`` false.

    Of a text longer than ``REACH`` the end is read, from a blank line on: that is where ours stands.
    """
    if "ccweb" not in body:
        return ()
    body = _end(body)
    found = list(_MARKER.finditer(body))
    if not found:
        return ()
    quoted = quoted_lines(body) if outside_quotes else frozenset()
    markers = []
    line = at = 0
    for match in found:
        line += body.count("\n", at, match.start())
        at = match.start()
        if line in quoted:
            continue
        marker = _read(dict(_ATTRIBUTE.findall(match[1])))
        if marker is not None:
            markers.append(marker)
    return tuple(markers)


def _end(body: str) -> str:
    if len(body) <= REACH:
        return body
    end = body[-REACH:].replace("\r\n", "\n")
    blank = end.find("\n\n")
    return end if blank < 0 else end[blank:]


def our_marker(body: str) -> Marker | None:
    """The last marker outside quotes: ours is appended behind whatever the text holds."""
    markers = parse_markers(body)
    return markers[-1] if markers else None


def strip_markers(body: str) -> tuple[str, int]:
    """``body`` without anything that looks like a marker, whatever its case or attributes, and how many there were.

    What is left holds no marker, also none that the removal would have put together.
    """
    text, count = _FORGED.subn("", body)
    if count:
        text, again = _FORGED.subn("\ufffd", text)
        count += again
    return text, count


def with_marker(body: str, marker: str) -> str:
    """``body`` and ``marker`` behind it, on a line of its own that no quote continues into."""
    return f"{body.rstrip()}\n\n{marker}" if body.strip() else marker


def _read(attributes: Mapping[str, str]) -> Marker | None:
    task, turn = attributes.get("taskId"), attributes.get("turnId")
    if task is None or turn is None:
        return None
    part = _PART.fullmatch(attributes.get("part", "1/1"))
    if part is None or int(part[1]) > int(part[2]):
        return None
    return Marker(
        task_id=task,
        turn_id=turn,
        part=(int(part[1]), int(part[2])) if "part" in attributes else None,
        kind=attributes.get("kind"),
        status=attributes.get("status"),
    )
