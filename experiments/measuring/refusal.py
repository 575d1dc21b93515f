"""How an experiment refuses an option that cannot be used: one error, and one line on the command line."""

import argparse
import tempfile


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


def make_folder(option, folder):
    """Make an option's folder, and try to write in it, before any work is done.

    Raises
    ------
    Refusal
        That cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        got = f"{folder} ({failure.strerror})"
        raise Refusal(option, got, "a folder to write in") from None


class Parser(argparse.ArgumentParser):
    """Refuses in one line that begins with the experiment's name, without the usage of --help.

    Options are written out: of ``--gpu`` it is not told whether ``--gpus`` is meant, which starts processes.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message):
        self.exit(2, f"{self.prog.rsplit('.', 1)[-1]}: {message}\n")
