"""Simon's two-stage designs against the published tables (Simon 1989)."""

import pytest
from scipy.stats import binom

from workflow_service.domain.stats.simon import SimonDesign, simon_designs

# p0, p1, then optimal r1/n1, r/n, EN, PET and minimax r1/n1, r/n, EN.
PUBLISHED = [
    (0.05, 0.25, (0, 9, 2, 17), 11.96, 0.630, (0, 12, 2, 16), 13.84),
    (0.10, 0.30, (1, 10, 5, 29), 15.01, 0.736, (1, 15, 5, 25), 19.51),
    (0.20, 0.40, (3, 13, 12, 43), 20.58, 0.747, (4, 18, 10, 33), 22.25),
    (0.30, 0.50, (5, 15, 18, 46), 23.63, 0.722, (6, 19, 16, 39), 25.69),
]


def _shape(design: SimonDesign) -> tuple[int, int, int, int]:
    return design.r1, design.n1, design.r, design.n


@pytest.mark.parametrize(("p0", "p1", "optimal", "optimal_n", "pet", "minimax", "minimax_n"), PUBLISHED)
def test_published_designs(
    p0: float,
    p1: float,
    optimal: tuple[int, ...],
    optimal_n: float,
    pet: float,
    minimax: tuple[int, ...],
    minimax_n: float,
) -> None:
    designs = simon_designs(p0, p1)
    assert _shape(designs.optimal) == optimal
    assert designs.optimal.expected_n == pytest.approx(optimal_n, abs=5e-3)
    assert designs.optimal.early_stop_probability == pytest.approx(pet, abs=5e-4)
    assert _shape(designs.minimax) == minimax
    assert designs.minimax.expected_n == pytest.approx(minimax_n, abs=5e-3)
    for design in (designs.optimal, designs.minimax):
        assert design.alpha == pytest.approx(_rejection(design, p0))
        assert design.power == pytest.approx(_rejection(design, p1))
        assert design.alpha <= 0.05
        assert design.power >= 0.80


def _rejection(design: SimonDesign, p: float) -> float:
    """P(X1 > r1 and X1 + X2 > r), term by term."""
    return sum(
        binom.pmf(first, design.n1, p) * binom.sf(design.r - first, design.n - design.n1, p)
        for first in range(design.r1 + 1, design.n1 + 1)
    )


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="p_alternative"):
        simon_designs(0.3, 0.2)
    with pytest.raises(ValueError, match="no design"):
        simon_designs(0.3, 0.35, n_max=30)
    with pytest.raises(ValueError, match="n_max"):
        simon_designs(0.3, 0.5, n_max=1000)
