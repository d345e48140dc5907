"""What the two embedded services share: a private folder, an account, a port, a process with a log.

Invariants: a service listens on loopback only and asks for a generated password. Its folder belongs to the account that
runs it and is closed to others. As root under folders that `nobody` cannot enter (a checkout in /root), the process is
started inside its folder and names it `/proc/self/cwd`, so that no folder has to be opened up.
"""

import os
import subprocess
import sys
from pathlib import Path

from flexmarl.launcher.binaries import reachable
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import Account, refuse_windows, service_account

TAIL_LINES = 3


class Service:
    """Base of the embedded services; holds at most one running process."""

    name = ""

    def __init__(self, home: Home, port: int = 0) -> None:
        refuse_windows()
        self.home = home
        self.folder = home.root / self.name
        self.port = port
        """0: picked at start."""
        self.account: Account | None = service_account()
        self.process: subprocess.Popen[bytes] | None = None

    def own_folder(self, path: Path) -> Path:
        """Create a private folder of the service's account."""
        path.mkdir(parents=True, exist_ok=True)
        if self.account:
            os.chown(path, self.account.uid, self.account.gid)
        path.chmod(0o700)
        return path

    def seen_as(self, folder: Path) -> str:
        """Return how a process started in `folder` may name it."""
        if reachable(folder, self.account):
            return str(folder)
        if sys.platform.startswith("linux"):
            return "/proc/self/cwd"
        raise LaunchError(
            f"the account nobody cannot access {folder}; set FLEXMARL_HOME to a folder that it can access"
        )

    def alive(self) -> bool:
        """Tell whether our process runs."""
        return self.process is not None and self.process.poll() is None

    def log_tail(self) -> str:
        """Return the last lines the service wrote, joined, for an error text."""
        path = self.home.logs / f"{self.name}.log"
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return " | ".join(lines[-TAIL_LINES:]) or "no output"

    def environment(self) -> dict[str, str]:
        """Return the little a server needs; our secrets are not in it."""
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
