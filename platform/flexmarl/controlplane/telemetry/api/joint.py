"""What the orchestrator and the experience store hold of a run, over REST: cohorts, lag, rows by place, decisions."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter, within
from flexmarl.controlplane.common.api.pagination import CURSOR, Page, envelope
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.flow import cohorts, decisions, lag

STEP = Parameter("step", "Step that it is about, counted from 1: its cohort's number plus one.", "integer")
_LARGEST_STEP = 2**31 - 1


def cohort_of(values: Mapping[str, Any]) -> int | None:
    """Return the cohort that a list is narrowed to, by its own number or by its step; None: any."""
    if "step" not in values:
        return values.get("cohort")
    return within("step", values["step"], _LARGEST_STEP) - 1


class CohortPolicySerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    rows = serializers.IntegerField(help_text="In its micro-batches.")
    replayed = serializers.IntegerField(
        help_text="Of these: rows that an earlier cohort was trained on as well, or that were imported."
    )
    imported = serializers.IntegerField(help_text="Of the replayed ones: imported rows of another run.")
    micro_batches = serializers.IntegerField()
    cut = serializers.IntegerField(help_text="Cut; gradient not accumulated yet.")
    accumulated = serializers.IntegerField(help_text="In the accumulator; not applied yet.")
    applied = serializers.IntegerField()
    void = serializers.IntegerField()
    version = serializers.IntegerField(allow_null=True, help_text="Committed by its newest step.")


class CohortSerializer(serializers.Serializer[Any]):
    cohort = serializers.IntegerField()
    step = serializers.IntegerField()
    state = serializers.ChoiceField([state.value for state in cohorts.CohortState])
    pins = serializers.DictField(child=serializers.IntegerField(), help_text="Policy to the version it is played with.")
    groups = serializers.IntegerField()
    groups_settled = serializers.IntegerField()
    groups_open = serializers.IntegerField()
    groups_refused = serializers.IntegerField(help_text="Rejected by the group filter.")
    groups_dropped = serializers.IntegerField(help_text="Dropped: too few finished members.")
    groups_surplus = serializers.IntegerField(help_text="Settled after they were cancelled as surplus.")
    episodes = serializers.IntegerField()
    episodes_failed = serializers.IntegerField()
    policies = CohortPolicySerializer(many=True)
    waits_for = serializers.CharField(allow_blank=True)
    opened_at = serializers.DateTimeField(allow_null=True)
    settled_at = serializers.DateTimeField(allow_null=True)
    applied_at = serializers.DateTimeField(allow_null=True)


class CohortsSerializer(serializers.Serializer[Any]):
    results = CohortSerializer(many=True)
    next_before = serializers.IntegerField(allow_null=True)
    seq = serializers.IntegerField()


class CohortsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("before", "Number of a cohort to go on below, from `next_before`.", "integer"),
        Parameter("limit", f"Cohort numbers to look at, 1 to {cohorts.MAX_LIMIT}.", "integer"),
        Parameter("state", "State; may be repeated.", choices=tuple(cohorts.CohortState), many=True),
    )

    @extend_schema(operation_id="runs_cohorts", responses=CohortsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """List cohorts, newest first: how far each is, what it pins and what it waits for."""
        limit = within("limit", self.values.get("limit", cohorts.DEFAULT_LIMIT), cohorts.MAX_LIMIT)
        run = find_run(actor_of(request), run_id)
        return Response(queries.cohorts(run, self.values.get("before"), limit, self.values.get("state")))


class DecisionSerializer(serializers.Serializer[Any]):
    seq = serializers.IntegerField(help_text="Event it was made on.")
    event = serializers.CharField(allow_blank=True, help_text="Kind of that event.")
    at = serializers.DateTimeField()
    type = serializers.ChoiceField(["command", "ruling"])
    kind = serializers.ChoiceField(list(decisions.KINDS))
    command = serializers.IntegerField(allow_null=True, help_text="Number of the command.")
    policy = serializers.CharField(allow_blank=True)
    cohort = serializers.IntegerField(allow_null=True)
    target = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    cause = serializers.CharField(allow_blank=True)
    rows = serializers.IntegerField(allow_null=True, help_text="Rows that a ruling is about: taken out, or carried.")
    status = serializers.CharField(allow_blank=True, help_text="Of the command: open, taken, done, failed or void.")
    error = serializers.CharField(allow_blank=True, help_text="Code with which a command failed.")


class DecisionsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("kind", "Kind of decision; may be repeated.", choices=decisions.KINDS, many=True),
        Parameter("policy", "Policy; may be repeated.", many=True),
        Parameter("cohort", "Cohort.", "integer"),
        STEP,
        Parameter("limit", f"Decisions per page, 1 to {decisions.MAX_LIMIT}.", "integer"),
        CURSOR,
    )

    @extend_schema(operation_id="runs_decisions", responses=listing(DecisionSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List what was decided, newest first: each with its reason and the event it was made on."""
        values = self.values
        limit = within("limit", values.get("limit", decisions.DEFAULT_LIMIT), decisions.MAX_LIMIT)
        wanted = queries.DecisionFilter(values.get("kind"), values.get("policy"), cohort_of(values))
        found = queries.decisions(find_run(actor_of(request), run_id), wanted, values.get("cursor"), limit)
        return Response(envelope(request, Page(found["results"], found["next"], None, None), found["results"]))


