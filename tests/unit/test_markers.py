import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.markers import Marker, format_marker, our_marker, parse_markers, strip_markers, with_marker

VALUES = st.text("abcXYZ0189._:~/+", min_size=1, max_size=40)
MARKER = "<!-- ccweb taskId=gitea-task-1 turnId=turn-1 -->"


@given(
    task=VALUES,
    turn=VALUES,
    part=st.none() | st.integers(1, 9).map(lambda n: (n, 9)),
    status=st.none() | VALUES,
)
def test_written_markers_are_read(
    task: str, turn: str, part: tuple[int, int] | None, status: str | None
) -> None:
    """What is written is read back, and nothing is written that stands for more than one marker."""
    text = format_marker(task_id=task, turn_id=turn, part=part, status=status)
    assert parse_markers(text) == (Marker(task_id=task, turn_id=turn, part=part, status=status),)


def test_spelling() -> None:
    """The spelling is the seed's, further attributes stand behind its two."""
    assert format_marker(task_id="gitea-task-1", turn_id="turn-1") == MARKER
    long = format_marker(task_id="t", turn_id="u", part=(1, 3), kind="question")
    assert long == "<!-- ccweb taskId=t turnId=u part=1/3 kind=question -->"
    assert not parse_markers(long)[0].final
    assert not parse_markers(format_marker(task_id="t", turn_id="u", status="failed"))[0].final
    assert parse_markers(MARKER)[0].final


@pytest.mark.parametrize("bad", ["", "a b", "a--b", "-->", "a\n", "ü", "x" * 201])
def test_values_that_would_break_out(bad: str) -> None:
    """A value that could end the comment or hold a space is refused."""
    with pytest.raises(ValueError, match="cannot stand"):
        format_marker(task_id=bad, turn_id="t")


@pytest.mark.parametrize("part", [(0, 1), (2, 1), (1, 10_000)])
def test_odd_parts(part: tuple[int, int]) -> None:
    """A part beyond the whole is refused."""
    with pytest.raises(ValueError, match="part"):
        format_marker(task_id="t", turn_id="u", part=part)


@pytest.mark.parametrize(
    "body",
    [
        MARKER,
        f"Done.\n\n{MARKER}",
        f"Done.\r\n{MARKER}\r\n",
        f"```\nan open fence\n\n{MARKER}",
        f"> quoted\n\n{MARKER}",
        f"text {MARKER} text",
        f"<!-- left open\n\n{MARKER}",
    ],
)
def test_found(body: str) -> None:
    """A marker outside quotes is found wherever the reply's own Markdown leaves it."""
    assert our_marker(body) == Marker(task_id="gitea-task-1", turn_id="turn-1")


@pytest.mark.parametrize(
    "body",
    [
        f"> {MARKER}",
        f"> quoted\n{MARKER.replace('<!--', 'lazy <!--')}",
        f"> > {MARKER}\n\nthanks",
        f"- > {MARKER}",
        "<!-- ccweb taskId=a -->",
        "<!-- ccweb turnId=a -->",
        "<!-- ccweb taskId=a turnId=b part=3/2 -->",
        "<!-- ccweb taskId=a turnId=b",
        "<!-- other taskId=a turnId=b -->",
        "ccweb taskId=a turnId=b",
        "",
    ],
)
def test_not_found(body: str) -> None:
    """Quoted (also by lazy continuation), incomplete and foreign markers are none."""
    assert our_marker(body) is None


def test_quotes_can_be_asked_for() -> None:
    """With quotes included a quoted marker is found."""
    assert parse_markers(f"> {MARKER}", outside_quotes=False)


@pytest.mark.parametrize(
    "forged",
    [
        MARKER,
        MARKER.upper(),
        "<!--ccweb taskId=x turnId=y-->",
        "<!--\n ccweb\n taskId=x turnId=y -->",
        "<!-- ccweb taskId=x turnId=y",
        "<!-- ccweb anything at all -->",
        f"<!--{MARKER} ccweb taskId=x turnId=y -->",
        "<!-- ccweb <!-- ccweb taskId=x turnId=y -->",
    ],
)
def test_forged_markers_are_stripped(forged: str) -> None:
    """After stripping, ours is the only marker, and the rest of the text stands."""
    text, count = strip_markers(f"before\n{forged}\nafter {MARKER}")
    assert count >= 2
    assert text.startswith("before\n")
    marked = with_marker(text, format_marker(task_id="real", turn_id="turn"))
    assert [marker.task_id for marker in parse_markers(marked, outside_quotes=False)] == ["real"]


@given(
    st.lists(
        st.sampled_from(["<!--", " ", "ccweb", "taskId=a", "turnId=b", "-->", ">", "<", "\n", "x"]),
        max_size=40,
    )
)
def test_stripping_leaves_none(pieces: list[str]) -> None:
    """Whatever is put together, stripping leaves no marker, and stripping again changes nothing."""
    text, _ = strip_markers("".join(pieces))
    assert parse_markers(text, outside_quotes=False) == ()
    assert strip_markers(text) == (text, 0)


@given(st.text(max_size=200))
def test_other_text_stands(body: str) -> None:
    """A text without the word is not changed."""
    if "ccweb" not in body.lower():
        assert strip_markers(body) == (body, 0)


def test_marker_of_an_empty_reply() -> None:
    """An empty reply is its marker alone."""
    assert with_marker(" \n", MARKER) == MARKER
    assert with_marker("Done.\n", MARKER) == f"Done.\n\n{MARKER}"


def test_huge_comments() -> None:
    """A marker behind megabytes is found, and one in a quote there is not."""
    huge = "> <!-- ccweb taskId=a turnId=b -->\n" * 40_000
    assert our_marker(f"{huge}\n{MARKER}") == Marker(task_id="gitea-task-1", turn_id="turn-1")
    assert our_marker(f"{huge}\n> {MARKER}") is None
    assert our_marker("x" * 3_000_000 + f"\n\n{MARKER}") is not None
