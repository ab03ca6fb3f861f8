# SPDX-License-Identifier: Apache-2.0
"""
Matrix products as oneDNN does them, where torch was built with it.

The operators are those that torch's own compiler emits on CPUs: weights packed in the block order
of the processor, and bias, SiLU or a factor applied in float32 before the result is rounded to
bfloat16. Where it is missing, or the processor lacks what its bfloat16 needs, the plain operators
of torch do the same work, slower.

Axes: M rows, I inputs, O outputs.
"""

import torch
from torch.nn import functional as F

_mkldnn = torch.ops.mkldnn


def _is_served(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN multiplies in a format here: bfloat16 needs AVX-512 or its like."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype != torch.bfloat16 or bool(_mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """
    Multiply with a weight that is used once, and add a bias before the result is rounded.

    :param x: (M, I), bfloat16 or float32
    :param weight: (O, I), of x's dtype
    :param bias: (O,), of x's dtype
    :return: (M, O), of x's dtype
    """
    if not _is_served(x.dtype):
        return F.linear(x, weight, bias)
    return _pointwise(x, weight, bias, 'none')


class Linear:
    """A linear layer without bias, its weight packed for a known number of rows."""

    def __init__(self, weight: torch.Tensor, n_rows: int) -> None:
        """
        Pack the weight; the tensor that was given is not kept.

        :param weight: (O, I), bfloat16 or float32
        :param n_rows: M of the inputs to come
        """
        self._weight = weight
        self._is_packed = _is_served(weight.dtype)
        if self._is_packed:
            self._weight = _mkldnn._reorder_linear_weight(weight, n_rows)  # noqa: SLF001

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Multiply.

        :param x: (M, I), of the weight's dtype
        :return: (M, O), of the weight's dtype
        """
        if not self._is_packed:
            return F.linear(x, self._weight)
        return _pointwise(x, self._weight, None, 'none')

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """
        Multiply, then apply SiLU.

        :param x: (M, I), of the weight's dtype
        :return: (M, O), of the weight's dtype
        """
        if not self._is_packed:
            return F.silu(F.linear(x, self._weight))
        return _pointwise(x, self._weight, None, 'swish')

    def times(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """
        Multiply, then scale each element by a factor.

        :param x: (M, I), of the weight's dtype
        :param factor: (M, O), of the weight's dtype
        :return: (M, O), of the weight's dtype
        """
        if not self._is_packed:
            return F.linear(x, self._weight) * factor
        product: torch.Tensor = _mkldnn._linear_pointwise.binary(  # noqa: SLF001
            x, factor, self._weight, None, 'mul'
        )
        return product


def _pointwise(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, function: str
) -> torch.Tensor:
    product: torch.Tensor = _mkldnn._linear_pointwise(  # noqa: SLF001
        x, weight, bias, function, [], ''
    )
    return product
