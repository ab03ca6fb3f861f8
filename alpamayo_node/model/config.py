# SPDX-License-Identifier: Apache-2.0
"""
Read the numbers of a model from its checkpoint's `config.json`, and refuse what cannot be.

Layout: `vlm_config.text_config` and `expert_config.llm_config` are Qwen3-VL text configurations;
`expert_config` also holds `expert_update_cfg` (the expert's widths once more), `action_space_cfg`,
`diffusion_cfg` and `action_in_proj_cfg`. `_target_` entries name Python classes and are ignored,
as is every key that is not named here.

Source of the key names: the classes of lucamodica/alpamayo2 @746350a7 (`models/expert.py`,
`models/action_in_proj.py`, `action_space/unicycle_accel_curvature.py`,
`diffusion/flow_matching.py`), whose constructor arguments these sections are, and public readings
of the released file. The file itself was not at hand when this was written.
"""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
import json
import math
from pathlib import Path
from typing import Any

from alpamayo_node.contracts import NS_PER_S
from alpamayo_node.contracts import ActionSpace
from alpamayo_node.errors import ConfigError

DEFAULT_N_STEPS = 10
_DEFAULT_MROPE_SECTION = (24, 20, 20)
_VLM = 'vlm_config.text_config'
_EXPERT = 'expert_config.llm_config'
_IN_PROJ = 'expert_config.action_in_proj_cfg'

_TEXT_KEYS = {
    'n_layers': 'num_hidden_layers',
    'hidden': 'hidden_size',
    'intermediate': 'intermediate_size',
    'n_heads': 'num_attention_heads',
    'n_kv_heads': 'num_key_value_heads',
    'head_dim': 'head_dim',
    'vocab': 'vocab_size',
    'max_positions': 'max_position_embeddings',
    'rms_eps': 'rms_norm_eps',
    'rope_theta': 'rope_theta',
    'mrope_section': 'rope_scaling.mrope_section',
}
_TEXT_COUNTS = tuple(_TEXT_KEYS)[:8]
_IN_PROJ_KEYS = {
    'hidden': 'hidden_size',
    'n_layers': 'num_enc_layers',
    'n_features': 'num_fourier_feats',
    'max_freq': 'max_freq',
}
_ACTION_NUMBERS = ('accel_mean', 'accel_std', 'curvature_mean', 'curvature_std')


@dataclass(frozen=True)
class TextConfig:
    """Sizes of a Qwen3-VL text transformer: the language model's, or the action expert's."""

    n_layers: int
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    """Given, never `hidden / n_heads`: the released expert has 1536, 16 and 128."""
    vocab: int
    max_positions: int
    rms_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int] = _DEFAULT_MROPE_SECTION
    """How many of a head's frequencies follow time, height and width; only the VLM needs it."""

    def __post_init__(self) -> None:
        for name in _TEXT_COUNTS:
            _require_count(name, getattr(self, name))
        for name in ('rms_eps', 'rope_theta'):
            _require_positive(name, getattr(self, name))
        if self.n_heads % self.n_kv_heads:
            raise ConfigError('n_heads', self.n_heads, f'must be a multiple of {self.n_kv_heads}')
        if self.head_dim % 2:
            raise ConfigError('head_dim', self.head_dim, 'must be even: rope turns pairs')
        if sum(self.mrope_section) != self.head_dim // 2:
            rule = f'must add up to half of head_dim, {self.head_dim // 2}'
            raise ConfigError('mrope_section', self.mrope_section, rule)

    @property
    def n_groups(self) -> int:
        """Query heads that share one key-value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def q_dim(self) -> int:
        """Width of all query heads together."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together; the values' is the same."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True)
