# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
from PIL import Image

from alpamayo_node.tools.plot import PlottedPlan
from alpamayo_node.tools.plot import plot_plans

BLUE = (0x00, 0x72, 0xB2)


def plan(curvature_1pm: float) -> PlottedPlan:
    time_s = np.arange(65) * 0.1
    return PlottedPlan(
        label='a plan',
        x_m=8.0 * time_s,
        y_m=4.0 * curvature_1pm * (8.0 * time_s) ** 2,
        time_s=time_s,
        speed_mps=np.full(65, 8.0),
        accel_mps2=np.zeros(64),
        curvature_1pm=np.full(64, curvature_1pm),
    )


def n_pixels_of(path: Path, color: tuple[int, int, int]) -> int:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert('RGB')).astype(int)
    return int((np.abs(pixels - np.array(color)).sum(axis=-1) < 12).sum())


def test_plot_draws_the_newest_plan_in_colour(tmp_path: Path) -> None:
    plot_plans([plan(0.0), plan(0.01)], tmp_path / 'a.png', 'title')
    with Image.open(tmp_path / 'a.png') as image:
        assert image.size[0] > 1000
    assert n_pixels_of(tmp_path / 'a.png', BLUE) > 1000


def test_plot_of_one_plan_shows_the_plan_and_not_an_empty_frame(tmp_path: Path) -> None:
    for name, curvature_1pm in (('a', 0.0), ('b', 0.02)):
        plot_plans([plan(curvature_1pm)], tmp_path / f'{name}.png', 'title')
    assert (tmp_path / 'a.png').read_bytes() != (tmp_path / 'b.png').read_bytes()
