# SPDX-License-Identifier: Apache-2.0
"""The released model's size on both chips, through the real library: does it fit, does it run."""

from pathlib import Path
import re
from typing import Any

import pytest

from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from benchmarks.chip_memory import buffers
from tests.chip.chip_process import ChipProcess


@pytest.mark.slow
@pytest.mark.parametrize(
    'options',
    [
        {},
        {'attention': 'standard'},
        {'attention': 'standard', 'is_folded': True},
        {'cache_dtype': 'bfp8', 'weights': 'bfp4'},
        {'is_tuned': False},
    ],
    ids=str,
)
def test_full_expert_fits_and_runs_on_both_chips(
    options: dict[str, Any], mocked_chip: ChipProcess
) -> None:
    result = mocked_chip.call('tests.chip.full_size:run_trajectories', **options)
    weights = WeightDtypes.parse(options.get('weights', 'bfp8'))
    sizes = buffers(ChipOptions(**(options | {'weights': weights})), 8128)
    expected = sum(sizes.values()) - sizes['trace region']
    # The library rounds every tensor up to pages in all of its banks.
    assert expected <= result['loaded_bytes'] <= 1.01 * expected
    assert result['loaded_bytes'] + result['trace_region_bytes'] <= 0.5 * result['dram_bytes']
    for trajectory in result['trajectories']:
        assert trajectory['shape'] == [64, 2]
        assert trajectory['dtype'] == 'float32'
        assert trajectory['is_finite']
        assert trajectory['new_bytes'] == 0
    assert result['trajectories'][1]['new_programs'] == 0
    assert result['programs'] > 12
    assert result['left_bytes'] == 0


@pytest.mark.parametrize(
    ('options', 'text'),
    [
        ({'k_chunk_rows': 4096}, 'BackendError|RuntimeError'),
        ({'max_rows': 0}, 'ConfigError: max_rows'),
        ({'weights': 'int8'}, r'ConfigError: chip\.weights'),
        ({'cache_dtype': 'bfp4'}, r'ConfigError: chip\.cache_dtype'),
        ({'k_chunk_rows': 48}, r'ConfigError: chip\.k_chunk_rows'),
        ({'free_bytes': 20_000_000}, 'BackendError: loading the weights failed on the chip'),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_a_reason(
    options: dict[str, Any], text: str, mocked_chip: ChipProcess
) -> None:
    refusal = mocked_chip.call('tests.chip.full_size:refusal_of', **options)
    assert re.match(text, refusal), refusal


def test_chip_that_computes_nothing_fails_the_self_test(
    mocked_chip: ChipProcess, tmp_path: Path
) -> None:
    """A mocked chip gives zeros; a node on it would never go active."""
    answer = mocked_chip.call(
        'tests.chip.full_size:self_test_of_random_weights', chip_folder=str(tmp_path)
    )
    assert answer.startswith('SelfTestError: self-test: layer 0 is off'), answer
    # What was tilised by the real library is read back by it.
    assert len(list(tmp_path.glob('weights/*/*.tensorbin'))) == 10
    second = mocked_chip.call(
        'tests.chip.full_size:self_test_of_random_weights', chip_folder=str(tmp_path)
    )
    assert second == answer
