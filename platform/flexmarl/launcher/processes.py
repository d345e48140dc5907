"""Starting and ending one process: own process group, death with the parent, another account when we are root.

Invariant: a process started here does not outlive its parent unnoticed. On Linux the kernel sends it `death_signal`
when the parent dies; elsewhere the next start finds it by its record. PR_SET_PDEATHSIG is set after the change of
account, because the kernel clears it there; the hook calls C only, so that a thread of the parent cannot block it.
"""

import contextlib
import ctypes
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flexmarl.launcher.errors import LaunchError

PR_SET_PDEATHSIG = 1
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int


def service_account() -> Account | None:
    """Return `nobody` when we are root, since PostgreSQL refuses to run as root; None keeps our own account."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return Account(65534, 65534)
    return Account(entry.pw_uid, entry.pw_gid)


def refuse_nameless(uid: int) -> None:
    """Raise for an account without an entry in the system's user database: initdb refuses it."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise LaunchError(
            f"user id {uid} has no name, which PostgreSQL requires; run as a named account, or set DATABASE_URL"
        ) from None


def refuse_windows(platform: str = sys.platform) -> None:
    """Raise on Windows, where process groups and signals differ."""
    if platform == "win32":
        raise LaunchError(
            "the embedded services do not run on Windows; use WSL2, or set DATABASE_URL and REDIS_URL and run `serve`"
        )


def _death_hook(death_signal: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def hook() -> None:
        prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the kernel knew that we follow it

    return hook


def spawn(
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    errors: IO[bytes] | int = subprocess.STDOUT,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in its own group; it dies with the calling thread's process. It gets `inherited` descriptors."""
    return subprocess.Popen(
        list(args),
        cwd=cwd,
        env=dict(env),
        stdin=stdin,
        stdout=output,
        stderr=errors,
        process_group=0,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        pass_fds=tuple(inherited),
        preexec_fn=_death_hook(death_signal),  # noqa: PLW1509 - see the module's docstring
    )


def signal_group(pgid: int, number: signal.Signals) -> bool:
    """Signal a process group; False when it is gone."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end(process: subprocess.Popen[bytes], steps: Sequence[tuple[signal.Signals, float]]) -> int:
    """Send each signal and wait its seconds until the process ends; then kill what is left of its group."""
    for number, seconds in steps:
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Poll `ready` until it holds or the time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def port_is_free(host: str, port: int) -> bool:
    """Tell whether a listener can bind (host, port)."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1", preferred: int = 0) -> int:
    """Return `preferred` when it can be bound, else a port that the system picks."""
    if preferred and port_is_free(host, preferred):
        return preferred
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
