"""What all facts have in common: they are frozen, strict, timestamped in UTC, and keep fields they do not know."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
)

from squid_dagster.limits import MAX_PRIORITY, MIN_PRIORITY
from squid_dagster.protocol.errors import InvalidFact, explain
from squid_dagster.protocol.redaction import redact_object
from squid_dagster.protocol.threads import PART_MAX_LENGTH, PART_PATTERN, dispatch_thread, run_thread

DEFAULT_MAX_DELIVERIES = 5
MAX_TEXT = 1000  # characters


def _to_utc(value: datetime) -> datetime:
    try:
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time that UTC cannot express") from None


def _redacted(value: Any) -> Any:
    try:
        return redact_object(value) if isinstance(value, dict) else value
    except RecursionError:
        raise ValueError("it is nested too deep to be written down") from None


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
Part = Annotated[str, StringConstraints(pattern=PART_PATTERN, max_length=PART_MAX_LENGTH)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT)]
Comment = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
JsonObject = dict[str, JsonValue]
Redacted = Annotated[dict[str, JsonValue], BeforeValidator(_redacted)]
Actor = Text | Redacted
Count = Annotated[int, Field(ge=1)]
Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
TokenHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Frozen(BaseModel):
    """A strict, immutable model that keeps unknown fields, and is valid however it was created."""

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )
    __pydantic_extra__: dict[str, JsonValue]

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:  # type: ignore[override]
        """Create one from values, validated like any other; raises `InvalidFact`."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            named = cls.model_fields.get("type")
            raise InvalidFact(f"{named.default if named else cls.__name__}: {explain(error)}") from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it, with other values if given, validated like any other; raises `InvalidFact`."""
        if not update:
            return super().model_copy(deep=deep)
        changed = type(self).model_construct(**{**dict(self), **(self.__pydantic_extra__ or {}), **update})
        return cast("Self", changed)


class FactBase(Frozen):
    """One immutable entry of the journal, before it has a place there."""

    occurred_at: UtcDatetime


class RunThreadFact(FactBase):
    """A fact of a run's own thread."""

    run_id: Part

    @property
    def thread(self) -> str:
        """The run's thread."""
        return run_thread(self.run_id)


class QueueThreadFact(FactBase):
    """A fact of a queue's thread."""

    queue: Part = "default"

    @property
    def thread(self) -> str:
        """The queue's thread."""
        return dispatch_thread(self.queue)


class RunDispatchFact(QueueThreadFact):
    """A fact of a queue's thread about one run."""

    run_id: Part


class AttemptFact(RunDispatchFact):
    """A fact of a queue's thread about one attempt."""

    runnable_key: Text


class FencedFact(AttemptFact):
    """A fact that only the holder of a claim may write."""

    claim_id: Text
    claim_token_hash: TokenHash
