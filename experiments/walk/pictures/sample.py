"""The sample network: five capsule convolutions, the bytes of each, and times that were recorded."""

from experiments.walk.network import network
from experiments.walk.pictures.canvas import QUIET, ROLES, Box, Canvas

_LEFT, _STEP = 0.6, 2.1  # inches; from one layer to the next


def sample_network(view):
    """9: shapes of the five layers, bytes drawn to one scale, and milliseconds with GPU and date."""
    told = network()
    layers = told["layers"]
    canvas = Canvas(
        13,
        7.6,
        "The sample network: five capsule convolutions",
        "each layer takes the capsules of the one before; the last has one for each of ten digits",
        f"batch {layers[0]['N']}; times: {told['gpu']}, {told['date']}"
        + ("" if told["current"] else ", before some kernels were changed"),
        (),
        None,
    )
    first = layers[0]
    _maps(canvas, _LEFT, first["H"], first["C"], f"{first['H']} x {first['W']} numbers")
    most = max(layer["staged"] for layer in layers)
    for i, layer in enumerate(layers):
        x = _LEFT + _STEP * (i + 1)
        words = "{OH} x {OW} x {P}\nof {D1} x {D3}".format(**layer)
        _maps(canvas, x, layer["OH"], layer["P"], words)
        canvas.arrow((x - 0.75, 2.1), (x - 0.1, 2.1))
        canvas.text(x - 0.42, 1.9, layer["name"], size=9, weight="bold")
        _costs(canvas, x, layer, most, told["lines"])
    for y, words in ((4.15, "bytes of a\nforward pass"), (5.35, "milliseconds")):
        canvas.text(_LEFT, y, words, size=10, ha="left", weight="bold")
    return canvas


def _maps(canvas, x, side, channels, words):
    """The channels of a map as sheets, one behind the other."""
    size = max(0.1, 1.1 * side / 28)
    for i in reversed(range(min(channels, 10))):
        box = Box(x + 0.05 * i, 1.7 + 0.05 * i, size, size)
        canvas.outline(box, ROLES["input"], 1.0)
    canvas.text(x, 3.2, words, size=9, ha="left")


def _costs(canvas, x, layer, most, lines):
    """Bars of bytes, and times by algorithm."""
    for y, name, look in ((3.9, "staged", QUIET), (4.3, "least", ROLES["output"])):
        width = max(0.02, 1.7 * layer[name] / most)
        canvas.bar(Box(x, y, width, 0.14), look)
        words = f"{'all laid out' if name == 'staged' else 'each once'}: {layer[name] / 1e6:.1f} MB"
        canvas.text(x, y + 0.24, words, size=8.5, ha="left")
    for i, line in enumerate(lines):
        time = f"{layer['ms'][line]:.4f}" if line in layer["ms"] else "not recorded"
        canvas.text(x, 5.1 + 0.25 * i, f"{line}: {time}", size=8.5, ha="left")
