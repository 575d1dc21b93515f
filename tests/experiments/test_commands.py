"""How commands that draw and write pages end at Ctrl-C, and what every command says where its extra is not there."""

import runpy
import subprocess
import sys

import pytest

import experiments.explore.page
import experiments.lessons.course
import experiments.plots.rows
from experiments.measuring import provenance


@pytest.mark.parametrize(
    ("command", "module", "name"),
    [
        ("figures", experiments.plots.rows, "load_all"),
        ("explore", experiments.explore.page, "require_library"),
        ("lessons", experiments.lessons.course, "lessons"),
    ],
)
def test_ctrl_c_is_one_line(command, module, name, monkeypatch, capsys, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    arguments = ["--gpu", "NVIDIA-H200", "--out", str(tmp_path)] if command == "figures" else []
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    run = f"experiments.{command}" + ("" if command == "figures" else ".__main__")
    monkeypatch.delitem(sys.modules, run, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(run, run_name="__main__")
    said = capsys.readouterr().err
    assert ended.value.code == 130
    assert said.startswith("interrupted; ") and said.count("\n") == 1


@pytest.mark.parametrize("package", ["matplotlib", "PIL", "tqdm"])
def test_an_absent_package_is_named_with_its_extra(package):
    script = f"import sys; sys.modules[{package!r}] = None; import experiments"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=provenance.ROOT
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError") and "'experiments'" in said
    assert said.endswith(f"there is no {package}")
