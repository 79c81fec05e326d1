"""Modules that tests name with `-m`, other than the workflows that most of them share."""
