"""Slurm: one batch job for each host, found by its name.

It is asked through its own commands on the machine of this process: `sbatch`, `squeue`, `scancel`. They get an
environment that holds no secret, since a job inherits what it was submitted with. A node token is in the job's script,
which `sbatch` reads from a pipe and Slurm shows to the job's owner and its operators alone.
"""

import re
import shlex
import subprocess
from collections.abc import Collection, Sequence
from typing import Final

from django.conf import settings

from flexmarl.contracts.providers import PoolProvider, SlurmProvider
from flexmarl.controlplane.inventory.providers.base import (
    HostRequest,
    HostSighting,
    HostSubmission,
    ProviderRefused,
    ProviderSilent,
)
from flexmarl.controlplane.inventory.providers.host_folders import log_of, log_on_host
from flexmarl.controlplane.inventory.providers.host_settings import (
    TOKEN,
    TOKEN_SHOWN,
    checkout_of,
    command_of,
    notices_of,
    own_variables,
    prepare,
    python_of,
    settings_file,
)
from flexmarl.controlplane.inventory.providers.slurm_words import next_step, state_of, words

ANSWER_S = 30.0
SUBMIT: Final = ("sbatch", "--parsable")
_FIELDS = "%i|%j|%T|%r|%N|%S|%e"
_SILENT = re.compile(r"unable to contact slurm|connection refused|timed out|socket timed out|munge|try again", re.I)


class Slurm:
    """The cluster whose commands this machine has."""

    def propose(self, request: HostRequest) -> HostSubmission:
        """Say what would be submitted; does nothing."""
        file = "" if request.has_token else str(settings_file())
        return HostSubmission(shlex.join(SUBMIT), script_of(request), file, tuple(notices_of(request)))

    def submit(self, request: HostRequest) -> str:
        """Submit a job and return its number."""
        prepare(request)
        done = _run(SUBMIT, script_of(request))
        said = words(done.stderr)
        if done.returncode == 0 and (number := done.stdout.strip().partition(";")[0]).isdecimal():
            return number
        if _SILENT.search(said):
            raise ProviderSilent(said)
        raise ProviderRefused(said or f"sbatch ended with {done.returncode} and said nothing", next_step(said))

    def look(self, requests: Collection[HostRequest]) -> dict[str, list[HostSighting]]:
        """Return the jobs that the controller knows by their names, those included that ended a while ago."""
        names = {request.name for request in requests}
        if not names:
            return {}
        asked = ["squeue", "--noheader", "--states=all", f"--format={_FIELDS}", f"--name={','.join(sorted(names))}"]
        done = _run(asked)
        if done.returncode != 0:
            raise ProviderSilent(words(done.stderr) or f"squeue ended with {done.returncode}")
        found: dict[str, list[HostSighting]] = {}
        for line in done.stdout.splitlines():
            number, name, state, reason, place, *times = (line.split("|") + [""] * 7)[:7]
            if name in names:
                begun = [float(at) if at.isdecimal() and state != "PENDING" else None for at in times]
                sighting = HostSighting(number, *state_of(state, reason), place, begun[0], begun[1])
                found.setdefault(name, []).append(sighting)
        return {name: sorted(jobs, key=lambda job: int(job.native)) for name, jobs in found.items()}

    def cancel(self, native: str) -> None:
        """End a job: its processes get SIGTERM, then SIGKILL after the cluster's KillWait."""
        done = _run(["scancel", native])
        said = words(done.stderr)
        if done.returncode != 0 and "invalid job id" not in said.lower():
            raise ProviderSilent(said or f"scancel ended with {done.returncode}")


def script_of(request: HostRequest) -> str:
    """Return the job's script."""
    options = PoolProvider.model_validate({"provider": dict(request.options)}).provider
    assert isinstance(options, SlurmProvider)
    lines = [
        f"--job-name={request.name}",
        *(f"--{name}={value}" for name in ("partition", "account", "qos") if (value := getattr(options, name))),
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={options.cpus}",
        *([f"--mem={options.memory_gib}G"] if options.memory_gib else []),
        *([f"--gres=gpu:{options.devices}"] if options.kind == "cuda" else []),
        f"--time={options.time_limit_minutes}",
        f"--signal=B:USR1@{options.notice_s}",
        "--no-requeue",
        "--export=NIL",
        f"--output={log_on_host('%j') if request.has_token else log_of(request.node, '%j')}",
        *options.sbatch,
    ]
    root, own = checkout_of(options), own_variables(request)
    command = [python_of(options), "-m", "workers.allocated", *command_of(request, options)]
    command += ["--notice", str(options.notice_s)]
    if request.has_token:
        own[TOKEN] = request.token or TOKEN_SHOWN
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            "trap '' USR1  # until the program listens",
            "umask 077",
            f"cd {shlex.quote(root)} || exit 78",
            f"export PYTHONPATH={shlex.quote(f'{root}:{root}/platform')}",
            *(f"export {name}={shlex.quote(value)}" for name, value in own.items()),
            f"exec {shlex.join(command)}",
            "",
        ]
    )


def _run(command: Sequence[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**settings.COMMAND_ENVIRONMENT, "SLURM_TIME_FORMAT": "%s"}
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=ANSWER_S, env=environment, check=False,
            cwd="/",  # where a job begins: its host need not have the folder of this process
        )  # fmt: skip
    except FileNotFoundError:
        raise ProviderSilent(
            f"{command[0]} is not installed on the host of manage.py provide; run it where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise ProviderSilent(f"{command[0]} has not answered for {ANSWER_S:.0f} s") from None
