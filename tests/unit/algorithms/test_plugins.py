from typing import get_args

import pytest

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.aggregation import AGGREGATIONS
from flexmarl.algorithms.branching import BRANCH_CONTROLLERS, checked_joints
from flexmarl.algorithms.filters import GROUP_FILTERS
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.member_counts import MEMBER_COUNTS
from flexmarl.algorithms.movers import MOVERS
from flexmarl.algorithms.redundancy import REDUNDANCIES, Extra, Redundancy, extra_of
from flexmarl.algorithms.routing import ROUTERS
from flexmarl.algorithms.schedules import entropy_coefficient, learning_rate
from flexmarl.algorithms.seeds import derive, episode_seed, turn_seed
from flexmarl.algorithms.shaping import SHAPERS
from flexmarl.algorithms.task_sampler import TASK_SAMPLERS
from flexmarl.contracts.specification.algorithm import AlgorithmSpec, EntropyBonus
from flexmarl.contracts.specification.losses import LOSS, RowLossOptions
from flexmarl.contracts.specification.redundancies import REDUNDANCY
from flexmarl.contracts.specification.task_choice import TASK_SAMPLER
from flexmarl.contracts.specification.team import AdamW
from workers.training.losses import CORRECTIONS, LOSSES

REGISTRIES = (
    ADVANTAGES,
    BRANCH_CONTROLLERS,
    CORRECTIONS,
    GROUP_FILTERS,
    LOSSES,
    MEMBER_COUNTS,
    MOVERS,
    REDUNDANCIES,
    ROUTERS,
    SHAPERS,
    TASK_SAMPLERS,
)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind.name)
def test_every_name_the_specification_offers_is_built(registry):
    assert registry.names() == tuple(registry.kind.variants())
    for name, options in registry.kind.variants().items():
        made = registry.make(options())
        assert (type(made).Options, made.options) == (options, options())
        assert options.plugin_name() == name
        assert options.summary().endswith(".")


@pytest.mark.parametrize(
    ("table", "model", "field"),
    [(GROUP_KEYS, AlgorithmSpec, "group_key"), (AGGREGATIONS, RowLossOptions, "aggregation")],
)
def test_every_word_of_a_closed_choice_is_built(table, model, field):
    assert set(table) == set(get_args(model.model_fields[field].annotation))


def test_an_unknown_plugin_is_refused_with_the_legal_names():
    with pytest.raises(LookupError, match="no router named 'fastest'; available: least_loaded, prefix_affinity, "):
        ROUTERS.get("fastest")


def test_seeds_depend_on_the_key_alone_and_fit_63_bits():
    keys = [(1, d, m, r, t) for d in range(5) for m in range(4) for r in ("a", "b") for t in range(3)]
    seeds = {turn_seed(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= s < 2**63 for s in seeds)
    assert turn_seed(1, 2, 3, "a", 0) == turn_seed(1, 2, 3, "a", 0)
    assert turn_seed(1, 2, 3, "a", 0) != turn_seed(2, 2, 3, "a", 0)
    assert episode_seed(1, 2, 3) != turn_seed(1, 2, 3, "a", 0)
    assert derive("ab", "c") != derive("a", "bc")
    assert turn_seed(7, 0, 0, "speaker", 0) == 4441462171835044398


def test_training_and_evaluation_draw_different_tasks():
    sampler = TASK_SAMPLERS.make(TASK_SAMPLER.options())
    train = {sampler.train(3, draw).seed for draw in range(200)}
    held = {sampler.evaluation(3, index).seed for index in range(200)}
    assert len(train) == len(held) == 200
    assert not train & held
    assert sampler.evaluation(3, 0).held_out
    assert not sampler.train(3, 0).held_out
    assert sampler.train(3, 5) == sampler.train(3, 5) != sampler.train(4, 5)


@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_a_row_without_tokens_weighs_nothing(name):
    assert AGGREGATIONS[name](0, LOSS.options()) == (0.0, 0.0)
    weight, share = AGGREGATIONS[name](4, LOSS.options())
    assert weight > 0 < share


def test_aggregations_follow_their_normal_form():
    assert AGGREGATIONS["token_mean"](4, LOSS.options()) == (1.0, 4.0)
    assert AGGREGATIONS["seq_mean_token_mean"](4, LOSS.options()) == (0.25, 1.0)
    assert AGGREGATIONS["seq_mean_token_sum"](4, LOSS.options()) == (1.0, 1.0)
    assert AGGREGATIONS["constant_norm"](4, LOSS.options(norm_tokens=16)) == (1 / 16, 1.0)


def test_schedules_decay_in_a_line_and_stay():
    bonus = EntropyBonus(start=0.1, end_share=0.5, decay_steps=10)
    assert [entropy_coefficient(bonus, s) for s in (0, 5, 10, 99)] == pytest.approx([0.1, 0.075, 0.05, 0.05])
    adamw = AdamW(learning_rate=1e-3, final_learning_rate_share=0.1)
    assert [learning_rate(adamw, s, 100) for s in (0, 100)] == pytest.approx([1e-3, 1e-4])


@pytest.mark.parametrize(
    ("kind", "extra"), [("none", Extra(1)), ("extra_members", Extra(1, 1)), ("extra_environments", Extra(0, 0, 3))]
)
def test_a_redundancy_that_proposes_what_its_options_do_not_say_is_refused(kind, extra, monkeypatch):
    options = REDUNDANCY.options(kind)
    assert extra_of(options, 4, 2).groups == 0
    monkeypatch.setattr(type(REDUNDANCIES.make(options)), "extra", lambda self, groups, members: extra)
    with pytest.raises(ValueError, match=f"{kind} proposes"):
        extra_of(options, 4, 2)
    assert issubclass(REDUNDANCIES.get(kind), Redundancy)


@pytest.mark.parametrize("joints", [[(0, 0)], [(0, 0), (1, 0)], [(0,), (1,)], [(0, 0), (1, 1), (2, 2)], []])
def test_joint_answers_that_leave_an_answer_without_a_score_are_refused(joints):
    assert checked_joints([(0, 1), (1, 0)], 2, 2)
    with pytest.raises(ValueError, match="must try each answer"):
        checked_joints(joints, 2, 2)
