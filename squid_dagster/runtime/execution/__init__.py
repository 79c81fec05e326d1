"""Execution of one attempt: call the step, and settle its outcome."""
