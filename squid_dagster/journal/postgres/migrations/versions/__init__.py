"""One module per step, in order. A step that was released is never edited."""
