# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
import json
from pathlib import Path
from typing import Any

import pytest

from alpamayo_node.contracts import ActionSpace
from alpamayo_node.errors import ConfigError
from alpamayo_node.model.config import InProjConfig
from alpamayo_node.model.config import ModelConfig
from tests.model.builders import SPACE
from tests.model.builders import text_config
from tests.model.builders import tiny_config
from tests.model.builders import wide_config

EXPERT = 'expert_config.llm_config'
VLM = 'vlm_config.text_config'
SPACE_CFG = 'expert_config.action_space_cfg'
IN_PROJ_CFG = 'expert_config.action_in_proj_cfg'
DIFFUSION_CFG = 'expert_config.diffusion_cfg'


def released() -> dict[str, Any]:
    """The numbers of the released model, in the layout that its writers use."""
    text = {
        'model_type': 'qwen3_vl_text',
        'attention_bias': False,
        'hidden_act': 'silu',
        'num_hidden_layers': 64,
        'num_key_value_heads': 8,
        'head_dim': 128,
        'vocab_size': 155776,
        'max_position_embeddings': 262144,
        'rms_norm_eps': 1e-06,
        'rope_theta': 5000000,
        'rope_scaling': {
            'mrope_interleaved': True,
            'mrope_section': [24, 20, 20],
            'rope_type': 'default',
        },
    }
    widths = {
        'hidden_size': 1536,
        'intermediate_size': 6144,
        'num_attention_heads': 16,
        'head_dim': 128,
    }
    return {
        'model_type': 'alpamayo2_super',
        'cache_layer_indices': None,
        'cotrain_expert_vlm': False,
        'vlm_config': {
            'text_config': text
            | {'hidden_size': 5120, 'intermediate_size': 25600, 'num_attention_heads': 64}
        },
        'expert_config': {
            'llm_config': text | widths,
            'expert_update_cfg': widths,
            'expert_non_causal_attention': True,
            'action_space_cfg': {
                '_target_': 'alpamayo2_super.action_space.UnicycleAccelCurvatureActionSpace',
                'n_waypoints': 64,
                'dt': 0.1,
                'accel_bounds': [-9.8, 9.8],
                'curvature_bounds': [-0.33, 0.33],
                'accel_mean': 0.02902694707164455,
                'accel_std': 0.6810426736454882,
                'curvature_mean': 0.0002692167976330542,
                'curvature_std': 0.026148280660833106,
                'theta_lambda': 1e-06,
            },
            'diffusion_cfg': {
                '_target_': 'alpamayo2_super.diffusion.flow_matching.FlowMatching',
                'int_method': 'euler',
                'train_timestep_sampler': 'beta',
                'inference_guidance_weight': 3.0,
                'use_classifier_free_guidance': False,
            },
            'action_in_proj_cfg': {
                '_target_': 'alpamayo2_super.models.action_in_proj.PerWaypointActionInProjV2',
                'hidden_size': 512,
                'max_freq': 100.0,
                'num_enc_layers': 2,
                'num_fourier_feats': 20,
            },
            'action_out_proj_cfg': {'_target_': 'torch.nn.Linear'},
        },
    }


def place(values: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *sections, key = name.split('.')
    for section in sections:
        values = values[section]
    return values, key


def changed(name: str, value: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(released()))
    section, key = place(values, name)
    section[key] = value
    return values


def test_released_numbers_are_read() -> None:
    config = ModelConfig.from_dict(released())
    assert config == wide_config(64)
    assert (config.expert.q_dim, config.expert.kv_dim, config.expert.n_groups) == (2048, 1024, 2)
    assert config.n_steps == 10
    assert isinstance(config.action_space, ActionSpace)


@pytest.mark.parametrize('config', [tiny_config(), wide_config(4), tiny_config(n_steps=5)])
def test_written_config_is_read_back_equal(config: ModelConfig, tmp_path: Path) -> None:
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(config.to_dict()))
    assert ModelConfig.from_file(path) == config


def test_rope_numbers_in_one_object_are_read_alike() -> None:
    values = released()
    for name in (EXPERT, VLM):
        section, key = place(values, name)
        rope = section[key].pop('rope_scaling')
        section[key]['rope_parameters'] = rope | {'rope_theta': section[key].pop('rope_theta')}
    assert ModelConfig.from_dict(values) == wide_config(64)


