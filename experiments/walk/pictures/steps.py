"""Seven pictures of a walk, each about one step of the paper.

A black outline is always the same window and its output position. Lengths are inches, y downwards.
"""

import numpy as np

from experiments.walk.captions import caption
from experiments.walk.pictures.canvas import (
    FRAME,
    QUIET,
    ROLES,
    Box,
    Canvas,
    around,
    fitted,
    shown,
    table_size,
)


def _digit(canvas, view, place, pixels, role, scale, channel=0, labels=False):
    """An image with its grid of capsules and the highlighted window.

    Returns
    -------
    frame : Box
        Of the image alone.
    window : Box
        Of the window, which may reach into the padding.
    boxes : dict
        Box of each capsule q of the window that lies in this channel.
    """
    g = view.geometry
    height, width = view.trace.plan.patches.patch
    (top, left) = g.padding
    whole = fitted(place, ((g.H + 2 * top) * height, (g.W + 2 * left) * width))
    pitch = whole.width / ((g.W + 2 * left) * width)
    high, wide = height * pitch, width * pitch
    frame = Box(whole.x + left * wide, whole.y + top * high, g.W * wide, g.H * high)
    if top or left:
        canvas.outline(whole, FRAME, 0.8, hatch="////", zorder=0)
    canvas.pixels(frame, pixels, role, scale)
    for h in range(g.H + 1):
        y = frame.y + h * high
        canvas.axes.plot((frame.x, frame.right), (y, y), color=FRAME, lw=0.7)
    for w in range(g.W + 1):
        x = frame.x + w * wide
        canvas.axes.plot((x, x), (frame.y, frame.bottom), color=FRAME, lw=0.7)
    boxes = {
        q: Box(frame.x + w * wide, frame.y + h * high, wide, high)
        for q, c, h, w in view.window()
        if c == channel
    }
    for q, box in boxes.items():
        if max(g.dilation) > 1:
            canvas.outline(box, width=1.2)
        if labels and min(high, wide) > 0.18:
            canvas.text(box.x + 0.04, box.y + 0.03, q, size=8, ha="left", va="top", weight="bold")
    window = around(boxes.values())
    canvas.outline(window)
    return frame, window, boxes


def _stage(view, name):
    return next(stage for stage in view.trace.stages if stage.name == name)


def _note(view):
    return "l = {} (oh {}, ow {})".format(view.l, *view.position)


def digit(view):
    """1: the image, its capsules and the window."""
    g, patches = view.geometry, view.trace.plan.patches
    canvas = Canvas(
        11,
        7.2,
        "Every capsule is a patch of the image",
        f"{g.H} x {g.W} capsules; the window of {g.KH} x {g.KW} moves by "
        f"{g.stride[0]} down and {g.stride[1]} right",
        view.shape("I"),
        ("input",),
        _note(view),
    )
    scale = view.scale("I")
    place = Box(0.4, 1.35, 5.2, 5.2)
    _, _, boxes = _digit(canvas, view, place, patches.pixels[0], "input", scale)
    q = next((q for q in view.picks if q in boxes), min(boxes))
    matrix = view.tiles("I_flat")[0, view.l, q]
    _, c, h, w = next(found for found in view.window() if found[0] == q)
    large = fitted(Box(7.0, 1.7, 3.2, 3.2), matrix.shape)
    canvas.zoom(boxes[q], large)
    canvas.tile(large, matrix, "input", scale, numbers=True)
    canvas.outline(boxes[q], ROLES["input"], 2.2, zorder=2.5)  # below the window's
    words = f"I[n=0, c={c}, h={h}, w={w}]: one capsule, {_matrix_size(g.G, g.D1, g.D2)}"
    canvas.text(8.6, 1.45, words, size=10.5, color=ROLES["input"])
    if g.C > 1:
        canvas.text(8.6, 5.15, "channel c: the image, c pixels to the right", size=10, color=QUIET)
        for i, c in enumerate(shown(g.C, 3)):
            place = Box(7.0 + 1.1 * i, 5.35, 1.0, 1.0)
            if c is None:
                canvas.text(*place.middle, "···", color=QUIET)
                continue
            frame = fitted(place, patches.pixels[c].shape)
            canvas.tile(frame, patches.pixels[c], "input", scale)
            canvas.text(place.middle[0], 6.5, f"c = {c}", size=9)
    return canvas


