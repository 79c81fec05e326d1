"""What a step's function takes: its signature, read once, with a validator for each parameter that is data."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from squid_dagster.workflow.authoring.draft import Function
from squid_dagster.workflow.authoring.step_context import Resource, StepContext
from squid_dagster.workflow.errors import Code, Path, Problems
from squid_dagster.workflow.values import shown

# By name, so that a workflow without any of them imports no database driver.
_CONNECTIONS = {("sqlalchemy.engine.base", "Connection"): "sqlalchemy", ("psycopg", "Connection"): "psycopg"}
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Source(StrEnum):
    """Where a parameter's value comes from."""

    STATE = "state"  # the payload or an earlier output, by the parameter's name
    CONTEXT = "context"
    RESOURCE = "resource"
    CONNECTION = "connection"  # to the journal's database, in the transaction that completes the step


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a step's function."""

    name: str
    source: Source
    required: bool
    adapter: TypeAdapter[Any] | None = None
    resource: str | None = None
    annotation: Any = None
    default: Any = None  # of a parameter that is not required


@dataclass(frozen=True, slots=True)
class Task:
    """A function with what it takes. `label` names it in messages: "step 'charge'"."""

    label: str
    function: Function
    parameters: tuple[Parameter, ...]
    is_async: bool

    @property
    def takes(self) -> tuple[str, ...]:
        """The names that it takes from the run's state."""
        return tuple(parameter.name for parameter in self.parameters if parameter.source is Source.STATE)

    @property
    def resources(self) -> frozenset[str]:
        """The keys of the resources that it cannot do without."""
        required = (parameter for parameter in self.parameters if parameter.required)
        return frozenset(
            parameter.resource
            for parameter in required
            if parameter.source is Source.RESOURCE and parameter.resource is not None
        )

    @property
    def connection(self) -> Parameter | None:
        """The parameter that takes the connection of a transactional step, if there is one."""
        return next((parameter for parameter in self.parameters if parameter.source is Source.CONNECTION), None)


def read_task(function: object, label: str, path: Path, problems: Problems) -> Task | None:
    """Read a function's signature, and record what is wrong under `path`. Return None if it cannot be read at all."""
    if not inspect.isfunction(function):
        problems.add(path, Code.NOT_A_FUNCTION, f"{shown(function)} is not a function: use def or async def")
        return None
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problems.add(path, Code.NOT_A_FUNCTION, f"{function.__name__} is a generator: a step gives one result")
        return None
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001  an annotation is code of the author's and may raise anything
        problems.add(
            path,
            Code.UNRESOLVED_ANNOTATIONS,
            f"the annotations of {function.__qualname__} cannot be resolved ({type(error).__name__}: {error}): "
            "import or define at module level every name that they use, outside of `if TYPE_CHECKING:`",
        )
        return None
    parameters = tuple(_read_parameters(function, hints, path, problems))
    return Task(label, function, parameters, inspect.iscoroutinefunction(function))


def _read_parameters(function: Function, hints: dict[str, Any], path: Path, problems: Problems) -> Iterator[Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        place = (*path, "parameters", name)
        if parameter.kind not in _BY_NAME:
            message = f"{parameter} cannot be bound by name: list the parameters one by one, without '*', '**' and '/'"
            problems.add(place, Code.UNSUPPORTED_PARAMETER, message)
        elif name not in hints:
            message = f"has no annotation: write its type, such as '{name}: str' or '{name}: dict'"
            problems.add(place, Code.MISSING_ANNOTATION, message)
        elif read := _read_parameter(name, parameter.default, hints[name], place, problems):
            yield read


def _read_parameter(name: str, default: Any, hint: Any, place: Path, problems: Problems) -> Parameter | None:
    required = default is inspect.Parameter.empty
    base, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if base is StepContext:
        return Parameter(name, Source.CONTEXT, required)
    kind = get_origin(base) or base
    driver = _CONNECTIONS.get((getattr(kind, "__module__", ""), getattr(kind, "__name__", "")))
    if driver is not None:
        return Parameter(name, Source.CONNECTION, required, resource=driver)
    marks = [extra for extra in extras if isinstance(extra, Resource) or extra is Resource]
    if marks:
        key = marks[0].key if isinstance(marks[0], Resource) else None
        if len(marks) > 1 or not isinstance(key, str) or not key:
            message = "asks for a resource without one key: write Annotated[Slack, Resource('slack')]"
            problems.add(place, Code.UNSUPPORTED_ANNOTATION, message)
            return None
        return Parameter(name, Source.RESOURCE, required, resource=key)
    adapter = _adapter(hint, place, problems)
    return adapter and Parameter(name, Source.STATE, required, adapter, annotation=hint, default=default)


def _adapter(hint: Any, place: Path, problems: Problems) -> TypeAdapter[Any] | None:
    try:
        adapter = TypeAdapter[Any](hint)
        adapter.rebuild(raise_errors=True)
    except Exception as error:  # noqa: BLE001  a type's own hooks run here and may raise anything
        reason = str(error).partition("\n")[0]
        problems.add(
            place,
            Code.UNSUPPORTED_ANNOTATION,
            f"values of type {shown(hint)} cannot be read from JSON ({reason}): use a type that pydantic knows, or "
            "Annotated[..., Resource('key')] for what is not data",
        )
        return None
    return adapter
