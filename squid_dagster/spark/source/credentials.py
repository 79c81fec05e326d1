"""How the database's URL reaches Spark's executors without its password being seen on the way.

Options of a data source end up in plans, event logs and the UI, settings in process listings. So a URL with a password
is never an option: the option names a file that only its owner can read, or a variable of the executors' environment.
Both are looked up by whoever connects, at the moment of connecting.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from squid_dagster.journal.tiers import display_url, normalized_url
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument

URL, URL_FILE, URL_ENV = "url", "url_file", "url_env"
_REMEDY = "write it into a file of mode 0600 and give that as url_file, or name a variable of the executors as url_env"


@dataclass(frozen=True, slots=True)
class Location:
    """Where the URL is to be found: how (an option's name), and there. Holds no secret."""

    how: str
    there: str

    def read(self) -> str:
        """Give the URL.

        Raises:
            InvalidArgument: there is none, or others could read the file that it stands in.
        """
        match self.how:
            case "url":
                found = self.there
            case "url_file":
                found = _read_file(Path(self.there))
            case _:
                found = os.environ.get(self.there, "")
        if not found.strip():
            raise InvalidArgument(f"{self.how} {self.there!r} holds no database URL on this machine: {_REMEDY}")
        return normalized_url(found, source=f"the URL of {self.how}")


def locate(options: Mapping[str, str]) -> Location:
    """Read from a data source's options where the URL is.

    Raises:
        InvalidArgument: none or several of the three options are given, or the URL itself holds a secret.
    """
    given = [Location(how, options[how]) for how in (URL, URL_FILE, URL_ENV) if options.get(how)]
    if len(given) != 1:
        raise InvalidArgument(f"squid_journal needs one of url, url_file and url_env, not {len(given)} of them")
    if given[0].how == URL and is_secret(given[0].there):
        raise InvalidArgument(f"the option url would show a secret in plans and logs: {_REMEDY}")
    return given[0]


def is_secret(url: str) -> bool:
    """Tell whether a URL holds anything that logs would not show, such as a password."""
    return display_url(url) != url


@checked
@contextmanager
def handed_over(url: str, directory: Path | str | None = None) -> Iterator[dict[str, str]]:
    """Give the option by which executors find the URL; a file that it takes is gone afterwards.

    A URL without a secret is an option itself. Any other goes into a file of mode 0600, in the system's directory for
    temporary files unless `directory` says otherwise: executors on other machines need one that they share with us,
    or, better, a file or a variable of their own, named by url_file or url_env.

    Raises:
        InvalidArgument: nothing can be written in `directory`.
    """
    if not is_secret(url):
        yield {URL: url}
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="squid-spark-", dir=directory)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"directory {str(directory)!r:.200} cannot be written to: {error}") from None
    with made as private:
        path = Path(private) / "database_url"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(url)
        yield {URL_FILE: str(path)}


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            # As libpq has it for keys: root's files may be readable by a group, since that is how they are handed out.
            others = stat.S_IRWXO | (stat.S_IRWXG if found.st_uid else stat.S_IWGRP | stat.S_IXGRP)
            if found.st_mode & others:
                raise InvalidArgument(f"url_file {str(path)!r} can be read by others: run chmod 600 on it")
            return file.read()
    except OSError as error:
        raise InvalidArgument(
            f"url_file {str(path)!r} cannot be read on this machine ({error.strerror}): every executor needs it"
        ) from None
