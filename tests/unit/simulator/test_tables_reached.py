"""Published tables, their cheapest rows over as few steps as show what they say: each lies where it was published."""

import pytest

from flexmarl.simulator.published import load_tables, reproduce

SHORT = {
    "april": ({"steps": 6, "warm_up": 2}, ("sync_8b", "april_8b_deepscaler")),
    "flexmarl_ma": ({"steps": 1}, ("flexmarl",)),
    "rlinf": ({"steps": 1}, ("grpo_temporal", "grpo_spatial", "ppo_temporal", "ppo_spatial")),
    "streamrl": ({"steps": 1}, ("colocated", "skew")),
    "transfer_queue": ({"steps": 1}, ("barriers", "async")),
    "verl_staleness": ({"steps": 2, "warm_up": 1}, ("s0", "s01", "s05")),
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.slow
def test_what_is_published_of_systems_is_reached(name: str):
    own, (steps, rows) = load_tables()[name], SHORT[name]
    fitted = {
        name: one.model_copy(update={"source": "assumed", "between": None, "fitted_on": ()})
        for name, one in own.parameters.items()
    }
    short = own.model_copy(
        update={
            "scenario": own.scenario | steps, "seeds": 1, "parameters": fitted,
            "rows": {row: own.rows[row] for row in rows},
        }
    )  # fmt: skip
    found = reproduce(short)
    assert found.cells
    assert not found.missed, found.cells
    if name == "rlinf":  # turns on all devices are faster for GRPO, devices of their own for PPO
        assert found.cells["grpo_spatial"].simulated < 1.0 < found.cells["ppo_spatial"].simulated


def test_every_table_has_rows_in_the_tests():
    """Others have tests of their own: lag bounds, barriers, redundancy, FlexMARL's second table, and beyond it."""
    elsewhere = {
        "beyond_ca",
        "beyond_ma",
        "laminar",
        "lag",
        "roll_env_async",
        "roll_redundancy",
        "rollart_environments",
        "flexmarl_ca",
    }
    assert set(load_tables()) == elsewhere | set(SHORT)
