"""How an agent's command becomes a command inside a box: what is started, and what must be seen for it.

``codex`` from npm is a small launcher beside a static binary; the binary is run directly. ``scripted`` stands for the
scripted agent that comes with Turnkeeper. Everything else is taken as given: its program is looked up on the path,
and its folder, and files named among the arguments, are bound in read-only.
"""

import dataclasses
import shlex
import shutil
from pathlib import Path

from adapters.box_spec import Bind
from adapters.boxes import box_python
from adapters.simulated import agent as scripted
from domain.faults import Fault

SCRIPTED = "scripted"
_TARGET = "/run/turnkeeper/agent"
_SYSTEM = ("/usr/", "/bin/", "/lib/", "/lib64/", "/sbin/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentProgram:
    """``argv`` inside the box, ``binds`` that it needs, ``path`` of the program on the host, ``scripted`` or not."""

    argv: tuple[str, ...]
    binds: tuple[Bind, ...]
    path: Path
    scripted: bool = False


def find_agent(command: str) -> AgentProgram:
    """What ``command`` stands for; ``Fault`` ``codex_missing`` where its program cannot be found."""
    words = shlex.split(command)
    if not words:
        raise Fault("TURNKEEPER_CODEX_COMMAND is empty", code="codex_missing")
    if words[0] == SCRIPTED:
        return _scripted()
    found = shutil.which(words[0])
    if found is None:
        raise Fault(
            f"{words[0]} was not found: install it (npm install @openai/codex) or set TURNKEEPER_CODEX_COMMAND",
            code="codex_missing",
        )
    program = Path(found).resolve()
    if program.suffix == ".js":
        program = _native(program) or program
    binds = [] if str(program).startswith(_SYSTEM) else [Bind(source=program.parent, target=f"{_TARGET}/bin")]
    first = str(program) if not binds else f"{_TARGET}/bin/{program.name}"
    if program.name.startswith("python"):
        first, python_binds = box_python()
        binds = list(python_binds)
    arguments: list[str] = []
    for number, word in enumerate(words[1:]):
        file = Path(word)
        if file.is_absolute() and file.is_file() and not word.startswith(_SYSTEM):
            target = f"{_TARGET}/files/{number}/{file.name}"
            binds.append(Bind(source=file.resolve(), target=target))
            arguments.append(target)
        else:
            arguments.append(word)
    return AgentProgram(argv=(first, *arguments), binds=tuple(binds), path=program)


def _scripted() -> AgentProgram:
    file = Path(scripted.__file__).resolve()
    python, binds = box_python()
    bind = Bind(source=file, target=f"{_TARGET}/agent.py")
    return AgentProgram(
        argv=(python, "-I", "-S", bind.target), binds=(*binds, bind), path=file, scripted=True
    )


def _native(launcher: Path) -> Path | None:
    """The static binary beside npm's launcher, whichever of its places this version uses."""
    package = launcher.parent.parent
    for pattern in (
        "node_modules/@openai/codex-linux-*/vendor/*/bin/codex",
        "node_modules/@openai/codex-linux-*/vendor/*/codex/codex",
        "../codex-linux-*/vendor/*/bin/codex",
        "../codex-linux-*/vendor/*/codex/codex",
        "vendor/*/codex/codex",
    ):
        found = sorted(package.glob(pattern))
        if found:
            return found[0].resolve()
    return None
