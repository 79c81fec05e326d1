"""The resources of this code location: the journal, wherever the environment says that it is."""

from examples import MODULES
from squid_dagster.plugin import SquidResource

# Without a URL: SQUID_DATABASE_URL, else DATABASE_URL, else the embedded server. No credential is in the definitions.
squid = SquidResource(workflow_modules=list(MODULES))
