"""What every value that users write has in common."""

import pytest
from pydantic import Field, ValidationError, create_model

from flexmarl.contracts.base import Strict


class Inner(Strict):
    count: int = Field(1, ge=0)
    share: float = 0.5
    on: bool = False


@pytest.mark.parametrize(
    ("field", "value"), [("count", "3"), ("count", 1.5), ("count", True), ("share", "1"), ("on", 1)]
)
def test_a_scalar_is_not_made_of_another(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Inner.model_validate({field: value})


def test_a_whole_number_may_have_a_point() -> None:
    assert Inner(count=3.0).count == 3  # type: ignore[arg-type]


class Documented(Inner):
    count: int = Field(2, ge=0)
    seconds: float = 0.0
    """How long
    it takes."""
    named: int = Field(0, description="a word of its own")
    """Not this."""


class Told(Documented):
    later: int = 0
    """When."""


def test_a_schema_describes_fields_by_the_docstrings_behind_them() -> None:
    found = {name: part.get("description") for name, part in Told.model_json_schema()["properties"].items()}
    assert found == {
        "count": None, "share": None, "on": None, "seconds": "How long\nit takes.", "named": "a word of its own",
        "later": "When.",
    }  # fmt: skip


def test_a_model_stays_as_it_is_however_many_others_it_is_part_of() -> None:
    """Its schema once grew by a step with each, until a process that made many ended in a RecursionError."""
    before = str(Inner.__pydantic_core_schema__)
    for number in range(3):
        outer = create_model(f"Outer{number}", __base__=Strict, inner=(Inner, Inner()), more=(list[Inner], []))
        assert outer.model_validate({"inner": {"count": 2.0}}).inner == Inner(count=2)  # type: ignore[attr-defined]
    assert str(Inner.__pydantic_core_schema__) == before
