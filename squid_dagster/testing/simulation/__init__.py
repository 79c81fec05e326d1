"""Simulation: workers, recoveries, operators and clients on virtual time, over a storage with every kind of fault."""

from squid_dagster.testing.simulation.campaign import SimulationFailed, SimulationReport, simulate
from squid_dagster.testing.simulation.scenario import Scenario, Start, random_scenario
from squid_dagster.testing.simulation.shrinker import Failure

__all__ = ["Failure", "Scenario", "SimulationFailed", "SimulationReport", "Start", "random_scenario", "simulate"]
