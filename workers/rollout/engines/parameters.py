"""Sampling parameters of a specification in the words of an engine's dialect."""

from flexmarl.contracts.specification.sampling import Sampling
from workers.rollout.engines.wire import SamplingParameters


def parameters_of(sampling: Sampling) -> SamplingParameters:
    """Return what replies of an agent are drawn by, beside temperature and length."""
    return SamplingParameters(
        stop=sampling.stop,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        structured="" if sampling.structured is None else sampling.structured.model_dump_json(),
    )
