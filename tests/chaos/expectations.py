"""How many runs of chaos are of each workflow, and how each must end: that follows from its payload alone."""

from tests.chaos.workflows import ROUNDS, SIBLINGS

# Of a thousand runs, so many are of each workflow; the rest are chains.
SHARES = {
    "fan": 120,
    "loop": 100,
    "retried": 100,
    "failing": 50,
    "routed": 100,
    "reviewed": 60,
    "endless": 20,
    "parent": 50,
    "saga": 100,
    "booked": 80,
    "isolated": 20,
    "slow": 20,
    "hanging": 4,
    "crashing": 4,
    "poison": 1,
    "forking": 4,
    "closing": 2,
}
HURTFUL = ("crashing", "poison", "forking", "closing")


def expected_status(workflow: str, n: int) -> str:
    """Return how a run must end."""
    match workflow:
        case "failing":
            return "failed"
        case "endless" | "hanging" | "poison":
            return "cancelled"
        case "reviewed" | "saga":
            return "failed" if n % 2 else "completed"
        case _:
            return "completed"


SILENT_STEPS = ("alone", "rest", "a_day")  # isolated or built in: they record nothing
OPEN_RESULTS = ("rest", "spawn")  # their results do not follow from the payload


def expected_results(workflow: str, n: int) -> list[tuple[str, object]]:
    """Return the steps that must succeed in a run, each with its result, as often as they do."""
    booking: list[tuple[str, object]] = [("book_flight", f"flight-{n}"), ("book_hotel", f"hotel for flight-{n}")]
    undoing: list[tuple[str, object]] = [("compensate:book_hotel", None), ("compensate:book_flight", None)]
    match workflow:
        case "chain":
            return [("first", n + 1), ("second", n + 2), ("third", n + 3)]
        case "fan":
            parts = [n + place for place in range(SIBLINGS)]
            return [*((f"sibling_{place}", part) for place, part in enumerate(parts)), ("total", sum(parts))]
        case "loop":
            return [*(("turn", count + 1) for count in range(ROUNDS)), ("leave", ROUNDS)]
        case "routed" if n % 3 == 0:
            return [("error_way", "error")]
        case "routed":
            return (
                [("look", True), ("rest", None), ("odd_way", "odd")]
                if n % 2
                else [("look", False), ("even_way", "even")]
            )
        case "reviewed":
            return [("ask", n)] if n % 2 else [("ask", n), ("go_on", "approved")]
        case "saga":
            return [*booking, *undoing] if n % 2 else [*booking, ("pay", "paid")]
        case "booked":
            return [("enter", n), ("after_entry", n)]
        case "forking":
            return [("fork", "parent")]
        case "failing" | "endless" | "hanging" | "poison":
            return []
        case _:
            return [(_ONLY_STEP[workflow], n)]


_ONLY_STEP = {
    "retried": "stumble",
    "parent": "spawn",
    "isolated": "alone",
    "slow": "dawdle",
    "crashing": "crash_once",
    "closing": "close_descriptors",
}
