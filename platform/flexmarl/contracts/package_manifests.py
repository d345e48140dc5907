"""Packages: where they come from, what was installed, and what they offer, as workers make it and runs are checked by.

Invariant: the control plane knows of a package only what stands here; it imports none of its code.
"""

import hashlib
import json
import re
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.specification.scores import checkable

ENDINGS = (".whl", ".tar.gz", ".zip")
"""Endings of files that may be uploaded: wheels and source distributions."""
REQUIREMENT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(\[[A-Za-z0-9._, -]{1,200}\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$"
ENTRY = r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?$"
ROLE = r"^[A-Za-z][A-Za-z0-9_]{0,31}$"
SHA256 = r"^[0-9a-f]{64}$"
TOOL = r"^[A-Za-z0-9_.-]{1,64}$"
MOST_TOOL_BYTES = 2**15
"""Bytes of a tool's description and schema, as JSON."""


class BuildRefusal(StrEnum):
    """Why a build failed; docs/refusals.md and the page of the package say what to do."""

    NOT_FOUND = "not_found"
    INDEX_UNREACHABLE = "index_unreachable"
    INSTALL_FAILED = "install_failed"
    NOT_UNDERSTOOD = "not_understood"
    VENV_FAILED = "venv_failed"
    OTHER_FILES = "other_files"
    OTHER_BUILD = "other_build"
    NO_ENVIRONMENTS = "no_environments"
    MANIFEST_FAILED = "manifest_failed"
    MANIFEST_TIME_LIMIT = "manifest_time_limit"
    FILE_GONE = "file_gone"
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    DISK = "disk"
    GAVE_UP = "gave_up"
    FAULT = "fault"


class PackageRequirement(Strict):
    """A distribution of the package index at one version."""

    type: Literal["requirement"] = "requirement"
    requirement: str = Field(pattern=REQUIREMENT, examples=["textarena==0.7.4"])
    entry: str = Field(default="", max_length=200, pattern=ENTRY, examples=["my_package.games:Maze"])
    """Class or function of an environment or a program that no registry names; empty: those of registries."""


class PackageUpload(Strict):
    """A wheel or a source distribution that was uploaded to this installation."""

    type: Literal["upload"] = "upload"
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,199}$", examples=["my_game-1.0-py3-none-any.whl"])
    digest: str = Field(pattern=SHA256)
    """SHA-256 of the file."""
    entry: str = Field(default="", max_length=200, pattern=ENTRY)


PackageSource = Annotated[PackageRequirement | PackageUpload, Field(discriminator="type")]


class LockedDistribution(Strict):
    """A distribution that was installed, by the digest of its file."""

    name: str = Field(max_length=200)
    version: str = Field(max_length=100)
    sha256: str = Field(pattern=SHA256)


class OfferedEnvironment(Strict):
    """An environment of a package."""

    name: str = Field(min_length=1, max_length=100)
    adapter: Literal["flexmarl", "gymnasium", "textarena", "pettingzoo", "trl", "openenv"]
    entry: str = Field(max_length=300)
    title: str = Field(max_length=200)
    summary: str = Field(max_length=1000)
    options: dict[str, JsonValue]
    """JSON Schema of its options."""
    roles: tuple[Annotated[str, Field(pattern=ROLE)], ...] = Field(min_length=1, max_length=16)
    opens: tuple[str, ...]
    best_score: float = 1.0
    turns: int = Field(default=16, ge=1)

    @field_validator("options")
    @classmethod
    def _can_be_checked(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return checkable(schema)


class OfferedProgram(Strict):
    """An agent program of a package: a function that is called once for each session."""

    name: str = Field(min_length=1, max_length=100)
    entry: str = Field(max_length=300)
    summary: str = Field(max_length=1000)
    options: dict[str, JsonValue]
    """JSON Schema of what it takes beside the session."""
    seats: tuple[Annotated[str, Field(pattern=ROLE)], ...] = Field(default=(), max_length=16)
    """Agents that it asks, where it says so."""
    adapter: Literal["", "verifiers"] = ""
    """Library of which it is an environment; empty: a function that is called with its session."""
    tasks: int | None = Field(default=None, ge=1)
    """Rows to train on, where it says so; like the next two, of its default options."""
    held_out: int | None = Field(default=None, ge=1)
    """Rows for evaluation."""
    best_reward: float | None = Field(default=None, gt=0.0)
    """Highest reward, where it says so."""

    @field_validator("options")
    @classmethod
    def _can_be_checked(cls, schema: dict[str, Any]) -> dict[str, Any]:
        return checkable(schema)


class OfferedTool(Strict):
    """A tool of a server, as it lists it."""

    name: str = Field(pattern=TOOL)
    description: str = ""
    parameters: dict[str, JsonValue]
    """JSON Schema of its arguments."""

    @model_validator(mode="after")
    def _fits_into_a_prompt(self) -> Self:
        if (size := len(self.model_dump_json())) > MOST_TOOL_BYTES:
            raise ValueError(f"description and schema have {size} bytes, at most {MOST_TOOL_BYTES} are taken")
        return self


class OfferedServer(Strict):
    """A program of a package that speaks the Model Context Protocol over its input and output."""

    name: str = Field(min_length=1, max_length=100)
    """Of its console script, or the entry that was named."""
    entry: str = Field(max_length=300)
    """The function that the script calls."""
    title: str = Field(max_length=200)
    """Name and version that the server says of itself."""
    tools: tuple[OfferedTool, ...] = Field(min_length=1, max_length=128)


class OfferedCommand(Strict):
    """A program that a distribution installs, to be started by its name."""

    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")


class LeftOut(Strict):
    """What a package has and that cannot be used."""

    name: str
    reason: str


class PackageManifest(Strict):
    """What a package offers, made by its own interpreter."""

    version: Literal[1] = 1
    python: str
    sandbox: Literal["namespaces", "limits"]
    """How its processes are confined on the host that built it: the second leaves network and files open."""
    environments: tuple[OfferedEnvironment, ...] = Field(default=(), max_length=500)
    programs: tuple[OfferedProgram, ...] = Field(default=(), max_length=500)
    servers: tuple[OfferedServer, ...] = Field(default=(), max_length=16)
    commands: tuple[OfferedCommand, ...] = Field(default=(), max_length=100)
    left_out: tuple[LeftOut, ...] = ()

    @model_validator(mode="after")
    def _offers_something(self) -> Self:
        if not (self.environments or self.programs or self.servers or self.commands):
            raise ValueError("it offers neither environments nor programs nor servers of tools nor commands")
        return self


def digest_of(lock: tuple[LockedDistribution, ...], entry: str, asked: str) -> str:
    """Return what names a build: SHA-256 of the names, versions and digests of all that was installed, and of what was
    asked for: a requirement, or the SHA-256 of a file.

    What was installed is said by an environment in which foreign code ran, which could say what another build has; what
    was asked for is known before.
    """
    rows = sorted((one.name.lower(), one.version, one.sha256) for one in lock)
    return hashlib.sha256(json.dumps([rows, entry, asked]).encode()).hexdigest()


def file_names(file: str) -> tuple[str, str] | None:
    """Return distribution and version that a file's name says; None where it is no wheel or source distribution."""
    stem = next((file.removesuffix(ending) for ending in ENDINGS if file.endswith(ending)), None)
    if stem is None:
        return None
    parts = stem.split("-")
    if file.endswith(".whl"):
        return (normal_name(parts[0]), parts[1]) if len(parts) in (5, 6) else None
    name, _, version = stem.rpartition("-")
    return (normal_name(name), version) if name and version[:1].isdigit() else None


def normal_name(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
