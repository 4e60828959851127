"""This host's lasting name as a runner."""

import contextlib
import os
import secrets
from pathlib import Path


def runner_id(state_dir: Path) -> str:
    """This host's lasting name as a runner: threads and workspaces stay with it. Made at first use."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = state_dir / "runner-id"
    with contextlib.suppress(FileExistsError):
        made = state_dir / f".runner-id-{secrets.token_hex(4)}"
        made.write_text(f"runner-{secrets.token_hex(6)}\n", encoding="utf-8")
        try:
            os.link(made, file)
        finally:
            made.unlink()
    return file.read_text(encoding="utf-8").strip()
