# SPDX-License-Identifier: Apache-2.0
"""
Keep tilised weights on disk, so that the second start skips the conversion.

A folder per checkpoint and version of ttnn; a file per tensor and format, beside the SHA-256 of
its bytes. Files are written under another name and renamed, the sum last, so a crash leaves
nothing that looks whole. A file that does not match its sum is made again. What cannot be written
(a full disk, a folder of someone else's) costs time, not the start.
"""

from collections.abc import Callable
from contextlib import suppress
import hashlib
from importlib.metadata import version
import os
from pathlib import Path
import time

import ttnn

_N_FINGERPRINT_CHARS = 32
_REPORT_PERIOD_S = 1.0


class WeightCache:
    """Tilised tensors of one checkpoint; counts what it gave out."""

    def __init__(self, root: Path, fingerprint: str, report: Callable[[str], None]) -> None:
        """
        :param root: folder of all caches; made when first written to
        :param fingerprint: of the checkpoint, 'sha256:<hex>'
        :param report: receives progress and damage in words
        """
        key = fingerprint.removeprefix('sha256:')[:_N_FINGERPRINT_CHARS]
        self._folder = root / f'{key}-ttnn-{version("ttnn")}'
        self._report = report
        self._started_s = self._reported_s = time.monotonic()
        self._can_write = True
        self.n_bytes = 0
        self.n_converted = 0
        self.n_from_disk = 0

    def get(self, name: str, dtype: str, convert: Callable[[], ttnn.Tensor]) -> ttnn.Tensor:
        """
        Take a tensor from disk, or convert and keep it.

        :param name: of the tensor, a plain file name
        :param dtype: its number format
        :param convert: makes the host tensor
        :return: tiled host tensor
        """
        path = self._folder / f'{name}.{dtype}.tensorbin'
        tensor = self._read(path)
        if tensor is None:
            tensor = convert()
            self._write(path, tensor)
            self.n_converted += 1
        else:
            self.n_from_disk += 1
        return tensor

    def account(self, what: str, n_bytes: int) -> None:
        """
        Count bytes that reached the chip, and report about once a second.

        :param what: what was just done, for people
        :param n_bytes: of the tensors in their number formats
        """
        self.n_bytes += n_bytes
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_PERIOD_S:
            self._reported_s = now_s
            self._report(f'{what}: {self.summary()}')

    def summary(self) -> str:
        """Say how much was loaded, how fast, and from where."""
        took_s = max(time.monotonic() - self._started_s, 1e-9)
        return (
            f'{self.n_bytes / 1e9:.2f} GB of weights at {self.n_bytes / 1e6 / took_s:.0f} MB/s, '
            f'{self.n_from_disk} tensors from the cache, {self.n_converted} converted'
        )

    def _read(self, path: Path) -> ttnn.Tensor | None:
        try:
            expected = _sum_path(path).read_text(encoding='ascii').strip()
            with path.open('rb') as file:
                got = hashlib.file_digest(file, 'sha256').hexdigest()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._report(f'cannot read the cached weight {path.name} ({error}): converting again')
            return None
        if got != expected:
            self._report(f'the cached weight {path.name} is damaged: converting again')
            return None
        try:
            return ttnn.load_tensor(str(path))
        except RuntimeError as error:
            self._report(f'ttnn does not read {path.name} ({error}): converting again')
            return None

    def _write(self, path: Path, tensor: ttnn.Tensor) -> None:
        if not self._can_write:
            return
        # ttnn insists on the suffix, so the process's mark comes before it.
        unfinished = path.with_name(f'.{os.getpid()}-{path.name}')
        unfinished_sum = _sum_path(unfinished)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            ttnn.dump_tensor(str(unfinished), tensor)
            with unfinished.open('rb') as file:
                digest = hashlib.file_digest(file, 'sha256').hexdigest()
            unfinished_sum.write_text(digest, encoding='ascii')
            _sum_path(path).unlink(missing_ok=True)
            unfinished.replace(path)
            unfinished_sum.replace(_sum_path(path))
        except (OSError, RuntimeError) as error:
            self._can_write = False
            self._report(f'cannot keep tilised weights in {path.parent}: {error}')
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
                unfinished_sum.unlink(missing_ok=True)


def _sum_path(path: Path) -> Path:
    return path.with_name(f'{path.name}.sha256')
