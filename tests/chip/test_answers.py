# SPDX-License-Identifier: Apache-2.0
"""The emulation answers as the real library does, op by op, so it cannot drift from it."""

from typing import Any

import pytest
import torch

from tests.chip.answers import layer_answers
from tests.chip.answers import refusals
from tests.chip.chip_process import ChipProcess
from tests.emulation.block_float import round_to
from tests.emulation.device import Device

OPTIONS: list[dict[str, Any]] = [
    {},
    {'cache_dtype': 'bfp8', 'weights': 'bfp4'},
    {'mask_dtype': 'bf16', 'k_chunk_rows': 64, 'weights': 'bf16'},
    {'attention': 'standard'},
    {'attention': 'standard', 'is_folded': True, 'cache_dtype': 'bfp8'},
    {'attention': 'standard', 'q_chunk_rows': 64, 'k_chunk_rows': 128, 'mask_dtype': 'bfp8'},
    {'is_tuned': False},
]
DTYPES = {'BFLOAT16': 'bfloat16', 'BFLOAT8_B': 'bfloat8_b', 'BFLOAT4_B': 'bfloat4_b'}


@pytest.mark.parametrize('n_layers', [0, 1], ids=['tiny', 'wide'])
@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_every_op_of_a_layer_gives_the_same_shapes_and_formats(
    options: dict[str, Any], n_layers: int, mocked_chip: ChipProcess
) -> None:
    values = {'n_layers': n_layers, 'max_rows': 448, **options}
    real = mocked_chip.call('tests.chip.answers:real_layer_answers', **values)
    assert len(real) > 30
    assert layer_answers(Device(), **values) == real


def test_what_the_library_refuses_the_emulation_refuses(mocked_chip: ChipProcess) -> None:
    real = mocked_chip.call('tests.chip.answers:real_refusals')
    assert refusals(Device()) == real
    # Nothing but the deeds that are right passes.
    allowed = {name for name, is_refused in real.items() if not is_refused}
    right = {
        *('fill at the tail', 'copy to the shape', 'decode', 'linear', 'view by users'),
    }
    assert allowed == right


@pytest.mark.parametrize('dtype', sorted(DTYPES))
def test_formats_round_as_the_library_does(dtype: str, mocked_chip: ChipProcess) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, 64, generator=generator)
    values[:32] *= 10 ** torch.randn(32, 64, generator=generator)
    values[40, :16] = 0.0
    values[41] = 1.0
    real = mocked_chip.call(
        'tests.chip.jobs:round_trip', rows=values.tolist(), dtype=DTYPES[dtype]
    )
    assert torch.equal(torch.tensor(real), round_to(values, dtype))
