"""The facts of the backlog's thread: cards that are created, linked, claimed, blocked, failed and done."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, model_validator

from squid_dagster.limits import CARD_NUMBER, MAX_LEASE
from squid_dagster.protocol.facts.base import Comment, Count, FactBase, Redacted, Text, TokenHash, UtcDatetime
from squid_dagster.protocol.threads import BACKLOG_THREAD

CARD_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.:/#@+-]*$"
CARD_ID_MAX_LENGTH = 200
CARD_NAME_MAX_LENGTH = 400
MAX_TTL_SECONDS = int(MAX_LEASE.total_seconds())


def _criteria(value: JsonValue) -> JsonValue:
    """Validate the acceptance criteria of a card: a list of texts, or an object."""
    if isinstance(value, dict) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return value
    raise ValueError("acceptance is a list of texts, or an object")


CardId = Annotated[str, StringConstraints(pattern=CARD_ID_PATTERN, max_length=CARD_ID_MAX_LENGTH)]
# Indexed texts are shorter than others: a character may take four bytes.
CardName = Annotated[str, StringConstraints(min_length=1, max_length=CARD_NAME_MAX_LENGTH)]
CardPriority = Annotated[int, Field(ge=-CARD_NUMBER, le=CARD_NUMBER)]
CardBody = Annotated[str, StringConstraints(max_length=100_000)]
Acceptance = Annotated[JsonValue, AfterValidator(_criteria)]
TtlSeconds = Annotated[int, Field(ge=1, le=CARD_NUMBER)]
Attempts = Annotated[int, Field(ge=1, le=CARD_NUMBER)]


class CardFact(FactBase):
    """A fact about one card."""

    card_id: CardId

    @property
    def thread(self) -> str:
        """The thread of all cards."""
        return BACKLOG_THREAD

    @model_validator(mode="after")
    def _of_no_run(self) -> Self:
        if "run_id" in (self.__pydantic_extra__ or ()):
            raise ValueError("a fact about a card names no run: remove run_id")
        return self


class FencedCardFact(CardFact):
    """A fact that the holder of a claim writes, proven by its token; or any other caller without one, `unfenced`."""

    fence: Literal["token", "unfenced"]
    claim_token_hash: TokenHash | None = None

    @model_validator(mode="after")
    def _fence_is_whole(self) -> Self:
        if (self.fence == "token") != (self.claim_token_hash is not None):
            raise ValueError("claim_token_hash is given with the fence 'token', and with no other")
        return self


class CardCreated(CardFact):
    """The card exists."""

    type: Literal["card_created"] = "card_created"
    title: Text
    body: CardBody | None = None
    phase: CardName | None = None
    priority: CardPriority = 0
    depends_on: list[CardId] = Field(default_factory=list)
    acceptance: Acceptance | None = None
    idempotency_key: CardName | None = None
    not_before: UtcDatetime | None = None
    max_attempts: Attempts | None = None

    @model_validator(mode="after")
    def _depends_on_others(self) -> Self:
        if self.card_id in self.depends_on or len(set(self.depends_on)) < len(self.depends_on):
            raise ValueError("depends_on names other cards, each of them once")
        return self


class CardLinked(CardFact):
    """The card depends on another one, too."""

    type: Literal["card_linked"] = "card_linked"
    depends_on: CardId

    @model_validator(mode="after")
    def _depends_on_another(self) -> Self:
        if self.card_id == self.depends_on:
            raise ValueError(f"card {self.card_id!r} cannot depend on itself")
        return self


class CardClaimed(CardFact):
    """A claim: its owner holds the card for so many seconds."""

    type: Literal["card_claimed"] = "card_claimed"
    claim_owner: Text
    claim_ttl_seconds: TtlSeconds
    claim_token_hash: TokenHash
    attempt: Count


class CardRenewed(FencedCardFact):
    """The claim is extended to so many seconds, counted from its start."""

    type: Literal["card_renewed"] = "card_renewed"
    claim_ttl_seconds: TtlSeconds


class CardReleased(CardFact):
    """The card is ready again: its claim ran out, or an operator freed it."""

    type: Literal["card_released"] = "card_released"
    cause: Literal["expired", "forced"]


class CardBlocked(FencedCardFact):
    """The card is parked: it cannot be claimed."""

    type: Literal["card_blocked"] = "card_blocked"
    reason: Comment | None = None


class CardUnblocked(CardFact):
    """The card is ready again: it was unblocked, or created once more."""

    type: Literal["card_unblocked"] = "card_unblocked"
    cause: Literal["unblocked", "created_again"]


class CardCompleted(FencedCardFact):
    """The card is done."""

    type: Literal["card_completed"] = "card_completed"


class CardFailed(FencedCardFact):
    """The holder did not succeed; the card is ready again, at once or from `not_before` on."""

    type: Literal["card_failed"] = "card_failed"
    error: Redacted | None = None
    not_before: UtcDatetime | None = None


class CardDeadLettered(FencedCardFact):
    """The card is ready again only if an operator frees it: its attempts are spent, or its holder gave it up.

    They are spent when the last one failed, or its claim ran out, which needs no token.
    """

    type: Literal["card_dead_lettered"] = "card_dead_lettered"
    cause: Literal["spent", "given_up"]
    attempts: Count
    error: Redacted | None = None


CardFactType = (
    CardCreated
    | CardLinked
    | CardClaimed
    | CardRenewed
    | CardReleased
    | CardBlocked
    | CardUnblocked
    | CardCompleted
    | CardFailed
    | CardDeadLettered
)
BacklogFact = Annotated[CardFactType, Field(discriminator="type")]