class InProjConfig:
    """Sizes of the projection from noisy actions and time to the expert's tokens."""

    hidden: int
    n_layers: int
    """Linear layers in front of the last one."""
    n_features: int
    """Fourier features per scalar, half of them sines."""
    max_freq: float

    def __post_init__(self) -> None:
        for name in ('hidden', 'n_layers', 'n_features'):
            _require_count(name, getattr(self, name))
        if self.n_features % 2 or self.n_features < 4:
            raise ConfigError('n_features', self.n_features, 'must be even and at least 4')
        _require_positive('max_freq', self.max_freq)

    @property
    def n_freqs(self) -> int:
        """Frequencies per scalar."""
        return self.n_features // 2


@dataclass(frozen=True)
class ModelConfig:
    """Everything about the model that its tensors do not say themselves."""

    expert: TextConfig
    vlm: TextConfig
    in_proj: InProjConfig
    action_space: ActionSpace
    """As in the file; `buffers.round_action_space` gives what the released model runs."""
    n_steps: int = DEFAULT_N_STEPS
    """Euler steps that the model was released with."""

    def __post_init__(self) -> None:
        _require_count('n_steps', self.n_steps)
        _require_action_space(self.action_space)
        for name in ('n_layers', 'n_kv_heads', 'head_dim'):
            ours, theirs = getattr(self.expert, name), getattr(self.vlm, name)
            if ours != theirs:
                rule = f'must equal vlm.{name}, {theirs}: layer i reads the cache of layer i'
                raise ConfigError(f'expert.{name}', ours, rule)

    @classmethod
    def from_file(cls, path: Path) -> 'ModelConfig':
        """
        Read and check a checkpoint's `config.json`.

        :param path: the file
        :return: the configuration
        :raises ConfigError: unreadable, not JSON, or a value is missing, impossible or at odds
        """
        try:
            values = json.loads(path.read_text(encoding='utf-8'))
        except (OSError, ValueError) as error:
            raise ConfigError(path.name, str(path), f'must be a JSON file: {error}') from error
        if not isinstance(values, dict):
            raise ConfigError(path.name, type(values).__name__, 'must be a JSON object')
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> 'ModelConfig':
        """
        Check the parsed `config.json`.

        :param values: its root object
        :return: the configuration
        :raises ConfigError: a value is missing, impossible or at odds; named as in the file
        """
        root = _Section(values, '')
        expert = root.section('expert_config')
        _refuse_unsupported(root, expert)
        text = _read_text(expert.section('llm_config'))
        _require_same_widths(expert, text)
        vlm = _read_text(root.section('vlm_config').section('text_config'))
        in_proj = _read_in_proj(expert.section('action_in_proj_cfg'))
        space = _read_action_space(expert.section('action_space_cfg'))
        n_steps = _read_n_steps(expert.section('diffusion_cfg'))
        with _FileNames(
            {f'expert.{key}': f'{_EXPERT}.{name}' for key, name in _TEXT_KEYS.items()}
        ):
            return cls(text, vlm, in_proj, space, n_steps)

    def to_dict(self) -> dict[str, Any]:
        """
        Write the configuration as `from_dict` reads it, in the layout of a released `config.json`.

        :return: JSON values; keys that this package does not read are left out
        """
        expert = _write_text(self.expert)
        widths = ('head_dim', 'hidden_size', 'intermediate_size', 'num_attention_heads')
        return {
            'architectures': ['Alpamayo2Super'],
            'model_type': 'alpamayo2_super',
            'dtype': 'bfloat16',
            'cache_layer_indices': None,
            'vlm_config': {'model_type': 'qwen3_vl', 'text_config': _write_text(self.vlm)},
            'expert_config': {
                'model_type': 'alpamayo2_super_expert',
                'llm_config': expert,
                'expert_update_cfg': {key: expert[key] for key in widths},
                'action_space_cfg': _write_action_space(self.action_space),
                'diffusion_cfg': {
                    'int_method': 'euler',
                    'num_inference_steps': self.n_steps,
                    'use_classifier_free_guidance': False,
                },
                'action_in_proj_cfg': {
                    key: getattr(self.in_proj, name) for name, key in _IN_PROJ_KEYS.items()
                },
                'action_out_proj_cfg': {},
                'expert_non_causal_attention': True,
            },
        }


