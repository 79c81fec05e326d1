"""A module that prints wherever it can: when it is imported, in its steps, in its processes, and at the end."""

import atexit
import os
import subprocess
import sys

from squid_dagster import Workflow

print("imported")
os.write(1, b"imported past Python\n")
subprocess.run([sys.executable, "-c", "print('imported by a child')"], check=True)
atexit.register(print, "leaving")

chatty = Workflow("chatty")


@chatty.step
def plain() -> None:
    """Print a line."""
    print("a plain step", flush=True)


@chatty.step(isolate=True)
def isolated() -> None:
    """Print a line from a process of its own."""
    print("an isolated step", flush=True)


chatty.route("plain", to="isolated")
chatty.route("isolated", to="complete")
