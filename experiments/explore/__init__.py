"""Results to explore: every row of any results folder on one page, which needs no network.

``python -m experiments.explore --html explore.html`` writes it.

=============  =================================================================
`gather`       the rows of folders, each with what it was measured on and whether it is older
`page`         template, style, scripts, library and rows become one file
=============  =================================================================

Vega-Lite draws. It comes as one script out of the package vl-convert-python: 0.9 MB, where Plotly's takes 4.8;
its grammar has all that is drawn here, and it writes PNG and SVG. Of the scripts beside it `rows.js` unpacks the
rows, `axes.js` knows what a sweep sweeps, `points.js` makes rows into points, `words.js` writes of them,
`chart.js` says how they are drawn, `choices.js` knows what can be chosen, `form.js` shows that,
`tip.js` shows a row, and `page.js` puts all together.
"""
