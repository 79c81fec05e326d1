"""Tests of the benchmarks' own arithmetic and plumbing; no test asserts a time."""
