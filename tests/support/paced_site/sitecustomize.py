"""In the path of an installation's processes: its torch engines take a declared time per token and a number of rows.

So a fleet of real engines on a small machine is as quick as it is large: each waits most of the time. Read by Python at
its start. `PACED_TOKEN_S` are seconds for one token of all live rows of a policy, `PACED_ROWS` how many rows there are.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

ENGINE = "workers.rollout.engines.torch_engine"


class PacedLoader(importlib.abc.Loader):
    """Loads a module as another loader does, and paces what it defines."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        engine_of: Any = module.TorchEngine
        made, step, token_s = engine_of.__init__, engine_of.step_policy, float(os.environ["PACED_TOKEN_S"])

        def of_few_rows(engine: Any, device: str, rows: int, *more: Any) -> None:
            made(engine, device, int(os.environ["PACED_ROWS"]), *more)

        def paced(engine: Any, policy: str) -> Any:
            began = time.monotonic()
            found = step(engine, policy)
            time.sleep(max(0.0, token_s - (time.monotonic() - began)))
            return found

        engine_of.__init__, engine_of.step_policy = of_few_rows, paced


class PacedFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != ENGINE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = PacedLoader(found.loader)
        return found


if "PACED_TOKEN_S" in os.environ:
    sys.meta_path.insert(0, PacedFinder())
