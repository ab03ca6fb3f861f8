# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from alpamayo_node.model.kv_cache import KvCache


def make_cache(dtype: torch.dtype = torch.float32) -> KvCache:
    return KvCache(n_layers=2, n_kv_heads=3, head_dim=4, max_rows=16, n_own=5, dtype=dtype)


def rows(n_rows: int, start: float) -> torch.Tensor:
    return start + torch.arange(3 * n_rows * 4, dtype=torch.float32).reshape(3, n_rows, 4)


@pytest.mark.parametrize(('n_rows', 'left_pad'), [(7, 0), (7, 3), (16, 0), (16, 15), (1, 0)])
def test_visible_rows_are_context_then_own(n_rows: int, left_pad: int) -> None:
    cache = make_cache()
    cache.set_window(n_rows, left_pad)
    for i_layer in range(2):
        cache.load(i_layer, rows(n_rows, 100.0 * i_layer), rows(n_rows, 1000.0 * i_layer))
        own = rows(5, -500.0 - i_layer)
        cache.store_own(i_layer, own.transpose(0, 1), -own.transpose(0, 1))
    for i_layer in range(2):
        own = rows(5, -500.0 - i_layer)
        keys, values = cache.visible(i_layer)
        expected = rows(n_rows, 100.0 * i_layer)[:, left_pad:]
        assert torch.equal(keys, torch.cat([expected, own], dim=1))
        expected = rows(n_rows, 1000.0 * i_layer)[:, left_pad:]
        assert torch.equal(values, torch.cat([expected, -own], dim=1).transpose(1, 2))


def test_visible_rows_are_views_of_one_buffer() -> None:
    cache = make_cache()
    cache.set_window(7, 2)
    first = cache.visible(0)
    cache.set_window(12, 0)
    second = cache.visible(0)
    for before, after in zip(first, second, strict=True):
        assert before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()
    n_elements = 3 * (16 + 5) * 4
    assert first[0].untyped_storage().nbytes() == 4 * n_elements
    assert first[1].untyped_storage().nbytes() == 4 * (n_elements + 3 * 4 * 32)


def test_shorter_context_after_longer_shows_nothing_of_it() -> None:
    cache = make_cache()
    cache.set_window(16, 0)
    cache.load(0, rows(16, 0.0) + torch.nan, rows(16, 0.0) + torch.nan)
    cache.set_window(4, 0)
    cache.load(0, rows(4, 0.0), rows(4, 0.0))
    cache.store_own(0, torch.zeros(5, 3, 4), torch.zeros(5, 3, 4))
    keys, values = cache.visible(0)
    assert keys.shape == (3, 9, 4)
    assert torch.isfinite(keys).all()
    assert torch.isfinite(values).all()


def test_hidden_rows_are_not_even_copied() -> None:
    cache = make_cache()
    cache.set_window(8, 0)
    cache.load(0, torch.zeros(3, 8, 4), torch.zeros(3, 8, 4))
    cache.set_window(8, 3)
    poisoned = rows(8, 0.0)
    poisoned[:, :3] = torch.nan
    cache.load(0, poisoned, poisoned)
    cache.set_window(8, 0)
    assert torch.equal(cache.visible(0)[0][:, :3], torch.zeros(3, 3, 4))


def test_wider_context_is_rounded_to_the_cache_dtype() -> None:
    cache = make_cache(torch.bfloat16)
    cache.set_window(2, 0)
    cache.load(0, rows(2, 1 / 3), rows(2, 0.0))
    assert torch.equal(cache.visible(0)[0][:, :2], rows(2, 1 / 3).to(torch.bfloat16))
