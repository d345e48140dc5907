"""Filters of lists of simulations, the same in REST and on the page."""

from django.db.models import Q

from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.simulations.choices import SimulationKind

KINDS = tuple(str(kind) for kind in SimulationKind)
STATES = tuple(str(state) for state in WorkState)
FILTERS = (
    Parameter("kind", "Comparison of presets, or what-if of a run.", lookup="kind", choices=KINDS, many=True),
    Parameter("state", "State.", lookup="state", choices=STATES, many=True),
    Parameter("project", "Name of the project.", lookup="project"),
    Parameter("workload", "Name of the workload.", lookup="workload"),
    Parameter("run", "Key of the run whose record is played.", lookup="run__key"),
    Parameter("owner", "Name of who asked for it.", lookup="owner__username"),
    Parameter("preset", "Preset among those compared.", condition=lambda name: Q(request__presets__contains=[name])),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
)
