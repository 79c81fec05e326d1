"""What a run's own thread holds that is looked up by key: the links of its children, and the first of its commands."""

from squid_dagster.journal.contract.command_target import SignalKey
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import ChildRunStarted, RunSignalReceived


class RunKeys:
    """Child keys, and where the first command of each idempotency key stands; of no use where entries are unreadable.

    A view of one thread, see `ThreadFolds`. It holds no contents of commands, however many there are.
    """

    def __init__(self) -> None:
        """Begin with an empty thread."""
        self.children: set[str] = set()
        self.signals: dict[SignalKey, int] = {}  # by sequence number

    def add(self, entry: Entry) -> None:
        """Take in one entry."""
        fact = entry.fact
        if isinstance(fact, ChildRunStarted):
            self.children.add(fact.child_key)
        elif isinstance(fact, RunSignalReceived) and fact.idempotency_key is not None:
            self.signals.setdefault(SignalKey(fact.signal_type, fact.idempotency_key), entry.seq)
