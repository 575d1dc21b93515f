"""A walk through one capsule convolution, forward and backward, over a real digit.

``python -m experiments.walk`` runs every stage of Algorithms 3 and 4 alone, checks it against the
loop reference, tells what it read, wrote and cost, and draws what it did. No weights are learned:
a capsule is a patch of the digit's pixels.

==========  ====================================================================
`image`     the digit becomes capsules
`trace`     runs and checks the stages and the algorithms; returns plain records
`report`    the records as text
`figures`   the paper's Figures 1 and 2 from runs
`network`   the sample network and its recorded times
`captions`  the paper's captions in our words
`pictures`  the records as pictures
`watch`     which thread of a kernel reads and writes what
`page`      the records as one interactive page
`refusal`   how an option that cannot be used is refused
==========  ====================================================================
"""
