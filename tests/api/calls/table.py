"""A call that works for every public callable of the library."""

from tests.api.calls.agents import other_calls
from tests.api.calls.authoring import authoring_calls
from tests.api.calls.functions import event_calls, inspection_calls, protocol_calls, testing_calls
from tests.api.calls.journal import dispatch_calls, query_calls, storage_calls
from tests.api.calls.leases import lease_calls
from tests.api.calls.squid import squid_calls
from tests.api.wrong_values import Make


def table() -> dict[str, Make]:
    """Return the call of every public callable that works in memory."""
    return {
        **squid_calls(),
        **authoring_calls(),
        **storage_calls("MemoryStorage"),
        **dispatch_calls("FoldDispatchStore"),
        **query_calls("FoldQueries"),
        **other_calls(),
        **lease_calls(),
        **protocol_calls(),
        **event_calls(),
        **inspection_calls(),
        **testing_calls(),
    }
