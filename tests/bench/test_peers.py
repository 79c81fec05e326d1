import json
import sys
from pathlib import Path

import pytest

from bench.peers import results
from bench.peers.measures import MEASUREMENTS, SHARED
from bench.peers.process import BenchError, Process
from bench.peers.systems import ONE_PROCESS, OURS, SYSTEMS
from bench.peers.wire import Order

RATES = {OURS: [900.0, 1000.0, 5000.0], "dbos": [100.0, 400.0, 100.0], "pgqueuer": [2000.0, 4000.0, 4000.0]}
TIMES = {OURS: [2.0] * 98 + [8.0, 9.0], "procrastinate": [4.0] * 100}


def test_a_rate_is_the_median_of_its_rounds() -> None:
    (figure,) = results.figures("one-step drain", "jobs/s", RATES)
    assert (figure.ours, figure.peers) == (1000.0, {"dbos": 100.0, "pgqueuer": 4000.0})


def test_a_ratio_above_one_means_that_ours_is_better_for_rates_and_for_times() -> None:
    (rate,) = results.figures("one-step drain", "jobs/s", RATES)
    middle, tail = results.figures("idle latency", "ms", TIMES)
    assert (rate.ratio("dbos"), rate.ratio_to_best) == (10.0, 0.25)
    assert (middle.ratio_to_best, tail.ratio_to_best) == (2.0, 0.5)


def test_targets_are_judged_for_the_peers_that_were_measured_only() -> None:
    (figure,) = results.figures("one-step drain", "jobs/s", RATES)
    assert {target.peer: reached for target, reached in figure.targets().items()} == {"dbos": True, "pgqueuer": False}
    assert "0.3x pgqueuer MISSED" in results.table([figure])


def test_a_percentile_is_a_sample_that_was_taken() -> None:
    assert [results.percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]


def test_the_better_of_two_settings_counts() -> None:
    assert results.better("ms", 3.0, 2.0, key=float) == 2.0
    assert results.better("jobs/s", 3.0, 2.0, key=float) == 3.0


def test_the_file_is_a_list_with_versions_and_settings_in_every_item(tmp_path: Path) -> None:
    figures = [(figure, {"rounds": 3}) for figure in results.figures("idle latency", "ms", TIMES)]
    results.write(tmp_path / "results.json", figures, {OURS: "1"})
    items = json.loads((tmp_path / "results.json").read_text())
    assert [item["name"] for item in items] == ["idle latency p50", "idle latency p99"]
    for item in items:
        assert {"name", "unit", "ours", "peers", "ratio_to_best", "versions", "settings"} <= item.keys()


def test_a_quick_system_has_a_tenth_of_the_work_in_one_setting() -> None:
    for system in SYSTEMS.values():
        quick = system.quick()
        assert {name: drain.count * 10 for name, drain in quick.drains.items()} == {
            name: drain.count for name, drain in system.drains.items()
        }
        assert {len(drain.candidates) for drain in quick.drains.values()} == {len(quick.idles)} == {1}


def test_every_target_is_about_a_figure_that_the_peer_has() -> None:
    measured = {
        figure.name: {system.name for system in SYSTEMS.values() if measurement.jobs(system)}
        for measurement in MEASUREMENTS
        for figure in results.figures(measurement.name, measurement.unit, {OURS: [1.0]})
    }
    for name, targets in results.TARGETS.items():
        assert {OURS, *(target.peer for target in targets)} <= measured[name]


def test_four_processes_of_ours_are_judged_beside_one() -> None:
    slow, fast = ({OURS: [ours], ONE_PROCESS: [1000.0]} for ours in (1299.0, 1300.0))
    for samples, reached in ((slow, False), (fast, True)):
        (figure,) = results.figures(SHARED, "workflows/s", samples)
        assert list(figure.targets().values()) == [reached]


def test_every_drain_of_a_system_is_measured() -> None:
    measured = {measurement.name for measurement in MEASUREMENTS}
    assert all(system.drains.keys() <= measured for system in SYSTEMS.values())


def test_a_process_that_fails_is_an_error_with_its_last_words() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such peer')"]
    with Process(command, Order("drain", "")) as process, pytest.raises(BenchError, match="no such peer"):
        process.wait_for("ready")


def test_a_process_is_ended_when_its_block_ends() -> None:
    said = 'import sys; print(\'{"event": "ready"}\', flush=True); sys.stdin.read()'
    with Process([sys.executable, "-c", said], Order("work", "")) as process:
        assert process.wait_for("ready") == {"event": "ready"}
        pid = process.pid
    assert not Path(f"/proc/{pid}").exists()
