from hypothesis import given
from hypothesis import strategies as st

from domain.markers import our_marker
from services.bridge_text import Redactor, marked, split_body

LINES = st.lists(
    st.sampled_from(
        ["", "text", "```", "~~~~", "````python", "a longer line of words " * 4, "x" * 90, "> q"]
    ),
    max_size=40,
).map("\n".join)


@given(body=LINES | st.text(max_size=2000), limit=st.integers(40, 400))
def test_split_loses_nothing_and_keeps_the_limit(body: str, limit: int) -> None:
    """Parts are within the limit, none is blank unless the text is, and every sign but blanks is in them."""
    parts = split_body(body, limit)
    assert all(len(part) <= limit for part in parts) or len(body) <= limit
    assert all(part.strip() for part in parts) or not body.strip()

    def bare(text: str) -> str:
        return "".join(sign for sign in text if not sign.isspace() and sign not in "`~")

    assert bare("".join(parts)) == bare(body)


@given(body=LINES)
def test_marker_stands_outside_open_code(body: str) -> None:
    """A code block that a text leaves open is closed before the marker, which is read back."""
    whole = marked(body, "<!-- ccweb taskId=t turnId=u -->")
    found = our_marker(whole)
    assert found is not None
    assert found.task_id == "t"
    fences = 0
    opened = ""
    for line in whole.split("\n")[:-1]:
        if not opened and line[:3] in {"```", "~~~"}:
            opened, fences = line.rstrip("python"), fences + 1
        elif opened and line.strip() and set(line) == {opened[0]} and len(line) >= len(opened):
            opened = ""
    assert not opened


def test_a_cut_code_block_goes_on_as_one() -> None:
    """A code block across two parts is closed in the first and opened again in the second."""
    parts = split_body("```\n" + "\n".join(f"line {n}" for n in range(40)) + "\n```", 120)
    assert len(parts) > 1
    assert all(part.startswith("```\n") and part.endswith("\n```") for part in parts)


def test_redaction_knows_further_forms() -> None:
    """Secrets are found percent-encoded, in base64 contents, nested, and where one holds another."""
    redactor = Redactor(["s3cret/long", "s3cret", "no", ""])
    assert redactor.text("s3cret/long s3cret s3cret%2Flong no") == "[redacted] [redacted] [redacted] no"
    # base64 of "key=s3cret" and of "nothing"
    clean = redactor.arguments(
        {
            "content_base64": "a2V5PXMzY3JldA==",
            "comments": [{"body": "s3cret <!-- ccweb taskId=a turnId=b -->"}],
            "index": 7,
        }
    )
    assert clean == {
        "content_base64": "a2V5PVtyZWRhY3RlZF0=",
        "comments": [{"body": "[redacted] "}],
        "index": 7,
    }
    assert redactor.arguments({"content_base64": "bm90aGluZw==", "content": "<!-- ccweb -->"}) == {
        "content_base64": "bm90aGluZw==",
        "content": "<!-- ccweb -->",
    }
    assert Redactor([]).text("anything") == "anything"
