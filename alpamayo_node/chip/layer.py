# SPDX-License-Identifier: Apache-2.0
"""
One decoder layer as ops of the chip: the unit that a fused kernel can replace.

    x -> norm -> qkv -> heads -> head norms -> rope -> own rows into the cache
      -> attention over cache and mask -> o -> + x
      -> norm -> silu(gate) * up -> down -> + x

Activations are bf16 in DRAM. Every op goes through a `Run`, so that a benchmark can time the very
ops that a trajectory issues.

Axes: N own tokens, H hidden, G key-value heads, R query heads of a group, D head channels.
"""

from collections.abc import Callable
from typing import Any
from typing import Protocol

import ttnn

from alpamayo_node.chip.context import StepInputs
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.programs import Grid
from alpamayo_node.chip.programs import attention_kernel
from alpamayo_node.chip.programs import attention_program
from alpamayo_node.chip.programs import matmul_kernel
from alpamayo_node.chip.programs import matmul_programs
from alpamayo_node.chip.weights import LayerWeights
from alpamayo_node.model.config import TextConfig

type Run = Callable[[str, Callable[[], Any]], Any]
"""Issues a named op."""


def run_once(name: str, op: Callable[[], Any]) -> Any:
    """
    Issue an op.

    :param name: for those who time or count; unused here
    :param op: issues it and gives its result
    :return: the result
    """
    return op()


class LayerFunction(Protocol):
    """What stands at the seam: any implementation of one layer."""

    def __call__(
        self, weights: LayerWeights, x: ttnn.Tensor, keys: ttnn.Tensor, values: ttnn.Tensor
    ) -> ttnn.Tensor:
        """
        Run a layer.

        :param weights: of the layer
        :param x: (1, 1, N, H) bf16; neither changed nor freed
        :param keys: (1, G, Smax, D), the layer's cache; the own rows are overwritten
        :param values: alike
        :return: a new tensor like x
        """


