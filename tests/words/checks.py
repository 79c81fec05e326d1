"""Checks of one module's words. `python -m tests.words PATH ...` prints the remarks.

- The docstring of a function begins with a verb of programming (`verbs.txt`); that of a property may be a noun phrase.
- Docstrings and comments name a caller, a process or a thread, instead of the words of `VAGUE`.
- Variables, parameters and fields are named after what they hold, not with the words of `EMPTY_NAMES`.
- Names of the library's modules and public classes are made of words of `docs/glossary.md` and of `plain.txt`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).resolve().parent
EMPTY_NAMES = frozenset({"told", "kept", "found", "each", "more"})
VAGUE = re.compile(r"\b(whoever|whomever|nobody|somebody|anybody|everybody|no one|someone|anyone|everyone)\b", re.I)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
GLOSSARY_TERMS = re.compile(r"^\| (\*\*[^|]+) \|", re.MULTILINE)
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Remark(NamedTuple):
    """One word that does not fit, and where."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """Return the remark in the format of a compiler."""
        return f"{self.path}:{self.line}: {self.text}"


@cache
def word_list(name: str) -> frozenset[str]:
    """Return the words of a list beside this module."""
    lines = (LISTS / name).read_text("utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


@cache
def glossary() -> frozenset[str]:
    """Return the words in the first column of the glossary, in lower case, with their plurals."""
    terms = GLOSSARY_TERMS.findall((ROOT / "docs" / "glossary.md").read_text("utf-8"))
    words = {word for term in terms for word in re.findall(r"[a-z]+", term.lower())}
    return frozenset(words | {plural(word) for word in words})


def plural(word: str) -> str:
    """Return a noun's plural."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "ch", "sh")) else f"{word}s"


@cache
def plain_words() -> frozenset[str]:
    """Return the words of plain programming, with their plurals."""
    words = word_list("plain.txt")
    return frozenset(words | {plural(word) for word in words})


def words_of(name: str) -> list[str]:
    """Return the words of a name, in lower case and without numbers."""
    return [part.lower() for part in WORD.findall(name) if not part.isdigit()]


def unknown_words(name: str) -> list[str]:
    """Return the words of a name that stand in no list."""
    return [word for word in words_of(name) if word not in glossary() | plain_words()]


def remarks(path: Path) -> list[Remark]:
    """Return what is wrong with the words of a module, by line."""
    return module_remarks(str(path.relative_to(ROOT)), path.read_text("utf-8"))


def module_remarks(where: str, text: str) -> list[Remark]:
    """Return what is wrong with the words of a module's text, by line."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    lines = [*_vague_words(nodes, text), *_first_words(nodes), *_empty_names(nodes)]
    if where.startswith("squid_dagster/"):
        for line, kind, name in public_names(where, tree):
            lines += [(line, f"{kind} {name}: {word!r} stands in no list") for word in unknown_words(name)]
    return [Remark(where, line, said) for line, said in sorted(lines)]


def public_names(where: str, tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and name of a module or package, and of its public classes."""
    path = Path(where)
    yield (1, "package", path.parent.name) if path.stem == "__init__" else (1, "module", path.stem)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.lineno, "class", node.name


def _vague_words(nodes: list[ast.AST], text: str) -> Iterator[tuple[int, str]]:
    if VAGUE.search(text):
        for line, said in {*_docstrings(nodes), *_comments(text)}:
            for match in VAGUE.finditer(said):
                yield line, f"{match.group()!r}: name the caller, the process, the thread or the person"


def _docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _first_words(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    properties = {"property", "cached_property", "setter", "fixture"}
    for node in nodes:
        if isinstance(node, Definition) and (said := ast.get_docstring(node)):
            word = said.split()[0].rstrip(".,:;")
            if word not in word_list("verbs.txt") and not properties & {_name(d) for d in node.decorator_list}:
                yield node.lineno, f"docstring of {node.name} begins with {word!r}: begin with a verb of verbs.txt"


def _empty_names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        for name in _bound(node):
            if name in EMPTY_NAMES:
                yield node.lineno, f"{name!r}: name what it holds"  # type: ignore[attr-defined]


def _name(decorator: ast.expr) -> str:
    while isinstance(decorator, ast.Call):
        decorator = decorator.func
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case _:
            return
