"""Tables are on the device before a kernel of any stream may read them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

import numbacaps
from numbacaps.device import upload

_ROOT = Path(numbacaps.__file__).parent
# Those that wait for the device, or send on the stream of the kernels that read.
_OTHERS = {"device/upload.py", "device/bfloat16.py", "nn/state.py", "nn/data.py"}


def test_an_upload_is_waited_for(monkeypatch):
    told = []
    stream = SimpleNamespace(synchronize=lambda: told.append("waited"))
    stub = {"to_device": lambda host: told.append("sent") or host, "default_stream": lambda: stream}
    monkeypatch.setattr(upload, "cuda", SimpleNamespace(**stub))
    monkeypatch.setattr(upload, "SIMULATED", False)
    table = np.arange(3)
    assert upload.uploaded(table) is table and told == ["sent", "waited"]


def test_nobody_sends_a_table_otherwise():
    found = {
        str(path.relative_to(_ROOT))
        for path in _ROOT.rglob("*.py")
        if "cuda.to_device(" in path.read_text()
    }
    assert found == _OTHERS
