"""The code of an earlier release under chaos: it runs the programs of today."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.earlier_release import check_out


def test_the_earlier_release_imports_the_programs_of_chaos(tmp_path: Path) -> None:
    tree = check_out(tmp_path)
    if tree is None:
        pytest.skip("git does not have the commit of the earlier release")
    code = "import squid_dagster, tests.chaos.worker, tests.chaos.roles; print(squid_dagster.__file__)"
    imported = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (imported.returncode, imported.stderr) == (0, "")
    assert Path(imported.stdout.strip()).is_relative_to(tree)
