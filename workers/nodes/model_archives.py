"""Imported models of this node as archives: a tar of a Hugging Face folder, made while it is sent."""

import asyncio
import re
from pathlib import Path

from aiohttp import web

from workers.models.exporting import files_of_model
from workers.models.stored import OWNER
from workers.nodes.tar_streams import ArchiveEntry, sent
from workers.transfer import LocalTier, StateError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class ModelArchives:
    """What a node serves of its imported models. Who may ask is checked by whoever mounts the route."""

    def __init__(self, home: str | Path) -> None:
        self._tier = LocalTier(home, OWNER)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send a model in a folder of the name that is asked for; with `check=1` only say how long that is."""
        name = request.query.get("name", "")
        if not _NAME.fullmatch(name):
            return web.json_response({"code": "bad_request", "detail": f"name is {name!r}"}, status=422)
        try:
            files = await asyncio.to_thread(files_of_model, self._tier, request.match_info["digest"])
        except (StateError, KeyError) as error:
            code = error.code if isinstance(error, StateError) else "unknown_type"
            return web.json_response({"code": code, "detail": str(error)}, status=409)
        return await sent(request, [ArchiveEntry(f"{name}/{file}", source) for file, source in files.items()])
