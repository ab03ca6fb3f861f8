# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from alpamayo_node.errors import ConfigError
from alpamayo_node.model.buffers import round_action_space
from alpamayo_node.model.buffers import round_buffer
from tests.model.builders import SPACE


def test_action_space_rounded_to_bf16_matches_captures_of_the_released_model() -> None:
    # Numbers: captures published in yyshin-katech/alpamayo2-step-viewer.
    rounded = round_action_space(SPACE, 'bf16')
    assert rounded.accel_std == 0.6796875
    assert rounded.accel_mean == 0.029052734375
    assert rounded.curvature_std == 0.026123046875
    assert rounded.curvature_mean == 0.0002689361572265625
    assert (rounded.dt_ns, rounded.n_waypoints) == (SPACE.dt_ns, SPACE.n_waypoints)


def test_action_space_without_rounding_is_unchanged() -> None:
    assert round_action_space(SPACE, 'none') == SPACE


def test_buffer_without_rounding_is_float32() -> None:
    exact = torch.tensor([1 / 3], dtype=torch.float64)
    assert round_buffer(exact, 'none').item() == exact.float().item()
    assert round_buffer(exact, 'bf16').item() == 0.333984375


@pytest.mark.parametrize('rounding', ['BF16', '', 'fp16'])
def test_unknown_rounding_is_refused(rounding: str) -> None:
    with pytest.raises(ConfigError, match='bf16, none') as caught:
        round_action_space(SPACE, rounding)
    assert caught.value.field == 'buffer_rounding'
