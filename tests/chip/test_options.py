# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from alpamayo_node.chip.options import ChipConfig
from alpamayo_node.chip.options import ChipOptions
from alpamayo_node.chip.options import WeightDtypes
from alpamayo_node.errors import ConfigError


@pytest.mark.parametrize('dtype', ['bf16', 'bfp8', 'bfp4'])
def test_one_format_serves_all_matrices(dtype: str) -> None:
    weights = WeightDtypes.parse(dtype)
    assert {weights.qkv, weights.o, weights.gate, weights.up, weights.down} == {dtype}
    assert (str(weights), weights.coarsest) == (dtype, dtype)


def test_a_list_names_matrices_and_leaves_the_rest() -> None:
    weights = WeightDtypes.parse('gate=bfp4, up=bfp4,qkv=bf16')
    assert weights == WeightDtypes(qkv='bf16', gate='bfp4', up='bfp4')
    assert weights.coarsest == 'bfp4'
    assert WeightDtypes.parse(str(weights)) == weights


@pytest.mark.parametrize(
    'text', ['', 'fp32', 'gate=int8', 'gates=bfp8', 'o=bf16,o=bfp8', 'o=', '=bfp8', 'bfp8,bf16']
)
def test_a_wrong_format_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r'^chip\.weights = '):
        WeightDtypes.parse(text)


@pytest.mark.parametrize(
    ('values', 'name'),
    [
        ({'cache_dtype': 'bfp4'}, 'chip.cache_dtype'),
        ({'attention': 'flash'}, 'chip.attention'),
        ({'mask_dtype': 'fp32'}, 'chip.mask_dtype'),
        ({'k_chunk_rows': 48}, 'chip.k_chunk_rows'),
        ({'k_chunk_rows': 16}, 'chip.k_chunk_rows'),
        ({'k_chunk_rows': -32}, 'chip.k_chunk_rows'),
        ({'q_chunk_rows': 0}, 'chip.q_chunk_rows'),
        ({'q_chunk_rows': 100}, 'chip.q_chunk_rows'),
        ({'is_folded': True}, 'chip.fold_heads'),
    ],
)
def test_a_wrong_option_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChipOptions(**values)
    assert caught.value.field == name


def test_defaults_follow_the_attention_mode() -> None:
    decode, standard = ChipOptions(), ChipOptions(attention='standard')
    assert (decode.effective_k_chunk_rows, standard.effective_k_chunk_rows) == (128, 512)
    assert (decode.effective_mask_dtype, standard.effective_mask_dtype) == ('bfp4', 'bf16')
    assert decode.folds_heads
    assert not standard.folds_heads
    assert ChipOptions(mask_dtype='bf16').effective_mask_dtype == 'bf16'


@pytest.mark.parametrize(
    ('max_rows', 'chunk', 'cache_rows'),
    [(8128, 128, 8192), (8129, 128, 8320), (64, 128, 128), (1, 32, 96), (4592, 512, 5120)],
)
def test_cache_is_whole_chunks_and_no_more(max_rows: int, chunk: int, cache_rows: int) -> None:
    options = ChipOptions(k_chunk_rows=chunk)
    assert options.cache_rows(max_rows, 64) == cache_rows
    assert cache_rows - chunk < max_rows + 64 <= cache_rows


def test_description_names_every_format() -> None:
    text = ChipOptions(weights=WeightDtypes.parse('gate=bfp4'), cache_dtype='bfp8').describe()
    for part in ('gate=bfp4', 'qkv=bfp8', 'cache bfp8', 'decode', 'mask bfp4'):
        assert part in text


def test_caches_lie_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', '/somewhere')
    assert ChipConfig().root == Path('/somewhere/alpamayo_node')
    monkeypatch.delenv('XDG_CACHE_HOME')
    assert ChipConfig().root == Path.home() / '.cache' / 'alpamayo_node'
    assert ChipConfig(cache_directory=Path('/x')).root == Path('/x')
