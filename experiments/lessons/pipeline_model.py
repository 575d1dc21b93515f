"""A pipeline of copies on paper: when each piece is asked for, is there, and is multiplied."""


def schedule(pieces, stages, copy, product):
    """Times at which pieces are asked for, are there, and are done, one after another.

    Parameters
    ----------
    pieces, stages : int
    copy, product : float
        What a copy takes from being asked for, and what multiplying a piece takes. Any number of copies is under way at once.

    Returns
    -------
    list of (asked, there, done)
    """
    times = []
    for i in range(pieces):
        asked = times[i - stages][2] if i >= stages else 0  # when the stage is empty again
        there = asked + copy
        before = times[i - 1][2] if i else 0
        times.append((asked, there, max(there, before) + product))
    return times
