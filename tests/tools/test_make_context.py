# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alpamayo_node.errors import ConfigError
from alpamayo_node.model.checkpoint import Checkpoint
from alpamayo_node.model.context_file import FileStore
from alpamayo_node.model.context_file import read_context_info
from alpamayo_node.plan.history import HistoryLimits
from alpamayo_node.plan.history import ego_start
from alpamayo_node.tools.make_checkpoint import PRESETS
from alpamayo_node.tools.make_context import ContextSpec
from alpamayo_node.tools.make_context import embeddings_of
from alpamayo_node.tools.make_context import make_context
from alpamayo_node.tools.make_context import positions_of
from alpamayo_node.tools.make_context import text_model


@pytest.mark.parametrize(
    ('n_rows', 'rope_delta', 'left_pad'),
    [(50, 0, 0), (50, -49, 0), (320, -172, 0), (320, -172, 10), (4592, -3888, 0), (700, -650, 20)],
)
def test_positions_end_where_the_offset_says(n_rows: int, rope_delta: int, left_pad: int) -> None:
    spec = ContextSpec(n_rows=n_rows, rope_delta=rope_delta, left_pad=left_pad)
    positions = positions_of(spec)
    assert positions.shape == (3, 1, n_rows)
    # The expert's first token stands at S + rope_delta, right behind the last position in use.
    assert int(positions.max()) + 1 == n_rows + rope_delta
    real = positions[:, 0, left_pad:]
    assert int(real.min()) == 0


def test_positions_of_the_sample_clip_hold_whole_images() -> None:
    # 24 images of 180 tokens that advance positions by 18 each: 24 * 162 = 3888 are saved.
    positions = positions_of(ContextSpec(n_rows=4592, rope_delta=-3888))[:, 0]
    image = positions[:, :180]
    assert image[0].unique().tolist() == [0]
    assert image[1].unique().tolist() == list(range(10))
    assert image[2].unique().tolist() == list(range(18))
    assert positions[:, 24 * 180].tolist() == [24 * 18] * 3


@pytest.mark.parametrize(
    'changes',
    [
        {'n_rows': 0},
        {'left_pad': 320},
        {'left_pad': -1},
        {'rope_delta': 1},
        {'rope_delta': -320},
        {'left_pad': 200, 'rope_delta': -100},
        {'dtype': 'float16'},
    ],
)
def test_impossible_extent_is_refused_by_name(changes: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes)) if len(changes) == 1 else 'rope'):
        ContextSpec(**changes)


@pytest.mark.parametrize('left_pad', [0, 9])
def test_context_is_what_the_text_model_computes_token_by_token(
    tiny_model: Path, tmp_path: Path, left_pad: int
) -> None:
    # Recomputed without a cache and without padding: only the real tokens, in one causal pass.
    spec = ContextSpec(n_rows=70, rope_delta=-30, left_pad=left_pad, dtype='float32', seed=5)
    context = make_context(tiny_model / 'checkpoint', tmp_path / 'a.safetensors', spec, print)
    model = text_model(PRESETS['tiny'].vlm, spec.seed)
    kept: list[torch.Tensor] = []
    for layer in model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda m, i, out: kept.append(out))
    with torch.inference_mode():
        model(
            inputs_embeds=embeddings_of(spec, model.config.hidden_size)[:, left_pad:],
            position_ids=positions_of(spec)[..., left_pad:],
            use_cache=False,
        )
    source = FileStore(tmp_path).open(context)
    for i_layer, values in enumerate(kept):
        _, value = source.layer(i_layer)
        expected = values[0].view(70 - left_pad, 2, 32).transpose(0, 1)
        assert torch.allclose(value[:, left_pad:], expected, atol=1e-4, rtol=1e-3)
    source.close()


def test_context_keys_are_normed_to_the_head_width(tiny_model: Path) -> None:
    path = tiny_model / 'contexts'
    checkpoint = Checkpoint.open(tiny_model / 'checkpoint')
    assert checkpoint.config.vlm.head_dim == 32
    context = read_context_info(path / 'drive-0.safetensors')
    source = FileStore(path).open(context)
    for i_layer in range(context.shape.n_layers):
        key, _ = source.layer(i_layer)
        length = key.float().square().mean(dim=-1).sqrt()
        assert torch.allclose(length, torch.ones_like(length), atol=0.02)
    source.close()


def test_context_carries_a_history_that_is_accepted(tiny_model: Path) -> None:
    context = read_context_info(tiny_model / 'contexts' / 'drive-0.safetensors')
    start = ego_start(context.history, context.t0_ns, context.frame_id, HistoryLimits())
    assert start.speed_mps == pytest.approx(8.0, abs=0.05)


def test_context_of_a_wide_text_model_is_narrowed_but_keeps_heads_and_layers() -> None:
    wide = replace(PRESETS['super'].vlm, n_layers=1)
    model = text_model(wide, 0)
    assert model.config.hidden_size == 512
    assert model.config.num_key_value_heads == 8
    assert model.config.head_dim == 128


def test_text_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    text_model(PRESETS['tiny'].vlm, 7)
    assert torch.equal(torch.rand(3), expected)
