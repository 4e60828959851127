"""Deliveries as recorded from Gitea and Forgejo, verified and normalised."""

import dataclasses
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from adapters.gitea.webhook import derived_secret, header_delivery_id, normalise, payload_hash, verify
from domain.faults import Fault, Invalid, Unauthorised, UnsupportedType
from domain.webhooks import Delivery, from_fields, to_fields, utc

EVIDENCE = Path(__file__).parents[1] / "evidence"
SECRETS = {
    "gitea": (EVIDENCE / "gitea" / "SECRET.txt").read_text().strip(),
    "real": "turnkeeper-evidence-secret",
}
UNSIGNED = ("16_issue_comment_no_secret", "nosecret")

SHAPES = {
    ("issue_comment", "created"): "comment_created",
    ("issue_comment", "edited"): "comment_edited",
    ("issue_comment", "deleted"): "comment_deleted",
    ("issues", "opened"): "issue_opened",
    ("issues", "edited"): "issue_edited",
    ("issues", "deleted"): "issue_deleted",
    ("issues", "closed"): "closed",
    ("issues", "reopened"): "reopened",
    ("pull_request", "opened"): "pull_opened",
    ("pull_request", "edited"): "pull_edited",
    ("pull_request", "closed"): "closed",
    ("pull_request_comment", "reviewed"): "review_submitted",
    ("pull_request_approved", "reviewed"): "review_submitted",
    ("pull_request_rejected", "reviewed"): "review_submitted",
}


@dataclasses.dataclass(frozen=True)
class Recording:
    """One recorded request and the secret of its hook."""

    name: str
    raw: bytes
    headers: dict[str, str]
    secret: str

    @property
    def payload(self) -> bytes:
        """The verified payload."""
        return verify(self.raw, self.headers["Content-Type"], self.headers, [self.secret])

    @property
    def delivery(self) -> Delivery:
        """The normalised delivery."""
        return normalise(self.payload, self.headers)


def _recordings() -> list[Recording]:
    found = []
    for path in sorted(EVIDENCE.glob("gitea*/**/*.headers.json")):
        stem = path.name.removesuffix(".headers.json")
        body = next(
            file for file in (path.with_name(f"{stem}.json"), path.with_name(f"{stem}.form")) if file.exists()
        )
        real = "gitea-real" in path.parts
        name = f"{path.parts[-3]}-{stem}" if real else stem
        secret = SECRETS["real" if real else "gitea"]
        found.append(Recording(name, body.read_bytes(), json.loads(path.read_text()), secret))
    return found


ALL = _recordings()
SIGNED = [one for one in ALL if not one.name.endswith(UNSIGNED)]
by_name = {one.name: one for one in ALL}


def _signed(data: Any, secret: str = "s") -> tuple[bytes, dict[str, str]]:  # noqa: S107 - made up
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    signature = hmac.new(secret.encode(), raw, "sha256").hexdigest()
    return raw, {"X-Gitea-Signature": signature, "X-Gitea-Delivery": "8f7e"}


