"""Benchmarks, printed as ratios within one run: these machines are noisy, and only ratios travel."""
