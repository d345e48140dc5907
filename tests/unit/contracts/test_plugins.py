"""Plug-ins of other distributions: which are taken, which are named as broken, and what the built-in ones say."""

from importlib.metadata import EntryPoint
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from flexmarl.contracts.base import Strict
from flexmarl.contracts.plugins import InstalledPlugin, Kind, OneOf, PluginOptions, discover
from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.specification.kinds import KINDS
from flexmarl.contracts.specification.losses import LOSS, LossOptions, RowLossOptions
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER


class OtherOptions(RowLossOptions):
    """A loss of another distribution."""

    type: Literal["other"] = "other"
    width: float = Field(default=0.2, gt=0.0)

    implementation: ClassVar[str] = "others.losses:Other"


class OfAnotherKind(PluginOptions):
    """No loss."""

    type: Literal["of_another_kind"] = "of_another_kind"


class Taken(RowLossOptions):
    """Takes a built-in name."""

    type: Literal["gspo"] = "gspo"


class Homeless(RowLossOptions):
    """Says nothing of its code."""

    type: Literal["homeless"] = "homeless"


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "flexmarl.loss")


def test_a_plug_in_is_found_by_its_entry_point() -> None:
    found, broken = discover(LOSS, [point("other", f"{__name__}:OtherOptions")])
    assert {name: one.options for name, one in found.items()} == {"other": OtherOptions}
    assert broken == ()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("gone", "no_such_module:Loss", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("gone", f"{__name__}:Missing", "AttributeError"),
        ("misnamed", f"{__name__}:OtherOptions", "its type is 'other', and its entry point is named 'misnamed'"),
        ("of_another_kind", f"{__name__}:OfAnotherKind", "it must derive from LossOptions"),
        ("test", f"{__name__}:test_a_plug_in_is_found_by_its_entry_point", "it must derive from LossOptions"),
        ("gspo", f"{__name__}:Taken", "the name is taken by flexmarl"),
        ("homeless", f"{__name__}:Homeless", "implementation is ''; write it like package.module:Class"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_reason_and_raises_nothing(name: str, value: str, reason: str) -> None:
    found, broken = discover(LOSS, [point(name, value)])
    assert found == {}
    assert [(one.kind, one.name) for one in broken] == [("loss", name)]
    assert broken[0].reason.startswith(reason)


def test_of_two_plug_ins_of_one_name_the_second_is_refused() -> None:
    found, broken = discover(
        LOSS, [point("other", f"{__name__}:OtherOptions"), point("other", f"{__name__}:OtherOptions")]
    )
    assert list(found) == ["other"]
    assert "the name is taken by" in broken[0].reason


class Offered(Kind[LossOptions]):
    """The losses, as they are where another distribution is installed that adds one, and one that is broken."""

    def installed(self) -> dict[str, InstalledPlugin]:
        return {"other": InstalledPlugin(OtherOptions, "others", "1.2")}

    def broken(self) -> tuple:
        return discover(LOSS, [point("gone", "no_such_module:Loss")])[1]


OFFERED = Offered(LOSS.name, LOSS.pointer, LOSS.base, LOSS.builtins)


class Document(Strict):
    loss: Annotated[LossOptions, OneOf(OFFERED)] = LOSS.options()
    kept: ClassVar[int] = 0


def refusals(loss: object) -> list[tuple[str, str, str]]:
    document = {"loss": loss}
    with pytest.raises(ValidationError) as caught:
        Document.model_validate(document)
    found = problems_of(caught.value, Document, document)
    return [(one.pointer, one.code, f"{one.detail} {one.hint}".strip()) for one in found]


def test_its_settings_are_checked_as_those_of_built_in_ones() -> None:
    assert Document.model_validate({"loss": {"type": "other", "width": 0.3}}).loss == OtherOptions(width=0.3)
    assert Document.model_validate({"loss": "other"}).loss == OtherOptions()
    assert Document.model_validate({"loss": {"norm_tokens": 8}}).loss == LOSS.options(norm_tokens=8)
    assert refusals({"type": "other", "width": 0}) == [
        ("/loss/width", "out_of_range", "width must be greater than 0.0; it is 0. Set a value greater than 0.0.")
    ]
    [(pointer, code, text)] = refusals({"type": "ppo_clip", "width": 0.3})
    assert (pointer, code) == ("/loss/width", "not_read")
    assert text == "width is a setting of other; ppo_clip does not use it. Remove it, or set type: other."
    [(pointer, code, text)] = refusals({"type": "nothing"})
    assert (pointer, code) == ("/loss/type", "unknown_value")
    assert "'online_dpo', 'other'" in text


def test_naming_a_broken_one_says_what_is_wrong_with_it() -> None:
    [(pointer, _, text)] = refusals("gone")
    assert pointer == "/loss/type"
    assert "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'" in text


def test_a_manifest_says_where_a_plug_in_comes_from() -> None:
    rows = {one.name: one for one in OFFERED.manifests()}
    assert (rows["other"].distribution, rows["other"].version) == ("others", "1.2")
    assert (rows["gspo"].distribution, rows["gspo"].version) == ("", "")
    assert rows["other"].summary == "A loss of another distribution."
    assert rows["other"].options["properties"]["width"]["exclusiveMinimum"] == 0.0
    TypeAdapter(dict).validate_python(rows["other"].options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_setting_of_a_built_in_plug_in_is_explained(kind: Kind) -> None:
    assert kind.base.summary().endswith(".")
    for options in kind.builtins:
        assert options.summary().endswith("."), options
        for name, field in options.model_json_schema()["properties"].items():
            assert name == "type" or field.get("description"), (options, name)


def test_what_changes_the_expectation_of_a_gradient_says_how():
    said = {kind.name: {one.name for one in kind.manifests() if one.bias} for kind in (TASK_SAMPLER, MEMBER_COUNT)}
    assert said["task_sampler"] >= {"vade", "greso", "filter_solved", "near_success"}
    assert said["member_count"] >= {"fewer_when_solved", "mixed_outcomes"}
    assert not {"uniform", "equal"} & {*said["task_sampler"], *said["member_count"]}
