"""The rules of the fold as a table: these facts, then these rows. Each host of the fold is held to the same table.

A rule that is broken in the protocol makes rows come out differently, in memory as in every other host.
"""

from tests.rules.dispatch import DISPATCH
from tests.rules.run_thread import RUN_THREAD

RULES = [*DISPATCH, *RUN_THREAD]
