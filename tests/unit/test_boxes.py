"""Boxes: what is inside, what is not, and that none of it outlives its owner. Real processes throughout."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from adapters.box_identity import identity_of, start_time, wait_gone
from adapters.boxes import (
    Bind,
    Boxes,
    BoxFile,
    BoxSpec,
    Identity,
    Limits,
    box_python,
    kill_recorded,
    lock_workspace,
    provably_dead,
    self_identity,
    takeover,
)
from domain.faults import Conflict, Fault

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed here"
)
ISOLATIONS = [
    pytest.param("bubblewrap", marks=[pytest.mark.bubblewrap, needs_bubblewrap]),
    pytest.param("none"),
]


@pytest.fixture(params=ISOLATIONS)
def boxes(request: pytest.FixtureRequest) -> Boxes:
    return Boxes(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


def sh(text: str, workspace: Path | None = None, **more: object) -> BoxSpec:
    return BoxSpec(argv=("/bin/sh", "-c", text), workspace=workspace, **more)  # type: ignore[arg-type]


async def ended(identity: Identity) -> bool:
    return await wait_gone(identity, timeout=30)


async def test_a_real_box_answers_the_check(boxes: Boxes) -> None:
    """The check runs a box and names the program's version."""
    found = await boxes.check()
    assert found.ok, found.reason
    assert found.version


async def test_a_machine_without_bubblewrap_is_told_so() -> None:
    """A missing or failing program is a reason, not an exception."""
    missing = await Boxes(program="no-such-program-here").check()
    failing = await Boxes(program="false").check()
    assert (missing.ok, failing.ok) == (False, False)
    assert "not installed" in missing.reason
    assert "could not be started" in failing.reason


async def test_the_workspace_is_writable_and_input_and_output_flow(boxes: Boxes, workspace: Path) -> None:
    """A box reads our stdin, writes the workspace (owned by whoever we are), answers and returns its code."""
    box = await boxes.start(
        sh("read line; echo got:$line; echo $line > file; echo oops >&2; exit 7", workspace, keep_stdin=True)
    )
    assert box.stdin is not None
    box.stdin.write(b"hello\n")
    assert await box.stdout.readline() == b"got:hello\n"
    assert await box.wait() == 7
    assert box.stderr == b"oops\n"
    assert (workspace / "file").read_text() == "hello\n"
    assert (workspace / "file").stat().st_uid == os.getuid()


