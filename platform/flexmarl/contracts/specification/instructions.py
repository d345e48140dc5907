"""Instructions of an agent: what is said to its model before anything else, as a small template.

Invariants: instructions are written by users and rendered on rollout workers. They may name the declared variables,
choose with `if` and use a few filters; nothing loops, calls, multiplies or reads attributes, so a rendering takes time
and memory in proportion to the text. Dialect: Jinja.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import AfterValidator, Field

VARIABLES = ("role", "team", "environment")
"""What instructions may name: the seat's role, the roles of all seats, what the environment itself would say."""
FILTERS = ("join", "length", "upper", "lower", "capitalize", "title", "trim")
MOST_CHARACTERS = 8000

_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.CondExpr, nodes.Name, nodes.Const, nodes.Compare,
    nodes.Operand, nodes.Not, nodes.And, nodes.Or, nodes.Filter,
)  # fmt: skip


def readable(text: str) -> str:
    """Return instructions that can be rendered. Raises ValueError, which says the rule and what is legal."""
    try:
        parsed = _environment().parse(text)
    except jinja2.TemplateSyntaxError as error:
        rule = f"line {error.lineno} cannot be read: {error.message}"
        raise ValueError(f"{rule}; write literal braces as {{{{ '{{{{' }}}}") from error
    for node in parsed.find_all(nodes.Node):
        _check(node)
    try:
        _environment().from_string(text).render(role="solver", team=["solver", "reviser"], environment="Solve it.")
    except (TypeError, jinja2.TemplateError) as error:
        raise ValueError(f"it does not render for a team of solver and reviser: {error}") from error
    return text


def _check(node: nodes.Node) -> None:
    at = f"line {node.lineno}:"
    match node:
        case nodes.Name() if node.ctx != "load" or node.name not in VARIABLES:
            raise ValueError(f"{at} {node.name} is not a variable; there are {', '.join(VARIABLES)}")
        case nodes.Filter() if node.name not in FILTERS:
            raise ValueError(f"{at} the filter {node.name} is not allowed; there are {', '.join(FILTERS)}")
        case nodes.Filter() if node.name == "join" and not _joins_the_team(node):
            raise ValueError(f"{at} join is for the team, with a text between: {{{{ team | join(', ') }}}}")
        case _ if not isinstance(node, _ALLOWED):
            raise ValueError(f"{at} {type(node).__name__.lower()} is not allowed; use variables, if and filters")


def _joins_the_team(node: nodes.Filter) -> bool:
    """Whether nothing grows by more than its own text: joined texts would multiply."""
    named = isinstance(node.node, nodes.Name) and node.node.name == "team"
    return named and not node.kwargs and len(node.args) <= 1 and all(isinstance(one, nodes.Const) for one in node.args)


def render_instructions(text: str, role: str, team: Sequence[str], environment: str) -> str:
    """Return what a seat is told: `role` of `team`, `environment` is the environment's own system message.

    Raises ValueError where they do not render for this seat.
    """
    try:
        return _compiled(text).render(role=role, team=list(team), environment=environment)
    except (TypeError, jinja2.TemplateError) as error:
        raise ValueError(f"the instructions of {role} do not render: {error}") from error


@lru_cache(maxsize=64)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(readable(text))


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


Instructions = Annotated[str, Field(max_length=MOST_CHARACTERS), AfterValidator(readable)]