def _matrix_size(G, rows, columns):
    """``(4 x 4)``, or ``2 of (2 x 2)`` for G = 2."""
    return f"({rows} x {columns})" if G == 1 else f"{G} of ({rows} x {columns}), stacked"


def columns(view):
    """2: Figure 3, a window becomes a column."""
    g, stage, scale = view.geometry, _stage(view, "capsule_im2col"), view.scale("I")
    canvas = Canvas(
        13,
        6.9,
        "One window becomes one column: " + stage.paper,
        caption(stage, g),
        view.shape("I", "I_flat"),
        ("input",),
        _note(view),
    )
    tiles = view.tiles("I_flat")[0]  # (L, Q, rows, columns)
    rows, places = shown(g.Q, 10, view.picks), shown(g.L, 10, [view.l])
    y, height = 1.8, 4.4
    pixels = view.trace.plan.patches.pixels
    place = Box(0.4, y, height, height)
    frame, window, _ = _digit(canvas, view, place, pixels[0], "input", scale, labels=True)
    name = "I" if g.C == 1 else f"I, channel 0 of C = {g.C}"
    canvas.text(frame.middle[0], y - 0.2, name, size=11, color=ROLES["input"])

    wide, high = table_size(tiles.shape[-2:], rows, [view.l], 1.0, height)
    column = Box(5.7, y, wide, high)
    found = canvas.sheet(column, lambda q, l: tiles[l, q], rows, [view.l], "input", scale)
    canvas.outline(column)
    canvas.zoom(window, column)
    for (q, _), box in found.items():
        canvas.text(box.right + 0.1, box.middle[1], f"q = {q}", size=9, ha="left", color=QUIET)
    canvas.text(column.middle[0], y - 0.2, f"column l = {view.l}", size=11)

    wide, high = table_size(tiles.shape[-2:], rows, places, 4.9, height)
    sheet = Box(10.15 - wide / 2, y, wide, high)
    canvas.sheet(sheet, lambda q, l: tiles[l, q], rows, places, "input", scale)
    canvas.outline(_column(sheet, places, view.l))
    middle = min(column.middle[1], sheet.middle[1])
    canvas.arrow((column.right + 0.8, middle), (sheet.x - 0.15, middle))
    _label_columns(canvas, sheet, places)
    words = f"I_flat: L = {g.L} columns of Q = {g.Q} capsules"
    canvas.text(sheet.middle[0], y - 0.2, words, size=11, color=ROLES["input"])
    return canvas


def _column(sheet, places, l):
    """The column of a sheet that shows position l."""
    width = sheet.width / len(places)
    return Box(sheet.x + places.index(l) * width, sheet.y, width, sheet.height)


def _label_columns(canvas, sheet, places):
    """The position under each column of a sheet."""
    width = sheet.width / len(places)
    for i, l in enumerate(places):
        if l is not None:
            words = "l = 0" if l == 0 and width > 0.4 else str(l)
            x = sheet.x + (i + 0.5) * width
            canvas.text(x, sheet.bottom + 0.14, words, size=8.5, color=QUIET)


