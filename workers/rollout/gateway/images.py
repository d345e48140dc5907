"""Images of containers in a rollout worker: those that the host has, and those that it may pull.

Invariant: an image is pulled once at a time in this process, and nobody who waits for it ends that by going away.
"""

import asyncio
import json
import re
from dataclasses import dataclass

from flexmarl.contracts.specification.commands import IMAGE, IMAGE_HINT
from workers.containers import ContainerEngine, ContainerSettings, NoEngine, environment, find_engine
from workers.rollout.isolation import EnvironmentBroke


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is there."""

    name: str
    id: str
    digest: str
    engine: ContainerEngine

    def __str__(self) -> str:
        return f"{self.name.partition('@')[0]}@{self.digest}"


class Images:
    """Finds images on this host."""

    def __init__(self, settings: ContainerSettings | None = None) -> None:
        self._settings = settings or ContainerSettings()
        self._engine: ContainerEngine | None = None
        self._pulling: dict[str, asyncio.Task[None]] = {}

    async def of(self, name: str) -> Image:
        """Return an image, pulled first where the host lacks it and may. Raises EnvironmentBroke."""
        if not re.fullmatch(IMAGE, name):
            raise EnvironmentBroke(f"image: {name[:200]!r} is no whole name of an image. {IMAGE_HINT}")
        engine = await self._found()
        if (found := await _there(engine, name)) is not None:
            return found
        if not self._settings.pulls(name):
            raise EnvironmentBroke(
                f"image: {name} is not on this host, which may not pull it; its operator may run podman pull {name} "
                "there, or add the beginning of its name to FLEXMARL_CONTAINER_IMAGES"
            )
        if name not in self._pulling:
            self._pulling[name] = asyncio.get_running_loop().create_task(_pull(engine, name))
            self._pulling[name].add_done_callback(lambda _: self._pulling.pop(name, None))
        await asyncio.shield(self._pulling[name])
        if (found := await _there(engine, name)) is None:
            raise EnvironmentBroke(f"image: {name} was pulled and is not there; is the store of images cleared?")
        return found

    async def _found(self) -> ContainerEngine:
        if self._engine is None:
            try:
                self._engine = await asyncio.to_thread(find_engine, self._settings)
            except NoEngine as missing:
                raise EnvironmentBroke(f"container: this host starts none: {missing}") from None
        return self._engine


async def _there(engine: ContainerEngine, name: str) -> Image | None:
    code, said, _ = await _run(engine, "image", "inspect", name)
    if code:
        return None
    [facts] = json.loads(said)
    return Image(name, facts["Id"], facts["Digest"], engine)


async def _pull(engine: ContainerEngine, name: str) -> None:
    code, _, errors = await _run(engine, "pull", "--quiet", name)
    if code:
        lines = [line for line in errors.splitlines() if line.strip()]
        why = lines[-1].removeprefix("Error: ")[:400] if lines else f"exit code {code}"
        raise EnvironmentBroke(f"image: {name} cannot be pulled: {why}")


async def _run(engine: ContainerEngine, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *engine.command, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=environment(), start_new_session=True,
    )  # fmt: skip
    try:
        said, errors = await process.communicate()
    except BaseException:
        process.kill()
        raise
    return process.returncode or 0, said.decode(errors="replace"), errors.decode(errors="replace")
