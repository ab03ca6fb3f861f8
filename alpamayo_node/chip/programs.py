# SPDX-License-Identifier: Apache-2.0
"""
How each op is spread over the chip's cores, for any grid.

The expert has only 64 rows, two tiles, so each matmul gives every core all rows and a share of the
output's columns: the activations are broadcast, each weight is read once, by one core. All sizes
are in tiles of 32 x 32 unless their name says otherwise.
"""

from dataclasses import dataclass

import ttnn

from alpamayo_node.chip.options import TILE
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.config import TextConfig

_MAX_SUBBLOCK = 4
"""Output tiles that fit a core's registers with float32 accumulation."""
_BLOCK_W = 8
_BLOCK_W_DOWN = 48
"""The long inner side of the last matmul: fewer, longer reads."""
_L1_BUDGET_BYTES = 1_200_000
"""Of a core's 1.5 MB, what one matmul's buffers may take beside the firmware's own."""
_TILE_BYTES = 2 * TILE * TILE
"""A tile of bf16, the largest weight format; partial sums take twice as much."""


@dataclass(frozen=True)
class Grid:
    """Worker cores of a chip."""

    x: int
    y: int

    @property
    def n_cores(self) -> int:
        """How many there are."""
        return self.x * self.y


@dataclass(frozen=True)
class MatmulPlan:
    """How one matmul (rows, K) x (K, N) is cut."""

    block_w: int
    """Tiles of K that a core takes at a time."""
    per_core_n: int
    subblock_w: int

    @classmethod
    def fit(cls, n_tokens: int, k: int, n: int, n_cores: int, wanted_block_w: int) -> 'MatmulPlan':
        """
        Choose the largest blocks that divide K and fit a core's memory.

        :param n_tokens: rows
        :param k: inner side
        :param n: columns of the result
        :param n_cores: cores to spread over
        :param wanted_block_w: largest number of tiles of K at a time
        :return: the plan
        :raises ConfigError: the grid is too small for this matrix
        """
        m_tiles, k_tiles, n_tiles = n_tokens // TILE, k // TILE, n // TILE
        per_core_n = -(-n_tiles // n_cores)
        for block_w in range(min(wanted_block_w, k_tiles), 0, -1):
            streamed = 2 * block_w * (m_tiles + per_core_n) * _TILE_BYTES
            # The result, and its partial sums in float32.
            kept = 3 * m_tiles * per_core_n * _TILE_BYTES
            if k_tiles % block_w == 0 and streamed + kept <= _L1_BUDGET_BYTES:
                widths = range(min(per_core_n, _MAX_SUBBLOCK), 0, -1)
                subblock_w = next(width for width in widths if per_core_n % width == 0)
                return cls(block_w, per_core_n, subblock_w)
        rule = f"has too few cores for a matmul of {k} x {n}; use ttnn's own programs"
        raise ConfigError('chip.tuned_matmul', f'{n_cores} cores', rule)


@dataclass(frozen=True)
class MatmulPrograms:
    """One program a matrix; None leaves the choice to ttnn."""

    qkv: object | None = None
    o: object | None = None
    gate: object | None = None
    up: object | None = None
    down: object | None = None


def matmul_programs(text: TextConfig, n_tokens: int, grid: Grid) -> MatmulPrograms:
    """
    Compute the programs of a layer's five matmuls.

    :param text: sizes of the layer
    :param n_tokens: rows, N
    :param grid: cores of the chip
    :return: the programs; SiLU is fused into that of the gate
    :raises ConfigError: the grid is too small
    """

    def program(k: int, n: int, block_w: int = _BLOCK_W, activation: object = None) -> object:
        plan = MatmulPlan.fit(n_tokens, k, n, grid.n_cores, block_w)
        fused = ttnn.UnaryWithParam(activation) if activation is not None else None
        return ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
            compute_with_storage_grid_size=(grid.x, grid.y),
            in0_block_w=plan.block_w,
            out_subblock_h=1,
            out_subblock_w=plan.subblock_w,
            out_block_h=n_tokens // TILE,
            out_block_w=plan.per_core_n,
            per_core_M=n_tokens // TILE,
            per_core_N=plan.per_core_n,
            fuse_batch=True,
            fused_activation=fused,
            mcast_in0=True,
        )

    hidden, inner = text.hidden, text.intermediate
    return MatmulPrograms(
        qkv=program(hidden, text.q_dim + 2 * text.kv_dim),
        o=program(text.q_dim, hidden),
        gate=program(hidden, inner, activation=ttnn.UnaryOpType.SILU),
        up=program(hidden, inner),
        down=program(inner, hidden, _BLOCK_W_DOWN),
    )


def attention_program(options: ChipOptions, grid: Grid) -> object:
    """
    Compute the program of the attention op.

    :param options: mode and chunk sizes
    :param grid: cores of the chip
    :return: the program; the exponential is exact in both modes
    """
    shared = {
        'compute_with_storage_grid_size': ttnn.CoreCoord(grid.x, grid.y),
        'k_chunk_size': options.effective_k_chunk_rows,
        'exp_approx_mode': False,
    }
    if options.attention == 'decode':
        return ttnn.SDPAProgramConfig(q_chunk_size=TILE, max_cores_per_head_batch=16, **shared)
    return ttnn.SDPAProgramConfig(q_chunk_size=options.q_chunk_rows, **shared)


def matmul_kernel() -> object:
    """
    Configure the arithmetic of matmuls.

    :return: two passes over the mantissas (all of bf16 x bfp8), sums in float32
    """
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi2,
        math_approx_mode=False,
        fp32_dest_acc_en=True,
        packer_l1_acc=True,
    )


def attention_kernel() -> object:
    """
    Configure the arithmetic of attention.

    :return: two passes over the mantissas, exact functions, sums in float32: with real keys, sums
        in bf16 lose percents
    """
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=ttnn.MathFidelity.HiFi2,
        math_approx_mode=False,
        fp32_dest_acc_en=True,
        packer_l1_acc=False,
    )
