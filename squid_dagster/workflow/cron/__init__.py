"""Cron triggers: the grammar of their expressions, and the windows that follow from them. Pure."""