@pytest.mark.parametrize(
    'name',
    [
        'vlm_config',
        VLM,
        'expert_config',
        EXPERT,
        IN_PROJ_CFG,
        SPACE_CFG,
        DIFFUSION_CFG,
        'expert_config.expert_non_causal_attention',
        *(
            f'{text}.{key}'
            for text in (EXPERT, VLM)
            for key in (
                'num_hidden_layers',
                'hidden_size',
                'intermediate_size',
                'num_attention_heads',
                'num_key_value_heads',
                'head_dim',
                'vocab_size',
                'max_position_embeddings',
                'rms_norm_eps',
                'rope_theta',
            )
        ),
        *(f'{IN_PROJ_CFG}.{key}' for key in ('hidden_size', 'num_enc_layers', 'max_freq')),
        f'{IN_PROJ_CFG}.num_fourier_feats',
        *(f'{SPACE_CFG}.{key}' for key in ('n_waypoints', 'dt', 'accel_bounds')),
        *(f'{SPACE_CFG}.{key}' for key in ('accel_mean', 'accel_std', 'curvature_bounds')),
        *(f'{SPACE_CFG}.{key}' for key in ('curvature_mean', 'curvature_std')),
    ],
)
def test_missing_key_is_named(name: str) -> None:
    values = json.loads(json.dumps(released()))
    section, key = place(values, name)
    del section[key]
    with pytest.raises(ConfigError, match='is missing') as caught:
        ModelConfig.from_dict(values)
    assert caught.value.field == name


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('model_type', 'alpamayo_r1'),
        ('cache_layer_indices', [0, 1, 2]),
        ('expert_config', []),
        ('expert_config.expert_non_causal_attention', False),
        ('expert_config.expert_non_causal_attention', 1),
        (f'{DIFFUSION_CFG}.use_classifier_free_guidance', True),
        (f'{DIFFUSION_CFG}.int_method', 'midpoint'),
        (f'{DIFFUSION_CFG}.num_inference_steps', 0),
        (f'{DIFFUSION_CFG}.num_inference_steps', 2.5),
        (f'{EXPERT}.num_hidden_layers', 63),
        (f'{EXPERT}.num_hidden_layers', '64'),
        (f'{EXPERT}.num_hidden_layers', 64.0),
        (f'{EXPERT}.num_key_value_heads', 4),
        (f'{EXPERT}.num_key_value_heads', 0),
        (f'{EXPERT}.num_attention_heads', 12),
        (f'{EXPERT}.num_attention_heads', True),
        (f'{EXPERT}.hidden_size', -1536),
        (f'{EXPERT}.rms_norm_eps', 0),
        (f'{EXPERT}.rms_norm_eps', float('nan')),
        (f'{EXPERT}.rope_theta', float('inf')),
        (f'{EXPERT}.rope_theta', None),
        (f'{EXPERT}.attention_bias', True),
        (f'{EXPERT}.hidden_act', 'gelu'),
        (f'{EXPERT}.rope_scaling.rope_type', 'yarn'),
        (f'{EXPERT}.rope_scaling.rope_theta', 1e6),
        (f'{EXPERT}.rope_scaling.mrope_section', [24, 20, 21]),
        (f'{EXPERT}.rope_scaling.mrope_section', [64]),
        (f'{VLM}.num_attention_heads', 60),
        ('expert_config.expert_update_cfg.hidden_size', 2048),
        ('expert_config.expert_update_cfg.head_dim', '128'),
        (f'{IN_PROJ_CFG}.num_fourier_feats', 21),
        (f'{IN_PROJ_CFG}.num_fourier_feats', 2),
        (f'{IN_PROJ_CFG}.num_enc_layers', 0),
        (f'{IN_PROJ_CFG}.max_freq', -1.0),
        (f'{SPACE_CFG}.n_waypoints', 0),
        (f'{SPACE_CFG}.dt', 0.0),
        (f'{SPACE_CFG}.dt', -0.1),
        (f'{SPACE_CFG}.accel_std', 0.0),
        (f'{SPACE_CFG}.curvature_std', float('nan')),
        (f'{SPACE_CFG}.accel_mean', '0'),
        (f'{SPACE_CFG}.accel_bounds', [9.8, -9.8]),
        (f'{SPACE_CFG}.curvature_bounds', [0.1]),
    ],
)
def test_impossible_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(changed(name, value))
    assert caught.value.field == name
    assert str(caught.value).startswith(f'{name} = ')


def test_odd_head_dim_is_refused() -> None:
    values = changed(f'{EXPERT}.head_dim', 127)
    del values['expert_config']['expert_update_cfg']
    with pytest.raises(ConfigError, match='even') as caught:
        ModelConfig.from_dict(values)
    assert caught.value.field == f'{EXPERT}.head_dim'


def test_different_head_dims_are_refused() -> None:
    values = changed(f'{VLM}.head_dim', 64)
    values['vlm_config']['text_config']['rope_scaling']['mrope_section'] = [12, 10, 10]
    with pytest.raises(ConfigError, match=r'must equal vlm\.head_dim') as caught:
        ModelConfig.from_dict(values)
    assert caught.value.field == f'{EXPERT}.head_dim'


def test_guidance_is_refused_with_an_explanation() -> None:
    values = changed(f'{DIFFUSION_CFG}.use_classifier_free_guidance', value=True)
    with pytest.raises(ConfigError, match='second context'):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize('text', ['', '[1]', '{"model_type": ', '\x80'])
def test_file_that_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / 'config.json'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ConfigError, match='JSON'):
        ModelConfig.from_file(path)


def test_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'config\.json'):
        ModelConfig.from_file(tmp_path / 'config.json')


@pytest.mark.parametrize('name', ['n_layers', 'hidden', 'n_kv_heads', 'vocab', 'max_positions'])
@pytest.mark.parametrize('value', [0, -1, 1.0, True])
def test_text_config_of_impossible_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        text_config(**{name: value})
    assert caught.value.field == name


def test_in_proj_config_of_impossible_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match='max_freq'):
        InProjConfig(hidden=8, n_layers=1, n_features=8, max_freq=0.0)


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('n_waypoints', 0),
        ('dt_ns', 0),
        ('accel_std', -1.0),
        ('curvature_std', float('inf')),
        ('accel_bounds', (1.0, 1.0)),
    ],
)
def test_model_config_of_impossible_action_space_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_config(action_space=replace(SPACE, **{name: value}))
    assert caught.value.field == f'action_space.{name}'


def test_model_config_of_different_depths_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'expert\.n_layers = 2'):
        ModelConfig(text_config(), text_config(n_layers=3), tiny_config().in_proj, SPACE)