def _sample(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(by_name[name].raw)
    return loaded


def test_recordings_are_there() -> None:
    """The tables below run over all recorded deliveries, not over an empty folder."""
    assert len(ALL) > 140
    assert len(ALL) - len(SIGNED) == 5


@pytest.mark.parametrize("recording", SIGNED, ids=lambda one: one.name)
def test_recorded_delivery(recording: Recording) -> None:
    """Every signed recording verifies, and says what its own JSON says."""
    payload = recording.payload
    delivery = normalise(payload, recording.headers)
    data = json.loads(payload)
    event = recording.headers["X-Gitea-Event"]
    assert delivery.shape == SHAPES[event, data["action"]]
    assert delivery.event == event
    assert delivery.event_type == recording.headers["X-Gitea-Event-Type"]
    assert delivery.delivery_id == recording.headers["X-Gitea-Delivery"]
    assert delivery.payload_hash == "sha256:" + hashlib.sha256(payload).hexdigest()
    assert delivery.sender is not None
    assert (delivery.sender.id, delivery.sender.login) == (data["sender"]["id"], data["sender"]["login"])
    assert delivery.repository is not None
    assert delivery.repository.full_name == data["repository"]["full_name"]
    assert f"{delivery.repository.owner}/{delivery.repository.name}" == data["repository"]["full_name"]
    assert delivery.repository.id == data["repository"]["id"]
    assert delivery.permissions is not None
    assert dataclasses.asdict(delivery.permissions) == data["repository"]["permissions"]
    thing = data.get("issue") or data["pull_request"]
    assert delivery.resource is not None
    assert delivery.resource.number == thing["number"]
    pull = event.startswith("pull") or recording.headers["X-Gitea-Event-Type"].startswith("pull")
    assert delivery.resource.kind == ("pull_request" if pull else "issue")
    assert delivery.is_pull is pull
    assert (delivery.refs is not None) == isinstance(data.get("pull_request"), dict)
    if "comment" in data:
        assert delivery.part is not None
        assert (delivery.part.kind, delivery.part.id) == ("comment", data["comment"]["id"])
        assert delivery.part.body == data["comment"]["body"]
        assert delivery.part.author.id == data["comment"]["user"]["id"]
    elif delivery.shape == "review_submitted":
        assert delivery.part is not None
        assert (delivery.part.kind, delivery.part.id) == ("review", None)
        assert delivery.part.body == data["review"]["content"]
        assert delivery.part.author == delivery.sender
    elif delivery.shape in {"closed", "reopened"}:
        assert delivery.part is None
    else:
        assert delivery.part is not None
        assert (delivery.part.kind, delivery.part.id) == (delivery.resource.kind, thing["number"])
        assert delivery.part.body == thing["body"]
    assert delivery.changed_from == ((data.get("changes") or {}).get("body") or {}).get("from")
    assert from_fields(Delivery, json.loads(json.dumps(to_fields(delivery)))) == delivery


@pytest.mark.parametrize("recording", [one for one in ALL if one not in SIGNED], ids=lambda one: one.name)
def test_unsigned_recording(recording: Recording) -> None:
    """A delivery of a hook without a secret comes with empty signatures and is refused."""
    with pytest.raises(Unauthorised) as caught:
        _ = recording.payload
    assert caught.value.code == "invalid_signature"


def test_whose_rights_are_stated() -> None:
    """Permissions are the sender's in comments and at opening, the poster's in edited bodies, nobody's in reviews."""
    stated = {
        one.delivery.shape: one.delivery.states_sender_rights
        for one in SIGNED
        if one.name.startswith("1.27.0")
    }
    assert stated == {
        "comment_created": True,
        "comment_edited": True,
        "comment_deleted": True,
        "issue_opened": True,
        "pull_opened": True,
        "issue_edited": True,
        "issue_deleted": False,
        "review_submitted": False,
        "closed": False,
        "reopened": False,
    }
    edited = next(one.delivery for one in SIGNED if one.delivery.shape == "issue_edited")
    assert edited.sender is not None
    other = dataclasses.replace(edited, sender=dataclasses.replace(edited.sender, id=99))
    assert not other.states_sender_rights


def test_refs_of_pull_requests() -> None:
    """A branch, a branch that is gone and a fork that is gone are told apart."""
    there = by_name["02_pr_comment_created_fork"].delivery.refs
    assert there is not None
    assert there.head_repo_id is not None
    assert not there.same_repository
    gone = by_name["12_pr_comment_head_branch_deleted"].delivery.refs
    assert gone is not None
    assert gone.head.startswith("refs/pull/")
    fork = by_name["13_pr_comment_fork_repo_deleted"].delivery.refs
    assert fork is not None
    assert fork.head_repo_id is None
    assert by_name["03_pr_comment_created_gitea_1_22"].delivery.refs is None
    assert by_name["03_pr_comment_created_gitea_1_22"].delivery.is_pull


def test_signature_vector() -> None:
    """The vector that the specification gives for signatures holds."""
    wanted = "a5eb405e8c77390f0d8c8c780c039f0907ca1df80c9df48e36999706f1979c8b"
    raw = b'{"action":"created"}'
    assert verify(raw, "application/json", {"X-Gitea-Signature": wanted}, ["gitea-secret"]) == raw


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Gitea-Signature": ""},
        {"X-Gitea-Signature": "00" * 32},
        {"X-Gitea-Signature": "é" * 64},
        {"X-Gitea-Signature": "GOOD"},
        {"X-Gitea-Signature": "sha256=good"},
        {"X-Hub-Signature-256": "sha256=good", "X-Gogs-Signature": "good"},
        {"X-Gitea-Signature": "", "X-Gogs-Signature": "good"},
    ],
    ids=repr,
)
def test_refused_signatures(headers: dict[str, str]) -> None:
    """Missing, empty, wrong, prefixed, upper-case and borrowed signatures are all the same 401."""
    raw = b"{}"
    good = hmac.new(b"s", raw, "sha256").hexdigest()
    given = {key: value.replace("good", good).replace("GOOD", good.upper()) for key, value in headers.items()}
    with pytest.raises(Unauthorised) as caught:
        verify(raw, "application/json", given, ["s"])
    assert (caught.value.code, caught.value.status) == ("invalid_signature", 401)
    assert good not in str(caught.value)


