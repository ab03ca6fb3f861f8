# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from alpamayo_node.model.rope import apply_rope
from alpamayo_node.model.rope import expert_positions
from alpamayo_node.model.rope import rope_tables

# Cosine and sine of channel pair j at position p, head dim 128, theta 5e6: computed in float64.
GOLDEN = {
    (704, 0): (0.960153, 0.279473),
    (704, 1): (0.95414, 0.29937),
    (704, 16): (-0.682092, 0.731266),
    (704, 32): (0.950846, 0.309663),
    (767, 0): (0.899841, 0.436219),
    (767, 1): (0.89862, -0.43873),
    (767, 16): (-0.871712, -0.490018),
    (767, 32): (0.941746, 0.336326),
}


def test_positions_follow_the_context() -> None:
    # The public sample clip: 4592 rows, 24 images of 180 tokens that advance 18 positions each.
    positions = expert_positions(4592, -24 * 162, 64)
    assert positions.tolist() == list(range(704, 768))


@pytest.mark.parametrize(('position', 'pair'), GOLDEN)
def test_tables_match_golden_numbers(position: int, pair: int) -> None:
    cos, signed_sin = rope_tables(torch.arange(704, 768), 128, 5e6)
    i = position - 704
    # 5e-5: the angle of 704 rad has a float32 rounding of 3e-5.
    assert cos[i, pair].item() == pytest.approx(GOLDEN[position, pair][0], abs=5e-5)
    assert signed_sin[i, pair + 64].item() == pytest.approx(GOLDEN[position, pair][1], abs=5e-5)
    assert cos[i, pair] == cos[i, pair + 64]
    assert signed_sin[i, pair] == -signed_sin[i, pair + 64]


@pytest.mark.parametrize(
    ('pair', 'frequency'), [(1, 0.785830), (16, 0.02114742), (32, 4.472136e-4), (63, 2.545080e-7)]
)
def test_frequencies_match_golden_numbers(pair: int, frequency: float) -> None:
    _, signed_sin = rope_tables(torch.tensor([1]), 128, 5e6)
    angle_rad = torch.asin(signed_sin[0, pair + 64].double()).item()
    assert angle_rad == pytest.approx(frequency, rel=1e-6)


def test_rotation_turns_half_split_pairs() -> None:
    x = torch.zeros(1, 1, 8)
    x[0, 0, 1] = 1.0
    turned = apply_rope(x, *rope_tables(torch.tensor([3]), 8, 100.0))[0, 0]
    angle_rad = torch.tensor(3.0 / 100.0**0.25)
    expected = torch.zeros(8)
    expected[1], expected[5] = angle_rad.cos(), angle_rad.sin()
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)


def test_product_of_rotated_vectors_depends_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn((2, 1, 1, 128), generator=generator)

    def product(position_q: int, position_k: int) -> float:
        turned_q = apply_rope(q, *rope_tables(torch.tensor([position_q]), 128, 5e6))
        turned_k = apply_rope(k, *rope_tables(torch.tensor([position_k]), 128, 5e6))
        return float((turned_q * turned_k).sum())

    assert product(17, 5) == pytest.approx(product(512, 500), abs=1e-3)
    assert product(17, 5) != pytest.approx(product(17, 6), abs=1e-2)
