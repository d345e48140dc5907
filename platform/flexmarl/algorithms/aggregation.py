"""Row coefficient c_i and normaliser Z of the loss's normal form L = (1/Z) sum_i c_i sum_t m_it l_it.

c_i depends on row i alone and Z is a sum over rows, so any split of a batch into micro-batches gives the same gradient.
A row without response tokens has coefficient 0 and no share of Z.
"""

from collections.abc import Callable, Mapping

from flexmarl.contracts.specification.losses import LossOptions, RowLossOptions

Aggregation = Callable[[int], tuple[float, float]]
"""Response tokens of a row -> (c_i, its share of Z)."""

Aggregator = Callable[[int, RowLossOptions], tuple[float, float]]
"""The same by the settings of a loss."""


def token_mean(tokens: int, settings: RowLossOptions) -> tuple[float, float]:
    """Every token of the step weighs the same."""
    return (1.0, float(tokens)) if tokens else (0.0, 0.0)


def seq_mean_token_mean(tokens: int, settings: RowLossOptions) -> tuple[float, float]:
    """Every row weighs the same, its tokens share the weight."""
    return (1.0 / tokens, 1.0) if tokens else (0.0, 0.0)


def seq_mean_token_sum(tokens: int, settings: RowLossOptions) -> tuple[float, float]:
    """Every token of a row counts fully, rows are averaged."""
    return (1.0, 1.0) if tokens else (0.0, 0.0)


def constant_norm(tokens: int, settings: RowLossOptions) -> tuple[float, float]:
    """Every token of the run weighs the same, whatever the length of its row."""
    return (1.0 / settings.norm_tokens, 1.0) if tokens else (0.0, 0.0)


AGGREGATIONS: Mapping[str, Aggregator] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "constant_norm": constant_norm,
}


def aggregation_of(settings: LossOptions) -> Aggregation:
    """Return what a loss's rows weigh by their lengths.

    A loss that does not say counts its rows whole: a pair's normaliser is the number of pairs.
    """
    if not isinstance(settings, RowLossOptions):
        return lambda tokens: (1.0, 1.0) if tokens else (0.0, 0.0)
    aggregator = AGGREGATIONS[settings.aggregation]
    return lambda tokens: aggregator(tokens, settings)
