"""What a specification names and is pinned when it is submitted, with the rights of whoever does: checkpoints of
runs, imported models and datasets by digest, agent definitions and teams by version.

Invariants: a run that the submitter may not read and one that does not exist are refused in the same words. What a
policy begins with is an origin row, written in the transaction of its run and never changed; nothing else decides
which bytes are fetched. What a model is of (`source`) always comes from the run that was found, never from the
submitter.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flexmarl.contracts.fork_rules import fork_rules
from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.dataset import DatasetTasks, NamedDataset, RowTasks
from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.logged import LoggedEpisodes
from flexmarl.contracts.specification.nemo_gym import NemoGymUrl
from flexmarl.contracts.specification.program import ProgramEnvironment
from flexmarl.contracts.specification.team import CheckpointModel, Lora, RegisteredModel
from flexmarl.contracts.specification.tools import ToolUse
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.agents.naming import defined, with_team
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets import gym_rows, logged_rows
from flexmarl.controlplane.datasets import naming as datasets
from flexmarl.controlplane.experiments.plans import as_field_error
from flexmarl.controlplane.packages import naming as packages
from flexmarl.controlplane.packages import tool_naming
from flexmarl.controlplane.registry import naming
from flexmarl.controlplane.runs import demonstrations, queries
from flexmarl.controlplane.runs.models import Checkpoint, Run
from flexmarl.controlplane.runs.row_sets import archive_rows
from flexmarl.controlplane.runs.row_sets import naming as row_set_naming
from flexmarl.store.control import checkpoint_rows
from flexmarl.store.data import lineage
from flexmarl.store.data.lineage import VersionOrigin

WHOLE = "whole"
SHOWN = 10
MOST = 2**31
"""Versions are below it."""


@dataclass(frozen=True, slots=True)
class CheckpointSources:
    """What plans ask of checkpoints and imported models, for one submitter."""

    actor: Actor
    project: str = DEFAULT_PROJECT
    """Of the run."""

    def completed(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document whose models of checkpoints say what they are of, whose imported models say their digests,
        whose agents have the settings of the definitions that they name, and which has what its team is. Raises
        SpecProblems."""
        refused: list[Problem] = []
        team = with_team(self.project, raw)
        if isinstance(team, Problem):
            raise SpecProblems([team])
        raw = team or raw
        agents = partial(defined, self.project)
        written = {
            part: _written(raw[part], complete, refused)
            for part, complete in (("policies", self._policy), ("agents", agents))
            if isinstance(raw.get(part), Mapping)
        }
        if (named := datasets.named_in(raw.get("environment"))) is not None:
            dataset = datasets.pinned(self.actor, self.project, named)
            if isinstance(dataset, Problem):
                refused.append(dataset)
            else:
                written["environment"] = datasets.with_tasks(raw["environment"], dataset)
        named_so_far = written.get("environment", raw.get("environment"))
        environment = packages.completed(self.actor, self.project, named_so_far)
        if isinstance(environment, list):
            refused += environment
        elif environment is not None:
            written["environment"] = environment
        if (servers := tool_naming.tools_in(raw.get("environment"))) is not None:
            self._tools(written.get("environment", raw["environment"]), servers, written, refused)
        sampling = archive_rows.completed(self.actor, self.project, raw.get("sampling"))
        if isinstance(sampling, Problem):
            refused.append(sampling)
        elif sampling is not None:
            written["sampling"] = sampling
        if refused:
            raise SpecProblems(refused)
        return {**raw, **written}

    def _tools(
        self,
        environment: Mapping[str, Any],
        servers: list[Mapping[str, Any]],
        written: dict[str, Any],
        refused: list[Problem],
    ) -> None:
        """Write down which tools an environment has."""
        found, problems = tool_naming.pinned_servers(self.actor, self.project, servers)
        refused += problems
        written["environment"] = {**environment, "tools": {**environment["tools"], "servers": found}}

    def _policy(self, name: str, policy: object) -> dict[str, Any] | Problem | None:
        """Return a policy as it is to be written; None where it stays as it is."""
        modelled = self._modelled(name, policy)
        whole = policy if modelled is None else modelled
        if not isinstance(whole, Mapping):
            return modelled
        return demonstrations.pinned(self.actor, self.project, name, whole) or modelled

    def _modelled(self, name: str, policy: object) -> dict[str, Any] | Problem | None:
        """Return a policy whose model is pinned; None where it needs not be."""
        if (named := _named(policy)) is not None:
            found = self._source(name, named)
            return found if isinstance(found, Problem) else _with_model(policy, {**named, "source": found})
        if (named := _registered(policy)) is not None:
            pinned = naming.pinned(self.actor, self.project, name, named)
            return pinned if isinstance(pinned, Problem) else _with_model(policy, pinned)
        return None

    def refusals(self, spec: ExperimentSpec) -> Iterator[Problem]:
        """Return what of a specification does not fit the checkpoints that its policies begin with."""
        yield from self._row_refusals(spec.environment)
        yield from self._package_refusals(spec.environment)
        yield from archive_rows.refusals(self.actor, spec)
        for name, policy in spec.policies.items():
            if policy.warmup is not None and (shown := policy.warmup.demonstrations) is not None:
                yield from demonstrations.refusals(self.actor, self.project, name, shown)
            if policy.warmup is not None and (rows := policy.warmup.rows) is not None:
                yield from row_set_naming.refusals(self.actor, spec, name, rows)
            if isinstance(policy.model, RegisteredModel):
                yield from self._model_refusals(name, policy.model)
            if not isinstance(policy.model, CheckpointModel):
                continue
            parent = ExperimentSpec.model_validate(queries.find_run(self.actor, policy.model.run).spec)
            if policy.source != parent.policies[policy.model.policy or name].source:
                raise AssertionError(f"policies.{name}.model was not completed")
            theirs = {**parent.policies, name: parent.policies[policy.model.policy or name]}
            mine = {**spec.policies, name: policy.model_copy(update={"model": policy.source})}
            was, now = parent.model_copy(update={"policies": theirs}), spec.model_copy(update={"policies": mine})
            yield from fork_rules(was, now, [name], False)
            if isinstance(policy.tuning, Lora) and policy.tuning.adapter:
                detail = "Training continues with the checkpoint's own adapter, which cannot be replaced."
                where = f"/policies/{name}/tuning/adapter"
                yield Problem(pointer=where, code="incompatible", detail=detail, hint="Remove adapter.")

    def _model_refusals(self, name: str, model: RegisteredModel) -> Iterator[Problem]:
        """Refuse a model that went meanwhile; make sure that the digest of another is the one that was found here."""
        found = naming.pinned(self.actor, self.project, name, model.model_dump())
        if isinstance(found, Problem):
            yield found
        elif found["digest"] != model.digest or not model.digest:
            raise AssertionError(f"policies.{name}.model was not completed")

    def _row_refusals(self, environment: EnvironmentSpec) -> Iterator[Problem]:
        """Refuse datasets that cannot be played, and tools that do not fit."""
        if isinstance(environment, RowTasks):
            yield from self._dataset_refusals(environment.dataset)
        if isinstance(environment, LoggedEpisodes) and environment.dataset.digest:
            yield from logged_rows.refusals(self.actor, environment)
        if isinstance(environment, NemoGymUrl) and environment.dataset.digest:
            yield from gym_rows.refusals(self.actor, environment)
        if isinstance(environment, DatasetTasks):
            yield from self._tool_refusals(environment.tools)
        if isinstance(environment, ProgramEnvironment) and environment.dataset is not None:
            yield from self._dataset_refusals(environment.dataset)

    def _dataset_refusals(self, dataset: NamedDataset) -> Iterator[Problem]:
        """Refuse a dataset that nobody named; make sure that the digest of another is the one that was found here."""
        if not dataset.digest:
            detail, hint = "The run names no dataset.", "Name one that was imported under Datasets: {name: my_dataset}."
            yield Problem(pointer=f"{datasets.WHERE}/name", code="required", detail=detail, hint=hint)
            return
        found = datasets.pinned(self.actor, self.project, dataset.model_dump())
        if isinstance(found, Problem):
            yield datasets.gone(dataset)
        elif found["digest"] != dataset.digest:
            raise AssertionError("environment.dataset was not completed")

    def _package_refusals(self, environment: EnvironmentSpec) -> Iterator[Problem]:
        """Refuse a package that nobody named; make sure that the build of another is the one that was found here."""
        found = packages.completed(self.actor, self.project, environment.model_dump(mode="json"))
        if isinstance(found, list):
            yield from found
        elif found is not None and type(environment).model_validate(found) != environment:
            raise AssertionError("the package of the environment was not pinned")

    def _tool_refusals(self, tools: ToolUse) -> Iterator[Problem]:
        """Make sure that builds and tools are those that were found here, never what somebody sent."""
        named = tools.model_dump(mode="json")["servers"]
        found, problems = tool_naming.pinned_servers(self.actor, self.project, named)
        yield from problems
        if not problems and found != named:
            raise AssertionError("environment.tools was not completed")

    def pin(self, run: Run, spec: ExperimentSpec) -> None:
        """Write where the policies of a new run come from. Raises ValidationProblem for what went meanwhile, and for
        imported rows that its archive cannot begin with."""
        archive_rows.chosen(spec)
        if origins := self._origins(spec):
            lineage.put(store_connection(), run.no, origins)

    def _origins(self, spec: ExperimentSpec) -> list[VersionOrigin]:
        found = []
        for name, policy in spec.policies.items():
            if not isinstance(policy.model, CheckpointModel):
                continue
            run = queries.find_run(self.actor, policy.model.run)
            row = Checkpoint.objects.filter(run_id=run.no, step=policy.model.step, state=WHOLE).first()
            if row is None or not checkpoint_rows.read_on(store_connection(), run.no, row.step):
                gone = as_field_error(_no_step(name, run, policy.model.step))
                raise ValidationProblem(gone.detail, errors=[gone])
            theirs = policy.model.policy or name
            part = row.parts[theirs]
            found.append(VersionOrigin(name, run.no, theirs, part["version"], row.step, True, part["digest"]))
        return found

    def _source(self, name: str, model: Mapping[str, Any]) -> dict[str, Any] | Problem:
        """Return what a checkpoint's policy is of, as JSON, or the refusal."""
        try:
            run = queries.find_run(self.actor, model["run"])
        except NotFound:
            detail = "There is no such run, or you may not read it."
            hint = "Use the key or id of a run in a project you can read."
            return Problem(pointer=f"/policies/{name}/model/run", code="unknown_run", detail=detail, hint=hint)
        row = Checkpoint.objects.filter(run_id=run.no, step=model["step"], state=WHOLE).first()
        if row is None:
            return _no_step(name, run, model["step"])
        theirs = model.get("policy") or name
        if theirs not in row.parts:
            detail = f"{run.key} has no policy {theirs} in this checkpoint."
            hint = f"Its policies: {', '.join(sorted(row.parts)) or 'none'}."
            return Problem(pointer=f"/policies/{name}/model/policy", code="unknown_policy", detail=detail, hint=hint)
        source: dict[str, Any] = json.loads(
            ExperimentSpec.model_validate(run.spec).policies[theirs].source.model_dump_json()
        )
        return source


