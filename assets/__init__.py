"""The assets of this code location."""

from assets.journal import journal

ASSETS = [journal]
