# SPDX-License-Identifier: Apache-2.0
"""
A context in a file: the KV cache of one text-model run, and what the text model says of it.

The file is safetensors: `layers.{i}.key` and `layers.{i}.value`, each (G, S, D), and metadata that
holds every field of `contracts.ContextInfo`. docs/context_file.md is the exact description.

Written under another name and renamed, so that a reader never sees half a file. Read through plain
reads on one open file, not a memory map: a file that is cut short while being read is then an
error, where a map would end the process. Links are not followed, and only plain names in one
folder are opened.

A file may be announced again later (a replay), so the announcement's instant, name, seed and
history win; extent, dtype and fingerprints must agree.

Axes: G key-value heads, S context rows, D head channels.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import hashlib
from io import FileIO
import json
import os
from pathlib import Path
import stat
from typing import Any
from typing import BinaryIO
from typing import cast

from safetensors.torch import save_file
import torch

from alpamayo_node.contracts import ContextInfo
from alpamayo_node.contracts import ContextStatus
from alpamayo_node.contracts import KvShape
from alpamayo_node.contracts import PoseSample
from alpamayo_node.contracts import Transport
from alpamayo_node.errors import CheckpointError
from alpamayo_node.errors import Reason
from alpamayo_node.errors import Refusal
from alpamayo_node.model.safetensors_file import Header
from alpamayo_node.model.safetensors_file import fill
from alpamayo_node.model.safetensors_file import parse

FORMAT = 'alpamayo-context'
VERSION = '1'
SUFFIX = '.safetensors'
_DTYPES = {'bfloat16': ('BF16', torch.bfloat16), 'float32': ('F32', torch.float32)}
_SHAPE_FIELDS = ('n_layers', 'n_kv_heads', 'head_dim', 'n_rows', 'left_pad', 'rope_delta')
_CHUNK_BYTES = 1 << 22


def write_context_file(
    path: Path, context: ContextInfo, layers: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """
    Write a context so that it is there whole or not at all.

    :param path: final name; an older file of that name is replaced
    :param context: `location`, `digest` and `status` are not stored: a file that is there is ready
    :param layers: key and value of each layer, (G, S, D), of the context's dtype
    :raises Refusal: SHAPE_MISMATCH, a tensor is not what `context.shape` says
    :raises OSError: the file cannot be written
    """
    tensors: dict[str, torch.Tensor] = {}
    for i_layer, (key, value) in enumerate(layers):
        tensors[f'layers.{i_layer}.key'] = key.contiguous()
        tensors[f'layers.{i_layer}.value'] = value.contiguous()
    _require_tensors(
        {name: (_name_of(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()},
        context.shape,
    )
    part = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        save_file(tensors, part, metadata=_to_metadata(context))
        with part.open('rb') as file:
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def read_context_info(path: Path) -> ContextInfo:
    """
    Read what a file says of its context.

    :return: status READY, transport FILE, location the file's name, and no digest
    :raises Refusal: absent, damaged, or no context file
    """
    with _opened(path) as file:
        return _checked_info(file, path)[0]


def digest_of(path: Path) -> str:
    """
    Compute what an announcement may carry as `digest`.

    :return: 'sha256:<hex>' over all bytes behind the header
    :raises Refusal: absent, damaged, or no context file
    """
    with _opened(path) as file:
        header = _checked_info(file, path)[1]
        return _digest(file, header)


class FileStore:
    """Opens announced context files in one folder; a `contracts.KvStore`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, context: ContextInfo) -> 'ContextFile':
        """
        Open the file that a context announces.

        :raises Refusal: CONTEXT_UNREADABLE (no plain name, absent, a link, damaged),
            SHAPE_MISMATCH, MODEL_MISMATCH, PROMPT_MISMATCH or DIGEST_MISMATCH
        """
        name = context.location
        if not _is_plain_name(name):
            text = f'location = {name!r}: must be a plain file name without a folder'
            raise Refusal(Reason.CONTEXT_UNREADABLE, text)
        path = self._directory / name
        file = _opened(path)
        try:
            stored, header = _checked_info(file, path)
            _require_agreement(stored, context)
            if context.digest and _digest(file, header) != context.digest:
                text = f'{name}: its bytes are not those of {context.digest}'
                raise Refusal(Reason.DIGEST_MISMATCH, text)
        except BaseException:
            file.close()
            raise
        return ContextFile(file, path, header, stored.shape)


