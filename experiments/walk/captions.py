"""What each picture of the paper shows, in our words and with a run's numbers."""

CAPTIONS = {
    "capsule_im2col": "the {Q} capsules under a window of {KH} x {KW} form a column; {OH} x {OW} windows, {L} columns",
    "input_extend": "all {L} columns are copied for each of the {P} output channels",
    "kernel_extend": "the {Q} capsules of each output channel are copied for each of the {L} output positions",
    "strided_batched_matmul": "each input capsule times its kernel capsule, {D1} x {D2} by {D2} x {D3}, all in one call",
    "output_reduce": "the {Q} products of each window are added, number by number, to one output capsule",
}


def caption(stage, geometry):
    """Where in the paper a stage is drawn, and what is to be seen there.

    Parameters
    ----------
    stage : experiments.walk.trace.StageRecord
    geometry : numbacaps.Geometry

    Returns
    -------
    str
        ``where`` alone for a stage that the paper does not draw.
    """
    if stage.name not in CAPTIONS:
        return stage.where
    names = ("Q", "KH", "KW", "OH", "OW", "L", "P", "D1", "D2", "D3")
    words = CAPTIONS[stage.name].format(**{name: getattr(geometry, name) for name in names})
    return f"{stage.where}: {words}"
