"""Kubernetes: one Job with one pod for each host, found by its name, which the API server gives once.

The token of a host that has one is in a Secret of the Job's name, which is made after the Job and goes with it; the pod
waits for it. A Job whose making was not noted is made again, and so is its Secret: both are the same then.
"""

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
from flexmarl.controlplane.inventory.providers.host_settings import notices_of, prepare, settings_file
from flexmarl.controlplane.inventory.providers.kubernetes_api import ApiRefused, KubernetesApi
from flexmarl.controlplane.inventory.providers.kubernetes_jobs import (
    JOB_LABEL,
    JOB_UID,
    job_of,
    kubernetes_options,
    secret_of,
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
        notices, offers, made = notices_of(request), [], [job]
        command = f"POST /apis/batch/v1/namespaces/{self._namespace}/jobs"
        if request.has_token:
            made.append(secret_of(request, JOB_UID))
            command += f"\nPOST /api/v1/namespaces/{self._namespace}/secrets"
        try:
            offers = self._offers(options)
            _require_home(request, options)
            self._api.create(job, only_check=True)
            for secret in made[1:]:
                self._api.create_secret(secret, only_check=True)
        except (ProviderRefused, ProviderSilent) as failed:
            notices.append(f"{failed}. {failed.next_step}")
        script = yaml.safe_dump_all(made, sort_keys=False, width=120)
        file = "" if request.has_token else str(settings_file())
        return HostSubmission(command, script, file, tuple(notices), tuple(offers))

    def submit(self, request: HostRequest) -> str:
        """Make the Job and return its name; one that was made before this was noted is the same Job."""
        _require_home(request, kubernetes_options(request))
        prepare(request)
        made: dict[str, Any] | None = None
        try:
            made = self._api.create(job_of(request))
        except ApiRefused as refused:
            if refused.status != 409:
                raise
        if request.has_token:
            self._give_token(request, made)
        return request.name

    def _give_token(self, request: HostRequest, made: dict[str, Any] | None) -> None:
        """Make the Secret of a Job, where it was not made yet. A Job that can have none is deleted: nothing was begun.

        `made`: the Job; None: it was there before.
        """
        job = made or next((one for one in self._api.jobs() if one["metadata"]["name"] == request.name), None)
        if job is None or "deletionTimestamp" in job["metadata"]:
            raise ProviderSilent(f"Job {request.name} is being deleted; it is made again then")
        try:
            self._api.create_secret(secret_of(request, job["metadata"]["uid"]))
        except ApiRefused as refused:
            if refused.status != 409:
                self._api.delete(request.name)
                raise

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
            if one.has_token and not one.native and not one.unwanted:
                continue  # whether its Secret was made is not known here; submitting it once more makes it
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


def _require_home(request: HostRequest, options: KubernetesProvider) -> None:
    if not request.has_token and (folder := unmounted(options)):
        words = f"volume_claims: no claim is mounted at {folder} (FLEXMARL_HOME), which all hosts share, or above it"
        raise ProviderRefused(words, f"Add one, such as {folder}=flexmarl-home, whose volume all nodes can write.")


def _allowed(ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return what is listed, or nothing where this account may not list it. Raises ProviderSilent."""
    try:
        return ask()
    except ApiRefused:
        return []
