"""Replays what was recorded from real Gitea servers against the stand-in, and compares answers and deliveries.

A ``Story`` knows the recorded requests and deliveries of one version. It sends them under this world's names and
numbers, and compares status, headers, the order of keys, types, and every value that is no id, time, hash, address
of an avatar, or counter that Gitea refreshes at its own time (size, watchers, open issues, branches).
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import httpx

from adapters.simulated.gitea import SimulatedGitea

EVIDENCE = Path(__file__).parents[1] / "evidence" / "gitea-real"
NOWHERE = "http://127.0.0.1:9"
SECRET = "turnkeeper-evidence-secret"
MOVING = {
    "id",
    "number",
    "repo_id",
    "pull_request_review_id",
    "created",
    "created_at",
    "updated_at",
    "submitted_at",
    "closed_at",
    "merged_at",
    "archived_at",
    "avatar_url",
    "size",
    "watchers_count",
    "branch_count",
    "open_issues_count",
    "open_pr_counter",
}
COUNTS = {"comments", "review_comments", "forks_count", "content_version"}
TITLES = ("Content-Type", "X-Total-Count", "Location")


class Recording:
    """The files of one version."""

    def __init__(self, version: str) -> None:
        folder = EVIDENCE / version
        self.folder = folder
        self.rest = [json.loads(line) for line in (folder / "rest.jsonl").read_text().strip().split("\n")]
        rows = [line.strip().rstrip(",") for line in (folder / "index.json").read_text().strip().split("\n")]
        self.index = [json.loads(row) for row in rows if row.startswith("{")]
        version_answer = self.rest[1]["answer"]["html_url"]
        self.base = version_answer.rsplit("/", 1)[0]

    def deliveries(self, step: str) -> list[dict[str, Any]]:
        """Entries of the index for one step; raises if the step is unknown."""
        found = [entry for entry in self.index if entry["step"] == step]
        assert found, f"no such step: {step}"
        return [entry for entry in found if entry["file"] and not entry["file"].startswith("(")]

    def payload(self, step: str, action: str | None = None) -> dict[str, Any]:
        """The payload that hook ``main`` got in a step."""
        entries = [e for e in self.deliveries(step) if e["hook"] == "main" and action in (None, e["action"])]
        loaded: dict[str, Any] = json.loads((self.folder / "deliveries" / entries[-1]["file"]).read_text())
        return loaded


class Story:
    """One run: the stand-in, the recording, names, and what became of recorded numbers."""

    def __init__(
        self, sim: SimulatedGitea, recording: Recording, *, names: Mapping[str, str], same_order: bool
    ) -> None:
        self.sim = sim
        self.recording = recording
        self.names = dict(names)
        self.same_order = same_order
        self.tokens: dict[str, str] = {}
        self.numbers: dict[int, int] = {}
        self.ids: dict[tuple[str, int], int] = {}
        self.first_comment_at = ""
        self.seen = 0
        self.compared: list[str] = []
        self.checked_deliveries = 0
        self._used: set[int] = set()
        self.http = httpx.AsyncClient(base_url=sim.url, trust_env=False)

    # Names and numbers

    def name(self, text: str) -> str:
        """A recorded text under this world's names."""
        for old, new in self.names.items():
            text = re.sub(rf"(?i)(?<![a-z]){re.escape(old)}(?![a-z])", _keep_case(new), text)
        return text

    def path(self, path: str) -> str:
        """A recorded path with this world's names, numbers and ids."""

        def number(match: re.Match[str]) -> str:
            old = int(match[2])
            return f"/{match[1]}/{self.numbers.get(old, old)}"

        def thing(kind: str, path: str, pattern: str) -> str:
            return re.sub(pattern, lambda m: m[1] + str(self.ids.get((kind, int(m[2])), m[2])), path)

        path = re.sub(r"/(issues|pulls)/(\d+)", number, path)
        path = thing("comment", path, r"(/comments/)(\d+)")
        path = thing("review", path, r"(/reviews/)(\d+)")
        path = thing("hook", path, r"(/hooks/)(\d+)")
        path = thing("repo", path, r"(/repositories/)(\d+)")
        path = re.sub(r"since=2026[^&]*", f"since={quote(self.first_comment_at)}", path)
        return self.name(path)

    def renamed(self, value: Any) -> Any:
        """A recorded JSON value under this world's names."""
        if isinstance(value, dict):
            return {key: self.renamed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.renamed(item) for item in value]
        return self.name(value) if isinstance(value, str) else value

    # Acting

    async def call(self, actor: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
        """A request of this world (an act that the recording holds only as deliveries)."""
        token = self.tokens.get(actor, actor) if actor else None
        headers = {"Authorization": f"token {token}"} if token else {}
        answer = await self.http.request(method, path, json=body, headers=headers)
        assert answer.status_code != 501, answer.text
        return answer

    async def rest(self, note: str, actor: str | None) -> httpx.Response:
        """Send the next recorded request of that note and compare the answer."""
        index = next(
            i for i, line in enumerate(self.recording.rest) if line["note"] == note and i not in self._used
        )
        self._used.add(index)
        line = self.recording.rest[index]
        request = line["request"]
        body = self.renamed(request.get("body"))
        if isinstance(body, dict) and "config" in body:
            body["config"]["url"] = request["body"]["config"]["url"].replace(
                "http://127.0.0.1:3199", "RECEIVER"
            )
            body["config"]["url"] = body["config"]["url"].replace("http://127.0.0.1:3198", "RECEIVER")
            body["config"]["url"] = body["config"]["url"].replace("RECEIVER", NOWHERE)
        answer = await self.call(actor, request["method"], self.path(request["path"]), body)
        self.compare(note, line, answer)
        self.compared.append(note)
        return answer

    async def comment(self, step: str) -> None:
        """Write the comment whose ``created`` delivery was recorded in a step."""
        real = self.recording.payload(step, "created")
        where = f"/api/v1/repos/{real['repository']['full_name']}/issues/{real['issue']['number']}/comments"
        answer = await self.call(
            real["sender"]["login"], "POST", self.path(where), {"body": self.name(real["comment"]["body"])}
        )
        assert answer.status_code == 201, answer.text
        self.ids["comment", real["comment"]["id"]] = answer.json()["id"]

    async def edit(self, step: str) -> None:
        """Make the edit of a comment whose delivery was recorded in a step."""
        real = self.recording.payload(step, "edited")
        where = f"/api/v1/repos/{real['repository']['full_name']}/issues/comments/{real['comment']['id']}"
        answer = await self.call(
            real["sender"]["login"], "PATCH", self.path(where), {"body": self.name(real["comment"]["body"])}
        )
        assert answer.status_code == 200, answer.text

    async def change_issue(self, step: str, **change: str) -> None:
        """Change an issue as the sender of a recorded step did."""
        real = self.recording.payload(step)
        where = f"/api/v1/repos/{real['repository']['full_name']}/issues/{real['number']}"
        answer = await self.call(real["sender"]["login"], "PATCH", self.path(where), change)
        assert answer.status_code == 201, answer.text

    # Comparing

    def compare(self, note: str, line: Mapping[str, Any], answer: httpx.Response) -> None:
        """Status, headers, and the answer."""
        assert answer.status_code == line["status"], (note, answer.status_code, answer.text)
        for title in TITLES:
            if title in line["headers"]:
                wanted = self.path(line["headers"][title])
                mine = answer.headers[title]
                if title == "Content-Type":
                    assert mine.replace(" ", "") == wanted.replace(" ", ""), note
                elif title != "X-Total-Count" or self.same_order:
                    assert mine == wanted, (note, title)
        real = line["answer"]
        if real is None:
            assert answer.content == b"", (note, answer.text)
        elif isinstance(real, dict) and "_raw" in real:
            assert answer.text == self.path(real["_raw"]), note
        elif "count" in line:
            self._compare_short_list(note, line, answer)
        else:
            value = answer.json()
            self._learn(line["request"], real, value)
            found = differences(self.flat(value, mine=True), self.flat(real, mine=False))
            assert not found, (note, found)

    def _compare_short_list(self, note: str, line: Mapping[str, Any], answer: httpx.Response) -> None:
        mine = answer.json()
        if "/issues/comments" in line["request"]["path"] and not self.same_order:
            # In another order the pull requests' comments are there too: only the paging can be compared.
            whole = line["count"] == int(line["headers"]["X-Total-Count"])
            assert len(mine) == (int(answer.headers["X-Total-Count"]) if whole else line["count"]), note
            return
        assert len(mine) == line["count"], note
        short = [(c["user"]["login"], c["body"]) for c in mine]
        for (login, body), real in zip(short, line["answer"], strict=False):
            assert login == self.name(real["user"]), note
            assert body.startswith(self.name(real["body"])[:60].rstrip("…")), note

    def _learn(self, request: Mapping[str, Any], real: Any, mine: Any) -> None:
        if request["method"] != "POST" or not isinstance(real, dict) or "id" not in real or "id" not in mine:
            return
        path = request["path"].split("?")[0]
        kinds = {"comments": "comment", "reviews": "review", "hooks": "hook"}
        kind = kinds.get(path.rsplit("/", 1)[-1])
        if kind:
            self.ids[kind, real["id"]] = mine["id"]
        if "number" in real:
            self.numbers[real["number"]] = mine["number"]
        if kind == "comment" and not self.first_comment_at:
            self.first_comment_at = mine["created_at"]

    def flat(self, value: Any, place: str = "", *, mine: bool) -> list[tuple[str, str, Any]]:
        """Path, type and comparable value of every leaf, in the order of the keys."""
        if isinstance(value, dict):
            found = [leaf for k, v in value.items() for leaf in self.flat(v, f"{place}.{k}", mine=mine)]
            return found or [(place, "{}", None)]
        if isinstance(value, list):
            if place.endswith(".events"):
                value = sorted(value)
            return [leaf for item in value for leaf in self.flat(item, f"{place}[]", mine=mine)] or [
                (place, "[]", None)
            ]
        key = place.rsplit(".", 1)[-1].removesuffix("[]")
        if key in MOVING or (key in COUNTS and not self.same_order):
            return [(place, type(value).__name__, None)]
        return [(place, type(value).__name__, self._comparable(key, value, mine=mine))]

    def _comparable(self, key: str, value: Any, *, mine: bool) -> Any:
        if key == "review_id":
            return bool(value)
        if not isinstance(value, str):
            return value
        text = value if mine else self.name(value)
        text = text.replace(self.sim.url if mine else self.recording.base, "BASE")
        text = re.sub(r"http://127\.0\.0\.1:(319[89]|9)\b", "BASE", text)
        text = re.sub(r"\b[0-9a-f]{40}\b", "SHA", text)
        if len(text) > 1500 or re.search(r"…\(\+\d+ characters\)$", text):
            text = text[:250] + "…"
        if key == "email":
            return re.sub(r"^\d+\+", "#+", text)
        if key.endswith("url") or key in ("message", "errors", "ref", "label"):
            return re.sub(r"\d+", "#", text)
        return text

    async def delivered(self, step: str, *, ignore: tuple[str, ...] = ()) -> None:
        """Compare what was delivered since the last step with the recorded deliveries of this one.

        ``ignore`` names keys whose values differ because Gitea does something a moment later.
        """
        await self.sim.hooks.idle()
        fresh, self.seen = self.sim.hooks.log[self.seen :], len(self.sim.hooks.log)
        hooks = {mine: real for (kind, real), mine in self.ids.items() if kind == "hook"}
        names = {1: "all", 2: "form", 3: "nosecret", 4: "main", 5: "org"}
        mine = [(names[hooks[d.hook_id]], d) for d in fresh]
        real = self.recording.deliveries(step)
        if not real:
            assert [d.event_type for name, d in mine if name == "main"] == [], step
            return
        for entry in real:
            at = next(
                (
                    i
                    for i, (name, d) in enumerate(mine)
                    if (name, d.event, d.event_type, d.action)
                    == (entry["hook"], entry["event"], entry["event_type"], entry["action"])
                ),
                None,
            )
            assert at is not None, (step, entry, [(n, d.event_type, d.action) for n, d in mine])
            _, delivery = mine.pop(at)
            self._compare_delivery(step, entry["file"], delivery.headers, delivery.body, ignore)
        assert [(d.event_type, d.action) for name, d in mine if name == "main"] == [], step

    def _compare_delivery(
        self, step: str, file: str, headers: dict[str, str], body: bytes, ignore: tuple[str, ...]
    ) -> None:
        folder = self.recording.folder / "deliveries"
        raw = (folder / file).read_bytes()
        real_headers = json.loads((folder / (file.rsplit(".", 1)[0] + ".headers.json")).read_text())
        added_by_client = {"Host", "Content-Length"}
        assert set(headers) == set(real_headers) - added_by_client, step
        for title, value in real_headers.items():
            if title in added_by_client or title.endswith("-Delivery"):
                continue
            if "Signature" in title:
                assert [len(part) for part in headers[title].split("=")] == [
                    len(part) for part in value.split("=")
                ], (step, title)
            else:
                assert headers[title] == value, (step, title)
        if file.endswith(".form"):
            raw = parse_qs(raw.decode())["payload"][0].encode()
            body = parse_qs(body.decode())["payload"][0].encode()
        mine, real = json.loads(body), json.loads(raw)
        if file.split(".")[-2] != "form":
            self._learn_from_payload(real, mine)
        drop = set(ignore)
        ours = [leaf for leaf in self.flat(mine, mine=True) if not drop & set(leaf[0].split("."))]
        theirs = [leaf for leaf in self.flat(real, mine=False) if not drop & set(leaf[0].split("."))]
        found = differences(ours, theirs)
        assert not found, (step, found)
        self.checked_deliveries += 1

    def _learn_from_payload(self, real: dict[str, Any], mine: dict[str, Any]) -> None:
        if "comment" in real:
            self.ids["comment", real["comment"]["id"]] = mine["comment"]["id"]


def differences(mine: list[Any], real: list[Any]) -> list[Any]:
    """Leaves that only one side has, then those in another place: first ours, then the recorded ones."""
    lacking = [("recorded", leaf) for leaf in real if leaf not in mine]
    extra = [("ours", leaf) for leaf in mine if leaf not in real]
    if lacking or extra or mine == real:
        return extra + lacking
    return [pair for pair in zip(mine, real, strict=False) if pair[0] != pair[1]][:1]


def _keep_case(new: str) -> Any:
    return lambda match: new.upper() if match[0].isupper() else new
