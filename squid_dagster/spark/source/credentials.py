"""How the database's URL reaches Spark's executors without showing its password.

Options of a data source appear in plans, event logs and the UI, settings in process listings. So a URL with a password
is never an option: the option names a file that only its owner can read, or a variable of the executors' environment.
The process that connects reads it when it connects.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from squid_dagster.journal.tiers import display_url, normalized_url, open_tier, resolve_tier
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument

URL, URL_FILE, URL_ENV = "url", "url_file", "url_env"
_REMEDY = "write it into a file of mode 0600 and give that as url_file, or name a variable of the executors as url_env"


@dataclass(frozen=True, slots=True)
class Location:
    """Where the URL is: the option's name and its value. Holds no secret."""

    how: str
    there: str

    def read(self) -> str:
        """Return the URL.

        Raises:
            InvalidArgument: there is none, or other users can read its file.
        """
        match self.how:
            case "url":
                url = self.there
            case "url_file":
                url = _read_file(Path(self.there))
            case _:
                url = os.environ.get(self.there, "")
        if not url.strip():
            raise InvalidArgument(f"{self.how} {self.there!r} holds no database URL on this machine: {_REMEDY}")
        return normalized_url(url, source=f"the URL of {self.how}")


def locate(options: Mapping[str, str]) -> Location:
    """Return where the URL is, from the options of a data source.

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
    """Return whether a URL holds anything that logs would not show, such as a password."""
    return display_url(url) != url


def configured_location(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the option for the database that the configuration names; an embedded server is started if needed.

    A URL with a secret is named by its variable, which executors on other machines need in their environment, too.

    Raises:
        InvalidArgument: a URL that cannot be used.
        EmbeddedUnavailable: the embedded server cannot be started here.
    """
    tier = resolve_tier(environ=environ)
    url = open_tier(tier)
    return {URL_ENV: tier.source} if is_secret(url) else {URL: url}


@checked
@contextmanager
def handed_over(url: str, directory: Path | str | None = None) -> Iterator[dict[str, str]]:
    """Yield the option by which executors find the URL, and remove the file that it may have needed.

    A URL without a secret is the option itself. Any other goes into a file of mode 0600, in `directory` or the system's
    directory for temporary files. Executors on other machines need a directory that they share with this one or,
    better, a file or a variable of their own, named by url_file or url_env.

    Raises:
        InvalidArgument: nothing can be written in `directory`.
    """
    if not is_secret(url):
        yield {URL: url}
        return
    try:
        temporary = tempfile.TemporaryDirectory(prefix="squid-spark-", dir=directory)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"directory {str(directory)!r:.200} cannot be written to: {error}") from None
    with temporary as private:
        path = Path(private) / "database_url"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(url)
        yield {URL_FILE: str(path)}


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            # The rule of libpq for keys: a group may read files of root, since secrets are often mounted that way.
            others = stat.S_IRWXO | (stat.S_IRWXG if status.st_uid else stat.S_IWGRP | stat.S_IXGRP)
            if status.st_mode & others:
                raise InvalidArgument(f"url_file {str(path)!r} can be read by others: run chmod 600 on it")
            return file.read()
    except OSError as error:
        raise InvalidArgument(
            f"url_file {str(path)!r} cannot be read on this machine ({error.strerror}): every executor needs it"
        ) from None
