"""Environments of the library verifiers, unchanged, as agent programs: what `load_environment(**options)` returns plays
its own rollout with the first seat of a run as its model, and its own rubric says the reward.

Invariants. Rows of training and of evaluation are never mixed; equal tasks are equal rows in every process. A reward
function that raises is no reward: the library itself would count it as 0.
"""

import functools
import inspect
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from .finding import installed, modules_of, named_by, normal
from .jobs import Job
from .playing import seed_everything
from .schemas import of_callable, summary_of
from .shapes import ProgramFault

LIBRARY = "verifiers"
LOADER = "load_environment"
OLDEST, BEYOND = (0, 1, 11), (0, 3)
UNDERSTOOD = "verifiers>=0.1.11,<0.3"
"""Versions whose environments are understood: those from `BEYOND` on have no `load_environment`."""
HELD_OUT = 20
"""Rows that are kept for evaluation where an environment has none for it; fewer where it has few rows."""
LOADED_WITH = 0
"""Seed with which environments are loaded: what they draw then is the same in every process."""

Offered = tuple[list[dict[str, Any]], list[tuple[str, str]]]
_kept: list[Any] = []
"""The environment that was loaded before processes were forked, as long as it could be."""


# What a package offers ------------------------------------------------------------------------------------------------


def loads(job: Job) -> bool:
    """Tell whether what was named as an entry, or a distribution, may load environments of the library."""
    named = not job.entry or job.entry.endswith(f":{LOADER}")
    return named and installed(LIBRARY) and normal(job.distribution) != LIBRARY


def offered(job: Job) -> Offered:
    """Return the environments of a distribution as programs, and what is left out and why."""
    found: list[dict[str, Any]] = []
    left_out: list[tuple[str, str]] = []
    for entry in _entries(job, left_out):
        name = entry.partition(":")[0].replace("_", "-")
        try:
            found.append(_offer(name, entry))
        except Exception as error:  # foreign code: what cannot be loaded is left out with the reason
            left_out.append((name, f"{type(error).__name__}: {error}"))
    return found, left_out


def _entries(job: Job, left_out: list[tuple[str, str]]) -> Iterator[str]:
    if job.entry:
        yield job.entry
        return
    for module in modules_of(job):
        try:
            found = hasattr(import_module(module), LOADER)
        except Exception as error:  # foreign code
            left_out.append((module, f"{type(error).__name__}: {error}"))
        else:
            if found:
                yield f"{module}:{LOADER}"


def _offer(name: str, entry: str) -> dict[str, Any]:
    """Return an environment as it stands in a manifest. Raises ProgramFault, and whatever loading it raises."""
    function = named_by(entry)
    _check_version()
    options = of_callable(function)
    said = {"name": name, "entry": entry, "adapter": LIBRARY, "summary": summary_of(function), "options": options}
    if options.get("required"):
        return said  # how many rows it has depends on what nobody has said yet
    environment = _loaded(entry, {})
    weights = [weight for rubric in _rubrics(environment) for weight in rubric.weights if weight > 0]
    rows = SplitRows(environment)
    return {
        **said,
        "summary": said["summary"] or f"{type(environment).__name__} of verifiers",
        **rows.sizes(),
        "best_reward": float(sum(weights)) or 1.0,
    }


def _check_version() -> None:
    """Raise ProgramFault where the library is of a version that is not understood."""
    version = str(import_module(LIBRARY).__version__)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not OLDEST <= numbers < BEYOND:
        raise ProgramFault(f"it was installed with verifiers {version}; environments of {UNDERSTOOD} are understood")


