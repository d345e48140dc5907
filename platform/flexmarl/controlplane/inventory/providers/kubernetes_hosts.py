"""Kubernetes: one Job with one pod for each host, found by its name, which the API server gives once."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from time import time
from typing import Any

import yaml

from flexmarl.contracts.providers import KubernetesProvider
from flexmarl.controlplane.inventory.providers.base import (
    HostRequest,
    HostSighting,
    HostSubmission,
    ProviderRefused,
    ProviderSilent,
)
from flexmarl.controlplane.inventory.providers.host_settings import settings_file, unreachable, write_settings
from flexmarl.controlplane.inventory.providers.kubernetes_api import ApiRefused, KubernetesApi
from flexmarl.controlplane.inventory.providers.kubernetes_jobs import (
    JOB_LABEL,
    job_of,
    kubernetes_options,
    unmounted,
)
from flexmarl.controlplane.inventory.providers.kubernetes_words import (
    PENDING,
    capacity_words,
    pending_words,
    quota_words,
    sighting_of,
)


class Kubernetes:
    """One namespace of a cluster."""

    def __init__(self, context: str, namespace: str) -> None:
        self._api, self._namespace = KubernetesApi(context, namespace), namespace

    def propose(self, request: HostRequest) -> HostSubmission:
        """Say what would be submitted, what the API server says of it, and what the cluster has; nothing is made."""
        options, job = kubernetes_options(request), job_of(request)
        notices = [f"Hosts of the cluster cannot use this installation yet. {text}" for text in unreachable()]
        offers: list[str] = []
        try:
            offers = self._offers(options)
            _require_home(options)
            self._api.create(job, only_check=True)
        except (ProviderRefused, ProviderSilent) as failed:
            notices.append(f"{failed}. {failed.next_step}")
        command = f"POST /apis/batch/v1/namespaces/{self._namespace}/jobs"
        script = yaml.safe_dump(job, sort_keys=False, width=120)
        return HostSubmission(command, script, str(settings_file()), tuple(notices), tuple(offers))

    def submit(self, request: HostRequest) -> str:
        """Make the Job and return its name; one that was made before this was noted is the same Job."""
        _require_home(kubernetes_options(request))
        write_settings()
        try:
            self._api.create(job_of(request))
        except ApiRefused as refused:
            if refused.status != 409:
                raise
        return request.name

    def look(self, requests: Collection[HostRequest]) -> dict[str, list[HostSighting]]:
        """Return what the cluster knows of these Jobs."""
        try:
            return self._sightings(requests)
        except ProviderRefused as refused:
            if any(one.native for one in requests):  # they may well be there
                raise ProviderSilent(refused.words, refused.next_step) from None
            return {}

    def cancel(self, native: str) -> None:
        """Delete a Job: its pod gets SIGTERM, and SIGKILL when its grace is over."""
        try:
            self._api.delete(native)
        except ProviderRefused as refused:
            raise ProviderSilent(refused.words, refused.next_step) from None

    def _offers(self, options: KubernetesProvider) -> list[str]:
        """Say what the namespace may use and what the nodes have, as far as this account may know."""
        quotas = [quota_words(one) for one in _allowed(self._api.quotas)]
        return quotas + [capacity_words(one, options.gpu_resource) for one in _allowed(self._api.nodes)]

    def _sightings(self, requests: Collection[HostRequest]) -> dict[str, list[HostSighting]]:
        jobs = {job["metadata"]["name"]: job for job in self._api.jobs()}
        pods: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for pod in self._api.pods():
            pods[pod["metadata"]["labels"].get(JOB_LABEL, "")].append(pod)
        found = {}
        for one in requests:
            own, job = pods[str(one.id)], jobs.get(one.name)
            if job is not None:
                grace_s = float(kubernetes_options(one).grace_s)
                sighting = sighting_of(job, own, unwanted=one.unwanted, grace_s=grace_s, now=time())
                found[one.name] = [self._with_warning(sighting, own)]
            elif one.native and one.unwanted:
                found[one.name] = [HostSighting(one.native, "ended", "DELETED")]
        return found

    def _with_warning(self, sighting: HostSighting, pods: Sequence[dict[str, Any]]) -> HostSighting:
        """Say why a host waits where its Job and pod do not: an event may, such as of a quota or of a volume."""
        if sighting.state != "pending" or sighting.reason != PENDING:
            return sighting
        about = next((pod["metadata"]["name"] for pod in pods), sighting.native)
        return replace(sighting, reason=pending_words(_allowed(lambda: self._api.warnings(about))))


def _require_home(options: KubernetesProvider) -> None:
    if folder := unmounted(options):
        words = f"volume_claims: no claim is mounted at {folder} (FLEXMARL_HOME), which all hosts share, or above it"
        raise ProviderRefused(words, f"Add one, such as {folder}=flexmarl-home, whose volume all nodes can write.")


def _allowed(ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what is listed, or nothing where this account may not list it. Raises ProviderSilent."""
    try:
        return ask()
    except ApiRefused:
        return []
