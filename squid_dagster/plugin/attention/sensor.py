"""The attention sensor: tells people once of every run that waits for one of them, and of everything that went wrong.

What needs attention is read from the journal at every tick. What was told is remembered in the sensor's cursor, which
is a hint: after Dagster's storage was wiped, everything that is still open is told once more. A tick's work is bounded.
"""

import logging
from collections.abc import Callable

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.inspection.attention_items import KINDS, AttentionItem
from squid_dagster.plugin.attention.cursor import Memory
from squid_dagster.plugin.attention.items import anomalies_after, anomaly_items, described, look
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.failures import run_tick
from squid_dagster.plugin.names import ATTENTION_SENSOR
from squid_dagster.plugin.resource import SquidResource, Workflows

MAX_ITEMS = 25  # told in one tick: a hook that takes a second for each stays within a sensor's minute
_PAGES = 10  # of anomalies that are passed over in one tick
OnMessage = Callable[[AttentionItem], None]


@builds
def build_attention_sensor(
    *,
    workflows: Workflows = (),
    on_message: OnMessage | None = None,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Build the sensor `squid_attention_sensor`, which needs the resource `squid` and launches nothing.

    It tells of runs that wait for a person, dead letters, held runs, quarantined runs and new anomalies: once each, in
    the tick's log and result, and to `on_message`. A hook that raises is asked again about the same item at the next
    tick: it may hear of it twice, and never not at all. Of more than 2,000 open things of one kind, the rest is not
    told one by one.
    """

    @dg.sensor(
        name=ATTENTION_SENSOR,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Tells once of every run that needs a person, and of every anomaly. Launches nothing.",
    )
    def attention(context: dg.SensorEvaluationContext, squid: SquidResource) -> dg.SensorResult | dg.SkipReason:
        def look() -> dg.SensorResult:
            memory = Memory.read(context.cursor)
            said = _Tick(squid.squid_for(workflows), memory, on_message, context.log).attend()
            return dg.SensorResult(skip_reason=said, cursor=memory.write())

        return run_tick(look)  # a skip leaves the cursor as it was: what was told is told once more

    return attention


class _Tick:
    """One tick: new items are reported, and remembered as reported."""

    def __init__(self, squid: Squid, memory: Memory, on_message: OnMessage | None, log: logging.Logger) -> None:
        self._squid = squid
        self._memory = memory
        self._on_message = on_message
        self._log = log
        self._told: list[AttentionItem] = []
        self._open: dict[str, int] = {}
        self._later = 0

    def attend(self) -> str:
        """Report what is new; return in one text what that was, and what is open."""
        for kind in KINDS:
            self._go_through(kind)
        self._follow_anomalies()
        return self._said()

    def _go_through(self, kind: str) -> None:
        progress = self._memory.passes[kind]
        page = look(self._squid, kind, progress.place)
        for item in page.items:
            progress.meet(item.key, reported=not progress.knows(item.key) and self._tell(item))
        self._open[kind] = len(progress.met)
        progress.turn(page.next_cursor)

    def _follow_anomalies(self) -> None:
        squid, memory = self._squid, self._memory
        horizon = squid.journal.cut()  # nothing can appear below it any more
        for _ in range(_PAGES):
            if memory.history is None:
                memory.history = horizon
            anomalies = anomalies_after(squid, memory.anchor, horizon)
            if anomalies is None:
                memory.anchor, memory.history = None, None
                continue
            if not anomalies:
                return
            for item, anchor in anomaly_items(squid, anomalies, memory.history):
                if item is not None and not self._tell(item):
                    return
                memory.anchor = anchor

    def _tell(self, item: AttentionItem) -> bool:
        if len(self._told) >= MAX_ITEMS:
            self._later += 1
            return False
        whole = described(self._squid, item)
        if whole is None:
            return False
        if self._on_message is not None:
            try:
                self._on_message(whole)
            except Exception as error:  # noqa: BLE001  the user's code: other items are reported nevertheless
                # Not what it says: that may quote the address, and with it the token, of wherever messages go.
                complaint = f"on_message raised {type(error).__name__}, and is asked again at the next tick"
                self._log.error(f"{complaint}: {whole}")
                return False
        self._log.warning(str(whole))
        self._told.append(whole)
        return True

    def _said(self) -> str:
        counts = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in self._open.items() if count)
        state = f"Open now: {counts}." if counts else "Nothing is open."
        if not self._told:
            return f"Nothing new. {state}"
        later = f" {self._later} more are told later." if self._later else ""
        lines = "\n".join(f"- {item}" for item in self._told)
        return f"{len(self._told)} new.{later} {state}\n{lines}"