def _loaded(entry: str, options: Mapping[str, Any]) -> Any:
    """Return an environment. Raises ProgramFault for what cannot be played, and whatever loading it raises."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seed_everything(LOADED_WITH)
    try:
        environment = named_by(entry)(**options)
    finally:
        for number, handler in handlers.items():  # an environment sets its own
            signal.signal(number, handler)
    if (why := _unplayable(environment)) is not None:
        raise ProgramFault(f"{LOADER} returned {why}")
    return environment


def _unplayable(environment: Any) -> str | None:
    """Say what of an environment keeps it from being played; None: nothing."""
    base = import_module(LIBRARY).Environment
    if not isinstance(environment, base):
        return f"{type(environment).__name__}, which is not a verifiers environment"
    if any(kind.__module__.startswith("verifiers.v1") for kind in type(environment).__mro__):
        return "an environment of verifiers.v1 (Taskset), of which none are understood; those of vf.MultiTurnEnv are"
    if not environment.score_rollouts:
        return "an environment that does not score (score_rollouts is false), so that there is no reward"
    if any(any(map(rubric._is_group_func, rubric.funcs)) for rubric in _rubrics(environment)):
        return "a rubric that compares the rollouts of a group, which are played apart here"
    if not any(weight for rubric in _rubrics(environment) for weight in rubric.weights):
        return "a rubric without a reward function of any weight"
    return None


def _rubrics(environment: Any) -> Iterator[Any]:
    """Yield the rubrics of an environment that have functions of their own."""
    if parts := getattr(environment, "envs", None):
        for part in parts:
            yield from _rubrics(part)
        return
    waiting = [environment.rubric]
    while waiting:
        rubric = waiting.pop()
        yield rubric
        waiting += getattr(rubric, "rubrics", [])


class SplitRows:
    """Which rows are trained on, and which are held out: those of `eval_dataset`, or else the last ones."""

    def __init__(self, environment: Any) -> None:
        sources = (getattr(environment, name, None) for name in ("eval_dataset", "eval_dataset_source"))
        own = any(source is not None for source in sources)
        trained = any(getattr(environment, name, None) is not None for name in ("dataset", "dataset_source"))
        self._training: Any = environment.get_dataset() if trained else ()
        self._held_out: Any = environment.get_eval_dataset() if own else None

    def sizes(self) -> dict[str, int]:
        """Return how many there are. Raises ProgramFault where there are none to train on."""
        rows = len(self._training)
        held_out = min(HELD_OUT, max(1, rows // 5)) if self._held_out is None else len(self._held_out)
        self._check(rows - held_out if self._held_out is None else rows, held_out)
        return {"tasks": rows - held_out if self._held_out is None else rows, "held_out": held_out}

    def _check(self, training: int, held_out: int) -> None:
        if not training or not held_out:
            what = "rows to train on (dataset)" if not training else "rows for evaluation (eval_dataset)"
            raise ProgramFault(f"its environment has no {what}")

    def row(self, number: int, purpose: str, held_out: int) -> dict[str, Any]:
        """Return a row. Raises ProgramFault where there is none."""
        rows = len(self._training)
        if self._held_out is not None or not rows:
            self._check(rows, len(self._held_out or ()))
            chosen = self._held_out if purpose == "evaluation" else self._training
            return dict(chosen[number % len(chosen)])
        if rows <= held_out:
            rule = f"environment.held_out is {held_out} and takes its last rows: set at most {max(rows - 1, 0)}"
            raise ProgramFault(f"its dataset has {rows} rows and there is no eval_dataset; {rule}")
        first = rows - held_out
        if purpose == "evaluation":
            return dict(self._training[first + number % held_out])
        kept = [json.dumps(one, default=str) for one in self._training[first:]["prompt"]]
        for place in range(number, number + first):
            row = dict(self._training[place % first])
            if json.dumps(row["prompt"], default=str) not in kept:
                return row
        raise ProgramFault(f"each of its rows has the prompt of one of the last {held_out}, which are held out")


# A session ------------------------------------------------------------------------------------------------------------


def prepare(job: Job) -> None:
    """Load the environment once, for the processes that are forked; each loads it by itself where that raises, as one
    does that reads the address of its agents when it is loaded."""
    # Bars of progress have a thread, and processes are forked here.
    if installed("tqdm"):
        import_module("tqdm").tqdm.monitor_interval = 0
    try:
        _kept.append(_loaded(job.entry, job.options))
        SplitRows(_kept[0])
    except (Exception, SystemExit):  # foreign code: each session says what is wrong
        _kept.clear()


def program_of(job: Job) -> Callable[..., Any]:
    """Return the program that plays a session. Raises ProgramFault where the environment cannot be loaded."""
    try:
        environment = _kept[0] if _kept else _loaded(job.entry, job.options)
    except ProgramFault:
        raise
    except (Exception, SystemExit) as error:  # foreign code: the session has its words
        raise ProgramFault(f"{LOADER} raised {type(error).__name__}: {error}") from error

    async def play(session: Any, **options: Any) -> float:
        return await _played(environment, session)

    return play


async def _played(environment: Any, session: Any) -> float:
    """Have one rollout played and scored; returns its reward. Raises ProgramFault where there is none."""
    row = SplitRows(environment).row(session.number, session.purpose, session.held_out)
    faults: list[str] = []
    for rubric in _rubrics(environment):
        pairs = zip(rubric.funcs, rubric.weights, strict=True)
        rubric.funcs = [_watched(function, faults) if weight else function for function, weight in pairs]
    try:
        said = await environment.run_rollout(row, _client(session), session.seats[0], dict(environment.sampling_args))
    finally:
        await environment._teardown()  # it would do so at the end of a process that ends by itself
    if error := said.get("error"):
        raise ProgramFault(_told(error))
    if faults:
        raise ProgramFault(f"the reward function {faults[0]}")
    sys.stdout.write(json.dumps({"reward": said["reward"], "metrics": said.get("metrics")}, default=str) + "\n")
    if said["reward"] is None:
        raise ProgramFault("its rubric gave no reward")
    return float(said["reward"])


def _told(error: Any) -> str:
    """Return what ended a rollout, as its library notes it."""
    if isinstance(error, Mapping):
        return str(error.get("error_chain_repr") or error.get("error"))
    return f"{type(error).__name__}: {error}"


def _watched(function: Callable[..., Any], faults: list[str]) -> Callable[..., Any]:
    """Return a reward function that notes what is no number of it: rubrics count that as 0 and go on."""
    name = getattr(function, "__name__", type(function).__name__)

    @functools.wraps(function)
    async def watched(*given: Any, **named: Any) -> Any:
        try:
            found = function(*given, **named)
            found = await found if inspect.isawaitable(found) else found
            finite = math.isfinite(float(found))
        except Exception as error:  # whatever a reward function raises
            faults.append(f"{name} raised {type(error).__name__}: {error}")
            raise
        if not finite:
            faults.append(f"{name} returned {found}, not a finite number")
        return found

    return watched


def _client(session: Any) -> Any:
    """Return the library's client, which asks the agents of a session."""
    library = import_module(LIBRARY)
    asked = import_module("openai").AsyncOpenAI(base_url=session.base_url, api_key=session.key, timeout=None)

    class SeatClient(library.OpenAIChatCompletionsClient):  # type: ignore[name-defined,misc]
        """Takes an agent that says nothing at its word: that is a reply, which the rubric scores."""

        async def raise_from_native_response(self, response: Any) -> None:
            message = response.choices[0].message
            if message.content or message.tool_calls:
                await super().raise_from_native_response(response)

        async def from_native_response(self, response: Any) -> Any:
            made = await super().from_native_response(response)
            made.message.content = made.message.content or ""
            return made

    return SeatClient(asked)
