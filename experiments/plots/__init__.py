"""Every figure of the experiments, drawn from the rows of their CSVs alone.

================  =====================================================================
`rows`            the rows of a CSV: read, selected, put into words; what a sweep sweeps
`lines`           what one curve, bar or column shows: its rows, time, colour and dashes
`canvas`          what figures share: style, sheet, scales, labels at ends, file bytes
`bars`            what figures of bars share
`table1`          the published network beside the paper's own times
`sweep_axis`      what a sweep sweeps, as an axis
`speedup`         speedup along a sweep
`workloads`       time of every workload that sweeps nothing
`roofline`        achieved rate under the ceilings
`stages`          where the paper's pipeline spends its time
`memory`          peak memory against the batch
`distribution`    how much faster than the library over geometries drawn at random
`scaling`         one model trained on several GPUs
`routing`         routing beside PyTorch with stored votes
`routing_curves`  the same over the batch and the iterations
`torch_layers`    layers for PyTorch: training steps, and what a call costs the host
`training`        a training run: curves, confusion matrix, wrong digits, first kernels
`paper`           the same figures for print
`gallery`         all of them but training's as files, in the style that is asked for
================  =====================================================================
"""

from experiments.plots.gallery import STYLES, draw_all

__all__ = ["STYLES", "draw_all"]
