"""The API server of a Kubernetes cluster, spoken to with the official client.

The client is an extra of the installation and is loaded when it is needed. Where it finds the cluster is said by the
operator: FLEXMARL_KUBECONFIG, or the service account of the pod that this process runs in. Every call has a deadline.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from django.conf import settings
from pydantic import ValidationError
from yaml import YAMLError

from flexmarl.controlplane.inventory.providers.base import ProviderRefused, ProviderSilent
from flexmarl.controlplane.inventory.providers.kubernetes_jobs import OURS
from flexmarl.controlplane.inventory.providers.kubernetes_words import next_step

CONNECT_S = 5.0
ANSWERS_S = 20.0
SHOWN_S = 4.0
"""How long somebody who looks at a page waits for one answer."""
INSTALL = "Install the extra: pip install 'flexmarl[kubernetes]', and restart the process."
REACH = "Check that the cluster's API server runs and that this host reaches it: kubectl cluster-info."
NAMED = (
    "Set FLEXMARL_KUBECONFIG to a file with credentials, for the web process and manage.py provide, or run these in a "
    "pod of the cluster; correct context where it names none of the file."
)
_SELECTOR = ",".join(f"{name}={value}" for name, value in OURS.items())


class ApiRefused(ProviderRefused):
    """An answer that is no success, with its HTTP status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words, next_step(status, words))
        self.status = status


class KubernetesApi:
    """One namespace of a cluster.

    Calls raise ProviderRefused for what must be changed first, ProviderSilent for no answer.
    """

    def __init__(self, context: str, namespace: str) -> None:
        self._context, self._namespace = context, namespace

    def create(self, job: dict[str, Any], *, only_check: bool = False) -> dict[str, Any]:
        """Make a Job, or have the API server check it as if; ApiRefused has status 409 where its name is taken."""
        checking = {"dry_run": "All"} if only_check else {}
        made: dict[str, Any] = self._ask(
            "BatchV1Api", "create_namespaced_job", self._namespace, job, shown=only_check, **checking
        )
        return made

    def create_secret(self, secret: dict[str, Any], *, only_check: bool = False) -> None:
        """Make a Secret, or have the API server check it as if; ApiRefused has status 409 where its name is taken."""
        checking = {"dry_run": "All"} if only_check else {}
        self._ask("CoreV1Api", "create_namespaced_secret", self._namespace, secret, shown=only_check, **checking)

    def jobs(self) -> list[dict[str, Any]]:
        """List the Jobs of hosts."""
        return self._list("BatchV1Api", "list_namespaced_job", label_selector=_SELECTOR)

    def pods(self) -> list[dict[str, Any]]:
        """List the pods of hosts."""
        return self._list("CoreV1Api", "list_namespaced_pod", label_selector=_SELECTOR)

    def warnings(self, name: str) -> list[dict[str, Any]]:
        """List the warnings that the cluster has about a Job or pod."""
        asked = f"type=Warning,involvedObject.name={name}"
        return self._list("CoreV1Api", "list_namespaced_event", field_selector=asked)

    def quotas(self) -> list[dict[str, Any]]:
        """List the resource quotas of the namespace."""
        return self._list("CoreV1Api", "list_namespaced_resource_quota", shown=True)

    def nodes(self) -> list[dict[str, Any]]:
        """List the nodes of the cluster."""
        return list(self._ask("CoreV1Api", "list_node", shown=True)["items"])

    def delete(self, name: str) -> None:
        """Delete a Job with its pods, which go first; one that is gone is left as it is."""
        try:
            self._ask("BatchV1Api", "delete_namespaced_job", name, self._namespace, propagation_policy="Foreground")
        except ApiRefused as refused:
            if refused.status != 404:
                raise

    def _list(self, api: str, call: str, shown: bool = False, **asked: Any) -> list[dict[str, Any]]:
        return list(self._ask(api, call, self._namespace, shown=shown, **asked)["items"])

    def _ask(self, api: str, call: str, *given: Any, shown: bool = False, **asked: Any) -> Any:
        """Call a method of the client; the answer as the server wrote it."""
        package = _package()
        method: Callable[..., Any] = getattr(getattr(package.client, api)(_connection(self._context)), call)
        limits = (CONNECT_S, SHOWN_S if shown else ANSWERS_S)
        try:
            answer = method(*given, **asked, _preload_content=False, _request_timeout=limits)
            return json.loads(answer.data)
        except package.client.ApiException as error:
            raise _refusal(error) from None
        except ValidationError as error:  # the client looks at what it is to send
            raise ApiRefused(422, " ".join(str(error).split())[:500]) from None
        except (OSError, ValueError, import_module("urllib3").exceptions.HTTPError) as error:
            words = " ".join(str(error).split())[:500]
            raise ProviderSilent(f"the API server of Kubernetes does not answer: {words}", REACH) from None


def _refusal(error: Any) -> ProviderRefused | ProviderSilent:
    try:
        words = str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        words = str(error.body or error.reason)[:500]
    if error.status == 401:
        _client.cache_clear()  # another token may be in the file
    if error.status == 429 or not 400 <= error.status < 500:
        return ProviderSilent(f"the API server of Kubernetes answers {error.status}: {words}", REACH)
    return ApiRefused(error.status, words)


def _package() -> Any:
    """Return the official client. Raises ProviderRefused where it is not installed."""
    try:
        return import_module("kubernetes")
    except ImportError as error:
        raise ProviderRefused(f"the client of Kubernetes is not installed: {error}", INSTALL) from None


def _connection(context: str) -> Any:
    """Return the client of a context; another one when the file that has it was written anew."""
    path = settings.KUBECONFIG
    try:
        return _client(path, Path(path).stat().st_mtime_ns if path else 0, context)
    except OSError as error:
        raise ProviderRefused(f"FLEXMARL_KUBECONFIG: {path} cannot be read ({error.strerror})", NAMED) from None


@lru_cache(maxsize=16)
def _client(path: str, written: int, context: str) -> Any:
    package = _package()
    configuration = package.client.Configuration()
    try:
        if path:
            package.config.load_kube_config(path, context or None, configuration, persist_config=False)
        elif context:
            raise ProviderRefused(f"context is {context}, but FLEXMARL_KUBECONFIG names no file", NAMED)
        else:
            package.config.load_incluster_config(configuration)
    except (package.config.ConfigException, YAMLError) as error:
        where = f"FLEXMARL_KUBECONFIG ({path})" if path else "FLEXMARL_KUBECONFIG is not set, and here is no cluster"
        raise ProviderRefused(f"{where}: {' '.join(str(error).split())[:300].rstrip('.')}", NAMED) from None
    configuration.retries = False  # rounds come again by themselves
    return package.client.ApiClient(configuration)
