# SPDX-License-Identifier: Apache-2.0
"""
Compare the error of attention in bfloat16 with that of torch's fused kernel.

    python -m benchmarks.attention_error [--keys 4656]

Queries are float32 and scaled so that scores scatter by 1, 4 and 16; keys and values are bfloat16.
All errors are relative to float64 attention of the unrounded queries. "rounded scores" is what
matrix products in bfloat16 give without moving scores towards zero first.
"""

from argparse import ArgumentParser
import sys

import torch
from torch.nn import functional as F

from alpamayo_node.model.attention import attend
from benchmarks.machine import describe_machine

_N, _N_HEADS, _N_KV_HEADS, _D = 64, 16, 8, 128


def main() -> int:
    """
    Print one line of errors for each scatter.

    :return: exit code
    """
    parser = ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--keys', type=int, default=4656)
    n_keys = parser.parse_args().keys
    print(describe_machine())
    print(f'{n_keys} keys, {_N_HEADS} heads on {_N_KV_HEADS} of {_D} channels')
    generator = torch.Generator().manual_seed(0)
    unit = torch.randn((_N, _N_HEADS, _D), generator=generator) * _D**-0.5
    keys, values = torch.randn((2, _N_KV_HEADS, n_keys, _D), generator=generator).bfloat16()
    for scatter in (1.0, 4.0, 16.0):
        queries = scatter * unit
        exact = _fused(queries.double(), keys.double(), values.double())
        results = {
            'ours': attend(queries, keys, values.transpose(1, 2).contiguous()),
            'fused kernel': _fused(queries.bfloat16(), keys, values),
            'rounded scores': _with_rounded_scores(queries.bfloat16(), keys, values),
            'rounding of queries alone': _fused(
                queries.bfloat16().double(), keys.double(), values.double()
            ),
        }
        errors = {
            name: float((result.double() - exact).norm() / exact.norm())
            for name, result in results.items()
        }
        told = ', '.join(f'{name} {error:.2%}' for name, error in errors.items())
        print(f'scores scatter by {scatter:4.0f}: {told}')
    return 0


def _fused(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(N, heads, D), (G, T, D), (G, T, D) -> (N, heads D)."""
    result = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], scale=1.0, enable_gqa=True
    )
    return result[0].transpose(0, 1).flatten(1)


def _with_rounded_scores(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    n_groups = _N_HEADS // _N_KV_HEADS
    scores = queries.transpose(0, 1) @ keys.repeat_interleave(n_groups, 0).transpose(1, 2)
    mixed = torch.softmax(scores, -1) @ values.repeat_interleave(n_groups, 0)
    return mixed.transpose(0, 1).flatten(1)


if __name__ == '__main__':
    sys.exit(main())