async def test_nothing_of_the_services_environment_enters(
    boxes: Boxes, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in our environment is not in the box's, nor in that of any process that it can see."""
    monkeypatch.setenv("TURNKEEPER_GITEA_TOKEN", "canary-in-the-environment")
    spec = sh(
        "env; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n'; exit 0", workspace, env={"GIVEN": "yes"}
    )
    if boxes.isolation == "none":
        spec = sh("env", workspace, env={"GIVEN": "yes"})
    done = await boxes.run(spec, 30)
    assert done.rc == 0
    assert "GIVEN=yes" in done.text
    assert "canary" not in done.text


@pytest.mark.bubblewrap
@needs_bubblewrap
async def test_a_box_sees_neither_our_files_nor_our_processes(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files outside the binds, homes, other processes and privileges do not exist inside."""
    secret = tmp_path / "secret"
    secret.write_text("canary-in-a-file")
    monkeypatch.setenv("CANARY", "canary-in-the-environment")
    (workspace / "link").symlink_to(secret)
    script = f"""
        id -u; whoami
        cat {secret} link /proc/1/root{secret} /proc/1/cwd/link 2>&1
        ls /root /home /srv /var 2>&1
        ls -d /proc/[0-9]* | wc -l
        grep CapEff /proc/self/status
        touch /usr/x /etc/x /x 2>&1
        cat /etc/shadow 2>&1
        for f in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $f; done 2>&1
    """
    done = await Boxes().run(sh(script, workspace, env={"LANG": "C"}), 30)
    lines = done.text.split("\n")
    assert lines[:2] == ["1000", "agent"]
    assert "canary" not in done.text
    assert "CapEff:\t0000000000000000" in lines
    assert "agent" in lines[lines.index("/home:") + 1]
    assert not [path for path in ("/usr/x", "/etc/x") if Path(path).exists()]
    assert "/etc/shadow: No such file" in done.text
    shown = int(next(line for line in lines if line.strip().isdigit() and line != "1000"))
    assert shown < 8


async def test_no_part_of_the_environment_stands_in_argv(boxes: Boxes, workspace: Path) -> None:
    """What a box is given as environment can't be read from any command line of the machine."""
    box = await boxes.start(sh("echo up; read x", workspace, env={"CAP": "capability-7d1f"}, keep_stdin=True))
    await box.stdout.readline()
    seen = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                seen += (entry / "cmdline").read_bytes()
    await box.kill(0)
    assert b"capability-7d1f" not in seen


async def test_codex_home_keeps_its_two_folders_and_forgets_the_rest(
    boxes: Boxes, tmp_path: Path, workspace: Path
) -> None:
    """Sessions written in a box are there in the next; config.toml can be changed inside but only for that box."""
    home = tmp_path / "codex"
    for part in ("sessions", "thread-writer-locks"):
        (home / part).mkdir(parents=True)
    (home / "auth.json").write_text("secret")
    spec = BoxSpec(
        argv=(
            "/bin/sh",
            "-c",
            "cd $CODEX_HOME; ls; echo t >> config.toml; cat config.toml; echo s > sessions/one",
        ),
        workspace=workspace,
        codex_home=home,
        files=(BoxFile(target="/codex-home/config.toml", content=b"model\n"),),
    )
    for _ in range(2):
        done = await boxes.run(spec, 30)
        assert done.text.split() == ["config.toml", "sessions", "thread-writer-locks", "model", "t"]
    assert (home / "sessions" / "one").read_text() == "s\n"
    assert sorted(entry.name for entry in home.iterdir()) == ["auth.json", "sessions", "thread-writer-locks"]


async def test_the_bridges_folder_and_other_binds_are_there(
    boxes: Boxes, tmp_path: Path, workspace: Path
) -> None:
    """A socket made after the start in the bridge's folder can be reached; a Python runs inside."""
    bridge, tool = tmp_path / "bridge", tmp_path / "tool"
    bridge.mkdir()
    tool.mkdir()
    (tool / "greeting").write_text("hi")
    python, binds = box_python()
    code = "import sys,os\nwhile not os.path.exists(sys.argv[1]): pass\nprint(open(sys.argv[2]).read())"
    spec = BoxSpec(
        argv=(python, "-I", "-S", "-c", code, "/bridge/s", "/opt/tool/greeting"),
        workspace=workspace,
        bridge=bridge,
        binds=(*binds, Bind(source=tool, target="/opt/tool")),
    )
    box = await boxes.start(spec)
    (bridge / "s").write_text("")
    assert await box.stdout.readline() == b"hi\n"
    assert await box.wait() == 0


async def test_a_box_that_ignores_sigterm_is_killed_with_all_its_descendants(
    boxes: Boxes, workspace: Path
) -> None:
    """Killing ends even daemons that left session and group and ignore every polite signal."""
    python, binds = box_python()
    code = textwrap.dedent("""
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print('daemon', flush=True)
                while True: signal.pause()
            os._exit(0)
        os.wait()
        while True: signal.pause()
    """)
    lock = await lock_workspace(workspace)
    box = await boxes.start(BoxSpec(argv=(python, "-c", code), workspace=workspace, binds=binds, lock=lock))
    assert await box.stdout.readline() == b"daemon\n"
    lock.close()
    with pytest.raises(Conflict, match="workspace_locked"):
        await lock_workspace(workspace, 0)
    assert await box.kill(0.1) > 128
    (await lock_workspace(workspace, 0)).close()
    assert provably_dead(box.identity)


async def test_a_polite_box_ends_by_itself(boxes: Boxes, workspace: Path) -> None:
    """Before it is killed, a command is asked by SIGTERM and may end in its own way."""
    box = await boxes.start(
        sh("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done", workspace)
    )
    await box.stdout.readline()
    assert await box.kill(30) == 3
    assert await box.stdout.read() == b"bye\n"


async def test_a_deadline_ends_a_command(boxes: Boxes, workspace: Path) -> None:
    """A command past its deadline is a fault and leaves no process."""
    lock = await lock_workspace(workspace)
    with pytest.raises(Fault, match="box_timeout"):
        await boxes.run(sh("sleep 1000", workspace, lock=lock), 0.3)
    lock.close()
    (await lock_workspace(workspace, 0)).close()


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 20])
async def test_a_start_that_is_given_up_leaves_nothing(boxes: Boxes, workspace: Path, steps: int) -> None:
    """Cancelling a start at any point ends what was started: the lock is free as soon as the caller is back."""
    lock = await lock_workspace(workspace)
    starting = asyncio.create_task(boxes.start(sh("sleep 1000", workspace, lock=lock)))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await starting).kill(0)
    lock.close()
    (await lock_workspace(workspace, 0)).close()


async def test_output_is_bounded(boxes: Boxes, workspace: Path) -> None:
    """A flood of output is cut and said to be cut, and the command still ends."""
    done = await boxes.run(
        sh("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2", workspace), 30, max_output=1000
    )
    assert (len(done.out), done.truncated, len(done.err)) == (1000, True, 65536)


async def test_limits_hold_before_the_command_runs(boxes: Boxes, workspace: Path) -> None:
    """The command starts under the limits that were asked for."""
    limits = Limits(cpu_seconds=77, open_files=55, file_bytes=1024 * 512)
    done = await boxes.run(sh("ulimit -t; ulimit -n; ulimit -f; ulimit -c", workspace, limits=limits), 30)
    assert done.text.split() == ["77", "55", "1024", "0"]


