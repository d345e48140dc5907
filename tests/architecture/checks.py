"""Checkers of the house rules: pure functions from source text to findings, so that each is seen to fail."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60
CLASS_LINES = 300
CLASS_ATTRIBUTES = 12
"""Attributes that methods assign."""
CLASS_FIELDS = 16
"""Fields that a class declares (dataclass, named tuple, msgspec or pydantic model). A value may have some more than an
object with behaviour, since nothing but its reader depends on all of them; the root of the core's state, one field for
each owner, has as many as this."""
LARGE_VALUES = {
    "EngineRow": (17, "mirrors the columns that the table of engines shows"),
    "EpisodeFilter": (17, "one field for each parameter of the list of episodes"),
    "DeviceDemand": (17, "a request that waits, flat as the store reads it"),
    "EpisodeOutcome": (18, "an episode as the core hears of it, flat as it crosses the wire"),
    "EpisodeRow": (21, "mirrors the table of episodes"),
    "ExperimentSpec": (17, "the root of a specification: one branch for each of its parts"),
    "EpisodeSummary": (17, "mirrors the columns that the list of episodes shows"),
    "HostJob": (23, "mirrors the table of jobs"),
    "ModelFacts": (17, "the flat facts of a model that REST and its page show"),
    "PolicyNeeds": (17, "facts of one policy that the allocator compares; flat, and hidden from the garbage collector"),
    "Progress": (26, "the flat resource that REST, lists and headers show of a run"),
    "RowLine": (22, "mirrors a line of the documented format of rows as files"),
    "RunState": (18, "the root of a run's state: one branch for each owner"),
    "Settings": (34, "the flat set of environment variables that people set for workers"),
    "SimulatedTurn": (19, "hundreds of thousands at once: nested values would cost an allocation each"),
    "SimulationReport": (24, "the flat resource that REST and pages show of a simulation"),
    "StoredRun": (18, "mirrors the table of runs"),
    "TurnRequest": (17, "everything a reply depends on, flat as it is asked for"),
}
"""Class -> fields it may have, and why they stay together."""
HEAVY = frozenset({"torch", "transformers", "vllm", "tokenizers", "safetensors"})
"""May be imported inside a function: importing them costs seconds."""
REASON_LENGTH = 12
"""Shortest comment that can be a reason."""

TEMPLATE_WIDTH = 140
"""Longest line of a template that could be broken at a space outside of attribute values and template tags."""
TEMPLATE_LINE = 200
"""Longest line of a template at all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule at one place."""

    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def check_source(path: str, text: str, *, library: bool = True) -> Iterator[Finding]:
    """Yield what one file breaks. `library` is false for commands that print by purpose."""
    tree = ast.parse(text)
    if (length := len(text.splitlines())) > FILE_LINES:
        yield Finding(path, 1, f"file has {length} lines, at most {FILE_LINES}")
    comments = _comments(text)
    for node in ast.walk(tree):
        for line, rule in _check_node(node, comments, library):
            yield Finding(path, line, rule)


def _check_node(node: ast.AST, comments: dict[int, str], library: bool) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _check_function(node)
    elif isinstance(node, ast.ClassDef):
        yield from _check_class(node)
    elif isinstance(node, ast.ExceptHandler) and _swallows(node) and not _has_reason(node, comments):
        yield node.lineno, "broad except without a comment that says why"
    elif library and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        yield node.lineno, "print in a library"


def _check_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    if (length := _length(node)) > FUNCTION_LINES:
        yield node.lineno, f"function {node.name} has {length} lines, at most {FUNCTION_LINES}"
    if node.returns is None:
        yield node.lineno, f"function {node.name} has no return annotation"
    for statement in ast.walk(node):
        for name in _imported(statement):
            if name.split(".")[0] not in HEAVY and not _guarded_command(node):
                yield statement.lineno, f"import of {name} inside a function"  # type: ignore[attr-defined]


def _guarded_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Django imports the urls and signals of an app only when it is ready; `main` of manage.py needs the path first."""
    return node.name in {"ready", "main", "join_running_installation"}


