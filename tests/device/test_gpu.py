"""GPUs' records: limits from the driver, rates by name, guessed where the name is not known."""

from types import SimpleNamespace

import pytest

from numbacaps.device import gpu


def _device(name, multiprocessors):
    return SimpleNamespace(
        name=name,
        compute_capability=(9, 0),
        MULTIPROCESSOR_COUNT=multiprocessors,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232448,
        MAX_REGISTERS_PER_MULTIPROCESSOR=65536,
    )


def test_a_known_gpu_is_its_record():
    assert gpu.Gpu.of(_device(gpu.H100.name, 132)).rates is gpu.RATES[gpu.H100.name]
    found = gpu.Gpu.of(_device("NVIDIA H200", 132))
    assert found.rates_from.startswith("measured")
    assert (found.shared_bytes, found.registers) == (gpu.H100.shared_bytes, gpu.H100.registers)


def test_an_unknown_gpu_says_that_its_rates_are_guessed():
    found = gpu.Gpu.of(_device("NVIDIA H20", 78))
    assert found.multiprocessors == 78
    assert found.rates_from == "guessed for NVIDIA H20: the H100's"


@pytest.mark.tiers("simulator")
def test_the_simulator_has_a_record():
    assert gpu.current() is gpu.SIMULATED
    assert gpu.multiprocessors() == gpu.SIMULATED.multiprocessors
