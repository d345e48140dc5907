"""Filters of lists of suites and evaluations, the same in REST and on the pages."""

from flexmarl.controlplane.common.api.filters import Parameter

SUITE_FILTERS = (
    Parameter("project", "Name of the project.", lookup="project_id"),
    Parameter("name", "Exact name.", lookup="name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
)
FILTERS = (
    Parameter("project", "Name of the project.", lookup="project_id"),
    Parameter("suite", "Name of the suite.", lookup="suite_version__suite__name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
)