def without_checkpoints(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's specification whose models say only what they are of, for one that begins with other weights."""
    policies = {}
    for name, policy in document.get("policies", {}).items():
        model = policy.get("model", {})
        own = model["source"] if model.get("type") == "checkpoint" else model
        policies[name] = {**policy, "model": own}
    return {**document, "policies": policies}


def _written(
    named: Mapping[str, Any],
    complete: Callable[[str, object], dict[str, Any] | Problem | None],
    refused: list[Problem],
) -> dict[str, Any]:
    """Return named parts of a document, each completed as far as it can be; refusals are added."""
    written: dict[str, Any] = {}
    for name, one in named.items():
        found = complete(name, one)
        if isinstance(found, Problem):
            refused.append(found)
        written[name] = one if found is None or isinstance(found, Problem) else found
    return written


def _with_model(policy: object, model: Mapping[str, Any]) -> dict[str, Any]:
    assert isinstance(policy, Mapping)
    return {**policy, "model": dict(model)}


def _named(policy: object) -> Mapping[str, Any] | None:
    """Return a policy's model when it names a checkpoint well enough to look for it; types refuse the rest."""
    model = policy.get("model") if isinstance(policy, Mapping) else None
    if not isinstance(model, Mapping) or model.get("type") != "checkpoint":
        return None
    run, step = model.get("run"), model.get("step")
    well = isinstance(run, str) and "\0" not in run and isinstance(step, int) and not isinstance(step, bool)
    return model if well and isinstance(model.get("policy") or "", str) else None


def _registered(policy: object) -> Mapping[str, Any] | None:
    """Return a policy's model when it names an imported one well enough to look for it; types refuse the rest."""
    model = policy.get("model") if isinstance(policy, Mapping) else None
    if not isinstance(model, Mapping) or model.get("type") != "registered":
        return None
    name, version, project = model.get("name"), model.get("version"), model.get("project") or ""
    whole = version is None or (isinstance(version, int) and not isinstance(version, bool) and 0 < version < MOST)
    texts = all(isinstance(text, str) and "\0" not in text for text in (name, project))
    return model if whole and texts else None


def _no_step(name: str, run: Run, step: int) -> Problem:
    there = Checkpoint.objects.filter(run_id=run.no, state=WHOLE).order_by("-step").values_list("step", flat=True)
    steps = ", ".join(str(number) for number in there[:SHOWN])
    return Problem(
        pointer=f"/policies/{name}/model/step",
        code="unknown_checkpoint",
        detail=f"{run.key} has no complete checkpoint after step {step}.",
        hint=f"It has checkpoints after {steps}." if steps else "It has none yet; use another run.",
    )
