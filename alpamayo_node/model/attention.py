# SPDX-License-Identifier: Apache-2.0
"""
Attend to a long cache with few queries, on a CPU.

Query heads that share a key-value head are folded into rows, so each head is two matrix products
with 128 rows for the released model, and the cache is read once. Scores and softmax are float32 as
in the reference: scores that are rounded to bfloat16 cost three times the error once they reach
the tens (benchmarks/attention_error.py). One head's scratch is allocated once and reused.

In bfloat16, keys are widened into scratch and multiplied as float32 with torch's permission to use
bfloat16 products, which is exact for them and lets oneDNN do the work; it is faster than both
torch's fused kernel and its float32 product. The permission is process-wide and is given back
after each call.

Axes: G key-value heads, R query heads per key-value head, N queries, T keys, D head channels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def _products_in_bfloat16() -> Iterator[None]:
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = 'bf16'
    try:
        yield
    finally:
        matmul.fp32_precision = before


class Attention:
    """Softmax attention without a mask: every query sees every key that it is given."""

    def __init__(self, *, n_rows: int, head_dim: int, max_keys: int, dtype: torch.dtype) -> None:
        """
        Reserve the scratch of one key-value head.

        :param n_rows: R times N
        :param head_dim: D
        :param max_keys: largest T
        :param dtype: of keys, values and the result, bfloat16 or float32
        """
        self._dtype = dtype
        self._scale = head_dim**-0.5
        self._scores = torch.empty(n_rows * max_keys)
        self._weights = torch.empty(n_rows * max_keys)
        self._narrow_weights = torch.empty(n_rows * max_keys, dtype=dtype)
        self._wide_keys = torch.empty(max_keys, head_dim)

    def __call__(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """
        Mix values by the softmax of scaled products of queries and keys.

        :param queries: (N, G R, D) float32, rotated; heads g R to g R + R - 1 share keys g
        :param keys: (G, T, D), rotated
        :param values: (G, T, D)
        :return: (N, G R D), of the dtype of keys and values
        """
        (n, n_heads, d), n_kv_heads = queries.shape, len(keys)
        scaled = (queries * self._scale).to(self._dtype).to(torch.float32)
        folded = scaled.view(n, n_kv_heads, -1, d).permute(1, 2, 0, 3).reshape(n_kv_heads, -1, d)
        out = torch.empty(folded.shape, dtype=self._dtype)
        attend = self._attend if self._dtype == torch.float32 else self._attend_narrow
        for head in zip(folded, keys, values, out, strict=True):
            attend(*head)
        return out.view(n_kv_heads, -1, n, d).permute(2, 0, 1, 3).reshape(n, n_heads * d)

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        """One head, all float32: (R N, D), (T, D), (T, D) -> (R N, D)."""
        scores, weights = self._scratch(len(queries), len(keys))
        torch.mm(queries, keys.T, out=scores)
        torch.softmax(scores, -1, out=weights)
        torch.mm(weights, values, out=out)

    def _attend_narrow(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        """One head, queries float32 that bfloat16 can hold, the rest bfloat16."""
        scores, weights = self._scratch(len(queries), len(keys))
        wide_keys = self._wide_keys[: len(keys)].copy_(keys)
        with _products_in_bfloat16():
            torch.mm(queries, wide_keys.T, out=scores)
        torch.softmax(scores, -1, out=weights)
        narrow_weights = self._narrow_weights[: weights.numel()].view(weights.shape)
        torch.mm(narrow_weights.copy_(weights), values, out=out)

    def _scratch(self, n_rows: int, n_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and weights, (R N, T); rows lie close, whatever T is."""
        n = n_rows * n_keys
        return self._scores[:n].view(n_rows, n_keys), self._weights[:n].view(n_rows, n_keys)
