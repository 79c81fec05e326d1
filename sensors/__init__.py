"""What drives this code location: the sensors and schedules of the journal, with the jobs that they launch."""

from resources import squid
from squid_dagster.plugin import squid_definitions

defs = squid_definitions(resource=squid)
