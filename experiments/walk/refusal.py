"""The one error for an option that cannot be used."""


class Refusal(ValueError):
    """An option's value is refused; the message names the option, what it got and what it takes.

    Parameters
    ----------
    option : str
        As on the command line: ``--crop``.
    got : object
        What was given, in words or as its value.
    takes : str
        What would be right.
    """

    def __init__(self, option, got, takes):
        super().__init__(f"{option} got {got}; it takes {takes}")
