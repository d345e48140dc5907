"""Shapes of experiments, templates, presets and plans."""

from typing import Any, get_args

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.document import PARTIAL, REFERENCE, WHOLE
from flexmarl.controlplane.common.api.serializers import FieldErrorSerializer, StrictSerializer
from flexmarl.controlplane.experiments.actions import MOST_TEXT
from flexmarl.controlplane.experiments.api.choice_serializers import ChoiceSerializer, ChooseSerializer
from flexmarl.controlplane.experiments.models import ExperimentVerdict
from flexmarl.controlplane.experiments.plans import ChosenFrom, Draft
from flexmarl.simulator.prediction.memory import PARTS
from flexmarl.simulator.prediction.profile import Unit
from flexmarl.simulator.reporting.report import CAUSES

VERDICTS = [verdict.value for verdict in ExperimentVerdict]


@extend_schema_field({"$ref": REFERENCE + WHOLE})
class SpecificationField(serializers.JSONField):
    """A resolved specification."""


@extend_schema_field({"$ref": REFERENCE + PARTIAL})
class PartialSpecificationField(serializers.DictField):
    """A specification of which anything may be missing."""


class BaselineSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()


class ExperimentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    question = serializers.CharField(allow_blank=True)
    baseline = BaselineSerializer(allow_null=True, help_text="The run that the others are compared with.")
    verdict = serializers.ChoiceField(VERDICTS)
    owner = serializers.CharField(allow_null=True)
    runs = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class ExperimentDetailSerializer(ExperimentSerializer):
    notes = serializers.CharField(allow_blank=True, help_text="Markdown.")
    verdict_text = serializers.CharField(allow_blank=True, help_text="Reasons of the verdict, in Markdown.")


class ExperimentChangeSerializer(StrictSerializer):
    name = serializers.CharField(required=False, max_length=64)
    description = serializers.CharField(required=False, allow_blank=True, max_length=MOST_TEXT)
    question = serializers.CharField(required=False, allow_blank=True, max_length=300)
    notes = serializers.CharField(required=False, allow_blank=True, max_length=MOST_TEXT, help_text="Markdown.")
    baseline = serializers.CharField(
        required=False, allow_null=True, max_length=64, help_text="Id or key of a run of the experiment; null: none."
    )
    verdict = serializers.ChoiceField(VERDICTS, required=False)
    verdict_text = serializers.CharField(required=False, allow_blank=True, max_length=MOST_TEXT)


class NewExperimentSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)
    description = serializers.CharField(required=False, default="", allow_blank=True, max_length=MOST_TEXT)
    question = serializers.CharField(required=False, default="", allow_blank=True, max_length=300)
    notes = serializers.CharField(required=False, default="", allow_blank=True, max_length=MOST_TEXT)
    project = serializers.CharField(required=False, default=DEFAULT_PROJECT, max_length=64)


class PluginSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    pointer = serializers.CharField(help_text="Where a specification names one.")
    name = serializers.CharField()
    summary = serializers.CharField()
    options = serializers.JSONField(allow_null=True, help_text="JSON Schema of its settings; null: it is unusable.")
    distribution = serializers.CharField(allow_blank=True, help_text="Where it comes from; empty: built in.")
    version = serializers.CharField(allow_blank=True)
    problem = serializers.CharField(allow_blank=True, help_text="Why it cannot be used; empty: it can.")
    bias = serializers.CharField(
        allow_blank=True, help_text="What it changes of the expectation of a gradient; empty: nothing that it declares."
    )


class TemplateSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    group = serializers.ChoiceField(
        ["own", "chat", "game"],
        help_text="own: data and programs of your own; chat: teams of chat models; game: a small game.",
    )
    preset = serializers.CharField()
    expected = serializers.CharField()
    environment = serializers.CharField()
    environment_title = serializers.CharField()
    roles = serializers.ListField(child=serializers.CharField())
    spec = SpecificationField()
    sources = serializers.DictField(child=serializers.CharField())
    arithmetic = serializers.JSONField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class PresetSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    paper = serializers.CharField(allow_blank=True)
    aliases = serializers.ListField(
        child=serializers.CharField(),
        help_text="Presets that complete to the same specification: equal in all but name and description.",
    )
    spec = PartialSpecificationField()
    url = serializers.CharField()


class DraftSerializer(StrictSerializer):
    """A specification: a template, a document or YAML, and what to lay over it."""

    name = serializers.CharField(required=False, allow_blank=True, max_length=64, default="")
    template = serializers.CharField(required=False, allow_blank=True, default="")
    preset = serializers.CharField(required=False, allow_blank=True, default="")
    spec = PartialSpecificationField(required=False, help_text="Partial or complete specification.")
    yaml = serializers.CharField(required=False, allow_blank=True, default="", help_text="The same as YAML.")
    overrides = PartialSpecificationField(required=False, help_text="Partial specification laid over the rest.")

    def draft(self) -> Draft:
        """Return the draft of a valid body."""
        body: dict[str, Any] = self.validated_data
        return Draft(
            name=body["name"].strip(),
            template=body["template"],
            preset=body["preset"],
            spec=body.get("spec", {}),
            yaml=body["yaml"],
            overrides=body.get("overrides", {}),
        )


class PlanRequestSerializer(DraftSerializer):
    project = serializers.SlugField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Whose pools it may use."
    )
    predict = serializers.BooleanField(
        required=False, default=False, help_text="Simulate it too: `prediction` says what it would take."
    )
    choose = ChooseSerializer(
        required=False, help_text="Choose its devices too: `choice` says which, what they take, and why not others."
    )

    def chosen_from(self) -> ChosenFrom | None:
        """Return what to choose devices by; None where nobody asks for that."""
        body = self.validated_data.get("choose")
        return None if body is None else ChooseSerializer().chosen_from(body)


