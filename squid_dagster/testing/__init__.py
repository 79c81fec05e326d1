"""Tools to test workflows: a virtual clock, drivers, fault injection, invariants, golden histories, simulation.

Imports no pytest; `storage_contract`, the test suite for adapters, does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.journal.contract.clock import VirtualClock
    from squid_dagster.testing.driver import LimitReached, advance, drain, execute_until_blocked
    from squid_dagster.testing.fault_injection import (
        CRASH_EXIT_CODE,
        Boundary,
        Crashed,
        InjectedStorage,
        Plan,
        exit_process,
    )
    from squid_dagster.testing.golden_histories import GoldenMismatch, assert_golden, golden
    from squid_dagster.testing.invariants import (
        InvariantViolated,
        Rule,
        Violation,
        assert_invariants,
        check_invariants,
        violations,
    )
    from squid_dagster.testing.simulation import Scenario, SimulationFailed, SimulationReport, simulate
    from squid_dagster.testing.virtual_squid import SquidFactory, VirtualSquid, make_squid

# Exported lazily, so that the pytest plugin costs nothing where it is not used.
_HOMES = {
    "squid_dagster.journal.contract.clock": ("VirtualClock",),
    "squid_dagster.testing.driver": ("LimitReached", "advance", "drain", "execute_until_blocked"),
    "squid_dagster.testing.golden_histories": ("GoldenMismatch", "assert_golden", "golden"),
    "squid_dagster.testing.fault_injection": (
        "CRASH_EXIT_CODE",
        "Boundary",
        "Crashed",
        "InjectedStorage",
        "Plan",
        "exit_process",
    ),
    "squid_dagster.testing.invariants": (
        "InvariantViolated",
        "Rule",
        "Violation",
        "assert_invariants",
        "check_invariants",
        "violations",
    ),
    "squid_dagster.testing.virtual_squid": ("SquidFactory", "VirtualSquid", "make_squid"),
    "squid_dagster.testing.simulation": ("Scenario", "SimulationFailed", "SimulationReport", "simulate"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CRASH_EXIT_CODE",
    "Boundary",
    "Crashed",
    "GoldenMismatch",
    "InjectedStorage",
    "InvariantViolated",
    "LimitReached",
    "Plan",
    "Rule",
    "Scenario",
    "SimulationFailed",
    "SimulationReport",
    "SquidFactory",
    "Violation",
    "VirtualClock",
    "VirtualSquid",
    "advance",
    "assert_golden",
    "assert_invariants",
    "check_invariants",
    "drain",
    "execute_until_blocked",
    "exit_process",
    "golden",
    "make_squid",
    "simulate",
    "violations",
]


def __getattr__(name: str) -> Any:
    """Import a name from the module that it lives in."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
