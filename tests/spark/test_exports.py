"""The exports of `squid_dagster.spark`: without the extra they name it, and importing the package loads no pyspark."""

import subprocess
import sys

import pytest

from squid_dagster import spark

WITHOUT_PYSPARK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "pyarrow", "py4j"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from squid_dagster.spark import SparkUnavailable
try:
    from squid_dagster.spark import read_journal
except ImportError as error:
    print(error)
"""


def test_every_exported_name_is_there() -> None:
    for name in spark.__all__:
        assert getattr(spark, name) is not None
    assert sorted(spark.__all__) == sorted(spark._MODULE_OF)
    with pytest.raises(AttributeError, match="no_such_name"):
        spark.no_such_name  # noqa: B018


def test_importing_the_package_and_its_errors_loads_no_pyspark() -> None:
    code = (
        "import sys; from squid_dagster.spark import SparkUnavailable; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == "set()"


def test_without_the_extra_the_error_says_which_one_to_install() -> None:
    outcome = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=True)
    assert "pip install 'squid-dagster[spark]'" in outcome.stdout