def input_extend(view):
    """3: Figure 4, the columns once for each output channel."""
    g, stage, scale = view.geometry, _stage(view, "input_extend"), view.scale("I")
    canvas = Canvas(
        13,
        6.9,
        f"The columns are copied for each of the P = {g.P} output channels: " + stage.paper,
        caption(stage, g),
        view.shape("I_flat", "I'"),
        ("input",),
        _note(view),
    )
    rows, places, channels = shown(g.Q, 9), shown(g.L, 9, [view.l]), shown(g.P, 3)
    copies, gap = 1 + len(channels), 0.6
    flat, extended = view.tiles("I_flat")[0], view.tiles("I'")[0]  # (L, Q, ...), (P, L, Q, ...)
    room = (12.2 - gap * (copies - 1)) / copies
    width, height = table_size(flat.shape[-2:], rows, places, room, 4.0)
    y = 2.2 + (4.0 - height) / 2

    def draw(i, name, tiles):
        """A sheet of (L, Q) capsules in place i."""
        sheet = Box(0.4 + i * (width + gap), y, width, height)
        canvas.sheet(sheet, lambda q, l: tiles[l, q], rows, places, "input", scale)
        canvas.outline(_column(sheet, places, view.l))
        _label_columns(canvas, sheet, places)
        canvas.text(sheet.middle[0], y - 0.18, name, size=11, color=ROLES["input"])
        return sheet

    source = draw(0, "I_flat", flat)
    for i, p in enumerate(channels, start=1):
        if p is None:
            x = 0.4 + i * (width + gap) + width / 2
            canvas.text(x, y + height / 2, f"···  up to p = {g.P - 1}", color=QUIET)
            continue
        copy = draw(i, f"I',  p = {p}", extended[p])
        start, end = source.middle[0] - 0.15 * i, copy.middle[0]
        canvas.arrow((start, y - 0.33), (end, y - 0.33), ROLES["input"], bend=-0.12)
    return canvas


def kernel_extend(view):
    """4: Figure 5, each output channel's capsules once for each output position."""
    g, stage, scale = view.geometry, _stage(view, "kernel_extend"), view.scale("K")
    canvas = Canvas(
        13,
        6.9,
        f"Each output channel's capsules are copied for all L = {g.L} positions: " + stage.paper,
        caption(stage, g),
        view.shape("K", "K'"),
        ("kernel",),
        _note(view),
    )
    rows, places, channels = shown(g.Q, 9), shown(g.L, 9, [view.l]), shown(g.P, 3)
    gap, between = 0.7, 0.5  # between K and its copies, between channels
    kernel = view.tiles("K").reshape(g.P, g.Q, *view.tiles("K").shape[-2:])
    extended = view.tiles("K'")  # (P, L, Q, rows, columns)
    room = (12.2 - between * (len(channels) - 1)) / len(channels) - gap
    both = [None, *places]  # K's one column and its copies are cut alike
    width, height = table_size(kernel.shape[-2:], rows, both, room, 4.2)
    cell = width / len(both)
    y = 1.9 + (4.2 - height) / 2
    for i, p in enumerate(channels):
        x = 0.4 + i * (width + gap + between)
        if p is None:
            canvas.text(x + 1.0, y + height / 2, f"···  up to p = {g.P - 1}", color=QUIET)
            continue
        source = Box(x, y, cell, height)
        sheet = Box(x + cell + gap, y, width - cell, height)
        canvas.sheet(source, lambda q, _: kernel[p, q], rows, [p], "kernel", scale)
        canvas.sheet(sheet, lambda q, l: extended[p, l, q], rows, places, "kernel", scale)
        canvas.outline(_column(sheet, places, view.l))
        middle = sheet.middle[1]
        canvas.arrow((source.right + 0.12, middle), (sheet.x - 0.1, middle), ROLES["kernel"])
        _label_columns(canvas, sheet, places)
        canvas.text(x, y - 0.18, f"K, p = {p}", size=11, color=ROLES["kernel"], ha="left")
        canvas.text(sheet.middle[0], y - 0.18, f"K', p = {p}", size=11, color=ROLES["kernel"])
    return canvas


