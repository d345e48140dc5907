"""Slurm, played by shell scripts."""

import time
from pathlib import Path
from typing import Any


class PlayedSlurm:
    """`sbatch`, `squeue` and `scancel` as scripts that keep what they were told and say what a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue: list[str] = []
        self.says("sbatch", "cat > last.sh; env > last.env; echo x >> calls; wc -l < calls")
        self.says("squeue", "cat queue 2>/dev/null; true")
        self.says("scancel", 'echo "$1" >> cancelled')

    def says(self, command: str, body: str) -> None:
        path = self.folder / command
        path.write_text(f"#!/bin/sh\ncd {self.folder}\n{body}\n")
        path.chmod(0o755)

    def job(self, number: str, name: str, state: str, reason: str = "None", place: str = "n1") -> None:
        """Let the controller know a job, in this state from now on."""
        self.queue = [line for line in self.queue if not line.startswith(f"{number}|")]
        self.queue.append(f"{number}|{name}|{state}|{reason}|{place}|{time.time():.0f}|N/A")
        (self.folder / "queue").write_text("\n".join(self.queue) + "\n")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def played_slurm(folder: Path, settings: Any) -> PlayedSlurm:
    """Put the scripts in the place of the commands, for an installation with a home of its own."""
    commands = folder / "bin"
    commands.mkdir()
    settings.COMMAND_ENVIRONMENT = {"PATH": f"{commands}:/usr/bin:/bin"}
    settings.HOME = folder / "home"
    settings.HOME.mkdir()
    settings.CLUSTER_KEY = "cluster-key-of-the-test"
    return PlayedSlurm(commands)
