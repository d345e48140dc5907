"""Which folders a specification may name: those below roots that the operator allowed. Pure: paths as text."""

from collections.abc import Iterator, Sequence

from flexmarl.contracts.folder_roots import not_allowed, parts_below
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.team import FolderModel, Lora


def folder_rules(spec: ExperimentSpec, roots: Sequence[str]) -> Iterator[Problem]:
    """Return a refusal for each folder of a specification that lies below none of the allowed roots."""
    for where, path in folders_of(spec):
        if all(parts_below(path, root) is None for root in roots):
            yield not_allowed(where, roots)


def folders_of(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """Return each folder that a specification names, with its JSON pointer."""
    for name, policy in spec.policies.items():
        if isinstance(policy.source, FolderModel):
            yield f"/policies/{name}/model/path", policy.source.path
        if isinstance(policy.tuning, Lora) and policy.tuning.adapter:
            yield f"/policies/{name}/tuning/adapter", policy.tuning.adapter