class DecoderLayer:
    """The layer as the original device code has it, op for op."""

    def __init__(
        self,
        text: TextConfig,
        options: ChipOptions,
        grid: Grid,
        inputs: StepInputs,
        n_tokens: int,
        own_row: int,
    ) -> None:
        """
        Compute programs.

        :param text: sizes of the layer
        :param options: formats, attention mode, chunk sizes
        :param grid: cores of the chip
        :param inputs: rope tables and mask that every layer reads
        :param n_tokens: N
        :param own_row: first own row in the cache
        :raises ConfigError: the grid is too small for tuned programs
        """
        self._text = text
        self._options = options
        self._inputs = inputs
        self._n_tokens = n_tokens
        self._own_row = own_row
        self._programs = matmul_programs(text, n_tokens, grid) if options.is_tuned else None
        self._matmul_kernel = matmul_kernel()
        self._attention_program = attention_program(options, grid)
        self._attention_kernel = attention_kernel()

    def __call__(
        self,
        weights: LayerWeights,
        x: ttnn.Tensor,
        keys: ttnn.Tensor,
        values: ttnn.Tensor,
        run: Run = run_once,
    ) -> ttnn.Tensor:
        """
        Run the layer; see `LayerFunction`.

        :param run: issues each op
        """
        attended = self._attend(weights, x, keys, values, run)
        after_attention = run('add_attention', lambda: _add(x, attended))
        attended.deallocate()
        transformed = self._transform(weights, after_attention, run)
        result = run('add_mlp', lambda: _add(after_attention, transformed))
        after_attention.deallocate()
        transformed.deallocate()
        return result

    def normalise(self, x: ttnn.Tensor, weight: ttnn.Tensor) -> ttnn.Tensor:
        """
        Apply RMSNorm over the last axis.

        :param x: (..., width)
        :param weight: (1, 1, 1, width)
        :return: like x
        """
        # ttnn's default arithmetic: exact enough for two row tiles, and faster than HiFi4.
        return ttnn.rms_norm(x, epsilon=self._text.rms_eps, weight=weight)

    def _attend(
        self,
        weights: LayerWeights,
        x: ttnn.Tensor,
        keys: ttnn.Tensor,
        values: ttnn.Tensor,
        run: Run,
    ) -> ttnn.Tensor:
        query = self._project_and_store(weights, x, keys, values, run)
        mixed = run('attention', lambda: self._attention(query, keys, values))
        query.deallocate()
        joined = run('concat_heads', lambda: _concat_heads(mixed))
        mixed.deallocate()
        attended = run('o', lambda: self._linear(joined, weights.o, 'o'))
        joined.deallocate()
        return attended

    def _project_and_store(
        self,
        weights: LayerWeights,
        x: ttnn.Tensor,
        keys: ttnn.Tensor,
        values: ttnn.Tensor,
        run: Run,
    ) -> ttnn.Tensor:
        """Write the own keys and values into the cache; give the rotated queries."""
        text = self._text
        h = run('input_norm', lambda: self.normalise(x, weights.input_norm))
        qkv = run('qkv', lambda: self._linear(h, weights.qkv, 'qkv'))
        h.deallocate()
        q, k, v = run(
            'split_heads',
            lambda: ttnn.experimental.nlp_create_qkv_heads(
                qkv,
                num_heads=text.n_heads,
                num_kv_heads=text.n_kv_heads,
                transpose_k_heads=False,
                memory_config=ttnn.DRAM_MEMORY_CONFIG,
            ),
        )
        qkv.deallocate()
        query = self._normalise_and_rotate(q, weights.q_norm, 'q', run)
        key = self._normalise_and_rotate(k, weights.k_norm, 'k', run)
        for name, cache, rows in (('k', keys, key), ('v', values, v)):
            self._store(name, cache, rows, run)
        return query

    def _normalise_and_rotate(
        self, heads: ttnn.Tensor, weight: ttnn.Tensor, name: str, run: Run
    ) -> ttnn.Tensor:
        normal = run(f'{name}_norm', lambda: self.normalise(heads, weight))
        heads.deallocate()
        inputs = self._inputs
        rotated = run(
            f'{name}_rope',
            lambda: ttnn.experimental.rotary_embedding_hf(
                normal, inputs.cos, inputs.sin, is_decode_mode=False
            ),
        )
        normal.deallocate()
        return rotated

    def _store(self, name: str, cache: ttnn.Tensor, rows: ttnn.Tensor, run: Run) -> None:
        """Overwrite the cache's own rows, and free what was written."""
        if rows.dtype != cache.dtype:
            converted = run(f'{name}_typecast', lambda: ttnn.typecast(rows, cache.dtype))
            rows.deallocate()
        else:
            converted = rows
        run(
            f'{name}_fill',
            lambda: ttnn.fill_cache(cache, converted, 0, update_idx=self._own_row),
        )
        converted.deallocate()

    def _attention(
        self, query: ttnn.Tensor, keys: ttnn.Tensor, values: ttnn.Tensor
    ) -> ttnn.Tensor:
        """
        Attend to all rows of the cache that the mask shows.

        Folded, the queries (1, G R, N, D) are seen as (1, G, R N, D), without a copy: rows of one
        key-value head. Decode mode takes each key-value head for a user of its own, with one head
        in its cache and R N queries.
        """
        text, inputs = self._text, self._inputs
        shared = {
            'is_causal': False,
            'attn_mask': inputs.mask,
            'scale': text.head_dim**-0.5,
            'program_config': self._attention_program,
            'compute_kernel_config': self._attention_kernel,
            'memory_config': ttnn.DRAM_MEMORY_CONFIG,
        }
        split = (1, text.n_heads, self._n_tokens, text.head_dim)
        if not self._options.folds_heads:
            return ttnn.transformer.scaled_dot_product_attention(query, keys, values, **shared)
        folded = (1, text.n_kv_heads, text.n_groups * self._n_tokens, text.head_dim)
        query = ttnn.view(query, folded)
        if self._options.attention == 'decode':
            users = (text.n_kv_heads, 1, int(keys.shape[2]), text.head_dim)
            mixed = ttnn.transformer.scaled_dot_product_attention_decode(
                query, ttnn.view(keys, users), ttnn.view(values, users), **shared
            )
        else:
            mixed = ttnn.transformer.scaled_dot_product_attention(query, keys, values, **shared)
        return ttnn.view(mixed, split)

    def _transform(self, weights: LayerWeights, x: ttnn.Tensor, run: Run) -> ttnn.Tensor:
        h = run('mlp_norm', lambda: self.normalise(x, weights.mlp_norm))
        gate = run('gate', lambda: self._linear(h, weights.gate, 'gate'))
        up = run('up', lambda: self._linear(h, weights.up, 'up'))
        h.deallocate()
        product = run(
            'multiply',
            lambda: ttnn.multiply(gate, up, memory_config=ttnn.DRAM_MEMORY_CONFIG),
        )
        gate.deallocate()
        up.deallocate()
        result = run('down', lambda: self._linear(product, weights.down, 'down'))
        product.deallocate()
        return result

    def _linear(self, x: ttnn.Tensor, weight: ttnn.Tensor, name: str) -> ttnn.Tensor:
        """Multiply; the gate's SiLU is part of the program, or of ttnn's choice of one."""
        if self._programs is not None:
            chosen = {'program_config': getattr(self._programs, name)}
        else:
            chosen = {'activation': 'silu' if name == 'gate' else None}
        return ttnn.linear(
            x,
            weight,
            dtype=ttnn.bfloat16,
            compute_kernel_config=self._matmul_kernel,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
            **chosen,
        )


def _add(a: ttnn.Tensor, b: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.add(a, b, memory_config=ttnn.DRAM_MEMORY_CONFIG)


def _concat_heads(heads: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.experimental.nlp_concat_heads(heads, memory_config=ttnn.DRAM_MEMORY_CONFIG)
