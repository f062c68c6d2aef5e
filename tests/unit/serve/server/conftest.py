from __future__ import annotations

import pytest


@pytest.fixture
def model(tmp_path):
    """The directory of a model in a repository."""
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    return folder
