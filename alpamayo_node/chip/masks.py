# SPDX-License-Identifier: Apache-2.0
"""
The additive mask that lets one compiled step serve every context length.

Of a cache of Smax rows holding a context of S rows, P of them left padding:

    rows [0, P)      [P, S)      [S, Smax - n_own)      [Smax - n_own, Smax)
         hidden      context     hidden                 own, new at every step

The value of a hidden row is finite: minus infinity times a weight of zero would be NaN, and the
block formats cannot hold it. The kernels scale the mask like the scores, so it holds nothing but 0
and this one value. It is built at full width: no tile padding, no implicit rows.
"""

import torch

HIDDEN = -1e9
"""Its exponential is 0 in every format, whatever the row's score."""


def mask_row(n_rows: int, left_pad: int, cache_rows: int, n_own: int) -> torch.Tensor:
    """
    Build the mask's row; it is the same for every query.

    :param n_rows: S
    :param left_pad: P
    :param cache_rows: Smax
    :param n_own: rows of the expert's own tokens
    :return: (Smax,) float32: 0 where a row is seen, `HIDDEN` where not
    """
    assert 0 <= left_pad < n_rows <= cache_rows - n_own
    row = torch.full((cache_rows,), HIDDEN)
    row[left_pad:n_rows] = 0.0
    row[cache_rows - n_own :] = 0.0
    return row
