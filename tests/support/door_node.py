"""A node that has nothing of the installation but an address and a token: no secret, and a home of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.system import ROOT

COMMANDS = {
    "node": ("-m", "workers.node"),
    "device": ("-m", "workers.run", "--role", "device"),
    "rollout": ("-m", "workers.run", "--role", "rollout"),
}
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")


class DoorNode:
    """Its processes. Use as a context manager."""

    def __init__(
        self, home: Path, url: str, token: str, shares: int = 2, begins: Sequence[str] = (), **settings: str
    ) -> None:
        """Its commands begin with `begins`, which must end in what they are."""
        (home / "logs").mkdir(parents=True)
        self.home = home
        self._begins = begins
        self.environment: Mapping[str, str] = {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "FLEXMARL_HOME": str(home),
            "FLEXMARL_CONTROL_URL": url,
            "FLEXMARL_NODE_TOKEN": token,
            "FLEXMARL_CPU_SHARES": str(shares),
            "FLEXMARL_LOG_DIR": str(home / "logs"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "DoorNode":
        for name in COMMANDS:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)

    def start(self, name: str) -> None:
        """Start a process, or another in its place."""
        with (self.home / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [*self._begins, sys.executable, *COMMANDS[name]], env=self.environment, cwd=ROOT, stdout=out, stderr=out
            )

    def kill(self, name: str) -> None:
        """SIGKILL a process and start another in its place."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()
        self.start(name)

    def said(self, name: str) -> str:
        """Return what a process wrote."""
        return (self.home / f"{name}.out").read_text(errors="replace")
