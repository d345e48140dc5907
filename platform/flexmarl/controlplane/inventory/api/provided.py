"""Hosts of pools that grow, over REST: their jobs, what would be submitted, and cancelling one."""

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import provided
from flexmarl.controlplane.inventory.api import serializers as shapes


class SubmissionView(ApiView):
    scopes = {"GET": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="pools_submission", responses=shapes.HostSubmissionSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read what would be submitted for the pool's next host. Nothing is submitted."""
        return Response(provided.submission(name))


class HostJobsView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ}

    @extend_schema(operation_id="pools_jobs", responses=listing(shapes.HostJobSerializer))
    def get(self, request: Request, name: str) -> Response:
        """List the jobs of a pool's hosts: those that have not ended, then the newest, 50 in all."""
        rows = provided.jobs(name)
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class HostJobView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ}

    @extend_schema(operation_id="pools_job", responses=shapes.HostJobSerializer)
    def get(self, request: Request, name: str, job: UUID) -> Response:
        """Read the job of one host."""
        return Response(provided.job(name, job))


class CancelHostJobView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="pools_cancel_job", request=None, responses=shapes.HostJobSerializer)
    def post(self, request: Request, name: str, job: UUID) -> Response:
        """Cancel the job of a host. A host that works is drained first: what runs there moves to other devices."""
        provided.cancel(actor_of(request), name, job)
        return Response(provided.job(name, job))