def test_two_secrets() -> None:
    """During a rotation either secret opens, a third or an empty one does not."""
    for secret in ("old", "new"):
        raw, headers = _signed(b"{}", secret)
        assert verify(raw, "application/json; charset=utf-8", headers, ["new", "old"]) == raw
    for secret, secrets in (("third", ["new", "old"]), ("", [""]), ("", []), ("", ["", "new"])):
        raw, headers = _signed(b"{}", secret)
        with pytest.raises(Unauthorised):
            verify(raw, "application/json", headers, secrets)


def test_any_flipped_byte_is_refused() -> None:
    """A body with one changed byte no longer has its signature."""
    one = by_name["01_issue_comment_created"]
    for at in range(0, len(one.raw), 97):
        raw = bytearray(one.raw)
        raw[at] ^= 1
        with pytest.raises(Unauthorised):
            verify(bytes(raw), "application/json", one.headers, [one.secret])


def test_form_payload() -> None:
    """The form's signature covers the decoded field: not the body; the field must stand there once."""
    payload = json.dumps({"a": "ü & + %"}).encode()
    _, headers = _signed(payload)
    form = b"x=1&payload=" + quote_plus(payload).encode()
    kind = "application/x-www-form-urlencoded"
    assert verify(form, kind, headers, ["s"]) == payload
    _, over_body = _signed(form)
    for raw, given in (
        (form, over_body),
        (form + b"&payload=%7B%7D", headers),
        (b"x=1", headers),
        (b"", headers),
    ):
        with pytest.raises(Unauthorised):
            verify(raw, kind, given, ["s"])


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data; boundary=x", "application/jsonx"])
def test_other_content_types(kind: str) -> None:
    """Other content types are 415 before anything is computed."""
    raw, headers = _signed(b"{}")
    with pytest.raises(UnsupportedType) as caught:
        verify(raw, kind, headers, ["s"])
    assert caught.value.status == 415


def test_derived_secret() -> None:
    """A repository's secret is stable, 64 hex digits, and differs by repository and by main secret."""
    one = derived_secret("s", 7)
    assert one == derived_secret("s", 7)
    assert len(bytes.fromhex(one)) == 32
    assert len({one, derived_secret("s", 8), derived_secret("t", 7), derived_secret("s", 77)}) == 4


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b'"x"', b"\xff", b"[" * 100_000, b'{"a":NaN}'])
def test_unreadable_payload(raw: bytes) -> None:
    """What is no JSON object is invalid_payload."""
    with pytest.raises(Invalid) as caught:
        normalise(raw, {"X-Gitea-Delivery": "x"})
    assert caught.value.code == "invalid_payload"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("comment.id", None),
        ("comment.id", "3001"),
        ("comment.id", True),
        ("comment.id", 0),
        ("comment.user", None),
        ("comment.body", 5),
        ("comment.created_at", ""),
        ("comment.created_at", "yesterday"),
        ("comment.created_at", "2026-11-03T09:15:30"),
        ("comment", None),
        ("comment", "text"),
        ("issue.number", None),
        ("repository", None),
        ("repository.id", -1),
        ("repository.owner", "acme"),
        ("repository.name", ""),
        ("repository.clone_url", None),
        ("sender", None),
        ("sender.id", 2**70),
    ],
)
def test_lacking_fields(path: str, value: object) -> None:
    """A comment without what every Gitea sends is invalid_payload, never a crash."""
    data = _sample("01_issue_comment_created")
    inner = data
    *parents, last = path.split(".")
    for name in parents:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(Invalid) as caught:
        normalise(json.dumps(data).encode(), {"X-Gitea-Delivery": "x", "X-Gitea-Event": "issue_comment"})
    assert caught.value.code == "invalid_payload"


def test_every_member_may_be_odd() -> None:
    """Whatever member is replaced by whatever JSON, reading gives a delivery or a Fault."""
    for name in (
        "02_pr_comment_created_fork",
        "04_pr_review_comment",
        "11_issue_opened",
        "08_issue_comment_edited",
    ):
        data = _sample(name)
        anything: tuple[Any, ...] = (None, 5, "x", [], {}, True, 1.5)
        for member in data:
            inner = list(data[member]) if isinstance(data[member], dict) else []
            for key in (None, *inner):
                for odd in anything:
                    changed = (
                        {**data, member: odd} if key is None else {**data, member: {**data[member], key: odd}}
                    )
                    try:
                        normalise(json.dumps(changed).encode(), {"X-Gitea-Delivery": "x"})
                    except Fault as fault:
                        assert fault.code == "invalid_payload"  # noqa: PT017 - either outcome is right


