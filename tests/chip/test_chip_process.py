# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.chip.chip_process import ChipProcess
from tests.chip.chip_process import ChipProcessDied
from tests.chip.chip_process import RemoteError


def test_mocked_chips_have_the_cores_and_memory_of_real_ones(mocked_chip: ChipProcess) -> None:
    found = mocked_chip.call('tests.chip.jobs:describe')
    expected = {(8, 8): 12.8, (11, 10): 34.2}
    assert found['dram_gb'] == pytest.approx(expected[tuple(found['grid'])], rel=0.02)
    assert Path(found['kernels']).is_dir()


def test_mocked_chip_reads_back_zeros(mocked_chip: ChipProcess) -> None:
    assert mocked_chip.call('tests.chip.jobs:multiply_ones') == [0.0]


@pytest.fixture
def process(tmp_path: Path) -> ChipProcess:
    return ChipProcess(tmp_path, {})


def test_errors_of_the_child_are_raised_here(process: ChipProcess) -> None:
    with pytest.raises(RemoteError, match='ValueError: out of luck'):
        process.call('tests.chip.jobs:fail', text='out of luck')
    with pytest.raises(RemoteError, match='AttributeError'):
        process.call('tests.chip.jobs:no_such_job')
    process.close()


def test_child_that_dies_is_told(process: ChipProcess) -> None:
    with pytest.raises(ChipProcessDied, match=r'die.*exit code -9'):
        process.call('tests.chip.jobs:die')
    with pytest.raises((ChipProcessDied, OSError)):
        process.call('tests.chip.jobs:describe')


def test_child_that_does_not_answer_is_ended(process: ChipProcess) -> None:
    with pytest.raises(ChipProcessDied, match='no answer'):
        process.call('tests.chip.jobs:wait', timeout_s=0.1, for_s=60.0)
