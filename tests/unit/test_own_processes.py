"""Python processes that gemlet starts of its own code: what lies in the directory where it was called is none of it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gemlet

SOURCE = Path(gemlet.__file__).parent


def _starts() -> list[tuple[str, bool]]:
    """Where lists of arguments begin a module by this interpreter; whether the directory is left out."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List | ast.Tuple | ast.Call):
                words = [ast.unparse(each) for each in (node.args if isinstance(node, ast.Call) else node.elts)]
                found += [
                    (f"{file.relative_to(SOURCE)}:{node.lineno}", "'-P'" in words[at : words.index("'-m'", at)])
                    for at, word in enumerate(words)
                    if word == "sys.executable" and "'-m'" in words[at:]
                ]
    return found


def test_no_module_is_taken_from_the_directory_where_gemlet_was_called():
    """In one that others may write to, as /tmp, it would be theirs."""
    starts = _starts()
    assert len(starts) >= 6, "this test finds them no more"
    assert not [where for where, safe in starts if not safe]


@pytest.mark.parametrize("module", ["gemlet.serve.profiling.guard", "gemlet.serve.execution.worker"])
def test_what_the_test_looks_for_is_what_counts(tmp_path, module):
    (tmp_path / "argparse.py").write_text("raise SystemExit(77)")
    for safe, expected in (([], 77), (["-P"], 0)):
        done = subprocess.run(
            [sys.executable, *safe, "-m", module, "--help"],
            cwd=tmp_path, env=os.environ, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == expected, done.stderr


def test_nor_where_multiprocessing_starts_them(tmp_path):
    (tmp_path / "pickle.py").write_text("import os; os._exit(77)")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(f"""
import sys
sys.path = [each for each in sys.path if each not in ("", {str(tmp_path)!r})]
import os
from multiprocessing import resource_tracker
from gemlet import own_python
from gemlet.serve.helper_process import pool_of_one
if __name__ == "__main__":
    pool = pool_of_one(print, "in a pool")
    print(pool.submit(os.path.basename, "a/b").result())
    pool.shutdown()
    process = own_python.spawning().Process(target=print, args=("alone",))
    process.start()
    process.join()
    print(process.exitcode)
""")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=os.environ, capture_output=True, timeout=60, check=False
    )
    assert done.stdout.split() == [b"in", b"a", b"pool", b"b", b"alone", b"0"], done.stderr


def test_multiprocessing_starts_them_in_that_way_only():
    assert [file.name for file in SOURCE.rglob("*.py") if "get_context" in file.read_text()] == ["own_python.py"]
