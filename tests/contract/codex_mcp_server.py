"""A tiny stdio MCP server for the contract suite, standard library only.

``MODE``: ``ok`` | ``exit`` (leaves at once) | ``hang`` (never answers). ``CALLS``: file that gets each tools/call.
"""

import json
import os
import sys
import time

MODE = os.environ.get("MODE", "ok")
if MODE == "exit":
    sys.exit(3)
if MODE == "hang":
    time.sleep(600)

FIELDS = {name: {"type": "string"} for name in ("owner", "repo", "body")} | {"index": {"type": "number"}}
METHOD = {"method": {"type": "string", "enum": ["create", "add_comment"]}}
TOOLS = [
    {
        "name": "issue_write",
        "description": "write",
        "inputSchema": {"type": "object", "properties": FIELDS | METHOD},
    },
    {"name": "fail", "description": "fails", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "die", "description": "ends the server", "inputSchema": {"type": "object", "properties": {}}},
]


def send(**message: object) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        hello = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        send(id=number, result=hello | {"serverInfo": {"name": "contract", "version": "1"}})
    elif method == "tools/list":
        send(id=number, result={"tools": TOOLS})
    elif method == "tools/call":
        if calls := os.environ.get("CALLS"):
            with open(calls, "a", encoding="utf-8") as file:  # noqa: PTH123 - starts faster without pathlib
                file.write(json.dumps(params) + "\n")
        if params["name"] == "die":
            sys.exit(7)
        if params["name"] == "fail":
            send(id=number, error={"code": -32603, "message": "403 forbidden"})
        else:
            send(id=number, result={"content": [{"type": "text", "text": '{"id": 7}'}]})
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "no such method"})
