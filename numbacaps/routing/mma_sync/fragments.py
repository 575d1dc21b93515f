"""Which lane of a warp holds what of the votes of a child.

A product of a child is (places and rows d1) x (parents and columns d3), summed over d2. A tensor core hands a lane two
columns of two rows of each 16 x 8: rows ``lane // 4`` and 8 more, columns ``2 (lane % 4)`` and the next. Rows and columns
may come in any order, so they come in the one by which a vote lies in few lanes, and what a lane multiplies side by side:

    rows        a lane's rows are the d1 of one place; where D1 is 1, of two places
    columns     a lane's columns are d3 of one parent, all or a part of them: ``split`` lanes share a parent;
                those of a group's tiles follow each other in memory

A *group* is the parents that the four lanes of a row have at once, ``4 / split``. A *scalar* is a parent of a place that a
lane has a part in. Elements are counted as the tensor cores hand them out: ``(row block, tile, quarter)``.
"""

from dataclasses import dataclass
from functools import cache

from numbacaps.device.launch import ceil_div
from numbacaps.device.specialization import specialized
from numbacaps.device.target import cuda

MOST_ROWS = 4  # D1


def round_up(value, multiple):
    """The next multiple."""
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True)
class Fragments:
    """The votes of a child in a warp.

    Attributes
    ----------
    D1, D2, D3, P : int
    split : int
        Lanes that share a parent: 1, 2 or 4.
    across : int
        Warps that share the parents.
    terms : int
        1, or 3 of float32.
    """

    D1: int
    D2: int
    D3: int
    P: int
    split: int
    across: int
    terms: int

    @property
    def rows(self):
        """D1, filled up to 1, 2 or 4."""
        return 4 if self.D1 > 2 else self.D1

    @property
    def down(self):
        """Row blocks of 16."""
        return 2 if self.rows == 4 else 1

    @property
    def images(self):
        """Places of a lane."""
        return 2 if self.rows == 1 else 1

    @property
    def places(self):
        """Of a warp: images at a position."""
        return 8 * self.images

    @property
    def columns(self):
        """Of a parent in a lane."""
        return round_up(self.D3, 2 * self.split) // self.split

    @property
    def together(self):
        """Parents of a group."""
        return 4 // self.split

    @property
    def beside(self):
        """Tiles of a group."""
        return self.columns // 2

    @property
    def groups(self):
        """Of a warp."""
        return ceil_div(ceil_div(self.P, self.together), self.across)

    @property
    def tiles(self):
        """Of a warp, each of 8 columns."""
        return self.groups * self.beside

    @property
    def scalars(self):
        """Of a lane."""
        return self.images * self.groups

    @property
    def elements(self):
        """Of a lane."""
        return 4 * self.down * self.tiles

    @property
    def is_half(self):
        """d2 takes half of a product's 8: the low parts take the other half."""
        return self.D2 <= 4

    @property
    def depth(self):
        """D2, filled up."""
        return 4 if self.is_half else round_up(self.D2, 8)

    @property
    def steps(self):
        """Products of 8 that D2 takes."""
        return max(1, self.depth // 8)

    @property
    def pairs(self):
        """Of tiles."""
        return ceil_div(self.tiles, 2)

    @property
    def own(self):
        """Elements of w's gradient that a lane has."""
        return 4 * self.pairs * self.steps

    @property
    def reached(self):
        """Words of shared memory in which a warp leaves the gradient of a child's capsules."""
        return self.places * self.rows * 8 * self.steps

    @property
    def width(self):
        """Words of a row of the kernel in shared memory: D3, filled up."""
        return self.columns * self.split

    @property
    def parents(self):
        """P, filled up."""
        return self.across * self.groups * self.together

    @property
    def of_child(self):
        """Words of a child's kernel in shared memory, (parents, depth, width)."""
        return self.parents * self.depth * self.width

    @property
    def pitch(self):
        """Words of a place's capsule in shared memory; behind it are four more, the first for its activation."""
        return self.rows * self.depth + 4


def choose_fragments(g, terms, most):
    """The :class:`Fragments` with the fewest columns, where a lane has ``most`` elements; or why there are none.

    Parameters
    ----------
    g : numbacaps.geometry.Geometry
    terms, most : int

    Returns
    -------
    (Fragments or None, str or None)
    """
    if g.G > 1:
        return None, f"capsules of {g.G} products"
    if g.D1 > MOST_ROWS:
        return None, f"capsules of {g.D1} rows; it takes {MOST_ROWS} at the most"
    best = None
    for split in (1, 2, 4):
        for across in (1, 2, 4, 8):
            found = Fragments(g.D1, g.D2, g.D3, g.P, split, across, terms)
            if found.elements <= most:
                cost = across * found.tiles, across
                if best is None or cost < best[0]:
                    best = cost, found
                break
    if best is None:
        return None, f"{g.P} parents of {g.D1} x {g.D3}: more than the warps of a block hold"
    return best[1], None


@cache
def make_where(fragments):
    """Device functions ``(place, parent, element)`` that say what a lane's element is.

    ``place(lane, quarter)`` is its place in the warp, ``parent(lane, warp, tile)`` its parent, which may be past the last,
    and ``element(lane, i, tile, quarter)`` its number d1 D3 + d3 in the vote, -1 of what is filled up; ``i`` is the row block.
    """
    f = fragments
    D1, D3, ROWS = map(specialized, (f.D1, f.D3, f.rows))
    SPLIT, COLUMNS, GROUPS = map(specialized, (f.split, f.columns, f.groups))
    TOGETHER, BESIDE = map(specialized, (f.together, f.beside))

    @cuda.jit(device=True, forceinline=True)
    def place(lane, quarter):
        return lane // 4 + (8 * (quarter // 2) if ROWS == 1 else 0)

    @cuda.jit(device=True, forceinline=True)
    def parent(lane, warp, tile):
        return (warp * GROUPS + tile // BESIDE) * TOGETHER + lane % 4 // SPLIT

    @cuda.jit(device=True, forceinline=True)
    def element(lane, i, tile, quarter):
        d1 = (2 * i + quarter // 2) % ROWS
        d3 = lane % 4 % SPLIT * COLUMNS + quarter % 2 * BESIDE + tile % BESIDE
        return d1 * D3 + d3 if d1 < D1 and d3 < D3 else -1

    return place, parent, element


@cache
def make_slot(fragments):
    """Device function ``slot(m, p, e)``: where element e of parent p at place m is among numbers that lie as lanes hold them.

    They are (warps' places, warps that share the parents, row blocks and tiles, 32 lanes, 4).
    """
    f = fragments
    D3, ROWS, PLACES = map(specialized, (f.D3, f.rows, f.places))
    SPLIT, COLUMNS, GROUPS = map(specialized, (f.split, f.columns, f.groups))
    TOGETHER, BESIDE, TILES = map(specialized, (f.together, f.beside, f.tiles))
    ACROSS, BLOCKS = map(specialized, (f.across, f.down * f.tiles))

    @cuda.jit(device=True, forceinline=True)
    def slot(m, p, e):
        row, d1, d3 = m % PLACES // 8 if ROWS == 1 else e // D3, e // D3, e % D3
        group, column = p // TOGETHER, d3 % COLUMNS
        tile = d1 // 2 * TILES + group % GROUPS * BESIDE + column % BESIDE
        lane = m % 8 * 4 + p % TOGETHER * SPLIT + d3 // COLUMNS
        quarter = row % 2 * 2 + column // BESIDE
        return (
            ((m // PLACES * ACROSS + group // GROUPS) * BLOCKS + tile) * 32 + lane
        ) * 4 + quarter

    return slot