def _check_class(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    if (length := _length(node)) > CLASS_LINES:
        yield node.lineno, f"class {node.name} has {length} lines, at most {CLASS_LINES}"
    names = {
        target.attr
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(method)
        for target in _targets(statement)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    if len(names) > CLASS_ATTRIBUTES:
        yield node.lineno, f"class {node.name} assigns {len(names)} attributes, at most {CLASS_ATTRIBUTES}"
    most, _ = LARGE_VALUES.get(node.name, (CLASS_FIELDS, ""))
    if (count := fields_of(node)) > most:
        yield node.lineno, f"class {node.name} declares {count} fields, at most {most}"


def fields_of(node: ast.ClassDef) -> int:
    """Count the annotated names in a class body, inherited ones and class variables left out."""
    declared = (one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name))
    return sum("ClassVar" not in ast.unparse(one.annotation) for one in declared)


def _targets(statement: ast.AST) -> Iterator[ast.AST]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        yield statement.target


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "."] if isinstance(node, ast.ImportFrom) else []


def _is_broad(node: ast.ExceptHandler) -> bool:
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"}) for kind in kinds
    )


def _swallows(node: ast.ExceptHandler) -> bool:
    """Tell whether a broad handler ends the exception; one that cleans up and raises again needs no reason."""
    last = node.body[-1]
    return _is_broad(node) and not (isinstance(last, ast.Raise) and last.exc is None)


def _comments(text: str) -> dict[int, str]:
    """Return the comment of each line, without directives for tools."""
    found: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            words = re.sub(r"(noqa|type|pragma)\s*:\s*[\w\[\], -]*?(?=[A-Za-z]{4,} |$)", "", token.string)
            found[token.start[0]] = words.strip("#: -")
    return found


def _has_reason(node: ast.ExceptHandler, comments: dict[int, str]) -> bool:
    """Tell whether the line, the line above or the lines up to the first statement carry a reason."""
    around = range(node.lineno - 1, node.body[0].lineno + 1)
    return any(len(comments.get(line, "")) >= REASON_LENGTH for line in around)


def reads_environment(text: str) -> list[int]:
    """Return the lines that read the process environment."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if is_attribute and node.attr in {"environ", "getenv", "environb"}:
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno for alias in node.names if alias.name in {"environ", "getenv", "environb"}]
    return lines


def reads_clock(text: str) -> list[int]:
    """Return the lines that ask a datetime class for the present, which no import rule can see."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"now", "utcnow", "today"}
        and isinstance(node.func.value, ast.Name | ast.Attribute)
    ]


def misplaced_packages(root: Path) -> list[str]:
    """Return files that would hide the standard library's `platform` or break the collection of tests."""
    wrong = [root / "platform" / "__init__.py", *(root / "tests").rglob("__init__.py")]
    return [str(path.relative_to(root)) for path in wrong if path.exists()]


def packages_without_init(root: Path) -> list[str]:
    """Return folders with Python files that are no packages, and so are missing from a wheel."""
    return [
        str(folder.relative_to(root))
        for top in ("platform/flexmarl", "webui", "workers", "migrations")
        for folder in sorted({path.parent for path in (root / top).rglob("*.py")})
        if not (folder / "__init__.py").exists()
    ]


_UNBROKEN = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|=\"(?:\{%.*?%\}|\{\{.*?\}\}|[^\"])*\"")
"""What a line of a template cannot be broken in: tags and values of templates, values of attributes."""


def wide_lines(text: str) -> list[int]:
    """Return the numbers of the lines of a template that are too long."""
    return [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > TEMPLATE_LINE or (len(line) > TEMPLATE_WIDTH and " " in _UNBROKEN.sub("", line).strip())
    ]