class _FileNames:
    """Renames the fields of errors to what they are called in the file."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ConfigError) and error.field in self._names:
            raise ConfigError(self._names[error.field], error.value, error.rule) from None


class _Section:
    """One object of the file, which knows its dotted name."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def dotted(self, key: str) -> str:
        return f'{self.name}.{key}' if self.name else key

    def get(self, key: str, kind: str, is_kind: Callable[[Any], bool]) -> Any:
        """Value of a key that must be there and of a kind."""
        if key not in self.values:
            raise ConfigError(self.dotted(key), None, f'is missing; must be {kind}')
        value = self.values[key]
        if not is_kind(value):
            raise ConfigError(self.dotted(key), value, f'must be {kind}')
        return value

    def section(self, key: str) -> '_Section':
        values = self.get(key, 'an object', lambda value: isinstance(value, dict))
        return _Section(values, self.dotted(key))

    def integer(self, key: str) -> int:
        value: int = self.get(key, 'a whole number', _is_integer)
        return value

    def number(self, key: str) -> float:
        return float(self.get(key, 'a finite number', _is_number))

    def pair(self, key: str) -> tuple[float, float]:
        low, high = self.get(key, 'two finite numbers', _is_pair)
        return float(low), float(high)

    def require(self, key: str, *, be: Any, rule: str, is_optional: bool = True) -> None:
        """Refuse any value but one; an absent key passes if it may be absent."""
        if key not in self.values and is_optional:
            return
        value = self.get(key, json.dumps(be), lambda value: True)
        if value != be or type(value) is not type(be):
            raise ConfigError(self.dotted(key), value, rule)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))


def _require_count(name: str, value: int) -> None:
    if not _is_integer(value) or value < 1:
        raise ConfigError(name, value, 'must be a whole number, at least 1')


def _require_positive(name: str, value: float) -> None:
    if not _is_number(value) or value <= 0:
        raise ConfigError(name, value, 'must be finite and positive')


def _require_action_space(space: ActionSpace) -> None:
    _require_count('action_space.n_waypoints', space.n_waypoints)
    _require_count('action_space.dt_ns', space.dt_ns)
    for name in ('accel_std', 'curvature_std'):
        _require_positive(f'action_space.{name}', getattr(space, name))
    for name in ('accel_bounds', 'curvature_bounds'):
        low, high = getattr(space, name)
        if low >= high:
            raise ConfigError(f'action_space.{name}', (low, high), 'must be lower, then upper')


def _refuse_unsupported(root: _Section, expert: _Section) -> None:
    root.require('model_type', be='alpamayo2_super', rule='must be "alpamayo2_super"')
    root.require(
        'cache_layer_indices',
        be=None,
        rule='must be null: layer i of the expert reads the cache of layer i',
    )
    expert.require(
        'expert_non_causal_attention',
        be=True,
        rule='must be true: a causal expert is not supported',
        is_optional=False,
    )
    diffusion = expert.section('diffusion_cfg')
    diffusion.require('int_method', be='euler', rule='must be "euler", the only sampler')
    diffusion.require(
        'use_classifier_free_guidance',
        be=False,
        rule='must be false: guidance would need a second context without the guiding text, '
        'and the released model refuses it too',
    )


def _read_text(section: _Section) -> TextConfig:
    section.require('attention_bias', be=False, rule='must be false: no tensor has a bias')
    section.require('hidden_act', be='silu', rule='must be "silu"')
    numbers: dict[str, Any] = {name: section.integer(_TEXT_KEYS[name]) for name in _TEXT_COUNTS}
    names = {key: f'{section.name}.{name}' for key, name in _TEXT_KEYS.items()}
    rope = _read_rope(section)
    with _FileNames(names):
        return TextConfig(**numbers, rms_eps=section.number(_TEXT_KEYS['rms_eps']), **rope)


