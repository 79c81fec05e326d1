"""Print the remarks about the modules below some paths; exit with 1 if there are any."""

import sys
from pathlib import Path

from tests.words.checks import ROOT, remarks

if __name__ == "__main__":
    files = sorted(
        {
            file
            for name in sys.argv[1:] or ["squid_dagster"]
            for file in (Path(name).resolve().rglob("*.py") if Path(name).is_dir() else [Path(name).resolve()])
        }
    )
    lines = [str(remark) for file in files for remark in remarks(ROOT / file.relative_to(ROOT))]
    print("\n".join(lines))
    sys.exit(bool(lines))
