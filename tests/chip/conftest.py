# SPDX-License-Identifier: Apache-2.0
"""
Tests in this folder hold the chip's code against the real ttnn, on mocked chips or on silicon.

The real library runs in processes of its own; in pytest's, its name means the emulation.
"""

from collections.abc import Iterator

import pytest

from tests.chip.chip_process import ChipProcess
from tests.chip.mock_root import BOARDS
from tests.chip.mock_root import lay_out
from tests.emulation.library import install

install()


@pytest.fixture(scope='session', params=sorted(BOARDS))
def mocked_chip(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChipProcess]:
    """Give the real library on each mocked chip, in a process of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    with ChipProcess(folder, lay_out(folder / 'root', request.param)) as process:
        yield process
