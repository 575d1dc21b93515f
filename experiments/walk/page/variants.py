"""Which runs the sliders of the page choose from, and what is too large for it."""

from dataclasses import dataclass, replace
from math import prod

from experiments.measuring.refusal import Refusal
from experiments.walk.trace import default_sizes, plan, shapes
from numbacaps import parse_product

MOST_VALUES = 60_000  # of a run: more can be neither seen nor pointed at
MOST_ON_PAGE = 250_000  # of all runs together: what keeps the page below 4 MB
COUNTED = ("naive", "indexed", "fused")  # algorithms of which a run beside the first counts threads

_STRIDES, _WINDOWS, _SIZES = (1, 2, 3), (2, 3), (4, 7)


@dataclass(frozen=True)
class Variant:
    """A run, and where the three sliders stand for it.

    ``stride`` and ``window`` are pairs; ``sizes`` are the sizes of the product's axes by letter.
    """

    stride: tuple
    window: tuple
    sizes: tuple
    plan: object

    @property
    def name(self):
        """In the options' words."""
        sizes = ",".join(f"{axis}={size}" for axis, size in self.sizes)
        return "--stride {},{} --kernel {},{} --sizes {}".format(*self.stride, *self.window, sizes)


def values(geometry):
    """How many numbers the page shows of a run: the elements of all arrays."""
    return sum(prod(shape) for _, shape in shapes(geometry).values())


def check_size(accepted):
    """Refuse a run that is too large for the page.

    Raises
    ------
    Refusal
    """
    image = accepted.patches.pixels.shape[1:]
    if (count := values(accepted.geometry)) > MOST_VALUES:
        raise Refusal(
            "--crop",
            "{},{}, which makes {:,} values to show with the other options".format(*image, count),
            f"at most {MOST_VALUES:,} values on a page (--html): try --crop "
            "{},{}, a larger --stride or fewer --channels".format(*(size // 2 for size in image)),
        )


def variants(accepted):
    """The run asked for, then those that differ in stride, window and capsule sizes.

    Parameters
    ----------
    accepted : experiments.walk.records.Plan

    Returns
    -------
    list of Variant
        Combinations that do not fit the image, or the page, are left out.

    Raises
    ------
    Refusal
        The run asked for is too large for the page.
    """
    check_size(accepted)
    options = accepted.options
    sizes = default_sizes(parse_product(options.product)) | options.sizes
    asked = replace(options, sizes=sizes)
    counted = tuple(name for name in options.algorithms if name in COUNTED)
    found, room = [], MOST_ON_PAGE
    for stride in _choices(options.stride, [(s, s) for s in _STRIDES]):
        for window in _choices(options.kernel, [(k, k) for k in _WINDOWS]):
            for size in _choices(sizes, [dict.fromkeys(sizes, s) for s in _SIZES]):
                changed = replace(asked, stride=stride, kernel=window, sizes=size)
                try:
                    one = (
                        accepted if changed == asked else plan(replace(changed, algorithms=counted))
                    )
                    check_size(one)
                except Refusal:
                    continue
                if (count := values(one.geometry)) <= room:
                    room -= count
                    found.append(Variant(stride, window, tuple(size.items()), one))
    return found


def _choices(asked, others):
    """What was asked for, then the others."""
    return [asked] + [other for other in others if other != asked]
