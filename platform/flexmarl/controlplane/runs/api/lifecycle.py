"""The life cycle over REST: the table itself, the attempts of a run, and what was asked of it."""

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import GOALS, INTERNAL_MOVES, STOPPED, TERMINAL, TRANSITIONS, RunStatus
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries
from flexmarl.controlplane.runs.api.serializers import REASONS, STATUSES, VERBS, AttemptSerializer, OperationSerializer
from flexmarl.controlplane.runs.models import Operation
from flexmarl.controlplane.runs.verbs import MAX_HOLD_S


class VerbMoveSerializer(serializers.Serializer[Any]):
    action = serializers.ChoiceField(VERBS)
    to = serializers.ChoiceField(STATUSES)


class StateSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(STATUSES)
    terminal = serializers.BooleanField()
    actions = VerbMoveSerializer(many=True)
    internal = serializers.ListField(
        child=serializers.ChoiceField(STATUSES),
        help_text="Statuses that the run reaches from here without further action.",
    )


class VerbSerializer(serializers.Serializer[Any]):
    action = serializers.ChoiceField(VERBS)
    goal = serializers.ListField(
        child=serializers.ChoiceField(STATUSES), help_text="Statuses in which its operation has succeeded."
    )
    options = serializers.JSONField(help_text="Name of each option, with its legal values.")


class TransitionsSerializer(serializers.Serializer[Any]):
    states = StateSerializer(many=True)
    actions = VerbSerializer(many=True)
    reasons = serializers.ListField(child=serializers.ChoiceField(REASONS))


OPTIONS: dict[Verb, dict[str, Any]] = {
    Verb.PAUSE: {
        "mode": {"values": [mode.value for mode in PauseMode], "default": PauseMode.DRAIN.value},
        "hold_s": {"minimum": 0, "maximum": MAX_HOLD_S, "nullable": True, "default": "resources.hold_s"},
    }
}


def transitions() -> dict[str, Any]:
    """Return the table of `contracts.status` as plain values, in the statuses that clients read."""
    states = [
        {
            "status": status.value,
            "terminal": status in TERMINAL,
            "actions": [{"action": verb.value, "to": to.value} for verb, to in TRANSITIONS[status].items()],
            "internal": _shown(INTERNAL_MOVES[status]),
        }
        for status in RunStatus
    ]
    return {
        "states": [*states, {"status": STOPPED, "terminal": True, "actions": [], "internal": []}],
        "actions": [
            {
                "action": verb.value,
                "goal": _shown(GOALS[verb]),
                "options": {"reason": {"max_length": 300}, **OPTIONS.get(verb, {})},
            }
            for verb in Verb
        ],
        "reasons": REASONS,
    }


def _shown(statuses: frozenset[RunStatus]) -> list[str]:
    """List statuses in their order; where a run may complete from a stop, it may be stopped."""
    shown = [status.value for status in RunStatus if status in statuses]
    return [*shown, STOPPED] if RunStatus.COMPLETED in statuses else shown


class RunTransitionsView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="transitions", responses=TransitionsSerializer)
    def get(self, request: Request) -> Response:
        """Read which action is possible in which state, and where it leads."""
        return Response(transitions())


class AttemptsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_attempts", responses=listing(AttemptSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List a run's attempts, oldest first."""
        rows = queries.attempts(queries.find_run(actor_of(request), run_id))
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class RunOperationsView(ListView):
    scopes = {"GET": Scope.RUNS_READ}
    orderings = {"-created_at": "-id", "created_at": "id"}

    def query(self, request: Request) -> QuerySet[Operation]:
        return queries.operations(queries.find_run(actor_of(request), self.kwargs["run_id"]))

    def rows_of(self, request: Request, found: Sequence[Operation]) -> list[dict[str, Any]]:
        return queries.operation_rows(found)

    @extend_schema(operation_id="runs_operations", responses=listing(OperationSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List what was asked of a run, and how each ended."""
        return super().get(request, *args, **kwargs)
