# SPDX-License-Identifier: Apache-2.0
"""The released model's size on both chips, through the real library: does it fit, does it run."""

import re
from typing import Any

import pytest

from tests.chip.chip_process import ChipProcess

N_PARAMETERS = 64 * (1536 * 4096 + 2048 * 1536 + 3 * 1536 * 6144)
BYTES = {'bf16': 2.0, 'bfp8': 1.0625, 'bfp4': 0.5625}
CACHE_BYTES = 64 * 2 * 8 * 8192 * 128


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
    weights = N_PARAMETERS * BYTES[options.get('weights', 'bfp8')]
    expected = weights + CACHE_BYTES * BYTES[options.get('cache_dtype', 'bf16')]
    # The rest is norms, step inputs, and the rounding of each tensor to its banks.
    assert expected <= result['loaded_bytes'] <= 1.02 * expected
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