def products(view):
    """5: Figure 6, the small products and their sum."""
    g, l, p = view.geometry, view.l, 0
    oh, ow = view.position
    multiply, reduce = _stage(view, "strided_batched_matmul"), _stage(view, "output_reduce")
    canvas = Canvas(
        13,
        7.2,
        f"Q = {g.Q} small products, and their sum is one output capsule",
        f"{multiply.paper}, {reduce.paper}; Figure 6: all {g.P * g.L * g.Q * g.G} products in one "
        "call, then the sum over each window",
        view.shape("O'", "O"),
        ("input", "kernel", "product", "output"),
        _note(view),
    )
    made, made_scale = view.tiles("O'")[0, p, l], view.scale("O'")  # (Q, rows, columns)
    operands = (
        (f"I'[n=0, p={p}, l={l}, q]", "input", view.tiles("I'")[0, p, l], view.scale("I'")),
        (f"K'[p={p}, l={l}, q]", "kernel", view.tiles("K'")[p, l], view.scale("K'")),
        (f"O'[n=0, p={p}, l={l}, q]", "product", made, made_scale),
    )
    size, y = 1.45, 1.85
    for (name, role, tiles, scale), x, sign in zip(operands, (0.85, 2.8, 4.75), (None, "@", "=")):
        canvas.text(x + size / 2, y - 0.2, name, color=ROLES[role])
        for i, q in enumerate(view.picks):
            box = Box(x, y + i * (size + 0.2), size, size)
            canvas.tile(fitted(box, tiles[q].shape), tiles[q], role, scale, numbers=True)
            canvas.text(x - 0.25, box.middle[1], sign or f"q = {q}", size=15 if sign else 10)

    columns = shown(g.KW, 5)
    rows = shown(g.C * g.KH, 5)
    width, height = table_size(made.shape[1:], rows, columns, 2.7, 4.2)
    middle = y + (3 * size + 0.4) / 2
    table = Box(8.45 - width / 2, middle - height / 2, width, height)
    words = f"all q of this output capsule: Q = {g.Q}"
    canvas.text(table.middle[0], table.y - 0.2, words, color=ROLES["product"])
    found = canvas.sheet(
        table, lambda i, kw: made[i * g.KW + kw], rows, columns, "product", made_scale
    )
    for (i, kw), box in found.items():
        if i * g.KW + kw in view.picks:
            canvas.outline(fitted(box, made.shape[1:], 0.9), ROLES["product"], 1.6)
    total = view.tiles("O")[0, p, oh, ow]
    place = fitted(Box(10.9, middle - 0.85, 1.7, 1.7), total.shape)
    canvas.arrow((table.right + 0.12, middle), (place.x - 0.12, middle), ROLES["output"])
    canvas.text((table.right + place.x) / 2, middle - 0.2, "sum over q", color=ROLES["output"])
    canvas.tile(place, total, "output", view.scale("O"), numbers=True)
    canvas.outline(place)
    words = f"O[n=0, p={p}, l={l}]"
    canvas.text(place.middle[0], place.y - 0.2, words, color=ROLES["output"])
    return canvas


