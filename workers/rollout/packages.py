"""Environments of packages in a rollout worker: built on this host first where it lacks the build, then played in
processes of the package's own interpreter, which have no credentials and are confined where the kernel allows it.
Programs of packages (`workers.rollout.gateway.processes`) are built in the same way.

Invariant: a build is made once at a time in this process, whoever waits for it, and other runs wait for nothing.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psycopg

from flexmarl.contracts.specification.package import PackageEnvironment, PinnedBuild
from flexmarl.store.control import package_rows
from workers.made_folders import wanted
from workers.packages.building import QUIET, BuildOrder
from workers.packages.folders import build_of, entered, new_folder
from workers.packages.running import run_build
from workers.rollout.isolation.environment_pool import EnvironmentPool, IsolatedEpisode
from workers.rollout.isolation.processes import EnvironmentBroke, ForkHost, start

Store = Callable[[Callable[[psycopg.Connection], Any]], Awaitable[Any]]
_making: dict[str, "asyncio.Task[Path]"] = {}
"""Builds that this process is making, by digest."""


class NamesBuild(Protocol):
    """Settings that name a package and the build that was pinned."""

    @property
    def package(self) -> str: ...

    @property
    def pinned(self) -> PinnedBuild: ...


@dataclass(frozen=True, slots=True)
class Builds:
    """The builds of this host."""

    home: Path | None
    store: Store

    async def of(self, spec: NamesBuild) -> Path:
        """Return the folder of a build, made here first where it is missing. Raises EnvironmentBroke."""
        if self.home is None:
            raise EnvironmentBroke("build: this worker has no home for packages")
        digest = spec.pinned.digest
        if (found := build_of(self.home, digest)) is not None and await asyncio.to_thread(wanted, found):
            return found
        if digest not in _making:
            _making[digest] = asyncio.get_running_loop().create_task(self._made(self.home, spec))
            _making[digest].add_done_callback(lambda _: _making.pop(digest, None))
        return await asyncio.shield(_making[digest])

    async def _made(self, home: Path, spec: NamesBuild) -> Path:
        package, digest = UUID(spec.pinned.id), spec.pinned.digest
        known = await self.store(lambda conn: package_rows.built(conn, package, digest))
        if known is None:
            raise EnvironmentBroke(f"build: {spec.package} of digest {digest[:12]} is not known any more")
        place = await asyncio.to_thread(new_folder, home)
        try:
            said = await run_build(home, await self._order(known, place), place / "log", _go_on)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        if "digest" not in said:
            raise EnvironmentBroke(f"build: {said['code']}: {said['detail']}")
        found = build_of(home, digest)
        assert found is not None
        return found

    async def _order(self, known: package_rows.BuiltPackage, place: Path) -> BuildOrder:
        source, lock = known.source, [dict(one) for one in known.lock]
        entry = source.get("entry", "")
        if source["type"] == "requirement":
            return BuildOrder(known.name, source["requirement"], "", entry, known.digest, lock)
        body = await self.store(lambda conn: package_rows.file(conn, source["digest"]))
        if body is None:
            raise EnvironmentBroke("build: the file that was uploaded is not kept any more")
        path = place / source["file"]
        await asyncio.to_thread(path.write_bytes, body)
        return BuildOrder(known.name, "", str(path), entry, known.digest, lock)


async def _go_on(now: str, log: str) -> bool:
    return True


@dataclass(slots=True)
class PackagePool(EnvironmentPool):
    """The processes of a package's environment."""

    spec: PackageEnvironment
    builds: Builds = field(default_factory=lambda: Builds(None, _no_store))
    folder: Path | None = None

    async def begin(self, task_seed: int, held_out: bool, seed: int) -> IsolatedEpisode:
        """Begin an episode, after the build that it needs. Raises EnvironmentBroke."""
        if self.folder is None:
            self.folder = await self.builds.of(self.spec)
        return await EnvironmentPool.begin(self, task_seed, held_out, seed)

    def started(self) -> ForkHost:
        assert self.folder is not None
        pinned = self.spec.pinned
        job = {
            "adapter": pinned.adapter,
            "entry": pinned.entry,
            "name": self.spec.environment,
            "distribution": self.spec.package.partition("@")[0],
            "options": self.spec.options,
            "roles": pinned.roles,
            "turns": self.spec.max_turns,
            "reply_tokens": self.spec.reply_tokens,
            "memory": self.spec.memory_mb * 2**20,
        }
        return start_packaged(self.folder, "play", job)


def start_packaged(folder: Path | None, entry: str, job: Mapping[str, Any]) -> ForkHost:
    """Start a host at an entry of `workers.packages.inside.boot`, in a build's own interpreter, or in that of which
    virtual environments are made."""
    command = entered(folder, entry, json.dumps(job))
    return start(command, {"PATH": os.defpath, "LANG": "C.UTF-8", **QUIET})


async def _no_store(call: Callable[[psycopg.Connection], Any]) -> Any:
    raise EnvironmentBroke("build: this worker has no store")
