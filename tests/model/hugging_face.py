# SPDX-License-Identifier: Apache-2.0
"""
The same expert as `transformers` runs it: its Qwen3-VL text model with a prefix in its cache.

Axes: N own tokens, H hidden channels, G key-value heads, S context rows, D head channels.
"""

from collections.abc import Mapping

import torch
from transformers import DynamicCache
from transformers import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from alpamayo_node.contracts import KvSource
from alpamayo_node.model.checkpoint import EXPERT
from alpamayo_node.model.config import TextConfig


class HuggingFaceExpert:
    """Layers and final norm; the projections around them are not part of it."""

    def __init__(
        self, text: TextConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> None:
        config = Qwen3VLTextConfig(
            num_hidden_layers=text.n_layers,
            hidden_size=text.hidden,
            intermediate_size=text.intermediate,
            num_attention_heads=text.n_heads,
            num_key_value_heads=text.n_kv_heads,
            head_dim=text.head_dim,
            vocab_size=1,
            max_position_embeddings=text.max_positions,
            rms_norm_eps=text.rms_eps,
            rope_parameters={
                'rope_type': 'default',
                'rope_theta': text.rope_theta,
                'mrope_section': list(text.mrope_section),
                'mrope_interleaved': True,
            },
            attn_implementation='sdpa',
        )
        self._dtype = dtype
        self._model = Qwen3VLTextModel(config).to(dtype).eval()
        ours = {
            name.removeprefix(EXPERT): tensor.to(dtype)
            for name, tensor in tensors.items()
            if name.startswith(EXPERT)
        }
        missing = self._model.load_state_dict(ours, strict=False)
        assert missing.missing_keys == ['embed_tokens.weight']
        assert missing.unexpected_keys == []

    def load(self, source: KvSource) -> None:
        """Put a context into the cache; rows that are hidden must be finite here."""
        self._shape = source.shape
        self._cache = DynamicCache()
        for i_layer in range(source.shape.n_layers):
            keys, values = source.layer(i_layer)
            self._cache.update(keys[None].to(self._dtype), values[None].to(self._dtype), i_layer)

    @torch.inference_mode()
    def run(self, tokens: torch.Tensor) -> torch.Tensor:
        """(N, H) -> (N, H) float32 behind the final norm; the prefix is left as it was."""
        n, shape = len(tokens), self._shape
        positions = torch.arange(n) + shape.n_rows + shape.rope_delta
        mask = torch.zeros(1, 1, n, shape.n_rows + n, dtype=self._dtype)
        mask[..., : shape.left_pad] = torch.finfo(self._dtype).min
        result = self._model(
            inputs_embeds=tokens[None].to(self._dtype),
            position_ids=positions.expand(3, 1, n),
            attention_mask=mask,
            cache=self._cache,
            use_cache=True,
            is_causal=False,
        )
        self._cache.crop(-n)
        hidden: torch.Tensor = result.last_hidden_state[0].float()
        return hidden
