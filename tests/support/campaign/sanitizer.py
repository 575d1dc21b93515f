"""compute-sanitizer's tools over one case of every kernel."""

from tests.record_gpu import MORE_TOOLS, TOOLS, sanitized
from tests.support.campaign.part import Part

_EVERY = TOOLS | MORE_TOOLS


def check(seed, number):
    """Run the tool of that number; the seed changes nothing."""
    tool = list(_EVERY)[number % len(_EVERY)]
    found = sanitized(tool)
    assert found["status"] == 0 and found["passed"], f"{tool}: {found}"
    return (f"{tool}, {found['passed']} cases",)


PART = Part(
    summary=f"{', '.join(_EVERY)} over one case of every kernel",
    unit="tool",
    check=check,
    amount=len(_EVERY),
    few=len(_EVERY),
    shared=True,
)
