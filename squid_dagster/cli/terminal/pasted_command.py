"""Commands that are suggested, made such that they work as they are when they are pasted into the same shell."""

import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squid_dagster.cli.place import Place

_ANY = " -m MODULE"


def pasted(command: str, place: "Place") -> str:
    """Give a command with the options that lead it to the same journal and modules.

    Nothing is added that the environment says. Where workflows are needed and none was named, `-m MODULE` stays.
    """
    named = os.environ.get("SQUID_MODULES", "").split()
    if named and list(place.modules) in ([], named):
        command = command.replace(_ANY, "")
    elif place.modules:
        command = command.replace(_ANY, "".join(f" -m {shlex.quote(each)}" for each in place.modules))
    if place.schema not in (None, os.environ.get("SQUID_SCHEMA")):
        command += f" --schema {shlex.quote(str(place.schema))}"
    return command if place.data_dir is None else f"{command} --data-dir {shlex.quote(str(place.data_dir))}"
