# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import functional as F

from alpamayo_node.model.attention import Attention


def draw(
    n: int, n_heads: int, n_kv_heads: int, t: int, d: int, amplitude: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = amplitude * torch.randn((n, n_heads, d), generator=generator)
    k, v = torch.randn((2, n_kv_heads, t, d), generator=generator)
    return q, k, v


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as torch defines it, in float64: (N, heads D)."""
    result = F.scaled_dot_product_attention(
        q.double().transpose(0, 1)[None], k.double()[None], v.double()[None], enable_gqa=True
    )
    return result[0].transpose(0, 1).flatten(1)


def make(n: int, n_heads: int, n_kv_heads: int, d: int, dtype: torch.dtype) -> Attention:
    n_rows = n * n_heads // n_kv_heads
    return Attention(n_rows=n_rows, head_dim=d, max_keys=300, dtype=dtype)


@pytest.mark.parametrize(('n_heads', 'n_kv_heads'), [(4, 4), (4, 2), (8, 2), (6, 1)])
@pytest.mark.parametrize('t', [1, 37, 300])
def test_float32_equals_definition(n_heads: int, n_kv_heads: int, t: int) -> None:
    q, k, v = draw(16, n_heads, n_kv_heads, t, 32)
    got = make(16, n_heads, n_kv_heads, 32, torch.float32)(q, k, v)
    torch.testing.assert_close(got, exact(q, k, v).float(), rtol=0, atol=3e-6)


@pytest.mark.parametrize('amplitude', [1.0, 4.0, 16.0])
def test_bfloat16_is_as_accurate_as_the_fused_kernel_of_torch(amplitude: float) -> None:
    q, k, v = draw(64, 16, 8, 300, 128, amplitude)
    k, v = k.bfloat16(), v.bfloat16()
    expected = exact(q, k, v)
    got = make(64, 16, 8, 128, torch.bfloat16)(q, k, v)
    fused = F.scaled_dot_product_attention(
        q.bfloat16().transpose(0, 1)[None], k[None], v[None], enable_gqa=True
    )
    fused = fused[0].transpose(0, 1).flatten(1)
    error = float((got.double() - expected).norm() / expected.norm())
    fused_error = float((fused.double() - expected).norm() / expected.norm())
    assert got.dtype == torch.bfloat16
    # Scores rounded to bfloat16 would be worse by a factor of 1.6 to 3.
    assert error <= 1.2 * fused_error


def test_scores_far_apart_do_not_overflow() -> None:
    q, k, v = draw(16, 4, 2, 37, 32, amplitude=1e4)
    for dtype in (torch.float32, torch.bfloat16):
        got = make(16, 4, 2, 32, dtype)(q, k.to(dtype), v.to(dtype))
        assert torch.isfinite(got).all()


def test_permission_for_narrow_products_is_given_back() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    q, k, v = draw(16, 4, 2, 37, 32)
    make(16, 4, 2, 32, torch.bfloat16)(q, k.bfloat16(), v.bfloat16())
    assert torch.backends.mkldnn.matmul.fp32_precision == before
    with pytest.raises(RuntimeError):
        make(16, 4, 2, 32, torch.bfloat16)(q, k.bfloat16()[:, :, :8], v.bfloat16())
    assert torch.backends.mkldnn.matmul.fp32_precision == before
