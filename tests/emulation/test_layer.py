# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
import torch
import ttnn

from alpamayo_node.chip.timing import time_layer
from alpamayo_node.chip.timing import time_ops
from alpamayo_node.chip.timing import time_step
from alpamayo_node.chip.weights import LayerWeights
from alpamayo_node.errors import ConfigError
from tests.emulation.experts import chip_expert
from tests.emulation.experts import device_of
from tests.emulation.experts import sample
from tests.model.builders import RandomContext
from tests.model.builders import never
from tests.model.builders import noise
from tests.model.builders import text_config
from tests.model.builders import tiny_config
from tests.model.builders import write_checkpoint

CONFIG = tiny_config()
# By the name it is timed under, the op of ttnn.
OPS = {
    'input_norm': 'rms_norm',
    'qkv': 'linear',
    'split_heads': 'nlp_create_qkv_heads',
    'q_norm': 'rms_norm',
    'q_rope': 'rotary_embedding_hf',
    'k_norm': 'rms_norm',
    'k_rope': 'rotary_embedding_hf',
    'k_fill': 'fill_cache',
    'v_fill': 'fill_cache',
    'attention': 'scaled_dot_product_attention_decode',
    'concat_heads': 'nlp_concat_heads',
    'o': 'linear',
    'add_attention': 'add',
    'mlp_norm': 'rms_norm',
    'gate': 'linear',
    'up': 'linear',
    'multiply': 'multiply',
    'down': 'linear',
    'add_mlp': 'add',
}


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp('tiny'), CONFIG)


def test_layer_is_nineteen_ops(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.network.run_layers(torch.zeros(64, 64), [0])
    assert device_of(expert).op_log == list(OPS.values())


def test_layer_converts_its_rows_for_a_cache_of_another_format(directory: Path) -> None:
    expert = chip_expert(directory, cache_dtype='bfp8')
    expert.network.run_layers(torch.zeros(64, 64), [0])
    ops = device_of(expert).op_log
    assert len(ops) == 21
    assert ops.count('typecast') == 2


@pytest.mark.parametrize('cache_dtype', ['bf16', 'bfp8'])
@pytest.mark.parametrize('is_tuned', [True, False])
@pytest.mark.parametrize('attention', ['decode', 'standard'])
def test_layer_leaves_no_memory_behind(
    attention: str, is_tuned: bool, cache_dtype: str, directory: Path
) -> None:
    expert = chip_expert(
        directory, attention=attention, is_tuned=is_tuned, cache_dtype=cache_dtype
    )
    device = device_of(expert)
    live = dict(device.live)
    expert.network.run_layers(torch.zeros(64, 64), [0, 1], has_norm=True)
    assert device.live == live


def test_another_layer_can_take_the_place(directory: Path) -> None:
    """A fused kernel stands where the layer does; buffers, context and trace stay."""
    expert = chip_expert(directory)
    expert.load(RandomContext(CONFIG, 100), never)
    calls = []

    def identity(
        weights: LayerWeights, x: ttnn.Tensor, keys: ttnn.Tensor, values: ttnn.Tensor
    ) -> ttnn.Tensor:
        calls.append(keys.shape)
        return ttnn.add(x, x, memory_config=ttnn.DRAM_MEMORY_CONFIG)

    expert.network.layer_function = identity
    tokens = torch.randn(64, 64)
    assert torch.equal(expert.network.run_layers(tokens, [0, 1]), 4 * tokens.bfloat16().float())
    assert calls == [(1, 2, 384, 32)] * 2
    assert np.isfinite(sample(expert, noise())).all()


@pytest.mark.parametrize(
    ('changes', 'name'),
    [
        ({'hidden': 80}, 'expert.hidden'),
        ({'intermediate': 100}, 'expert.intermediate'),
        ({'head_dim': 24, 'mrope_section': (4, 4, 4)}, 'expert.head_dim'),
    ],
)
def test_sizes_that_fill_no_tiles_are_refused_by_name(
    changes: dict[str, int], name: str, tmp_path: Path
) -> None:
    shared = {
        key: value for key, value in changes.items() if key not in ('hidden', 'intermediate')
    }
    config = tiny_config(
        expert=text_config(**changes), vlm=text_config(**({'hidden': 128, 'n_heads': 8} | shared))
    )
    with pytest.raises(ConfigError, match=f'{name} = .*multiple of 32'):
        chip_expert(write_checkpoint(tmp_path / 'odd', config))


def test_times_name_every_op_and_leave_the_expert_as_it_was(directory: Path) -> None:
    expert = chip_expert(directory)
    expert.self_test(never)
    expert.load(RandomContext(CONFIG, 100), never)
    expected = sample(expert, noise())
    device = device_of(expert)
    n_live = len(device.live)
    assert list(time_ops(expert.network, 0, 3)) == list(OPS)
    assert time_layer(expert.network, 1, 3) > 0
    step = time_step(expert.network, 3)
    assert step.n_layers == 2
    assert 0 < step.min_ms <= step.median_ms <= step.max_ms
    assert len(device.live) == n_live
    assert np.array_equal(sample(expert, noise()), expected)
