"""`python -m bench [name ...]`: run the benchmarks and print their ratios; exits 1 when a bound is missed."""

import sys

from bench import append, claim, fold, read
from bench.report import show

ALL = {"fold": fold.measure, "append": append.measure, "claim": claim.measure, "read": read.measure}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(ALL)
    unknown = sorted(set(chosen) - set(ALL))
    if unknown:
        sys.exit(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(ALL)}")
    sys.exit(0 if show([measure for name in chosen for measure in ALL[name]()]) else 1)
