# SPDX-License-Identifier: Apache-2.0
"""
Attend to a long cache with few queries, on a CPU.

Query heads that share a key-value head are folded together, so each head is two matrix products
with 128 columns for the released model, and the cache is read once. Everything is transposed, keys
along the rows, because oneDNN multiplies fastest that way; values come transposed from the cache.
Softmax is computed in float32.

In bfloat16, these products are twice as fast as torch's fused kernel on processors without matrix
units, but they round scores to bfloat16, and a score of 50 would be off by 0.1. Softmax does not
change when all scores of a query move together, so each query's scores are moved close to zero at
their top: by the largest of the scores against the first 64 visible rows (where attention sinks
are) and against the expert's own, subtracted inside the product, before the rounding. The rounding
error that remains grows with the distance from there, where weights fade. docs/benchmarks.md
compares it with the fused kernel's error, which is mostly the rounding of queries.

Axes: G key-value heads, R query heads per key-value head, N queries, T keys, D head channels.
"""

import torch

from alpamayo_node.model.linear import affine

_N_PROBED = 64


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """
    Mix values by the softmax of products of queries and keys; every query sees every key.

    :param queries: (N, G R, D) float32, rotated and scaled; heads g R to g R + R - 1 share keys g
    :param keys: (G, T, D), rotated, bfloat16 or float32
    :param values: (G, D, T), of the keys' dtype
    :return: (N, G R D), of the keys' dtype
    """
    (n, n_heads, d), n_kv_heads = queries.shape, len(keys)
    folded = queries.to(keys.dtype).view(n, n_kv_heads, -1, d).permute(1, 2, 0, 3)
    folded = folded.reshape(n_kv_heads, -1, d)
    probed = torch.cat([keys[:, :_N_PROBED], keys[:, -_N_PROBED:]], dim=1)
    shifts = -torch.bmm(probed, folded.transpose(1, 2)).amax(1)
    mixed = torch.empty((n_kv_heads, d, folded.shape[1]), dtype=keys.dtype)
    for i_head in range(n_kv_heads):
        weights = affine(keys[i_head], folded[i_head], shifts[i_head])
        # In place is safe: a column's largest score is found before any of it is written.
        torch.softmax(weights, 0, out=weights)
        torch.mm(values[i_head], weights, out=mixed[i_head])
    # Two copies with rows that stay whole are faster than one that gathers single channels.
    rows = mixed.transpose(1, 2).contiguous().view(n_kv_heads, -1, n, d)
    return rows.permute(2, 0, 1, 3).reshape(n, n_heads * d)
