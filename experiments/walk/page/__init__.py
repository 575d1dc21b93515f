"""The walk as one interactive page: a single HTML file that needs no network and no server.

``python -m experiments.walk --html walk.html`` writes it. All of it is read back from kernels that
ran on the simulator and passed the walk's checks; which thread reads and writes what was counted
while they ran (:mod:`experiments.walk.watch`).

=============  =================================================================
`variants`     which runs the page's sliders choose from, and what is too large
`contents`     a run as plain lists and numbers
`addresses`    what each thread touched, written short
`sources`      kernels and the reference's loops, coloured
`errata`       what the paper writes, and what holds
`write`        template, style, scripts and data become one file
=============  =================================================================

The page itself is ``page.html`` and ``page.css``; of the scripts `graph.js` knows what is read from
where, `board.js` draws all arrays, `numbers.js` writes a cell's sum out, `threads.js` tells who
computed it, and `page.js` holds what is chosen.
"""
