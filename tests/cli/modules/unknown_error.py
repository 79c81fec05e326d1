"""A module with an object whose attributes raise: an error that no code foresees."""


class _RaisingObject:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("nobody knows\nwhat this is")


odd = _RaisingObject()
