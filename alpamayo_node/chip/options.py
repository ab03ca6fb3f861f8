# SPDX-License-Identifier: Apache-2.0
"""
How the expert runs on a chip: number formats, attention mode, chunk sizes, programs, trace.

Nothing here imports ttnn, so that a configuration can be checked on any machine.
"""

from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
import os
from pathlib import Path

from alpamayo_node.errors import ConfigError

WEIGHT_DTYPES = ('bf16', 'bfp8', 'bfp4')
CACHE_DTYPES = ('bf16', 'bfp8')
MASK_DTYPES = ('auto', *WEIGHT_DTYPES)
ATTENTION_MODES = ('decode', 'standard')
TILE = 32
"""Rows and columns of a tile, the unit in which the chip stores matrices."""

_DEFAULT_K_CHUNK_ROWS = {'decode': 128, 'standard': 512}
_DEFAULT_MASK_DTYPES = {'decode': 'bfp4', 'standard': 'bf16'}


@dataclass(frozen=True)
class WeightDtypes:
    """Number format of each matrix of a layer; norms and the rest are bf16."""

    qkv: str = 'bfp8'
    o: str = 'bfp8'
    gate: str = 'bfp8'
    up: str = 'bfp8'
    down: str = 'bfp8'

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value not in WEIGHT_DTYPES:
                rule = f'{each.name} must be one of {", ".join(WEIGHT_DTYPES)}'
                raise ConfigError('chip.weights', value, rule)

    @classmethod
    def parse(cls, text: str) -> 'WeightDtypes':
        """
        Read one format for all matrices, or a list such as 'qkv=bfp8,o=bfp8,gate=bfp4,...'.

        :param text: what is not named in a list stays bfp8
        :return: the formats
        :raises ConfigError: an unknown matrix or format, or a matrix named twice
        """
        names = [each.name for each in fields(cls)]
        if '=' not in text:
            return cls(**dict.fromkeys(names, text))
        chosen: dict[str, str] = {}
        for item in text.split(','):
            name, _, dtype = item.strip().partition('=')
            if name not in names or name in chosen:
                rule = f'must name each of {", ".join(names)} at most once, as in qkv=bfp8,o=bf16'
                raise ConfigError('chip.weights', text, rule)
            chosen[name] = dtype
        return cls(**chosen)

    @property
    def coarsest(self) -> str:
        """The format with the fewest bits among them; it sets what accuracy can be asked for."""
        return max(self._by_name().values(), key=WEIGHT_DTYPES.index)

    def __str__(self) -> str:
        by_name = self._by_name()
        if len({*by_name.values()}) == 1:
            return self.qkv
        return ','.join(f'{name}={dtype}' for name, dtype in by_name.items())

    def _by_name(self) -> dict[str, str]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class ChipOptions:
    """Everything that decides which programs run on the chip, and on what."""

    weights: WeightDtypes = WeightDtypes()
    cache_dtype: str = 'bf16'
    attention: str = 'decode'
    """'decode' splits the cache over many cores per head, 'standard' is the prefill kernel."""
    is_folded: bool = False
    """Standard mode only: query heads of a group share rows, as decode mode always has them."""
    mask_dtype: str = 'auto'
    """'auto' takes bfp4 in decode mode, bf16 in standard mode."""
    k_chunk_rows: int = 0
    """Cache rows per step of the attention kernel; 0 takes 128 (decode) or 512 (standard)."""
    q_chunk_rows: int = 32
    """Query rows per step of the standard kernel."""
    is_tuned: bool = True
    """Matmul programs computed here; otherwise ttnn chooses them."""
    is_traced: bool = True
    """Record a step once and replay it; otherwise issue every op every time."""

    def __post_init__(self) -> None:
        _require_choice('chip.cache_dtype', self.cache_dtype, CACHE_DTYPES)
        _require_choice('chip.attention', self.attention, ATTENTION_MODES)
        _require_choice('chip.mask_dtype', self.mask_dtype, MASK_DTYPES)
        _require_chunk('chip.k_chunk_rows', self.k_chunk_rows, is_optional=True)
        _require_chunk('chip.q_chunk_rows', self.q_chunk_rows, is_optional=False)
        if self.is_folded and self.attention == 'decode':
            rule = 'must be false in decode mode, which always folds'
            raise ConfigError('chip.fold_heads', self.is_folded, rule)

    @property
    def folds_heads(self) -> bool:
        """Whether the query heads of a group lie on rows of one key-value head."""
        return self.is_folded or self.attention == 'decode'

    @property
    def effective_mask_dtype(self) -> str:
        """Number format of the mask."""
        if self.mask_dtype != 'auto':
            return self.mask_dtype
        return _DEFAULT_MASK_DTYPES[self.attention]

    @property
    def effective_k_chunk_rows(self) -> int:
        """Cache rows per step of the attention kernel."""
        return self.k_chunk_rows or _DEFAULT_K_CHUNK_ROWS[self.attention]

    def cache_rows(self, max_rows: int, n_own: int) -> int:
        """
        Length of the cache, Smax: the largest context, the own rows, rounded up to whole chunks.

        Both kernels read whole chunks; what a partial last one would read behind the end is not
        masked, so there must be none.

        :param max_rows: largest S
        :param n_own: rows of the expert's own tokens
        :return: Smax
        """
        chunk = self.effective_k_chunk_rows
        return -(-(max_rows + n_own) // chunk) * chunk

    def describe(self) -> str:
        """Say what numbers the plan is made with, for the record of every plan."""
        return (
            f'weights {self.weights}, cache {self.cache_dtype}, {self.attention} attention, '
            f'mask {self.effective_mask_dtype}'
        )


@dataclass(frozen=True)
class ChipConfig:
    """Which chip, what runs on it, and where this machine keeps what need not be made twice."""

    chip_id: int = 0
    options: ChipOptions = field(default_factory=ChipOptions)
    trace_region_bytes: int = 128 << 20
    """Device memory set apart for the recorded step, in all banks together."""
    open_timeout_s: float = 60.0
    operation_timeout_s: float = 5.0
    """After which ttnn takes an op that does not end for a hang, and ends the process."""
    cache_directory: Path | None = None
    """Of tilised weights and compiled kernels; None: `alpamayo_node` in the user's cache."""

    @property
    def root(self) -> Path:
        """The folder of both caches."""
        if self.cache_directory is not None:
            return self.cache_directory
        fallback = Path.home() / '.cache'
        return Path(os.environ.get('XDG_CACHE_HOME') or fallback) / 'alpamayo_node'


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ', '.join(choices)
        raise ConfigError(name, value, f'must be one of {listed}')


def _require_chunk(name: str, value: int, *, is_optional: bool) -> None:
    if is_optional and value == 0:
        return
    is_power_of_two = value > 0 and value & (value - 1) == 0
    if not is_power_of_two or value < TILE:
        raise ConfigError(name, value, f'must be a power of two of at least {TILE}')
