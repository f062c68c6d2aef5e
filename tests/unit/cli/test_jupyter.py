"""`gemlet jupyter install` with a Jupyter that keeps what it is given."""

from __future__ import annotations

import json
import sys

import pytest

from gemlet.cli import main

JUPYTER = """#!{python}
import json, pathlib, shutil, sys
folder = pathlib.Path(__file__).parent
match sys.argv[1:]:
    case ["kernelspec", "list", "--json"]:
        spec = {{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"],
                 "display_name": "Python 3", "language": "python"}}
        other = {{**spec, "argv": ["R", "--args", "{{connection_file}}"], "display_name": "R"}}
        print(json.dumps({{"kernelspecs": {{"python3": {{"resource_dir": str(folder / "base"), "spec": spec}},
                                         "ir": {{"resource_dir": str(folder / "base"), "spec": other}}}}}}))
    case ["kernelspec", "install", where, *options]:
        shutil.copytree(where, folder / "installed")
        (folder / "options").write_text(" ".join(options))
"""


@pytest.fixture
def jupyter(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/logo.png").touch()
    program = tmp_path / "jupyter"
    program.write_text(JUPYTER.format(python=sys.executable))
    program.chmod(0o755)
    return program


def test_the_new_kernel_is_the_old_one_under_gemlet_run(jupyter, tmp_path):
    assert main.run(["jupyter", "install", "--jupyter", str(jupyter), "--max", "40%", "--group", "team"]) == 0
    spec = json.loads((tmp_path / "installed/kernel.json").read_text())
    begin = [sys.executable, "-P", "-m", "gemlet", "run", "-q", "--max", "40%", "--group", "team", "--"]
    assert spec["argv"] == [*begin, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert spec["display_name"] == "Python 3 (gemlet --max 40% --group team)"
    assert (tmp_path / "options").read_text() == "--replace --name python3-gemlet --user"
    assert (tmp_path / "installed/logo.png").exists()


def test_another_kernel_name_and_place(jupyter, tmp_path):
    asked = ["--kernel", "ir", "--name", "r-small", "--display-name", "R, small", "--prefix", "/opt/x"]
    assert main.run(["--socket", "/run/x", "jupyter", "install", "--jupyter", str(jupyter), *asked]) == 0
    spec = json.loads((tmp_path / "installed/kernel.json").read_text())
    assert spec["argv"][4:] == ["--socket", "/run/x", "run", "-q", "--", "R", "--args", "{connection_file}"]
    assert spec["display_name"] == "R, small"
    assert (tmp_path / "options").read_text() == "--replace --name r-small --prefix /opt/x"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max", "400%"], "more than the whole device"),
        (["--nonsense"], "no such option"),
        (["--kernel", "cobol"], "choose one of these by --kernel: ir, python3"),
        (["--jupyter", "/nowhere/jupyter"], "there is no program /nowhere/jupyter"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_installed(options, said, jupyter, tmp_path, capsys):
    assert main.run(["jupyter", "install", "--jupyter", str(jupyter), *options]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "installed").exists()
