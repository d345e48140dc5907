"""Which values the next trial tries. Pure: the plan and the trials so far in, values out.

The same trials give the same answer, so that a process that was killed after it asked asks for the same again.
TPE (Bergstra et al. 2011) is Optuna's: its study is built anew in memory from the trials each time.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState as OptunaState

from flexmarl.controlplane.sweeps.plan import ChoiceParameter, IntParameter, SearchPlan, SweepParameter

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True, slots=True)
class TriedValues:
    """A trial as the search sees it: `objective` is None for one that failed; `open` for one that still runs."""

    values: Mapping[str, Any]
    objective: float | None
    open: bool = False


def ask(plan: SearchPlan, told: Sequence[TriedValues]) -> dict[str, Any] | None:
    """Return the values of the next trial; None when a grid is complete."""
    if plan.method == "grid":
        return next(islice(plan.grid(), len(told), None), None)
    if plan.method == "tpe":
        return _tpe(plan, told)
    source = random.Random(f"{plan.seed} {len(told)}")
    return {one.pointer: _drawn(one, source) for one in plan.parameters}


def _drawn(parameter: SweepParameter, source: random.Random) -> Any:
    if isinstance(parameter, ChoiceParameter):
        return source.choice(parameter.values)
    if isinstance(parameter, IntParameter) and not parameter.log:
        return source.randint(parameter.low, parameter.high)
    return parameter.at(source.random())


def _tpe(plan: SearchPlan, told: Sequence[TriedValues]) -> dict[str, Any]:
    sampler = optuna.samplers.TPESampler(
        seed=(plan.seed + 7919 * len(told)) % 2**31, n_startup_trials=5, multivariate=True, constant_liar=True
    )
    study = optuna.create_study(direction=plan.goal, sampler=sampler)
    space = {one.pointer: _distribution(one) for one in plan.parameters}
    for one in told:
        study.add_trial(_trial(plan, one, space))
    asked = study.ask(space)
    return {
        one.pointer: one.values[asked.params[one.pointer]]
        if isinstance(one, ChoiceParameter)
        else asked.params[one.pointer]
        for one in plan.parameters
    }


def _trial(plan: SearchPlan, one: TriedValues, space: Mapping[str, BaseDistribution]) -> optuna.trial.FrozenTrial:
    params = {
        parameter.pointer: parameter.values.index(one.values[parameter.pointer])
        if isinstance(parameter, ChoiceParameter)
        else one.values[parameter.pointer]
        for parameter in plan.parameters
    }
    value = one.objective if one.objective is not None and math.isfinite(one.objective) else None
    ended = OptunaState.FAIL if value is None else OptunaState.COMPLETE
    state = OptunaState.RUNNING if one.open else ended
    return optuna.trial.create_trial(
        params=params, distributions=dict(space), value=value if state is OptunaState.COMPLETE else None, state=state
    )


def _distribution(parameter: SweepParameter) -> BaseDistribution:
    """Choices are searched by their index: they may be of any type."""
    if isinstance(parameter, ChoiceParameter):
        return CategoricalDistribution(list(range(len(parameter.values))))
    if isinstance(parameter, IntParameter):
        return IntDistribution(parameter.low, parameter.high, log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
