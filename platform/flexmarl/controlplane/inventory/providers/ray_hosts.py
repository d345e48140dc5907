"""Ray: one placement group for each host, and a detached actor in it that runs the host's processes.

It is asked through a bridge process under the interpreter in FLEXMARL_RAY_PYTHON, never by this process itself. What
it is asked for names the file with the secrets of the hosts, and holds none. A node token is an argument of the actor,
which gives it to the host's processes alone; it is in no runtime environment, which everybody on the cluster reads.
"""

import json
import shlex
from collections.abc import Collection
from typing import Any

from flexmarl.contracts.providers import PoolProvider, RayProvider
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
from flexmarl.controlplane.inventory.providers.ray_connection import SHOWN_S, connection_to

NATIVE = "PLACEMENT_GROUP_ID"
"""Stands for the id of a placement group that is not there yet; the bridge puts it in."""


class Ray:
    """The cluster at an address."""

    def __init__(self, address: str) -> None:
        self._bridge = connection_to(address)

    def propose(self, request: HostRequest) -> HostSubmission:
        """Say what would be submitted, and what the nodes of the cluster have; does nothing."""
        asked, bundle = _asked(request), bundle_of(_options(request))
        notices = notices_of(request)
        offers: list[str] = []
        try:
            found = self._bridge.call("capacity", SHOWN_S)
            offers = [f"{node['name']}: {node['has']}" for node in found["nodes"]] + [f"Free now: {found['free']}"]
        except (ProviderRefused, ProviderSilent) as failed:
            notices.append(f"{failed}. {failed.next_step}")
        command = (
            f"ray.util.placement_group([{json.dumps(bundle)}], strategy='STRICT_PACK', name='{request.name}', "
            "lifetime='detached')"
        )
        variables = "".join(f"{name}={shlex.quote(value)} " for name, value in asked["environment"].items())
        script = f"cd {shlex.quote(asked['folder'])}\n{variables}{shlex.join(asked['command'])}\n"
        file = "" if request.has_token else str(settings_file())
        return HostSubmission(command, script, file, tuple(notices), tuple(offers))

    def submit(self, request: HostRequest) -> str:
        """Make the placement group and its actor, or what lacks of them; returns the id of the group."""
        prepare(request)
        asked, bundle = _asked(request), bundle_of(_options(request))
        return str(self._bridge.call("submit", name=request.name, bundle=bundle, asked=asked))

    def look(self, requests: Collection[HostRequest]) -> dict[str, list[HostSighting]]:
        """Return what the cluster knows of these jobs."""
        known = ("name", "native", "at_work", "unwanted")
        jobs = [{name: getattr(one, name) for name in known} for one in requests]
        try:
            found = self._bridge.call("look", jobs=jobs)
        except ProviderRefused as refused:
            if any(one.native for one in requests):  # they may well be there
                raise ProviderSilent(refused.words, refused.next_step) from None
            return {}
        return {name: [HostSighting(**one) for one in sightings] for name, sightings in found.items()}

    def cancel(self, native: str) -> None:
        """End a host: its processes get SIGTERM, and SIGKILL when they have not left within 30 s."""
        try:
            self._bridge.call("cancel", native=native)
        except ProviderRefused as refused:
            raise ProviderSilent(refused.words, refused.next_step) from None


def bundle_of(options: RayProvider) -> dict[str, float]:
    """Return the resources of one host."""
    memory = {"memory": float(options.memory_gib * 2**30)} if options.memory_gib else {}
    gpus = {"GPU": float(options.devices)} if options.kind == "cuda" else {}
    return {"CPU": float(options.cpus), **gpus, **memory, **options.resources}


def _asked(request: HostRequest) -> dict[str, Any]:
    """Return what the actor of a host starts."""
    options = _options(request)
    root = checkout_of(options)
    token = {TOKEN: request.token or TOKEN_SHOWN} if request.has_token else {}
    command = [python_of(options), "-m", "workers.adopted", "workers.allocated", *command_of(request, options)]
    command += ["--native", NATIVE, "--memory-gib", str(options.memory_gib)]
    return {
        "command": command,
        "folder": root,
        "python_path": f"{root}:{root}/platform",
        "environment": {**options.env_vars, **own_variables(request), **token},
        "log": log_on_host(NATIVE) if request.has_token else str(log_of(request.node, NATIVE)),
    }


def _options(request: HostRequest) -> RayProvider:
    options = PoolProvider.model_validate({"provider": dict(request.options)}).provider
    assert isinstance(options, RayProvider)
    return options
