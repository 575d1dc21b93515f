"""The figures for print: one column, vectors, a legend below in place of labels at curves.

What a title would say is the caption's. Colours are those of the other figures; a precision has a mark of its own,
so that nothing hangs on colour alone.

==============  =====================================================================
`column`        what they share: a column of panels, the legend and the rows' origin below
`sweep`         speedup along a sweep
`dots`          times of the published network, and of every workload that sweeps nothing
`memory`        peak memory against the batch
`roofline`      achieved rate under the ceilings
`stages`        the share of each stage of the paper's pipeline
`shares`        how much faster than the library over geometries drawn at random
==============  =====================================================================
"""
