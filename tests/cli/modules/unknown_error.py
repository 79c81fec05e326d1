"""A module that holds something of which nobody can say what it is: an error that no code foresees."""


class _Odd:
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("nobody knows\nwhat this is")


odd = _Odd()
