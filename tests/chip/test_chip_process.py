# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chip.chip_process import ChipProcess
from tests.chip.chip_process import ChipProcessDied
from tests.chip.chip_process import RemoteError
from tests.chip.mock_root import BOARDS
from tests.chip.mock_root import lay_out


def test_mocked_chips_have_the_cores_and_memory_of_real_ones(mocked_chip: ChipProcess) -> None:
    found = mocked_chip.call('tests.chip.jobs:describe')
    expected = {(8, 8): 12.8, (11, 10): 34.2}
    assert found['dram_gb'] == pytest.approx(expected[tuple(found['grid'])], rel=0.02)
    assert Path(found['kernels']).is_dir()


def test_mocked_chip_reads_back_zeros(mocked_chip: ChipProcess) -> None:
    assert mocked_chip.call('tests.chip.jobs:multiply_ones') == [0.0]


def test_chips_open_at_once_keep_their_kernels_apart(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = []
        for chip in BOARDS:
            folder = tmp_path / chip
            folder.mkdir()
            environment = lay_out(folder / 'root', chip)
            processes.append(stack.enter_context(ChipProcess(folder, environment)))
        found = [process.call('tests.chip.jobs:describe') for process in processes]
        assert [process.call('tests.chip.jobs:multiply_ones') for process in processes] == [
            [0.0],
            [0.0],
        ]
    assert [each['grid'] for each in found] == [[8, 8], [11, 10]]
    for chip, each in zip(BOARDS, found, strict=True):
        assert (tmp_path / chip) in Path(each['kernels']).parents
        assert any(path.is_file() for path in Path(each['kernels']).rglob('*'))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ChipProcess]:
    with ChipProcess(tmp_path, {}) as process:
        yield process


def test_errors_of_the_child_are_raised_here(process: ChipProcess) -> None:
    with pytest.raises(RemoteError, match='ValueError: out of luck'):
        process.call('tests.chip.jobs:fail', text='out of luck')
    with pytest.raises(RemoteError, match='AttributeError'):
        process.call('tests.chip.jobs:no_such_job')


def test_child_that_dies_is_told(process: ChipProcess) -> None:
    with pytest.raises(ChipProcessDied, match=r'die.*exit code -9'):
        process.call('tests.chip.jobs:die')
    with pytest.raises(ChipProcessDied, match='ended before'):
        process.call('tests.chip.jobs:describe')


def test_child_that_does_not_answer_is_ended(process: ChipProcess) -> None:
    with pytest.raises(ChipProcessDied, match='no answer'):
        process.call('tests.chip.jobs:wait', timeout_s=0.1, for_s=60.0)


def test_call_after_the_end_writes_into_no_other_file(
    process: ChipProcess, tmp_path: Path
) -> None:
    process.close()
    with ExitStack() as stack:
        paths = [tmp_path / f'{i}' for i in range(8)]
        for path in paths:
            stack.enter_context(path.open('wb'))
        with pytest.raises(ChipProcessDied, match='ended before'):
            process.call('tests.chip.jobs:describe')
    assert all(path.read_bytes() == b'' for path in paths)
