"""Output to a terminal or a pipe: tables, streams, escapes, logs."""
