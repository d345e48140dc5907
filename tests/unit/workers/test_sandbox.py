"""Programs that try to get out of the sandbox: each fails, by a name that says what it wanted, and touches nothing."""

import asyncio
import os
import pathlib
import shutil
import tempfile
import time

import psutil
import pytest

from workers.scoring import confinement, sandbox
from workers.scoring.sandbox import Allowed, ProgramEnd, Ran, SandboxMissing

ALLOWED = Allowed(cpu_s=1.0, memory_bytes=256 * 2**20, output_bytes=64 * 2**10)
MOST_S = 30.0


async def ran(script: str, allowed: Allowed = ALLOWED, timeout_s: float = MOST_S) -> Ran:
    return await sandbox.run(script, (), b"given\n", allowed, timeout_s)


async def test_a_program_reads_computes_writes_in_its_folder_and_ends() -> None:
    script = (
        "import json, os, threading\nopen('own', 'w').write(input())\n"
        "t = threading.Thread(target=lambda: print(open('own').read()))\nt.start(); t.join()\n"
        "print(sorted(os.environ))"
    )
    found = await ran(script)
    assert found.ended is ProgramEnd.WELL, found
    said, variables = found.output.decode().splitlines()
    assert said == "given"
    assert set(eval(variables)) <= {
        "HOME",
        "LANG",
        "LC_CTYPE",
        "OMP_NUM_THREADS",
        "PATH",
        "PWD",
        "PYTHONHASHSEED",
        "TMPDIR",
    }


ESCAPES = {
    "network": ("import socket; socket.create_connection(('127.0.0.1', 80))", ProgramEnd.NETWORK),
    "local socket": ("import socket; socket.socket(socket.AF_UNIX)", ProgramEnd.NETWORK),
    "read outside": ("print(open('/etc/passwd').read())", ProgramEnd.ACCESS),
    "read the product": (f"print(open({sandbox.__file__!r}).read())", ProgramEnd.ACCESS),
    "read others": ("import os; print(os.listdir('/proc'))", ProgramEnd.ACCESS),
    "write outside": ("open('/tmp/flexmarl-escaped', 'w')", ProgramEnd.ACCESS),
    "change outside": ("import os; os.chmod('/etc/passwd', 0o777)", ProgramEnd.PROCESS),
    "cut outside": ("import os; os.truncate('/etc/passwd', 0)", ProgramEnd.PROCESS),
    "link out": ("import os; os.symlink('/etc/passwd', 'way'); open('way')", ProgramEnd.ACCESS),
    "fork bomb": ("import os\nfor _ in range(20):\n    if not os.fork(): os._exit(0)", ProgramEnd.PROCESS),
    "threads": (
        "import threading, time\nthreading.stack_size(65536)\n"
        "for _ in range(200): threading.Thread(target=time.sleep, args=(20,)).start()",
        ProgramEnd.PROCESS,
    ),
    "program": ("import subprocess; subprocess.run(['/bin/true'])", ProgramEnd.PROCESS),
    "kill the parent": ("import os; os.kill(os.getppid(), 9)", ProgramEnd.PROCESS),
    "kill all": ("import os; os.kill(-1, 9)", ProgramEnd.PROCESS),
    "memory": ("x = bytearray(2**30)", ProgramEnd.MEMORY),
    "processor": ("while True: pass", ProgramEnd.CPU),
    "huge output": ("while True: print('x' * 9999)", ProgramEnd.OUTPUT),
    "huge errors": ("import sys\nwhile True: sys.stderr.write('x' * 9999)", ProgramEnd.OUTPUT),
    "huge file": ("open('own', 'w').write('x' * 10**6)", ProgramEnd.FILES),
    "many files": ("for i in range(10**6): open(str(i), 'w').write('x' * 999)", ProgramEnd.FILES),
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_an_escape_fails_by_name(escape: str) -> None:
    script, ended = ESCAPES[escape]
    before = os.stat("/etc/passwd")
    found = await ran(script)
    assert found.ended is ended, found
    after = os.stat("/etc/passwd")
    assert (before.st_mode, before.st_size) == (after.st_mode, after.st_size)
    assert not pathlib.Path("/tmp/flexmarl-escaped").exists()


async def test_one_that_sleeps_is_ended_and_nothing_is_left_of_it() -> None:
    began, children = time.monotonic(), set(psutil.Process().children())
    found = await ran("open('own', 'w').write('x')\nimport time; time.sleep(60)", timeout_s=1.5)
    assert found.ended is ProgramEnd.TIME
    assert time.monotonic() - began < MOST_S
    assert not set(psutil.Process().children()) - children
    assert not list(pathlib.Path(tempfile.gettempdir()).glob("flexmarl-code-*/own"))


async def test_a_program_cannot_touch_another_one() -> None:
    """A sibling goes on while another kills whatever it can."""
    sibling = asyncio.create_task(ran("import time; time.sleep(3); print('alive')"))
    await asyncio.sleep(0.5)
    killer = (
        "import os\nfor pid in range(1, 70000):\n"
        "    if pid != os.getpid():\n        try: os.kill(pid, 9)\n        except OSError: pass"
    )
    assert (await ran(killer)).ended in (ProgramEnd.WELL, ProgramEnd.CPU)
    assert (await sibling).output == b"alive\n"


async def test_what_waits_no_more_leaves_no_program() -> None:
    children = set(psutil.Process().children())
    work = asyncio.create_task(ran("import time; time.sleep(60)"))
    await asyncio.sleep(0.5)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert not set(psutil.Process().children()) - children


async def test_without_a_sandbox_no_program_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "confinement.py"
    broken.write_text(pathlib.Path(confinement.__file__).read_text().replace("if abi < 1:", "if abi < 10**6:"))
    monkeypatch.setattr(confinement, "__file__", str(broken))
    with pytest.raises(SandboxMissing, match="Landlock"):
        await ran("print('ran')")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_names_each_call_once_and_every_jump_lands_inside(machine: str) -> None:
    steps = confinement.steps(machine, 7)
    assert len(steps) < 4096
    for place, (code, yes, no, _) in enumerate(steps):
        if code not in (0x20, 0x06):
            assert place + 1 + max(yes, no) < len(steps)
    own = confinement._MACHINES[machine]
    numbers = (*confinement._SHARED, *own.denied, own.socket, own.clone, *own.signals, own.limits, own.prctl)
    assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_bubblewrap_is_used_where_it_is() -> None:
    assert sandbox.bubblewrap()
    assert sandbox.in_force().startswith("bubblewrap")
