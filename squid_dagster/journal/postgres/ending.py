"""The shortest way of a settlement, for completions that can only end their runs, whatever these did before.

What follows from such a completion is known without a look at the run's facts, so that one call locks, judges and
writes many of them, as a claim does. Whatever is not plain is left to the other ways, which judge and explain it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import LiteralString, NamedTuple
from uuid import UUID

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from squid_dagster.journal.dispatch import Answer, ClaimRef, Completed, Settlement
from squid_dagster.journal.postgres.failures import NotNew
from squid_dagster.journal.postgres.message import execute, json_of
from squid_dagster.journal.postgres.session import BEGIN, BEGIN_STATEMENTS
from squid_dagster.journal.postgres.short import candidates
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import claims_json, names
from squid_dagster.journal.settling import completion_fact
from squid_dagster.protocol.attempts import Attempt, completed
from squid_dagster.protocol.codec import encode
from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.run import end_digest

_END: LiteralString = (
    BEGIN
    + """SELECT {schema}.end_runs(%s::uuid, %s::text[], %s::json, %s::json, %s::text,
    %s::timestamptz); COMMIT"""
)
_ADDED = 1_000  # bytes by which an application may be longer than its completion, beside the transition


class _Member(NamedTuple):
    """One completion, written as the database takes it."""

    place: int
    ref: ClaimRef
    claimed: Attempt
    result: JsonValue
    outcome: str


def settle_ends(storage: PostgresStorage, settlements: Sequence[Settlement], commit_id: UUID) -> dict[int, Answer]:
    """Write the completions that end their runs and are plain; give the answers by place. The others are not there.

    Safe to repeat under the same commit id when the connection was lost.
    """
    members = [member for i in candidates(settlements) if (member := _member(storage, i, settlements[i])) is not None]
    if not members:
        return {}
    values = (
        commit_id,
        names(member.ref.run_id for member in members),
        claims_json([member.ref for member in members]),
        f"[{','.join([member.outcome for member in members])}]",
        end_digest("completed"),
        storage.clock.now() if storage.clock is not None else None,
    )
    try:
        with storage.connection() as connection:
            answer = json_of(execute(connection, storage.sql(_END), values)[BEGIN_STATEMENTS])
    except NotNew:
        return {}
    now = storage.hear_now(answer["now"])
    return {members[i - 1].place: _answer(members[i - 1], now) for i in answer["ended"] or ()}


def _member(storage: PostgresStorage, place: int, settlement: Settlement) -> _Member | None:
    ref, outcome, claimed, ending = settlement
    if ending is None or claimed is None or not isinstance(outcome, Completed):
        return None
    try:
        fact = completion_fact(ref, outcome.result, claimed.last_at)  # when it happens, the database says
        data = encode(fact, storage.max_fact_bytes).data
    except (SquidError, ValidationError):
        return None
    transition = "null" if ending.transition is None else to_json(ending.transition).decode()
    if 4 * (len(data) + len(transition)) + _ADDED > storage.max_fact_bytes:
        return None  # in bytes, what is made of it might be too long
    return _Member(place, ref, claimed, fact.result, f"[{data},{transition}]")


def _answer(member: _Member, now: datetime) -> Answer:
    return Answer(member.ref, completed(member.claimed, member.result, digest(member.result), now))
