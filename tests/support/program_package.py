"""A wheel of an agent program that does what its options tell it; and the sample program as a source distribution."""

import tarfile
from pathlib import Path

from tests.support.package_files import wheel

CODE = '''
"""A program that does what it is told."""
import json, os, signal, socket, subprocess, sys, time, urllib.request


def call(seat="solver"):
    """Ask a seat, with what every client reads."""
    body = {"model": seat, "messages": [{"role": "user", "content": "What is 2+3?"}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def play(session, what: str = "well", said: str = ""):
    """Do what it is told."""
    print(f"begins {what}", flush=True)
    if what == "orphans":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        time.sleep(3600)
    if what == "no_call":
        return 1.0
    call()
    if what == "rewards":
        return {"rewards": {"solver": 0.25, "reviser": 0.75}}
    if what == "file":
        (session.workspace / "reward.json").write_text('{"reward": 0.5}')
        return None
    if what == "later":
        return awaited()
    if what == "fifo":
        os.mkfifo(session.workspace / "reward.json")
        return None
    if what == "raise":
        raise ValueError("no such shop")
    if what == "exit":
        sys.exit(3)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(3600)
    if what == "flood":
        while True:
            sys.stdout.write("flood" * 1000)
    if what == "children":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        time.sleep(3600)
    if what == "memory":
        held = [bytearray(2**26) for _ in range(1000)]
    if what == "network":
        socket.create_connection(("1.1.1.1", 80), 5)
    if what == "says":
        return eval(said, {"session": session, "os": os, "json": json})
    return {"nothing": None, "nan": float("nan"), "large": 7.0, "words": "much", "agents": {"reward": 1, "agents": {}},
            }.get(what, 1.0)


async def awaited():
    return 0.5
'''
NAME = "told_program"
POINTS = "[flexmarl.program]\ntold = told_program:play\nbroken = told_program:missing\n"


def program_wheel(code: str = CODE) -> tuple[str, bytes]:
    return wheel(code=code, name=NAME, extra={"entry_points.txt": POINTS})


def sample_program(folder: Path) -> Path:
    """Return a source distribution of examples/programs/sums_program, unchanged."""
    root, name = Path(__file__).resolve().parents[2] / "examples/programs/sums_program", "sums_program-1.0.0"
    made = folder / f"{name}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for path in sorted(root.iterdir()):
            if path.suffix in {".py", ".toml"}:
                archive.add(path, f"{name}/{path.name}")
    return made
