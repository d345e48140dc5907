"""The two model bases every contract type derives from.

Invariants: contract values are immutable, and a field nobody declared is refused at the boundary instead of
being carried along silently.
"""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses unknown fields and mutation; the base of everything users write."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Record(BaseModel):
    """Immutable wire value between our own processes; unknown fields are refused as well."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