class MeasureSerializer(DraftSerializer):
    project = serializers.SlugField(required=False, max_length=64, default=DEFAULT_PROJECT)


class NeededSerializer(serializers.Serializer[Any]):
    use = serializers.ChoiceField(["engine", "trainer"])
    pool = serializers.CharField()
    devices = serializers.IntegerField()
    each = serializers.IntegerField(help_text="Devices of each engine, of one host.")
    max_devices = serializers.IntegerField(
        help_text="Devices that it may grow to; those it begins with where their number is fixed."
    )
    free = serializers.IntegerField(help_text="Devices of the pool that nobody has now.")


class FitSerializer(serializers.Serializer[Any]):
    needed = NeededSerializer(many=True)
    fits_now = serializers.BooleanField()
    fits_ever = serializers.BooleanField()
    text = serializers.CharField()


class SpanSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    likely = serializers.FloatField()
    high = serializers.FloatField()


class UtilisationSerializer(serializers.Serializer[Any]):
    engine = SpanSerializer()
    trainer = SpanSerializer()


class PredictedCauseSerializer(SpanSerializer):
    cause = serializers.ChoiceField(CAUSES)
    text = serializers.CharField()


class PredictedBubbleSerializer(serializers.Serializer[Any]):
    engine = PredictedCauseSerializer(many=True)
    trainer = PredictedCauseSerializer(many=True)


class MemoryPartSerializer(SpanSerializer):
    name = serializers.ChoiceField(list(PARTS))
    text = serializers.CharField(help_text="What it is for.")


class DeviceMemorySerializer(serializers.Serializer[Any]):
    parts = MemoryPartSerializer(many=True)
    total = SpanSerializer()
    capacity = serializers.IntegerField(allow_null=True)
    fits = serializers.ChoiceField(["yes", "maybe", "no", "unknown"])


class PredictedDeviceSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField()
    use = serializers.ChoiceField(["engine", "trainer"])
    devices = serializers.IntegerField(help_text="Devices of the engine; each holds what `memory` says.")
    pool = serializers.CharField()
    policies = serializers.ListField(child=serializers.CharField())
    memory = DeviceMemorySerializer(allow_null=True, help_text="Bytes; null where a model's size is not known.")


class FigureSerializer(SpanSerializer):
    name = serializers.CharField()
    of = serializers.CharField(allow_blank=True, help_text="The policy or role.")
    unit = serializers.ChoiceField(get_args(Unit))
    meaning = serializers.CharField()
    source = serializers.ChoiceField(["runs", "profile", "declared", "default"])  # type: ignore[assignment]
    source_text = serializers.CharField(allow_blank=True)


class SplitChangeSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="Into the specification.")
    before = serializers.JSONField(allow_null=True)
    value = serializers.JSONField(allow_null=True)


class SplitSerializer(serializers.Serializer[Any]):
    engines = serializers.IntegerField()
    trainers = serializers.IntegerField()
    shared = serializers.BooleanField(help_text="Engines and trainers share the same devices, in turns.")
    changes = SplitChangeSerializer(many=True, help_text="What of the specification to change for it.")
    step_s = SpanSerializer()
    gain = SpanSerializer(help_text="Share of the time per trained token that it saves.")


class SplitAdviceSerializer(serializers.Serializer[Any]):
    devices = serializers.IntegerField(help_text="Everything the run requests.")
    looked_at = serializers.IntegerField(help_text="Other splits that were simulated.")
    stopped = serializers.BooleanField(help_text="Others were skipped for lack of time.")
    least_gain = serializers.FloatField(help_text="Splits that save less are not reported.")
    better = SplitSerializer(allow_null=True)


class PredictionSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    made_at = serializers.DateTimeField()
    step_s = SpanSerializer()
    tokens_s = SpanSerializer(help_text="Trained reply tokens a second.")
    utilisation = UtilisationSerializer(help_text="Share of held device time that is work.")
    bubble = PredictedBubbleSerializer(help_text="Idle time, by cause.")
    hours = SpanSerializer(help_text="To the end of the budget, from devices that are free at once.")
    device_hours = SpanSerializer()
    cost = SpanSerializer(allow_null=True, help_text="Null unless every pool has a price.")
    devices = PredictedDeviceSerializer(many=True)
    why = serializers.ListField(child=serializers.CharField(), help_text="What makes the ranges wide.")
    figures = FigureSerializer(many=True, help_text="What it was simulated with, and where that comes from.")
    steps = serializers.IntegerField(help_text="Train steps of a simulation that count.")
    simulations = serializers.IntegerField()
    split = SplitAdviceSerializer(help_text="Whether another split of the same devices would be faster.")


class PlanSerializer(serializers.Serializer[Any]):
    spec = SpecificationField(allow_null=True, help_text="Null when refused.")
    sources = serializers.DictField(child=serializers.CharField())
    preset = serializers.CharField(allow_blank=True)
    template = serializers.CharField(allow_blank=True)
    arithmetic = serializers.JSONField(help_text="Null when refused.")
    errors = FieldErrorSerializer(many=True)  # type: ignore[assignment]
    warnings = FieldErrorSerializer(many=True)
    devices = FitSerializer(allow_null=True)
    prediction = PredictionSerializer(
        allow_null=True, help_text="Null unless asked for, and where nothing can be said."
    )
    choice = ChoiceSerializer(allow_null=True, help_text="Null unless asked for.")
    plan_token = serializers.CharField(
        allow_null=True, help_text="Send it with the run: it is made as planned, or refused with `plan_stale`."
    )
