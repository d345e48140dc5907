"""Questions of the package reasoning-gym: which of its generators, with which options, and how answers are read.

What the generators' own options may be only the package knows: the control plane has it build them when a run is
submitted.
"""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from flexmarl.contracts.specification.environment_base import EnvironmentFacts, IsolatedEnvironmentOptions
from flexmarl.contracts.specification.graphs import ALONE, GraphSpec, team_facts

Dataset = Literal[
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "arc_agi", "base_conversion", "basic_arithmetic", "bf",
    "binary_alternation", "binary_matrix", "bitwise_arithmetic", "boxnet", "caesar_cipher", "calendar_arithmetic",
    "chain_sum", "circuit_logic", "codeio", "coin_flip", "color_cube_rotation", "complex_arithmetic", "composite",
    "count_bits", "count_primes", "countdown", "course_schedule", "cryptarithm", "decimal_arithmetic",
    "decimal_chain_sum", "dice", "emoji_mystery", "family_relationships", "figlet_font", "fraction_simplification",
    "futoshiki", "game_of_life", "game_of_life_halting", "gcd", "graph_color", "group_anagrams", "gsm_symbolic",
    "intermediate_integration", "isomorphic_strings", "jugs", "kakurasu", "knight_swap", "knights_knaves",
    "largest_island", "lcm", "leg_counting", "letter_counting", "letter_jumble", "list_functions", "mahjong_puzzle",
    "manipulate_matrix", "maze", "mini_sudoku", "modulo_grid", "n_queens", "needle_haystack", "number_filtering",
    "number_format", "number_sequence", "number_sorting", "palindrome_generation", "palindrome_partitioning",
    "path_star", "polynomial_equations", "polynomial_multiplication", "pool_matrix", "power_function",
    "prime_factorization", "products", "propositional_logic", "puzzle24", "quantum_lock", "ransom_note", "rearc",
    "rectangle_count", "rotate_matrix", "rotten_oranges", "rubiks_cube", "rush_hour", "self_reference",
    "sentence_reordering", "shortest_path", "simple_equations", "simple_geometry", "simple_integration", "sokoban",
    "spell_backward", "spiral_matrix", "string_insertion", "string_manipulation", "string_splitting",
    "string_synthesis", "sudoku", "survo", "syllogism", "time_intervals", "tower_of_hanoi", "tsumego", "word_ladder",
    "word_sequence_reversal", "word_sorting", "zebra_puzzles",
]  # fmt: skip
"""Every generator of the version of the package in constraints.txt."""


class ReasoningGym(IsolatedEnvironmentOptions):
    """Questions of a generator of the package reasoning-gym, answered by one agent or by a team.

    Score: the generator's own for the team's answer, from 0 to 1. For language models with a chat template.
    """

    converses: ClassVar[bool] = True
    tells_answer: ClassVar[bool] = True
    lists_held_out: ClassVar[bool] = True

    type: Literal["reasoning_gym"] = "reasoning_gym"
    dataset: Dataset = "chain_sum"
    """Name of the generator."""
    config: dict[str, JsonValue] = Field(default={}, max_length=64)
    """Options of the generator under its own names, without `seed` and `size`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the generator: equal seeds give equal questions, whatever the seed of the run."""
    training: int = Field(default=1000, ge=1, le=15_000)
    """Questions to train on. Those that are held out too are passed over."""
    held_out: int = Field(default=20, ge=1, le=1000)
    """Questions kept for evaluation, all different."""
    answer: Literal["whole", "number", "tag"] = "whole"
    """What of a reply is its answer: all of it, its last number, or what stands between <answer> and </answer>."""
    graph: GraphSpec = ALONE
    """Who speaks when in the team, and who reads what; as it comes, one solver answers."""
    reply_tokens: int = Field(default=64, ge=1, le=4096)
    """Maximum tokens in a reply; `sampling.max_tokens` of an agent may set fewer."""

    @property
    def training_tasks(self) -> int:
        """Return how many there are: the questions to train on."""
        return self.training

    def task_of(self, task_seed: int) -> int | None:
        """Return the question of a task seed."""
        return task_seed % self.training

    def facts(self) -> EnvironmentFacts:
        return team_facts("Reasoning gym", self.graph, self.reply_tokens, "the team's answer gets full score")
