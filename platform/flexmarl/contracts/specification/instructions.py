"""Instructions of an agent: what is said to its model before anything else, as a small template.

Invariants: instructions are written by users and rendered on rollout workers. They may name the declared variables,
choose with `if` and use a few filters; nothing loops, calls, multiplies or reads attributes, so a rendering takes time
and memory in proportion to the text. What nests deeply is refused before it is compiled: Jinja compiles a chain of
filters in time that grows with its cube, and Python's own limits would end in other errors. Dialect: Jinja.
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
MOST_NESTED = 16
"""Expressions and blocks within each other; a further `and`, `or` or filter is one more."""
MOST_EXPRESSIONS = 256
"""Values shown, conditions, and comparisons."""

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
    except RecursionError:
        raise ValueError(_NESTED) from None
    _check_size(parsed)
    for node in parsed.find_all(nodes.Node):
        _check(node)
    try:
        _environment().from_string(text).render(role="solver", team=["solver", "reviser"], environment="Solve it.")
    except (TypeError, jinja2.TemplateError) as error:
        raise ValueError(f"it does not render for a team of solver and reviser: {error}") from error
    return text


_NESTED = f"expressions and blocks are nested more than {MOST_NESTED} levels deep; write simpler ones"


def _check_size(parsed: nodes.Template) -> None:
    """Refuse what would take long to compile. Without recursion: such a tree may be deeper than Python's stack."""
    expressions = 0
    open_nodes: list[tuple[nodes.Node, int]] = [(parsed, 0)]
    while open_nodes:
        node, depth = open_nodes.pop()
        if depth > MOST_NESTED:
            raise ValueError(_NESTED)
        for child in node.iter_child_nodes():
            counts = isinstance(child, nodes.If | nodes.CondExpr | nodes.Operand) or isinstance(node, nodes.Output)
            expressions += counts and not isinstance(child, nodes.TemplateData)
            open_nodes.append((child, depth + (not isinstance(child, nodes.Output | nodes.TemplateData))))
        if expressions > MOST_EXPRESSIONS:
            raise ValueError(f"there are more than {MOST_EXPRESSIONS} expressions; write fewer, or plain text")


def _check(node: nodes.Node) -> None:
    at = f"line {node.lineno}:"
    match node:
        case nodes.Name() if node.ctx != "load" or node.name not in VARIABLES:
            known = ", ".join(VARIABLES)
            raise ValueError(f"{at} {node.name} is not a variable; there are {known}. A task is told without one")
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
