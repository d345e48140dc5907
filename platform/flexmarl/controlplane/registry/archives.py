"""Downloads of imported models from the node that keeps them."""

from flexmarl.controlplane.common.archives import ArchiveReady, NodeCannot
from flexmarl.controlplane.common.archives import prepare as prepare_on
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.common.problems import Conflict, InvalidState
from flexmarl.controlplane.registry.models import LanguageModel
from flexmarl.controlplane.registry.queries import allowed_actions


class ModelMissing(Conflict):
    code = "model_missing"
    title = "The node does not hold the model"


def prepare(model: LanguageModel) -> ArchiveReady:
    """Have a model's archive made ready. Raises InvalidState, ModelMissing or NodeAway."""
    if model.state != WorkState.DONE:
        actions = allowed_actions(model)
        raise InvalidState(f"{model} is {model.state}.", state=model.state, allowed_actions=actions)
    try:
        return prepare_on(model.node, f"/v1/models/{model.digest}/archive", {"name": model.name})
    except NodeCannot as cannot:
        raise ModelMissing(f"{model.node}: {cannot.detail}.", extra={"reason": cannot.code}) from cannot
