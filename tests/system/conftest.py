# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.processes import Scene


@pytest.fixture
def scene(tmp_path: Path, tiny_model: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(tmp_path, tiny_model, f'n{abs(hash(request.node.name)) % 10**8}')
    yield made
    made.close()
