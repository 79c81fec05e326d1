"""Size limits of a plan: whether its facts can be written, and how they are split or shortened. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from pydantic_core import to_json

from squid_dagster.limits import commit_bytes
from squid_dagster.protocol.codec import encode
from squid_dagster.protocol.errors import InvalidFact
from squid_dagster.protocol.facts import Fact, Runnable, RunnablesPlanned
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.workflow.errors import InvalidInput

_LONGEST_MESSAGE = 1_000
_NAMED = 3  # inputs that an error names
_SPARE = 1_000  # bytes that a fact has beside its runnables


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The bytes that a plan may write: a maximum for each fact, and a few times that in all."""

    max_fact_bytes: int

    def holds(self, *facts: Fact) -> bool:
        """Return whether each of the facts is small enough."""
        try:
            for fact in facts:
                encode(fact, self.max_fact_bytes)
        except InvalidFact:
            return False
        return True

    def check(self, runnables: Sequence[Runnable]) -> None:
        """Raise `InvalidInput`, with sizes, if one of the runnables is too large, or all of them together."""
        sizes = [self._size(runnable) for runnable in runnables]
        most = 3 * commit_bytes(self.max_fact_bytes) // 8  # an input is part of two facts, beside others
        if sum(sizes) > most:
            steps = ", ".join(sorted({repr(runnable.step) for runnable in runnables}))
            raise InvalidInput(
                f"the inputs of {steps} take {sum(sizes):,} bytes together, more than the {most:,} that may be planned "
                "at once: store values elsewhere and return references"
            )

    def parts(self, runnables: Sequence[Runnable]) -> Iterator[list[Runnable]]:
        """Yield the runnables in parts that each fit into one fact."""
        part: list[Runnable] = []
        left = 0
        for runnable in runnables:
            size = self._size(runnable)
            if part and size > left:
                yield part
                part, left = [], 0
            left = (left if part else self.max_fact_bytes - _SPARE) - size
            part.append(runnable)
        if part:
            yield part

    def _size(self, runnable: Runnable) -> int:
        planned = RunnablesPlanned(run_id=runnable.run_id, runnables=[runnable], occurred_at=runnable.visible_at)
        try:
            return len(encode(planned, self.max_fact_bytes).data.encode())
        except InvalidFact as error:
            raise InvalidInput(
                f"the input of step {runnable.step!r} cannot be written down ({_largest(runnable.input)}): {error}"
            ) from None


def brief_error(error: JsonObject) -> JsonObject:
    """Return what identifies an error, without what makes it large."""
    brief: JsonObject = {name: error[name] for name in ("code", "type") if isinstance(error.get(name), str)}
    message = error.get("message")
    brief["message"] = message[:_LONGEST_MESSAGE] if isinstance(message, str) else ""
    return {**brief, "omitted": "the rest of this error is too large to be repeated here"}


def _largest(values: JsonObject) -> str:
    sizes = sorted(((_bytes(value), name) for name, value in values.items()), reverse=True)
    return ", ".join(f"{name!r} has {size:,} bytes" for size, name in sizes[:_NAMED])


def _bytes(value: JsonValue) -> int:
    try:
        return len(to_json(value))
    except (ValueError, RecursionError):  # nested too deep
        return 0
