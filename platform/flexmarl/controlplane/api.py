"""Version 1 of the REST API: the routes of all apps."""

from django.urls import URLPattern, URLResolver

from flexmarl.controlplane.accounts.api.urls import urlpatterns as accounts
from flexmarl.controlplane.agents.api.urls import urlpatterns as agents
from flexmarl.controlplane.common.api.urls import urlpatterns as common
from flexmarl.controlplane.datasets.api.urls import urlpatterns as datasets
from flexmarl.controlplane.evaluations.api.urls import urlpatterns as evaluations
from flexmarl.controlplane.experiments.api.urls import urlpatterns as experiments
from flexmarl.controlplane.inventory.api.urls import urlpatterns as inventory
from flexmarl.controlplane.packages.api.urls import urlpatterns as packages
from flexmarl.controlplane.playground.api.key_urls import urlpatterns as serving_keys
from flexmarl.controlplane.registry.api.urls import urlpatterns as registry
from flexmarl.controlplane.runs.api.urls import urlpatterns as runs
from flexmarl.controlplane.simulations.api.urls import urlpatterns as simulations
from flexmarl.controlplane.sweeps.api.urls import urlpatterns as sweeps
from flexmarl.controlplane.telemetry.api.stream import urlpatterns as stream
from flexmarl.controlplane.telemetry.api.urls import urlpatterns as telemetry

urlpatterns: list[URLPattern | URLResolver] = [
    *common,
    *accounts,
    *inventory,
    *agents,
    *registry,
    *datasets,
    *packages,
    *experiments,
    *runs,
    *telemetry,
    *sweeps,
    *simulations,
    *evaluations,
    *serving_keys,
    *stream,
]
