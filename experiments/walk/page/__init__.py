"""The walk as one interactive page: a single HTML file that needs no network and no server.

``python -m experiments.walk --html walk.html`` writes it. All of it is read back from kernels that
ran on the simulator and passed the walk's checks; which thread reads and writes what was counted
while they ran (:mod:`experiments.walk.watch`).

=============  =================================================================
`variants`     which runs the page's sliders choose from, and what is too large
`contents`     a run as plain lists and numbers
`addresses`    what each thread touched, written short
`launches`     what a launch writes, in words
`tiles`        the tiles of the fused kernels, and where they lie in shared memory
`routed`       couplings over the iterations of routing
`sources`      kernels and the reference's loops, coloured
`errata`       what the paper writes, and what holds
`write`        template, styles, scripts and data become one file
=============  =================================================================

The page itself is ``page.html``, the styles and the scripts, one idea each. Of the stages `graph.js`
knows what is read from where, `board.js` draws all arrays, `numbers.js` writes a cell's sum out,
`threads.js` tells who computed it, `stage.js` of its stage. Further sections are `opening.js`,
`tiling.js` and `tile.js` (the fused kernel), `routing.js` and `network.js`. For a lecture there are
`steps.js` and `guide.js` (the guided walk), `zoom.js` (one array enlarged), `theme.js` and `modes.js`.
`chosen.js` and `sliders.js` hold what is chosen, `address.js` and `links.js` keep it in the address, and
`page.js` puts all together.
"""