_SERVICE = """
import asyncio, json, sys
from pathlib import Path
from adapters.boxes import BoxSpec, Boxes, lock_workspace
async def main():
    lock = await lock_workspace(Path(sys.argv[2]), 5)
    box = await Boxes(sys.argv[1]).start(BoxSpec(
        argv=("/bin/sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & echo up; sleep 1000; sleep 1000"),
        workspace=Path(sys.argv[2]), lock=lock))
    lock.close()
    await box.stdout.readline()
    print(json.dumps(box.identity.as_json()), flush=True)
    await box.wait()
asyncio.run(main())
"""


def start_service(isolation: str, workspace: Path) -> tuple[subprocess.Popen[bytes], Identity]:
    service = subprocess.Popen(
        [sys.executable, "-c", _SERVICE, isolation, str(workspace)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
    )
    assert service.stdout is not None
    return service, Identity.of_json(json.loads(service.stdout.readline()))


async def test_sigkill_of_the_service_ends_the_box(boxes: Boxes, workspace: Path) -> None:
    """No orphans: when the service is killed outright, its box and the box's daemons die and the lock is free."""
    service, identity = start_service(boxes.isolation, workspace)
    assert not provably_dead(identity)
    service.kill()
    service.communicate()
    assert await ended(identity)
    (await lock_workspace(workspace, 20)).close()
    assert provably_dead(identity)


async def test_another_process_takes_a_workspace_over_by_identity(boxes: Boxes, workspace: Path) -> None:
    """Whoever takes over kills exactly the recorded box of a former holder that still lives, then has the lock."""
    service, identity = start_service(boxes.isolation, workspace)
    try:
        with pytest.raises(Conflict, match="workspace_locked"):
            await lock_workspace(workspace, 0)
        foreign = Identity.of_json(identity.as_json() | {"start_time": identity.start_time + 1, "mark": ""})
        with pytest.raises(Conflict, match="workspace_locked"):
            await takeover(workspace, foreign, 0)
        assert not provably_dead(identity)
        service.send_signal(signal.SIGSTOP)  # a holder that hangs and will never clean up itself
        (await takeover(workspace, identity, 20)).close()
        assert provably_dead(identity)
    finally:
        service.kill()
        service.communicate()


async def test_only_the_very_same_process_is_killed() -> None:
    """A reused number, another namespace or another boot never costs a foreign process its life."""
    other = subprocess.Popen(["sleep", "1000"])
    try:
        mine = identity_of(other.pid)
        assert mine is not None
        assert await kill_recorded(Identity.of_json(mine.as_json() | {"start_time": mine.start_time - 5}))
        assert not await kill_recorded(Identity.of_json(mine.as_json() | {"pid_namespace": "pid:[1]"}))
        assert await kill_recorded(Identity.of_json(mine.as_json() | {"boot_id": "before"}))
        assert start_time(other.pid) == mine.start_time
        assert not provably_dead(mine)
        assert not provably_dead(Identity.of_json(mine.as_json() | {"pid_namespace": "pid:[1]"}))
        assert await kill_recorded(mine)
        assert provably_dead(mine)
    finally:
        other.kill()
        other.wait()


def test_this_process_knows_itself() -> None:
    """Our own identity is alive and survives its way through the log."""
    mine = self_identity()
    assert not provably_dead(mine)
    assert Identity.of_json(mine.as_json()) == mine
    with pytest.raises(ValueError, match="identity"):
        Identity.of_json({"pid": "1"})


async def test_boxes_are_refused_outside_the_main_thread(boxes: Boxes, workspace: Path) -> None:
    """A box dies with its thread, so another thread must not start one."""

    def elsewhere() -> str:
        with pytest.raises(Fault) as caught:
            asyncio.run(boxes.start(sh("true", workspace)))
        return caught.value.code

    assert await asyncio.to_thread(elsewhere) == "box_failed"


async def test_impossible_specifications_are_refused(boxes: Boxes, tmp_path: Path, workspace: Path) -> None:
    """Missing folders, writable symbolic links and climbing paths never become a box."""
    (tmp_path / "link").symlink_to(workspace)
    for spec in (
        sh("true", tmp_path / "missing"),
        sh("true", tmp_path / "link"),
        BoxSpec(argv=()),
        sh("true", workspace, binds=(Bind(source=workspace, target="/a/../etc"),)),
        sh("true", workspace, files=(BoxFile(target="relative", content=b""),)),
    ):
        with pytest.raises(Fault, match="box_invalid"):
            await boxes.start(spec)


@pytest.mark.bubblewrap
@needs_bubblewrap
async def test_a_fork_bomb_ends_with_its_box(workspace: Path) -> None:
    """A tree of processes that keeps forking ends with the pid namespace."""
    box = await Boxes().start(
        sh(
            "echo up; (while :; do sleep 0.2 & sleep 0.01; done) & while :; do (sleep 100 &) ; sleep 0.01; done",
            workspace,
            limits=Limits(cpu_seconds=5),
        )
    )
    await box.stdout.readline()
    await box.kill(0)
    assert provably_dead(box.identity)
