"""A Slurm cluster of one machine: controller, daemons and munge of the distribution, on ports of its own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flexmarl.launcher.processes import end, free_port, spawn, wait_until

PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
READY_S = 40.0


def missing() -> str:
    """Return why there can be no cluster here, or nothing."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {' '.join(absent)} (apt-get install {' '.join(PACKAGES)})"
    return "" if os.geteuid() == 0 else "daemons of Slurm need root rights"


@dataclass
class Cluster:
    """A running cluster; `hosts` are daemons of this machine under several names."""

    folder: Path
    hosts: tuple[str, ...]

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)}

    def run(self, *command: str) -> str:
        """Run a command of Slurm and return what it wrote."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=30).stdout

    def jobs(self) -> list[tuple[str, str, str]]:
        """List (number, name, state) of all jobs that the controller knows."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%i|%j|%T").splitlines()
        return [(number, name, state) for number, name, state in (line.split("|") for line in lines)]

    def living(self) -> list[tuple[str, str, str]]:
        """List those that wait or run."""
        return [job for job in self.jobs() if job[2] in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}]

    def shorten(self, number: str) -> None:
        """Lower the time limit of a job, so that it ends in one to two minutes."""
        elapsed = int(self.run("squeue", "--noheader", "--jobs", number, "--format=%M").strip().split(":")[-2])
        self.run("scontrol", "update", f"JobId={number}", f"TimeLimit={elapsed + 2}")

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))


@contextmanager
def cluster(folder: Path, hosts: int = 2, cpus: int = 2) -> Iterator[Cluster]:
    """Start a cluster with a partition `train`; stop it with all its jobs."""
    folder.mkdir(parents=True)
    names = tuple(f"n{number + 1}" for number in range(hosts))
    made = Cluster(folder, names)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    made.conf.write_text(_conf(folder, names, cpus))
    key, sock = folder / "munge.key", folder / "munge.sock"
    munge = ["munged", "--foreground", "--force", f"--socket={sock}", f"--key-file={key}"]
    munge += [f"--{name}-file={folder / f'munged.{name}'}" for name in ("pid", "seed")]
    munge += [f"--log-file={folder / 'munged.log'}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(folder, "munged-out", munge, made))
        assert wait_until(sock.exists, READY_S), made.log()
        started.append(_start(folder, "slurmctld-out", ["slurmctld", "-D", "-f", str(made.conf)], made))
        for name in names:
            started.append(_start(folder, f"{name}-out", ["slurmd", "-D", "-N", name, "-f", str(made.conf)], made))
        assert wait_until(lambda: _idle(made) == hosts, READY_S), made.log()
        yield made
    finally:
        _end_jobs(made)
        for process in reversed(started):
            end(process, [(signal.SIGTERM, 5.0)])


def _start(folder: Path, name: str, command: list[str], made: Cluster) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("wb") as out:
        environment = {**os.environ, **made.environment}
        return spawn(command, cwd=folder, env=environment, output=out, death_signal=signal.SIGKILL)


def _idle(made: Cluster) -> int:
    try:
        return made.run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").count("n")
    except subprocess.SubprocessError:
        time.sleep(0.2)
        return 0


def _end_jobs(made: Cluster) -> None:
    """End every job, so that none of their processes outlives the cluster."""
    try:
        made.run("scancel", "--partition=train")
        wait_until(lambda: not made.living(), 30.0)
    except subprocess.SubprocessError:
        return


def _conf(folder: Path, names: tuple[str, ...], cpus: int) -> str:
    machine = socket.gethostname().partition(".")[0]
    ports = {name: free_port() for name in names}
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000"
        for name, port in ports.items()
    )
    return f"""
ClusterName=test
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder / "munge.sock"}
CredType=cred/munge
StateSaveLocation={folder / "state"}
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=15
SlurmdParameters=config_overrides
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=60 State=UP
"""
