"""The campaign: parts whose cases are known by a seed and a number, in the order in which they are run."""

from tests.support.campaign import (
    convolutions,
    memory,
    networks,
    sanitizer,
    threads,
    training,
)

PARTS = {
    "convolutions": convolutions.PART,
    "networks": networks.PART,
    "training": training.PART,
    "threads": threads.PART,
    "memory": memory.PART,
    "sanitizer": sanitizer.PART,
}
