"""A wheel of environments of OpenEnv that do what they are told, and the sample ones as source distributions.

`LIBRARY` stands for openenv where the real one, of 480 MB with what it needs, is not installed: so much of it as these
environments use, under the same names. The same tests play the same environments with the real library.
"""

import tarfile
from pathlib import Path

from tests.support.package_files import wheel

NAME = "odd_places"
SERVER = '''
"""Environments that do what they are told."""
import os
import time
from enum import Enum

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ListToolsAction
from openenv.core.env_server.mcp_types import ListToolsObservation, Tool, ToolError
from openenv.core.env_server.types import Action, Observation, State


class Move(Action):
    word: str


class Seen(Observation):
    text: str = ""


class Places(Environment):
    """Go on for three steps."""

    def __init__(self):
        super().__init__()
        if os.environ.get("ODD") == "broken":
            raise FileNotFoundError("places.json")
        self._state = State()

    def reset(self, seed=None, episode_id=None, what: str = "well"):
        self.what, self.at = what, 0
        if what == "raise_reset":
            raise LookupError("no place to begin")
        if what == "hang_reset":
            time.sleep(3600)
        said = {"ids": f"{seed} {episode_id}", "variable": os.environ.get("ODD", "")}
        return Seen(text=said.get(what, f"You are at {seed % 7}."), done=what == "over", reward=0.5)

    def step(self, action: Move) -> Seen:
        self.at += 1
        what, done = self.what, self.at == 3
        if what == "raise_step":
            raise RuntimeError("the road is closed")
        if what == "die_step":
            os._exit(7)
        if what == "hang_step":
            time.sleep(3600)
        text = "x" * 10**8 if what == "large_step" else f"{action.word} brought you on."
        reward = {"none": None, "sparse": 1.0 if done else None, "nan": float("nan")}.get(what, 0.25)
        reward = None if what == "end_none" and done else reward
        return Seen(text=text, done=done, reward=reward, metadata={"secret": "the answer"})

    @property
    def state(self):
        return self._state

    def close(self):
        if getattr(self, "what", "") == "hang_close":
            time.sleep(3600)


class Item(str, Enum):
    apple = "apple"
    mug = "mug"


class Order(Action):
    item: Item
    pieces: int


class Shelf(Places):
    """Take two apples."""

    def step(self, action: Order) -> Seen:
        right = action.item is Item.apple and action.pieces == 2
        return Seen(text="taken", done=True, reward=1.0 if right else 0.0)


PRICE = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}


class Counter(Places):
    """Ask for prices."""

    def step(self, action):
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(tools=[Tool(name="price", description="What it costs", input_schema=PRICE)])
        if action.tool_name != "price":
            error = ToolError(error_type="tool_not_found", message=f"There is no tool {action.tool_name}.")
            return CallToolObservation(tool_name=action.tool_name, error=error)
        self.at += 1
        result = {"content": [{"type": "text", "text": "3"}], "is_error": False}
        return CallToolObservation(tool_name="price", result=result, done=self.at == 2, reward=0.5)


app = create_app(Places, Move, Seen, env_name="places", max_concurrent_envs=1)
shelf = create_app(Shelf, Order, Seen, env_name="shelf", max_concurrent_envs=1)
counter = create_app(Counter, CallToolAction, CallToolObservation, env_name="counter", max_concurrent_envs=1)
'''
BESIDE = {
    f"{NAME}/server": "",
    f"{NAME}/server/app.py": SERVER,
    f"{NAME}/shelf.py": f"from {NAME}.server.app import shelf as app\n\n\ndef main():\n    raise SystemExit(2)\n",
    f"{NAME}/counter.py": f"from {NAME}.server.app import counter as app\n\n\ndef main():\n    raise SystemExit(2)\n",
    f"{NAME}/broken.py": "raise RuntimeError('not today')\n",
}
METADATA = f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: 1.0\nRequires-Dist: fastmcp\n"
"""Environments with tools need what servers of tools are written with."""
SCRIPTS = "[console_scripts]\n" + "".join(f"{name} = {NAME}.{name}:main\n" for name in ("shelf", "counter", "broken"))
MODELS = '''
import json


class Model:
    """So much of a pydantic model as is used."""

    metadata: dict = None

    def __init__(self, **given):
        for name, kind in fields(type(self)).items():
            default = getattr(type(self), name, None)
            setattr(self, name, given.get(name, default() if isinstance(default, type) else default))

    @classmethod
    def model_validate(cls, given):
        wrong = []
        for name, kind in fields(cls).items():
            if name not in given and not hasattr(cls, name):
                wrong.append({"loc": (name,), "msg": "Field required"})
            elif name in given and isinstance(kind, type):
                try:
                    given = {**given, name: kind(given[name])}
                except (ValueError, TypeError):
                    wrong.append({"loc": (name,), "msg": "Input is wrong"})
        wrong += [{"loc": (name,), "msg": "Extra input"} for name in given if name not in fields(cls)]
        if wrong:
            raise ValidationError(wrong)
        return cls(**given)

    @classmethod
    def schema(cls):
        kinds = {str: "string", int: "integer", dict: "object"}
        return {
            "type": "object",
            "title": cls.__name__,
            "properties": {name: {"type": kinds.get(kind, "string"), "title": name.title()} for name, kind in
                           fields(cls).items()},
            "required": [name for name in fields(cls) if not hasattr(cls, name)],
        }


def fields(kind):
    found = {}
    for one in reversed(kind.__mro__):
        found.update(vars(one).get("__annotations__", {}))
    return found


class ValidationError(ValueError):
    def __init__(self, wrong):
        super().__init__("wrong")
        self.wrong = wrong

    def errors(self):
        return self.wrong


class Action(Model):
    pass


class Observation(Model):
    done: bool = False
    reward: float = None


class State(Model):
    pass
'''
HTTP = '''
"""An application of ASGI without a framework, which answers as that of the library does."""
import inspect
import json
import math
from types import SimpleNamespace

from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.types import ValidationError


def plain(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return plain(vars(value)) if hasattr(value, "__dict__") else value


def create_app(env, action_cls, observation_cls, env_name=None, max_concurrent_envs=None, **more):
    return Server(env, action_cls, env_name).app()


create_fastapi_app = create_app


class Server:
    def __init__(self, env, action_cls, env_name):
        self._env_factory, self.action_cls, self.env_name = env, action_cls, env_name
        self.sessions = 0

    def app(self):
        async def websocket_endpoint(receive, send):
            await self.talk(receive, send)

        async def app(scope, receive, send):
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                return
            if scope["type"] == "websocket":
                await websocket_endpoint(receive, send)
                return
            body = json.dumps({"action": self.action_cls.schema()}).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

        app.routes = [SimpleNamespace(path="/ws", endpoint=websocket_endpoint), SimpleNamespace(path="/schema")]
        return app

    async def talk(self, receive, send):
        async def say(kind, **data):
            await send({"type": "websocket.send", "text": json.dumps({"type": kind, "data": plain(data)})})

        await receive()
        await send({"type": "websocket.accept"})
        if self.sessions:
            await say("error", message="Server at capacity", code="CAPACITY_REACHED")
            return
        try:
            env = self._env_factory()
        except Exception:
            await say("error", message="Failed to create environment", code="FACTORY_ERROR")
            return
        self.sessions += 1
        try:
            while (message := await receive())["type"] == "websocket.receive":
                try:
                    seen = self.carry_out(env, json.loads(message["text"]))
                    fields = {name: one for name, one in vars(seen).items() if name not in ("reward", "done")}
                    await say("observation", observation=fields, reward=seen.reward, done=seen.done)
                except ValidationError as error:
                    await say("error", message="Invalid message", code="VALIDATION_ERROR", errors=error.errors())
                except Exception as error:
                    await say("error", message=str(error), code="EXECUTION_ERROR")
        finally:
            self.sessions -= 1
            env.close()

    def carry_out(self, env, order):
        if order["type"] == "reset":
            known = inspect.signature(env.reset).parameters
            return env.reset(**{name: one for name, one in order["data"].items() if name in known})
        given = dict(order["data"])
        kinds = {"list_tools": ListToolsAction, "call_tool": CallToolAction}
        kind = kinds[given.pop("type")] if self.action_cls is CallToolAction else self.action_cls
        return env.step(kind.model_validate(given))
'''
MCP = """
from openenv.core.env_server.types import Action, Model, Observation


class ListToolsAction(Action):
    pass


class CallToolAction(Action):
    tool_name: str
    arguments: dict


class Tool(Model):
    name: str
    description: str
    input_schema: dict


class ToolError(Model):
    error_type: str
    message: str


class ListToolsObservation(Observation):
    tools: list = None


class CallToolObservation(Observation):
    tool_name: str = ""
    result: object = None
    error: object = None
"""
INTERFACES = """
class Environment:
    def reset_async(self, seed=None, episode_id=None, **more):
        return self.reset(seed=seed, episode_id=episode_id, **more)

    def close(self):
        pass
"""
LIBRARY = {
    "openenv": "",
    "openenv/core": "",
    "openenv/core/env_server": "",
    "openenv/core/env_server/types": MODELS,
    "openenv/core/env_server/interfaces": INTERFACES,
    "openenv/core/env_server/mcp_types": MCP,
    "openenv/core/env_server/http_server": HTTP,
}
"""Module -> its text."""


def odd_places(*, alone: bool) -> tuple[str, bytes]:
    """Return the wheel; `alone`: the library is not in it."""
    beside = BESIDE if alone else BESIDE | LIBRARY
    return wheel(code="", name=NAME, beside=beside, extra={"entry_points.txt": SCRIPTS, "METADATA": METADATA})


def sample_environment(folder: Path, name: str) -> Path:
    """Return a source distribution of an environment in examples/openenv, unchanged."""
    root, stem = Path(__file__).resolve().parents[2] / "examples/openenv" / name, f"openenv_{name}-0.1.0"
    made = folder / f"{stem}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".toml", ".yaml"}:
                archive.add(path, f"{stem}/{path.relative_to(root)}")
    return made
