"""The words of names, docstrings and comments, and the checks that hold them to `docs/glossary.md`."""
