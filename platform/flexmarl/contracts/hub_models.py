"""Repositories of a hub, as imports name them: by revision, with the name of a secret where one is needed."""

from typing import Literal

from pydantic import Field

from flexmarl.contracts.base import Strict

SETTING = "FLEXMARL_HUB"
"""Address of the hub that models and datasets may be imported from; without it none may."""


class HubRepository(Strict):
    """What a hub has under one name, at one revision."""

    repository: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=200,
        examples=["HuggingFaceTB/SmolLM2-135M-Instruct"],
    )  # fmt: skip
    """Owner and name."""
    revision: str = Field(
        default="main", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=200, examples=["main", "v1.0"]
    )
    """Branch, tag or commit; the commit that it is at the import is recorded."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["HUB_TOKEN"])
    """Name of the secret sent as a token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the nodes. Empty: none."""


class HubModel(HubRepository):
    """A model of the hub that the operator allowed."""

    type: Literal["hub"] = "hub"


def check_hub(address: str) -> str:
    """Return a hub's address without a slash at its end; raise ValueError for what is none."""
    if address and not address.startswith(("https://", "http://")):
        raise ValueError(f"{SETTING} is {address!r}; it must be an address such as https://hub.example.org, or empty")
    return address.rstrip("/")
