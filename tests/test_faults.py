"""The seeded faults: each is still in the sources, and what no test catches is told."""

from pathlib import Path

import pytest

from tests import faults
from tests.support.seeded import FAULTS
from tests.support.seeded.fault import Fault

_FILE = "numbacaps/some.py"


@pytest.fixture
def copy(tmp_path):
    """A repository of one line and one test of it."""
    (tmp_path / "numbacaps").mkdir()
    (tmp_path / _FILE).write_text("ONE = 1\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--tier')\n"
    )
    test = f"def test_one():\n    exec(open('{_FILE}').read(), globals())\n    assert ONE == 1\n"
    (tmp_path / "test_some.py").write_text(test)
    return tmp_path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_every_fault_can_be_seeded(fault):
    assert (Path(faults.__file__).parents[1] / fault.path).read_text().count(fault.right) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "caught"), [("ONE = 2", "test_some.py::test_one"), ("ONE = 1.0", None)]
)
def test_what_catches_a_fault(wrong, caught, copy):
    fault = Fault("another number", _FILE, "ONE = 1", wrong, "test_some.py")
    assert faults.caught_by(fault, copy) == caught
    assert (copy / _FILE).read_text() == "ONE = 1\n"


def test_a_fault_that_is_not_there_is_an_error(copy):
    fault = Fault("another number", _FILE, "TWO = 2", "TWO = 3", "test_some.py")
    with pytest.raises(ValueError, match="holds 'TWO = 2' 0 times"):
        faults.caught_by(fault, copy)


@pytest.mark.slow
def test_tests_that_cannot_run_are_an_error(copy):
    fault = Fault("another number", _FILE, "ONE = 1", "ONE = 2", "test_absent.py")
    with pytest.raises(RuntimeError, match="another number"):
        faults.caught_by(fault, copy)


def test_a_word_that_no_fault_has_is_refused(capsys):
    with pytest.raises(SystemExit):
        faults.main(["--only", "nosuchword"])
    assert "--only got 'nosuchword', which no fault's name has" in capsys.readouterr().err
