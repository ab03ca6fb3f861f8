# SPDX-License-Identifier: Apache-2.0
"""
What a chip must prove beyond `model.self_test`: that a replay is the step that was recorded.

The layers are compared with the plain form op by op, without a recording. Then the whole network
runs once op by op and twice replayed, with other tokens in between, so that a recording which
holds on to old inputs shows.
"""

import torch

from alpamayo_node.chip.network import ChipNetwork
from alpamayo_node.errors import SelfTestError

TOLERANCES = {'bf16': 2e-2, 'bfp8': 3e-2, 'bfp4': 2.5e-1}
"""Largest accepted relative difference of a layer's change, by its coarsest weights' format."""
REPLAY_TOLERANCE = 1e-3
"""Largest accepted relative difference of a replay; the same ops on the same numbers give 0."""
_SEED = 20_260_805


def require_equal_replay(network: ChipNetwork) -> str:
    """
    Compare the recorded step with the ops that it records; leaves the step recorded.

    :param network: with any context in its cache
    :return: what was compared, and how well it agreed
    :raises SelfTestError: it did not agree
    :raises BackendError: recording failed
    """
    generator = torch.Generator().manual_seed(_SEED)
    shape = (network.n_tokens, int(network.inputs.tokens.shape[3]))
    first, second = (torch.randn(shape, generator=generator) for _ in range(2))
    expected = [network.run_layers(x, network.layers_all, has_norm=True) for x in (first, second)]
    got = [network.hidden(x) for x in (first, second, first)]
    differences = [
        float((replayed - eager).norm() / eager.norm())
        for replayed, eager in zip(got, (*expected, expected[0]), strict=True)
    ]
    # NaN must not pass as the smallest, so the comparison is one by one.
    for difference in differences:
        if not difference <= REPLAY_TOLERANCE:
            raise SelfTestError(
                f'self-test: the recorded step is off the ops that it records by '
                f'{difference:.1e}, accepted is {REPLAY_TOLERANCE:.0e}; something was allocated '
                'where it writes, or this ttnn replays wrongly'
            )
    return f'replays equal the recorded ops within {max(differences):.1e}'