class LagStepSerializer(serializers.Serializer[Any]):
    step = serializers.IntegerField()
    own_mean = serializers.FloatField(allow_null=True)
    own_p99 = serializers.FloatField(allow_null=True)
    own_max = serializers.FloatField(allow_null=True)
    completion_mean = serializers.FloatField(
        allow_null=True, help_text="From the version that was committed when the row's group settled."
    )
    token_mean = serializers.FloatField(allow_null=True, help_text="Per token.")
    trained_length_ratio = serializers.FloatField(
        allow_null=True, help_text="Mean length of trained rows over that of generated ones."
    )


class DroppedSerializer(serializers.Serializer[Any]):
    cause = serializers.CharField()
    rows = serializers.IntegerField()


class PolicyLagSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    bound = serializers.IntegerField(help_text="Highest own lag a row may be trained with.")
    at_admission = serializers.CharField()
    in_flight = serializers.CharField()
    at_cut = serializers.CharField()
    at_turn = serializers.CharField()
    version = serializers.IntegerField(allow_null=True, help_text="Newest committed one.")
    pinned = serializers.ListField(child=serializers.IntegerField(), help_text="By cohort in progress, oldest first.")
    own_now = serializers.IntegerField(
        allow_null=True, help_text="Of a row of the oldest cohort under way, were it cut now; null when none is."
    )
    steps = LagStepSerializer(many=True)
    dropped = DroppedSerializer(many=True)


class PinnedSerializer(serializers.Serializer[Any]):
    cohort = serializers.IntegerField()
    pins = serializers.DictField(child=serializers.IntegerField())


class LagSerializer(serializers.Serializer[Any]):
    policies = PolicyLagSerializer(many=True)
    cohorts = PinnedSerializer(many=True, help_text="In progress, newest first.")
    groups_ruled_out = DroppedSerializer(many=True, help_text="Rows of whole groups, of all policies.")
    step = serializers.IntegerField()
    seq = serializers.IntegerField()


class LagView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (Parameter("steps", f"Number of newest steps to report, 1 to {lag.MAX_STEPS}.", "integer"),)

    @extend_schema(operation_id="runs_lag", responses=LagSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read the lag of every trained policy: its bound, where it stands now, per step, and what was dropped."""
        steps = within("steps", self.values.get("steps", lag.DEFAULT_STEPS), lag.MAX_STEPS)
        return Response(queries.lag(find_run(actor_of(request), run_id), steps))


class PlacesSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    written = serializers.IntegerField()
    tokens = serializers.IntegerField()
    payload_bytes = serializers.IntegerField()
    by_reference = serializers.IntegerField(help_text="Rows whose payload lies in a segment file.")
    ready = serializers.IntegerField(help_text="Of kept groups, waiting for their cut.")
    cut = serializers.IntegerField()
    accumulated = serializers.IntegerField()
    applied = serializers.IntegerField()
    void = serializers.IntegerField(help_text="In micro-batches abandoned by a stop or a new attempt.")
    dropped = serializers.IntegerField(help_text="Removed by a decision before they were cut.")
    recorded = serializers.IntegerField(help_text="Kept and never trained: the next four.")
    evaluation = serializers.IntegerField()
    untrained = serializers.IntegerField(help_text="Of seats that are not trained, or empty.")
    ruled_out = serializers.IntegerField(
        help_text="Of failed members and of groups refused, dropped, or cancelled as surplus."
    )
    left = serializers.IntegerField(help_text="Waiting to be cut when the run ended.")
    missing = serializers.IntegerField(help_text="Settled but not stored: anything but 0 means lost rows.")


class TableSerializer(serializers.Serializer[Any]):
    table = serializers.CharField()
    size_bytes = serializers.IntegerField()
    rows_estimate = serializers.IntegerField()
    attached = serializers.BooleanField()


class StoreStateSerializer(serializers.Serializer[Any]):
    policies = PlacesSerializer(many=True)
    rows = serializers.IntegerField()
    payload_bytes = serializers.IntegerField()
    rows_by_reference = serializers.IntegerField()
    segments = serializers.IntegerField(help_text="Segment files with payloads of this run.")
    tables = TableSerializer(many=True, help_text="Partitions that hold this run alone.")
    size_bytes = serializers.IntegerField()
    accounted = serializers.BooleanField()
    seq = serializers.IntegerField()


class StoreView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_store", responses=StoreStateSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Count the run's rows by policy and place, and what they take. Reads every row: not for polling."""
        return Response(queries.store_state(find_run(actor_of(request), run_id)))
