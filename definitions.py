"""The code location: the example workflows on the journal, with everything that the plugin has.

`make dev` shows it. In a project of your own, `squid_definitions` or the component
`squid_dagster.plugin.SquidComponent` gives the same for your workflows, and merges with what you have.
"""

import dagster as dg

import assets
import sensors

defs = dg.Definitions.merge(assets.defs, sensors.defs)