def _read_rope(section: _Section) -> dict[str, Any]:
    """Find rope's base and sections beside the other keys, or in an object of their own."""
    found: dict[str, Any] = {}
    if 'rope_theta' in section.values:
        found['rope_theta'] = section.number('rope_theta')
    for key in ('rope_scaling', 'rope_parameters'):
        if section.values.get(key) is not None:
            _read_rope_object(section.section(key), found)
    if 'rope_theta' not in found:
        section.number('rope_theta')
    return found


def _read_rope_object(rope: _Section, found: dict[str, Any]) -> None:
    rope.require('rope_type', be='default', rule='must be "default": rope is not scaled here')
    if 'rope_theta' in rope.values:
        theta = rope.number('rope_theta')
        if found.setdefault('rope_theta', theta) != theta:
            rule = f'is at odds with {found["rope_theta"]} elsewhere'
            raise ConfigError(rope.dotted('rope_theta'), theta, rule)
    if 'mrope_section' in rope.values:
        kind = 'three whole numbers'
        found['mrope_section'] = tuple(rope.get('mrope_section', kind, _is_mrope_section))


def _is_mrope_section(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_integer, value))


def _require_same_widths(expert: _Section, text: TextConfig) -> None:
    if 'expert_update_cfg' not in expert.values:
        return
    update = expert.section('expert_update_cfg')
    for name, key in _TEXT_KEYS.items():
        if key in update.values and update.number(key) != getattr(text, name):
            rule = f'is at odds with {_EXPERT}.{key}, {getattr(text, name)}'
            raise ConfigError(update.dotted(key), update.values[key], rule)


def _read_in_proj(section: _Section) -> InProjConfig:
    names = {key: f'{_IN_PROJ}.{name}' for key, name in _IN_PROJ_KEYS.items()}
    with _FileNames(names):
        return InProjConfig(
            hidden=section.integer('hidden_size'),
            n_layers=section.integer('num_enc_layers'),
            n_features=section.integer('num_fourier_feats'),
            max_freq=section.number('max_freq'),
        )


def _read_action_space(section: _Section) -> ActionSpace:
    numbers = {name: section.number(name) for name in _ACTION_NUMBERS}
    space = ActionSpace(
        n_waypoints=section.integer('n_waypoints'),
        dt_ns=round(section.number('dt') * NS_PER_S),
        accel_bounds=section.pair('accel_bounds'),
        curvature_bounds=section.pair('curvature_bounds'),
        **numbers,
    )
    fields = ('n_waypoints', 'accel_std', 'curvature_std', 'accel_bounds', 'curvature_bounds')
    names = {f'action_space.{field}': section.dotted(field) for field in fields}
    with _FileNames(names | {'action_space.dt_ns': section.dotted('dt')}):
        _require_action_space(space)
    return space


def _read_n_steps(section: _Section) -> int:
    if 'num_inference_steps' not in section.values:
        return DEFAULT_N_STEPS
    n_steps = section.integer('num_inference_steps')
    with _FileNames({'n_steps': section.dotted('num_inference_steps')}):
        _require_count('n_steps', n_steps)
    return n_steps


def _write_text(text: TextConfig) -> dict[str, Any]:
    flat = tuple(_TEXT_KEYS)[:-1]
    return {
        'model_type': 'qwen3_vl_text',
        'attention_bias': False,
        'hidden_act': 'silu',
        **{_TEXT_KEYS[name]: getattr(text, name) for name in flat},
        'rope_scaling': {
            'rope_type': 'default',
            'mrope_interleaved': True,
            'mrope_section': list(text.mrope_section),
        },
    }


def _write_action_space(space: ActionSpace) -> dict[str, Any]:
    return {
        'n_waypoints': space.n_waypoints,
        'dt': space.dt_ns / NS_PER_S,
        'accel_bounds': list(space.accel_bounds),
        'curvature_bounds': list(space.curvature_bounds),
        **{name: getattr(space, name) for name in _ACTION_NUMBERS},
    }
