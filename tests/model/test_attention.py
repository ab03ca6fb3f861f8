# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from alpamayo_node.model import linear as linear_module
from alpamayo_node.model.attention import attend
from alpamayo_node.model.linear import Linear
from alpamayo_node.model.linear import _is_served
from alpamayo_node.model.linear import affine


def draw(
    n: int, n_heads: int, n_kv_heads: int, t: int, d: int, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scaled queries, keys and values; scores scatter by the amplitude."""
    generator = torch.Generator().manual_seed(0)
    q = amplitude * d**-0.5 * torch.randn((n, n_heads, d), generator=generator)
    k, v = torch.randn((2, n_kv_heads, t, d), generator=generator)
    return q, k, v


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q, k, v.transpose(1, 2).contiguous())


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as torch defines it, in float64: (N, heads D)."""
    result = F.scaled_dot_product_attention(
        q.double().transpose(0, 1)[None],
        k.double()[None],
        v.double()[None],
        scale=1.0,
        enable_gqa=True,
    )
    return result[0].transpose(0, 1).flatten(1)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(('n_heads', 'n_kv_heads'), [(4, 4), (4, 2), (8, 2), (6, 1)])
@pytest.mark.parametrize('t', [1, 37, 63, 64, 65, 300])
def test_float32_equals_definition(n_heads: int, n_kv_heads: int, t: int) -> None:
    q, k, v = draw(16, n_heads, n_kv_heads, t, 32)
    torch.testing.assert_close(run(q, k, v), exact(q, k, v).float(), rtol=0, atol=3e-6)


# Measured: 1.3 times the fused kernel's error; scores rounded as they are: 1.6, 2.8, 2.9 times.
@pytest.mark.parametrize(('amplitude', 'factor'), [(1.0, 1.5), (4.0, 1.6), (16.0, 1.6)])
def test_bfloat16_keeps_close_to_the_fused_kernel_of_torch(
    amplitude: float, factor: float
) -> None:
    q, k, v = draw(64, 16, 8, 2000, 128, amplitude)
    k, v = k.bfloat16(), v.bfloat16()
    fused = F.scaled_dot_product_attention(
        q.bfloat16().transpose(0, 1)[None], k[None], v[None], scale=1.0, enable_gqa=True
    )
    fused = fused[0].transpose(0, 1).flatten(1)
    got = run(q, k, v)
    assert got.dtype == torch.bfloat16
    assert error(got, exact(q, k, v)) < factor * error(fused, exact(q, k, v))


@pytest.mark.parametrize('offset', [-200.0, 200.0])
def test_scores_that_move_together_do_not_matter(offset: float) -> None:
    q, k, v = draw(64, 4, 2, 300, 128)
    q, k, v = q.bfloat16().float(), k.bfloat16(), v.bfloat16()
    plain = run(q, k, v)
    q[..., 0], k[..., 0] = 1.0, 0.0
    centred = exact(q, k, v)
    k[..., 0] = offset
    # Rounded as they are, scores around 200 would be off by half.
    assert error(run(q, k, v), centred) < 1.5 * max(error(plain, exact(*draw_rounded())), 4e-3)


def draw_rounded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = draw(64, 4, 2, 300, 128)
    return q.bfloat16().float(), k.bfloat16(), v.bfloat16()


@pytest.mark.parametrize('rows', [slice(0, 64), slice(236, 300)])
def test_high_scores_at_either_end_are_told_apart(rows: slice) -> None:
    q, k, v = draw(64, 4, 2, 300, 128)
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[:, rows, 0] = 200.0
    q, k, v = q.bfloat16().float(), k.bfloat16(), v.bfloat16()
    assert error(run(q, k, v), exact(q, k, v)) < 5e-3


@pytest.mark.parametrize('position', [0, 63, 150, 299])
def test_one_dominant_key_wins_wherever_it_is(position: int) -> None:
    q, k, v = draw(16, 4, 2, 300, 32)
    k[:, position] = 100.0 * q[0, :2].bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        got = run(q, k.to(dtype), v.to(dtype))
        assert error(got, exact(q.to(dtype), k.to(dtype), v.to(dtype))) < 0.03
        assert torch.isfinite(got).all()


def test_scores_far_apart_do_not_overflow() -> None:
    q, k, v = draw(16, 4, 2, 37, 32, amplitude=1e5)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.isfinite(run(q, k.to(dtype), v.to(dtype))).all()


def test_strided_views_are_read_like_copies() -> None:
    q, k, v = draw(16, 4, 2, 100, 32)
    keys = torch.full((2, 130, 32), torch.nan)
    values = torch.full((2, 32, 170), torch.nan)
    keys[:, 7:107], values[:, :, 7:107] = k, v.transpose(1, 2)
    assert torch.equal(attend(q, keys[:, 7:107], values[:, :, 7:107]), run(q, k, v))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_products_equal_definitions_with_and_without_onednn(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, factor = torch.randn((2, 64, 48), generator=generator).to(dtype)
    weight = (torch.randn((48, 48), generator=generator) / 7).to(dtype)
    bias = factor[0]
    exact_product = x.double() @ weight.double().T
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    for is_packed in (True, False) if _is_served(dtype) else (False,):
        monkeypatch.setattr(linear_module, '_is_served', lambda dtype, now=is_packed: now)
        linear = Linear(weight, 64)
        assert error(linear(x), exact_product) < tolerance
        assert error(linear.silu(x), F.silu(exact_product)) < tolerance
        assert error(linear.times(x, factor), exact_product * factor.double()) < tolerance
        assert error(affine(x, weight, bias), exact_product + bias.double()) < tolerance


@pytest.mark.parametrize('has_bfloat16', [True, False])
def test_products_in_bfloat16_are_packed_only_where_the_processor_can(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without AVX-512 oneDNN refuses bfloat16; float32 it multiplies everywhere."""
    operators = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: has_bfloat16)
    monkeypatch.setattr(linear_module, '_mkldnn', operators)
    assert _is_served(torch.bfloat16) is (has_bfloat16 and _is_served(torch.float32))
