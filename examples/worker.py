"""A worker for the example workflows without Dagster. `python -m examples.worker` runs until SIGTERM."""

import logging
import sys

from examples import MODULES
from squid_dagster import Squid, load_workflows


def main() -> int:
    """Execute attempts of the default queue of the journal that the environment names."""
    logging.basicConfig(level=logging.INFO)
    with Squid.connect(workflows=load_workflows(MODULES)) as squid:
        sys.stdout.write(f"{squid.worker()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