def test_missing_permissions() -> None:
    """A payload without permissions, or with odd ones, states no rights."""
    odds: tuple[Any, ...] = (None, {}, {"admin": 1, "push": 1, "pull": 1}, "all")
    for odd in odds:
        data = _sample("01_issue_comment_created")
        data["repository"]["permissions"] = odd
        delivery = normalise(json.dumps(data).encode(), {"X-Gitea-Delivery": "x"})
        assert delivery.permissions is None
        assert not delivery.states_sender_rights


@pytest.mark.parametrize(
    ("data", "event", "shape"),
    [
        ({"ref": "refs/heads/main", "commits": [], "repository": None}, "push", "push"),
        ({"ref": "refs/heads/main", "commits": []}, "", "push"),
        ({}, "push", "push"),
        ({"action": "published", "release": {}}, "release", "unknown"),
        ({"action": "created", "page": "Home", "comment": "text"}, "wiki", "unknown"),
        ({"action": "assigned", "issue": {"number": 1}}, "issues", "unknown"),
        ({"action": "synchronized", "pull_request": {"number": 1}}, "pull_request", "unknown"),
        ({"action": "unheard_of", "issue": {}, "comment": {}}, "issue_comment", "unknown"),
        ({}, "", "unknown"),
    ],
)
def test_other_events(data: dict[str, Any], event: str, shape: str) -> None:
    """Pushes (Gitea's test button) and unknown events are read without asking for any member."""
    delivery = normalise(json.dumps(data).encode(), {"X-Gitea-Delivery": "x", "X-Gitea-Event": event})
    assert delivery.shape == shape
    assert delivery.resource is None
    assert delivery.part is None


def test_headers_do_not_change_the_shape() -> None:
    """Unsigned headers can not turn a signed comment into something else."""
    one = by_name["01_issue_comment_created"]
    for event in ("push", "issues", "pull_request_comment", ""):
        delivery = normalise(one.raw, {"X-Gitea-Delivery": "x", "X-Gitea-Event": event})
        assert delivery.shape == "comment_created"


def test_delivery_ids_without_header() -> None:
    """Without the header a comment's, issue's or pull request's own id serves; else delivery_id_missing."""
    found = {}
    for name in (
        "01_issue_comment_created",
        "08_issue_comment_edited",
        "09_issue_comment_deleted",
        "11_issue_opened",
    ):
        found[name] = normalise(by_name[name].raw, {}).delivery_id
    assert found["01_issue_comment_created"] == "comment.3001.created"
    assert found["08_issue_comment_edited"].startswith("comment.3001.edited.")
    assert found["09_issue_comment_deleted"].endswith(".deleted")
    assert found["11_issue_opened"].startswith("issue.7.")
    assert normalise(by_name["18_replay_of_01_new_uuid"].raw, {}).delivery_id == "comment.3001.created"
    for raw in (by_name["04_pr_review_comment"].raw, b'{"ref":"x","commits":[]}', b"{}"):
        with pytest.raises(Invalid) as caught:
            normalise(raw, {"X-Gitea-Delivery": ""})
        assert caught.value.code == "delivery_id_missing"


def test_odd_delivery_ids() -> None:
    """A delivery id with odd characters or without end is refused; the header's case does not matter."""
    assert header_delivery_id({"x-gitea-delivery": " 8f7e "}) == "8f7e"
    assert header_delivery_id({"X-GITEA-DELIVERY": "8f7e"}) == "8f7e"
    assert header_delivery_id({}) is None
    for odd in ("a b", "a:b", "a/b", "x" * 101, "ü", "a\nb"):
        with pytest.raises(Invalid) as caught:
            header_delivery_id({"X-Gitea-Delivery": odd})
        assert caught.value.code == "delivery_id_invalid"


def test_forgejo_headers_alone() -> None:
    """Forgejo's own header names serve where Gitea's are absent, but never its signature."""
    one = by_name["17_issue_comment_created_forgejo"]
    headers = {key: value for key, value in one.headers.items() if key.startswith("X-Forgejo")}
    delivery = normalise(one.raw, headers)
    assert delivery.delivery_id == one.headers["X-Gitea-Delivery"]
    assert delivery.event_type == "issue_comment"
    with pytest.raises(Unauthorised):
        verify(one.raw, "application/json", headers, [one.secret])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-03T09:15:30Z", "2026-11-03T09:15:30Z"),
        ("2026-11-03T09:15:30+08:00", "2026-11-03T01:15:30Z"),
        ("2026-11-03T00:15:30-01:30", "2026-11-03T01:45:30Z"),
        ("0001-01-01T00:00:00Z", ""),
        ("", ""),
    ],
)
def test_times(text: str, wanted: str) -> None:
    """Times of any offset become UTC with Z; Go's zero time is none."""
    assert utc(text) == wanted


def test_payload_hash() -> None:
    """The hash is that of the payload's bytes, named by its algorithm."""
    assert payload_hash(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
