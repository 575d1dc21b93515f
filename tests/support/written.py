"""What a figure has written on it, and where."""

from itertools import combinations

from matplotlib.text import Text


def words_of(figure, renderer):
    """(words, box) of everything that is written."""
    written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in axis.get_ticklabels()
        if not _in_view(axis, label)
    }
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in written
        if text not in hidden and text.get_text() != "PREDICTION"
    ]


def _in_view(axis, label):
    low, high = sorted(axis.get_view_interval())
    return low <= label.get_position()[axis.axis_name == "y"] <= high


def check_words(figure, renderer, name=""):
    """Nothing that is written leaves the figure or lies on anything else."""
    words = words_of(figure, renderer)
    for text, box in words:
        inside = 0 <= box.x0 and box.x1 <= figure.bbox.x1 and 0 <= box.y0 <= box.y1
        assert inside and box.y1 <= figure.bbox.y1, (name, text)
    for (one, a), (other, b) in combinations(words, 2):
        assert not a.padded(-0.5).overlaps(b.padded(-0.5)), (name, one, other)