def output(view):
    """6: the output capsules."""
    g = view.geometry
    canvas = Canvas(
        13,
        7.2,
        f"The output: {g.OH} x {g.OW} capsules in each of P = {g.P} channels",
        f"{_stage(view, 'output_reduce').paper}   ·   Algorithm 3, step 5; each capsule is "
        f"{_matrix_size(g.G, g.D1, g.D3)}",
        view.shape("O"),
        ("output",),
        _note(view),
    )
    channels, gap = shown(g.P, 4), 0.5
    across = _best_across(view, len(channels), gap)
    down = -(-len(channels) // across)
    width = (12.2 - gap * (across - 1)) / across
    height = (4.9 - gap * (down - 1)) / down
    for i, p in enumerate(channels):
        x, y = 0.4 + i % across * (width + gap), 1.75 + i // across * (height + gap)
        place = Box(x, y, width, height)
        if p is None:
            canvas.text(*place.middle, f"···  up to p = {g.P - 1}", color=QUIET)
            continue
        _map(canvas, view, place, "O", p, f"O,  p = {p}", "output")
    return canvas


def _best_across(view, count, gap):
    """How many maps of the output side by side make them largest."""

    def width(across):
        down = -(-count // across)
        room = (12.2 - gap * (across - 1)) / across, (4.9 - gap * (down - 1)) / down
        return table_size(view.tiles("O").shape[-2:], *_map_places(view), *room)[0]

    return max(range(1, count + 1), key=width)


def _map_places(view):
    """Which rows and columns of the output a map shows."""
    g, (oh, ow) = view.geometry, view.position
    return shown(g.OH, 14, [oh]), shown(g.OW, 14, [ow])


def _map(canvas, view, place, name, p, title, role):
    """The capsules of one output channel where they lie, the highlighted position outlined."""
    tiles, (rows, columns) = view.tiles(name)[0, p], _map_places(view)
    width, height = table_size(tiles.shape[-2:], rows, columns, place.width, place.height)
    table = Box(place.middle[0] - width / 2, place.y, width, height)
    canvas.text(place.middle[0], place.y - 0.18, title, size=11, color=ROLES[role])
    scale = view.scale(name)
    found = canvas.sheet(table, lambda oh, ow: tiles[oh, ow], rows, columns, role, scale)
    canvas.outline(found[view.position])


def gradients(view):
    """7: the gradient that came in, and the two that go out."""
    g, trace = view.geometry, view.trace
    canvas = Canvas(
        13,
        7.4,
        "The gradients: what came in, and what the kernel and the image get",
        "Algorithm 4   ·   dO = O - T is the gradient of half the squared length of O - T",
        "",
        ("gradient", "input"),
        _note(view),
    )
    top, height, colour = 2.35, 4.3, ROLES["gradient"]
    columns = (
        (0.4, 3.4, "dO, at every output capsule"),
        (4.3, 3.4, "dK, for every kernel capsule"),
        (8.2, 4.4, "dI, laid over the outline of I"),
    )
    for (x, width, title), name in zip(columns, ("dO", "dK", "dI")):
        operand = trace.operands[name]
        canvas.text(x + width / 2, 1.2, title, size=12, color=colour, weight="bold")
        canvas.text(x + width / 2, 1.47, f"({operand.axes})", size=9, color=QUIET)
        canvas.text(x + width / 2, 1.68, f"= {operand.shape}", size=9, color=QUIET)

    channels, gap = shown(g.P, 3), 0.45
    high = (height - gap * (len(channels) - 1)) / len(channels)
    kernel = view.tiles("dK")  # (P, C, KH, KW, rows, columns)
    for i, p in enumerate(channels):
        y = top + i * (high + gap)
        left, right = Box(0.4, y, 3.4, high), Box(4.3, y, 3.4, high)
        if p is None:
            for place in (left, right):
                canvas.text(*place.middle, f"···  up to p = {g.P - 1}", color=QUIET)
            continue
        _map(canvas, view, left, "dO", p, f"p = {p}", "gradient")
        rows, places = shown(g.KH, 8), shown(g.C * g.KW, 10)
        wide, tall = table_size(kernel.shape[-2:], rows, places, right.width, right.height)
        canvas.text(right.middle[0], y - 0.18, f"p = {p}", size=11, color=colour)
        canvas.sheet(
            Box(right.middle[0] - wide / 2, y, wide, tall),
            lambda kh, i: kernel[p, i // g.KW, kh, i % g.KW],
            rows,
            places,
            "gradient",
            view.scale("dK"),
        )

    pixels = trace.plan.patches.pixels[0]
    place, dx = Box(8.2, top, 4.4, height), trace.image_of("dI")[0]
    frame, _, _ = _digit(canvas, view, place, dx, "gradient", view.scale("dI"))
    if pixels.min() < 0.5 < pixels.max() and min(pixels.shape) > 1:
        rows, places = pixels.shape
        pitch = frame.width / places
        canvas.axes.contour(
            frame.x + (np.arange(places) + 0.5) * pitch,
            frame.y + (np.arange(rows) + 0.5) * pitch,
            pixels,
            levels=[0.5],
            colors=ROLES["input"],
            linewidths=2,
        )
    return canvas