class ContextFile:
    """An open context file; a `contracts.KvSource`."""

    def __init__(self, file: FileIO, path: Path, header: Header, shape: KvShape) -> None:
        self._file = file
        self._path = path
        self._header = header
        self._shape = shape

    @property
    def shape(self) -> KvShape:
        """Extent of the cache."""
        return self._shape

    def layer(self, i_layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Read one layer.

        :return: key and value, (G, S, D), of the file's dtype
        :raises Refusal: the file became shorter or unreadable since it was opened
        """
        return self._read(f'layers.{i_layer}.key'), self._read(f'layers.{i_layer}.value')

    def close(self) -> None:
        """Let go of the file; safe to call twice."""
        self._file.close()

    def _read(self, name: str) -> torch.Tensor:
        entry = self._header.entries[name]
        tensor = torch.empty(entry.shape, dtype=_DTYPES[self._shape.dtype][1])
        try:
            fill(self._file, self._path, name, entry, tensor)
        except CheckpointError as error:
            text = f'{self._path.name}: ended inside {name}; it was changed while being read'
            raise Refusal(Reason.CONTEXT_UNREADABLE, text) from error
        return tensor


def _opened(path: Path) -> FileIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        hint = ' (links are not followed)' if path.is_symlink() else ''
        raise _unreadable(path, f'cannot be opened: {error.strerror}{hint}') from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(path, 'is no regular file')
    return FileIO(descriptor, 'rb')


def _checked_info(file: FileIO, path: Path) -> tuple[ContextInfo, Header]:
    try:
        header = parse(cast(BinaryIO, file), Path(path.name))
    except (CheckpointError, OSError) as error:
        raise Refusal(Reason.CONTEXT_UNREADABLE, str(error)) from error
    context = _from_metadata(header.metadata, path)
    _require_tensors(
        {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()},
        context.shape,
    )
    return context, header


def _digest(file: FileIO, header: Header) -> str:
    sha = hashlib.sha256()
    file.seek(header.data_start)
    while chunk := file.read(_CHUNK_BYTES):
        sha.update(chunk)
    return f'sha256:{sha.hexdigest()}'


def _require_tensors(found: Mapping[str, tuple[str, tuple[int, ...]]], shape: KvShape) -> None:
    wanted = (_DTYPES[shape.dtype][0], (shape.n_kv_heads, shape.n_rows, shape.head_dim))
    names = [f'layers.{i}.{kind}' for i in range(shape.n_layers) for kind in ('key', 'value')]
    for name in names:
        if found.get(name) != wanted:
            text = f'{name} is {found.get(name, "absent")}, expected {wanted}'
            raise Refusal(Reason.SHAPE_MISMATCH, text)
    if extra := sorted(set(found) - set(names)):
        raise Refusal(Reason.SHAPE_MISMATCH, f'unexpected tensor {extra[0]}')


def _require_agreement(stored: ContextInfo, announced: ContextInfo) -> None:
    for field in (*_SHAPE_FIELDS, 'dtype'):
        said, found = getattr(announced.shape, field), getattr(stored.shape, field)
        if said != found:
            text = f'{field} is announced as {said!r}, the file has {found!r}'
            raise Refusal(Reason.SHAPE_MISMATCH, text)
    for field, reason in (
        ('model_fingerprint', Reason.MODEL_MISMATCH),
        ('prompt_fingerprint', Reason.PROMPT_MISMATCH),
    ):
        said, found = getattr(announced, field), getattr(stored, field)
        if said != found:
            raise Refusal(reason, f'{field} is announced as {said!r}, the file has {found!r}')


def _to_metadata(context: ContextInfo) -> dict[str, str]:
    shape = context.shape
    return {
        'format': FORMAT,
        'version': VERSION,
        'context_id': context.context_id,
        'generation': str(context.generation),
        't0_ns': str(context.t0_ns),
        'frame_id': context.frame_id,
        **{field: str(getattr(shape, field)) for field in _SHAPE_FIELDS},
        'dtype': shape.dtype,
        'model_fingerprint': context.model_fingerprint,
        'prompt_fingerprint': context.prompt_fingerprint,
        'seed': '' if context.seed is None else str(context.seed),
        'reasoning': context.reasoning,
        'ego_history': history_to_json(context.history),
    }


def _from_metadata(metadata: Any, path: Path) -> ContextInfo:
    is_ours = isinstance(metadata, dict) and metadata.get('format') == FORMAT
    if not is_ours or metadata.get('version') != VERSION:
        raise _unreadable(path, f'is no {FORMAT} file of version {VERSION}')
    text = _Metadata(metadata, path)
    if text.get('dtype') not in _DTYPES:
        raise _unreadable(path, f'dtype = {text.get("dtype")!r}: one of {", ".join(_DTYPES)}')
    return ContextInfo(
        context_id=text.get('context_id'),
        generation=text.integer('generation'),
        t0_ns=text.integer('t0_ns'),
        frame_id=text.get('frame_id'),
        status=ContextStatus.READY,
        transport=Transport.FILE,
        location=path.name,
        shape=KvShape(
            **{field: text.integer(field) for field in _SHAPE_FIELDS}, dtype=text.get('dtype')
        ),
        model_fingerprint=text.get('model_fingerprint'),
        prompt_fingerprint=text.get('prompt_fingerprint'),
        digest='',
        seed=text.integer('seed') if text.get('seed') else None,
        reasoning=text.get('reasoning'),
        history=text.history(),
    )


class _Metadata:
    """Values of a file's metadata, by name, with the name in each refusal."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self._path = path

    def get(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise _unreadable(self._path, f'metadata {name!r} is missing')
        return value

    def integer(self, name: str) -> int:
        try:
            return int(self.get(name))
        except ValueError as error:
            text = f'metadata {name!r} is {self.get(name)!r}, expected an integer'
            raise _unreadable(self._path, text) from error

    def history(self) -> tuple[PoseSample, ...]:
        try:
            return history_from_json(self.get('ego_history'))
        except ValueError as error:
            raise _unreadable(self._path, f'metadata ego_history: {error}') from error


def history_to_json(history: Iterable[PoseSample]) -> str:
    """Write ego poses as a JSON array, without loss."""
    return json.dumps(
        [
            {
                'stamp_ns': sample.stamp_ns,
                'position_m': sample.position_m,
                'orientation_xyzw': sample.orientation_xyzw,
                'speed_mps': sample.speed_mps,
            }
            for sample in history
        ]
    )


def history_from_json(text: str) -> tuple[PoseSample, ...]:
    """
    Read ego poses from a JSON array.

    :raises ValueError: no array of complete samples; the text names the sample
    """
    items = json.loads(text)
    if not isinstance(items, list):
        raise ValueError(f'is a {type(items).__name__}, expected a list of samples')
    samples = []
    for i, item in enumerate(items):
        try:
            samples.append(_sample(item))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f'sample {i} is incomplete or malformed ({error!r})') from error
    return tuple(samples)


def _sample(item: Mapping[str, Any]) -> PoseSample:
    x, y, z = map(float, item['position_m'])
    qx, qy, qz, qw = map(float, item['orientation_xyzw'])
    speed = item['speed_mps']
    return PoseSample(
        stamp_ns=int(item['stamp_ns']),
        position_m=(x, y, z),
        orientation_xyzw=(qx, qy, qz, qw),
        speed_mps=None if speed is None else float(speed),
    )


def _is_plain_name(name: str) -> bool:
    return bool(name) and name not in ('.', '..') and not any(c in name for c in '/\\\0')


def _name_of(dtype: torch.dtype) -> str:
    return next((name for name, kind in _DTYPES.values() if kind is dtype), str(dtype))


def _unreadable(path: Path, problem: str) -> Refusal:
    return Refusal(Reason.CONTEXT_UNREADABLE, f'{path.name}: {problem}')
