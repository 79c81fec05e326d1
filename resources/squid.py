"""The journal, at the database that the environment names, and the workflows that are executed here."""

from examples import MODULES
from squid_dagster import SquidResource

# Without a URL: SQUID_DATABASE_URL, else DATABASE_URL, else the embedded server. No credential is in the definitions.
squid_resource = SquidResource(workflow_modules=list(MODULES))
