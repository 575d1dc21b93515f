"""What ours takes for a class of precision on this GPU."""

from experiments.measuring import quick
from experiments.measuring.refusal import Refusal


def plan_words(names):
    """``dtype`` and ``precision`` of a plan, by the class's name.

    Parameters
    ----------
    names : iterable of str
        Of :data:`experiments.measuring.ratios.CLASSES`.

    Raises
    ------
    Refusal
        Ours has none of a class's precisions here.
    """
    found = {}
    for name in names:
        try:
            ours = [one for one in quick.choose((name,)) if one.algorithm == quick.OURS]
        except LookupError:
            raise Refusal("--precisions", name, "classes that ours has on this GPU") from None
        found[name] = quick.plan_options(ours[-1])
    return found
