"""A gitea-mcp that answers from a recording: ``scripted_mcp.py RECORDING MODE -t stdio``.

Modes: ``ok``; ``exits`` at once; ``hangs`` for ever; ``foreign`` under another name; ``no-tools``; ``deaf`` answers
the handshake only; ``dies`` during the first call; ``wrong-token`` and ``no-server`` as recorded; ``garbage`` says
things that are no JSON in between; ``grandchild`` starts a program that holds its
pipes and the FIFO ``HELD``.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RECORDING = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
MODE = sys.argv[2]
if sys.argv[3:] != ["-t", "stdio"]:
    sys.exit("usage: -t stdio")


def recorded(note: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in RECORDING if entry["note"] == note)["answer"]
    return found


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(number: object, name: str, arguments: dict[str, Any]) -> None:
    if MODE == "dies":
        os._exit(3)
    if MODE in {"wrong-token", "no-server"}:
        case = "a wrong token" if MODE == "wrong-token" else "no server at that address"
        asked = "who am I" if name in {"get_me", "get_my_user_info"} else "comment"
        answer = recorded(f"{case}: {asked}")
        if answer.get("_closed"):
            os._exit(0)
    elif name in {"get_me", "get_my_user_info"}:
        answer = recorded("who am I")
    elif name == "environment":
        seen = {key: os.environ.get(key) for key in ("GITEA_HOST", "HOME")} | {"names": sorted(os.environ)}
        sys.stderr.write(f"the token is {os.environ['GITEA_ACCESS_TOKEN']}\n")
        sys.stderr.flush()
        answer = {"result": {"content": [{"type": "text", "text": json.dumps(seen)}]}}
    elif name == "fails":
        answer = {
            "error": {"code": -32603, "message": f"{arguments['text']} {os.environ['GITEA_ACCESS_TOKEN']}"}
        }
    elif name == "slow":
        return
    else:
        notes = [entry for entry in RECORDING if isinstance(entry["request"], dict)]
        same = [entry for entry in notes if entry["request"] == {"name": name, "arguments": arguments}]
        answer = same[0]["answer"] if same else recorded("unknown tool")
    say({**answer, "id": number})


if MODE == "exits":
    sys.stderr.write("cannot start\n")
    sys.exit(3)
if MODE == "grandchild":
    held = "import os, time; f = open(os.environ['HELD'], 'w'); f.write('x'); f.flush(); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", held])
for line in sys.stdin:
    request = json.loads(line)
    method, number = request["method"], request.get("id")
    if MODE == "hangs":
        time.sleep(600)
    if MODE == "garbage":
        sys.stdout.write("starting up…\n")
    if method == "initialize":
        result = recorded("initialize")["result"]
        if MODE == "foreign":
            result = {**result, "serverInfo": {"name": "gitea-mcp", "version": "1.0"}}
        say({"id": number, "result": result})
    elif method == "tools/list":
        say(
            {
                "id": number,
                "result": {"tools": []} if MODE == "no-tools" else recorded("tools/list")["result"],
            }
        )
    elif method == "tools/call" and MODE != "deaf":
        call(number, request["params"]["name"], request["params"]["arguments"])
