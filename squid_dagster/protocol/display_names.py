"""What may stand for somebody or something in what people read: a text that shows, on one line."""

import unicodedata

_UNSHOWN = frozenset({"Cc", "Zl", "Zp"})  # controls, and separators of lines and paragraphs


def name_problem(text: str) -> str | None:
    """Say what keeps a text from being a name, or None: it is blank, or holds a character that is not shown."""
    if not text.strip():
        return "it must not be empty"
    unshown = next((each for each in text if unicodedata.category(each) in _UNSHOWN), None)
    return None if unshown is None else f"it must not hold {unshown!r}"
