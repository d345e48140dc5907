"""Who holds what of a shared policy: nothing is lost, nothing twice, whatever the shapes and the number of ranks."""

import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel
from tests.support.training_rows import rows_of
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.decoder import parameter_order
from workers.training.gangs.layout import ShardedLayout, StackedWeights, names_split
from workers.training.gangs.learner import flat, shares
from workers.training.gangs.modules import leaves_of

SHAPES = (
    StackedWeights(("a",), (5, 3)),
    StackedWeights(("b",), (1,)),
    StackedWeights(("c", "d"), (8, 2, 2)),
    StackedWeights(("e",), (2,)),
)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_a_buffer_that_is_split_is_joined_to_the_same(ranks: int) -> None:
    cut = ShardedLayout(SHAPES, ranks)
    whole = torch.arange(cut.size, dtype=torch.float64)
    parts = cut.split(whole)
    assert {len(part) for part in parts} == {cut.longest}
    assert sum(cut.length(rank) for rank in range(ranks)) == cut.size
    assert torch.equal(cut.join(parts), whole)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_parts_are_cut_as_torch_cuts_rows(ranks: int) -> None:
    for leaf in SHAPES:
        tensor = torch.arange(leaf.size).view(leaf.shape)
        chunks = [chunk.flatten().tolist() for chunk in torch.chunk(tensor, ranks)]
        ours = [tensor.flatten()[slice(*leaf.share(rank, ranks))].tolist() for rank in range(ranks)]
        assert [part for part in ours if part] == chunks


def test_the_leaves_of_a_decoder_are_its_whole_buffer_in_order() -> None:
    source = FactoryModel()
    weights = initial_weights(source, 16, seed=1)
    shapes = {name: list(weights[name].shape) for name in parameter_order(weights.keys())}
    leaves = leaves_of(shapes, architecture_of(source))
    assert [name for leaf in leaves for name in leaf.names] == list(shapes)
    whole = flat(weights, shapes)
    assert ShardedLayout(leaves, 3).size == len(whole)
    for name, tensor in names_split(whole, shapes).items():
        assert torch.equal(tensor, weights[name])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_row_has_one_rank_and_ranks_have_about_the_same_tokens(ranks: int) -> None:
    rows = rows_of(3, 40, longest=60)
    found = shares(rows, ranks)
    assert sorted(map(repr, (row for share in found for row in share))) == sorted(map(repr, rows))
    tokens = [sum(len(row.prompt) + len(row.response) for row in share) // 4 for share in found]
    assert max(tokens) - min(tokens) <= max(len(row.prompt) + len(row.response) for row in rows) // 4
    assert shares(rows, ranks) == found
    assert sum(map(len, shares(rows[:1], ranks))) == 1
