"""The tables that Spark makes of the journal, as a person sees them in Dagster's UI: their plots are pictures there."""

import pytest
from playwright.sync_api import expect

from examples.ui import Ui
from squid_dagster import Squid
from squid_dagster.journal import PostgresStorage
from tests.browser.conftest import ARTIFACTS
from tests.spark.journal_generator import Plan, generate

PLOTS = {
    "run_history": ("squid/throughput", "squid/latency"),
    "attempt_history": ("squid/throughput", "squid/latency", "squid/retries_by_step"),
}


@pytest.mark.timeout(600)  # a Dagster run that starts Spark, where others may be busy too
def test_plots_and_tables_of_a_materialized_asset_are_shown(ui: Ui, squid: Squid) -> None:
    assert isinstance(squid.journal, PostgresStorage)
    generate(squid.journal, Plan(600, runs_per_commit=30))
    ui.fill_launchpad("squid_projections", "{}\n")
    ui.launch(of_no_day=True)
    assert ui.wait_for_end(300) == "RUN_SUCCESS"

    for asset, names in PLOTS.items():
        ui.open(f"/assets/squid/{asset}?view=events")
        for name in names:
            shown = ui.open_markdown(name)
            plot = shown.locator("img")
            expect(plot).to_be_visible()
            assert plot.evaluate("image => image.complete && image.naturalWidth > 300 && image.naturalHeight > 100")
            ui.keep(ARTIFACTS, f"{asset}-{name.rpartition('/')[2]}")
            ui.close_markdown()
