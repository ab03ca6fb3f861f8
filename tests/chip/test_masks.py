# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from alpamayo_node.chip.masks import HIDDEN
from alpamayo_node.chip.masks import mask_row


@pytest.mark.parametrize('left_pad', [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize('n_rows', range(192, 225))
def test_mask_shows_context_and_own_rows_and_nothing_else(n_rows: int, left_pad: int) -> None:
    row = mask_row(n_rows, left_pad, 384, 64)
    visible = {*range(left_pad, n_rows), *range(320, 384)}
    assert row.shape == (384,)
    assert {i for i, value in enumerate(row.tolist()) if value == 0.0} == visible
    assert set(row[row != 0].tolist()) == {HIDDEN}


def test_mask_of_a_full_cache_hides_nothing() -> None:
    assert not mask_row(320, 0, 384, 64).any()


def test_hidden_value_survives_every_format_and_the_softmax() -> None:
    value = torch.tensor(HIDDEN)
    assert value.bfloat16().isfinite()
    assert (value / 16).exp() == 0


@pytest.mark.parametrize(('n_rows', 'left_pad'), [(0, 0), (321, 0), (10, 10)])
def test_impossible_windows_are_caught(n_rows: int, left_pad: int) -> None:
    with pytest.raises(AssertionError):
        mask_row(n_rows, left_pad, 384, 64)
