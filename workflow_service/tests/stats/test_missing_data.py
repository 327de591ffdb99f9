"""Estimators under dropout: closed forms, reference implementations, and simulated trials.

The simulated trials have visits at weeks 0 1 2 4 6 8, a random intercept (SD 4), a random slope (SD .8 a week) and a
residual (SD 3); the mean changes linearly to week 8. A lower score is better.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ttest_ind

from workflow_service.domain.stats.estimates import Estimate, NotEstimableError
from workflow_service.domain.stats.missing_data import (
    completers_estimate,
    completion_probability,
    expected_locf_change,
    locf_estimate,
    mmrm_estimate,
    multiple_imputation_estimate,
    non_responder_estimate,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Hazard of dropping out after a visit, given the change so far and the arm, for each patient.
Hazard = Callable[[Floats, Bools], Floats]

WEEKS = np.array([0.0, 1.0, 2.0, 4.0, 6.0, 8.0])
# True change control and treated, hazard control and treated, LOCF difference.
LOCF_CLOSED_FORM = [
    (-12, -12, 0.02, 0.02, 0.0),
    (-12, -12, 0.02, 0.08, 2.101),
    (-12, -12, 0.02, 0.12, 3.305),
    (-12, -12, 0.05, 0.15, 3.017),
    (-8, -12, 0.08, 0.08, -3.037),
    (-8, -12, 0.08, 0.02, -5.138),
    (-8, -12, 0.02, 0.08, -1.637),
]
COMPLETERS = {0.02: 0.904, 0.05: 0.774, 0.08: 0.659, 0.12: 0.528, 0.15: 0.444}


def _arms(hazard_control: float, hazard_treated: float) -> Hazard:
    return lambda _change, treated: np.where(treated, hazard_treated, hazard_control)


def _logistic(intercept: float, slope: float) -> Hazard:
    """Patients whose score has improved less drop out more, by a rule that is the same in both arms."""
    return lambda change, _treated: 1 / (1 + np.exp(-(intercept + slope * change)))


def _only_treated(rule: Hazard, other: float) -> Hazard:
    return lambda change, treated: np.where(treated, rule(change, treated), other)


def _trial(rng: np.random.Generator, per_arm: int, control: float, treated_change: float, hazard: Hazard) -> tuple[Floats, Bools]:
    """Outcomes (2 * per_arm, 6) with NaN after dropout, and the arms."""
    n = 2 * per_arm
    treated = np.arange(n) >= per_arm
    slope = np.where(treated, treated_change, control) / 8 + rng.normal(0, 0.8, n)
    outcomes = 30 + rng.normal(0, 4, (n, 1)) + slope[:, None] * WEEKS + rng.normal(0, 3, (n, 6))
    seen = np.ones(n, dtype=np.bool_)
    for visit in range(5):
        seen &= rng.random(n) >= hazard(np.nan_to_num(outcomes[:, visit] - outcomes[:, 0]), treated)
        outcomes[~seen, visit + 1] = np.nan
    return outcomes, treated


def _replicates(
    analyses: dict[str, Callable[[Floats, Bools], Estimate]],
    *,
    control: float,
    treated: float,
    hazard: Hazard,
    trials: int,
    per_arm: int = 100,
    seed: int = 1,
) -> dict[str, tuple[float, float, float, float]]:
    """For each analysis: mean estimate, its Monte Carlo standard error, share of two-sided rejections, mean SE / SD."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Estimate]] = {name: [] for name in analyses}
    for _ in range(trials):
        outcomes, arm = _trial(rng, per_arm, control, treated, hazard)
        for name, analysis in analyses.items():
            found[name].append(analysis(outcomes, arm))
    summary = {}
    for name, estimates in found.items():
        values = np.array([estimate.value for estimate in estimates])
        sd = float(values.std(ddof=1))
        rejected = float(np.mean([estimate.p_value < 0.05 for estimate in estimates]))
        error = float(np.mean([estimate.standard_error for estimate in estimates]))
        summary[name] = (float(values.mean()), sd / math.sqrt(trials), rejected, error / sd)
    return summary


def _unadjusted(estimate: Callable[..., Estimate]) -> Callable[[Floats, Bools], Estimate]:
    return lambda outcomes, treated: estimate(outcomes, treated, adjust_baseline=False)


ANALYSES: dict[str, Callable[[Floats, Bools], Estimate]] = {
    "locf": _unadjusted(locf_estimate),
    "completers": _unadjusted(completers_estimate),
    "mmrm": mmrm_estimate,
}


@pytest.mark.parametrize(("control", "treated", "hazard_control", "hazard_treated", "difference"), LOCF_CLOSED_FORM)
def test_locf_closed_form(control: float, treated: float, hazard_control: float, hazard_treated: float, difference: float) -> None:
    found = expected_locf_change(treated, hazard_treated) - expected_locf_change(control, hazard_control)
    assert found == pytest.approx(difference, abs=5.1e-4)


@pytest.mark.parametrize(("hazard", "share"), COMPLETERS.items())
def test_completion(hazard: float, share: float) -> None:
    assert completion_probability(hazard, 6) == pytest.approx(share, abs=5e-4)


@settings(deadline=None)
@given(st.floats(-20, 20), st.floats(0, 1))
def test_locf_shrinks_a_change(change: float, hazard: float) -> None:
    assert abs(expected_locf_change(change, hazard)) <= abs(change) + 1e-9
    assert expected_locf_change(change, 0.0) == pytest.approx(change)
    assert expected_locf_change(change, 1.0) == 0


@pytest.mark.parametrize(("control", "treated", "hazard_control", "hazard_treated", "difference"), LOCF_CLOSED_FORM)
def test_locf_estimate_has_its_closed_form_as_mean(
    control: float, treated: float, hazard_control: float, hazard_treated: float, difference: float
) -> None:
    found = _replicates(ANALYSES, control=control, treated=treated, hazard=_arms(hazard_control, hazard_treated), trials=100)
    mean, error, _, _ = found["locf"]
    assert mean == pytest.approx(difference, abs=3 * error)
    for name in ("completers", "mmrm"):  # dropout at random biases neither
        mean, error, _, _ = found[name]
        assert mean == pytest.approx(treated - control, abs=3 * error)


def test_unequal_dropout_makes_locf_find_what_is_not_there() -> None:
    """No effect, .09 / .47 drop out completely at random: LOCF +3.2 and rejects in 82 %, the others keep the level."""
    found = _replicates(ANALYSES, control=-12, treated=-12, hazard=_arms(0.02, 0.12), trials=300)
    assert found["locf"][0] == pytest.approx(3.3, abs=0.3)
    assert found["locf"][2] == pytest.approx(0.82, abs=0.08)
    assert found["completers"][2] < 0.09
    assert found["mmrm"][2] < 0.09


def test_dropout_for_lack_of_benefit_biases_all_but_the_likelihood() -> None:
    """No effect, treated patients without benefit leave: LOCF against the drug, completers for it, MMRM neither."""
    hazard = _only_treated(_logistic(-0.6, 0.25), 0.046)
    found = _replicates(ANALYSES, control=-12, treated=-12, hazard=hazard, trials=300)
    assert found["locf"][0] > 1.5
    assert found["locf"][2] > 0.3
    assert found["completers"][0] < -1.0
    assert found["completers"][2] > 0.15
    assert found["mmrm"][0] == pytest.approx(0, abs=3 * found["mmrm"][1])
    assert found["mmrm"][2] < 0.09


def test_true_effect_with_informative_dropout_in_both_arms() -> None:
    """True -4: LOCF and completers are attenuated, MMRM is not."""
    found = _replicates(ANALYSES, control=-8, treated=-12, hazard=_logistic(-1.2, 0.15), trials=200)
    assert -3.4 < found["locf"][0] < -2.0
    assert -3.9 < found["completers"][0] < -2.8
    assert found["mmrm"][0] == pytest.approx(-4, abs=3 * found["mmrm"][1])


def test_power_under_dropout_of_the_treated() -> None:
    """True -4, .10 / .34 drop out at random: LOCF has power .33, completers .88, MMRM no less."""
    found = _replicates(ANALYSES, control=-8, treated=-12, hazard=_arms(0.02, 0.08), trials=300)
    assert found["locf"][2] == pytest.approx(0.33, abs=0.09)
    assert found["completers"][2] == pytest.approx(0.88, abs=0.06)
    assert found["mmrm"][2] >= found["completers"][2] - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("per_arm", [15, 40, 150])
def test_standard_errors_and_level_at_length(per_arm: int) -> None:
    """Reported standard errors are the estimates' SD and the level holds; in small trials imputation is conservative."""
    analyses = dict(ANALYSES, mi=_imputed(2))
    hazard = _logistic(-2.2, 0.05)
    found = _replicates(analyses, control=-12, treated=-12, hazard=hazard, trials=2000, per_arm=per_arm)
    for name in ("mmrm", "mi"):
        mean, error, rejected, ratio = found[name]
        assert mean == pytest.approx(0, abs=3 * error)
        assert 0.95 < ratio < 1.2
        assert (0.035 if name == "mmrm" or per_arm > 15 else 0.02) < rejected < 0.065


def _imputed(seed: int) -> Callable[[Floats, Bools], Estimate]:
    rng = np.random.default_rng(seed)
    return lambda outcomes, treated: multiple_imputation_estimate(outcomes, treated, rng=rng)


def test_multiple_imputation_agrees_with_the_likelihood() -> None:
    analyses = {"mmrm": mmrm_estimate, "mi": _imputed(9)}
    found = _replicates(analyses, control=-8, treated=-12, hazard=_logistic(-1.2, 0.15), trials=60)
    assert found["mi"][0] == pytest.approx(found["mmrm"][0], abs=0.15)
    assert found["mi"][0] == pytest.approx(-4, abs=3 * found["mi"][1])


def test_more_imputations_come_closer_to_the_likelihood() -> None:
    outcomes, treated = _trial(np.random.default_rng(4), 200, -8, -12, _logistic(-1.6, 0.15))
    likelihood = mmrm_estimate(outcomes, treated)
    imputed = multiple_imputation_estimate(outcomes, treated, rng=np.random.default_rng(5), imputations=400)
    assert imputed.value == pytest.approx(likelihood.value, abs=0.2 * likelihood.standard_error)
    assert imputed.standard_error == pytest.approx(likelihood.standard_error, rel=0.1)


def _em_difference(outcomes: Floats, treated: Bools, iterations: int) -> float:
    """The maximum-likelihood difference in last change at equal baseline, by EM on the multivariate normal model.

    Means are linear in arm and baseline at each visit, the covariance of the changes is unstructured.
    """
    baseline = outcomes[:, 0] - outcomes[:, 0].mean()
    change = outcomes[:, 1:] - outcomes[:, [0]]
    design = np.column_stack([treated.astype(float), np.ones(len(treated)), baseline])
    missing = np.isnan(change)
    coefficients = np.zeros((3, change.shape[1]))
    covariance = np.diag(np.nanvar(change, axis=0))
    for _ in range(iterations):
        mean = design @ coefficients
        filled = np.where(missing, 0, change)
        extra = np.zeros_like(covariance)
        for row, absent in enumerate(missing):
            if absent.any():
                seen = ~absent
                gain = covariance[np.ix_(absent, seen)] @ np.linalg.pinv(covariance[np.ix_(seen, seen)])
                filled[row, absent] = mean[row, absent] + gain @ (change[row, seen] - mean[row, seen])
                extra[np.ix_(absent, absent)] += covariance[np.ix_(absent, absent)] - gain @ covariance[np.ix_(seen, absent)]
        coefficients = np.linalg.lstsq(design, filled, rcond=None)[0]
        residual = filled - design @ coefficients
        covariance = (residual.T @ residual + extra) / len(change)
    return float(coefficients[0, -1])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mmrm_is_the_maximum_likelihood_estimate(seed: int) -> None:
    """The sequential regressions give what the EM algorithm converges to."""
    outcomes, treated = _trial(np.random.default_rng(seed), 40, -8, -12, _logistic(-1.6, 0.15))
    assert mmrm_estimate(outcomes, treated).value == pytest.approx(_em_difference(outcomes, treated, 250), abs=1e-5)


def test_without_dropout_all_analyses_agree() -> None:
    outcomes, treated = _trial(np.random.default_rng(6), 40, -8, -12, _arms(0, 0))
    reference = completers_estimate(outcomes, treated)
    assert locf_estimate(outcomes, treated) == reference
    assert non_responder_estimate(outcomes, treated) == reference
    likelihood = mmrm_estimate(outcomes, treated)
    assert likelihood.value == pytest.approx(reference.value)
    assert likelihood.standard_error == pytest.approx(reference.standard_error)
    assert likelihood.degrees_of_freedom == reference.degrees_of_freedom == 77
    imputed = multiple_imputation_estimate(outcomes, treated, rng=np.random.default_rng(0))
    assert imputed.value == pytest.approx(reference.value)
    assert imputed.standard_error == pytest.approx(reference.standard_error)


def test_unadjusted_analysis_is_the_t_test() -> None:
    outcomes, treated = _trial(np.random.default_rng(7), 25, -8, -12, _arms(0.05, 0.1))
    change = outcomes[:, -1] - outcomes[:, 0]
    seen = ~np.isnan(change)
    reference = ttest_ind(change[seen & treated], change[seen & ~treated])
    found = completers_estimate(outcomes, treated, adjust_baseline=False)
    assert found.t == pytest.approx(float(reference.statistic))
    assert found.p_value == pytest.approx(float(reference.pvalue))


def test_adjustment_for_baseline_narrows_the_interval() -> None:
    outcomes, treated = _trial(np.random.default_rng(8), 150, -8, -12, _arms(0, 0))
    adjusted = completers_estimate(outcomes, treated)
    plain = completers_estimate(outcomes, treated, adjust_baseline=False)
    assert adjusted.standard_error < plain.standard_error


def test_non_responders_count_as_unchanged() -> None:
    outcomes = np.array([[10.0, 8.0, 6.0], [11.0, 9.0, np.nan], [9.0, 7.0, 3.0], [12.0, np.nan, np.nan]])
    treated = np.array([False, False, True, True])
    found = non_responder_estimate(outcomes, treated, adjust_baseline=False)
    assert found.value == pytest.approx((-6 + 0) / 2 - (-4 + 0) / 2)
    carried = locf_estimate(outcomes, treated, adjust_baseline=False)
    assert carried.value == pytest.approx((-6 + 0) / 2 - (-4 - 2) / 2)


def test_single_arm() -> None:
    """With one arm the estimates are of the mean change, and unbiased ones agree with the truth."""
    rng = np.random.default_rng(10)
    values: dict[str, list[Estimate]] = {"mmrm": [], "mi": [], "locf": []}
    for _ in range(150):
        outcomes, treated = _trial(rng, 60, -8, -12, _logistic(-1.8, 0.1))
        single = outcomes[treated]
        values["mmrm"].append(mmrm_estimate(single, None))
        values["mi"].append(multiple_imputation_estimate(single, None, rng=rng, imputations=5))
        values["locf"].append(locf_estimate(single, None))
    for name, estimates in values.items():
        found = np.array([estimate.value for estimate in estimates])
        error = found.std(ddof=1) / math.sqrt(len(found))
        reported = np.mean([estimate.standard_error for estimate in estimates])
        if name == "locf":
            assert found.mean() > -12 + 3 * error
        else:
            assert found.mean() == pytest.approx(-12, abs=3 * error)
            assert reported == pytest.approx(found.std(ddof=1), rel=0.2)


def test_single_arm_without_dropout_is_the_mean_change() -> None:
    outcomes, treated = _trial(np.random.default_rng(12), 150, -8, -12, _arms(0, 0))
    single = outcomes[treated]
    change = single[:, -1] - single[:, 0]
    plain = completers_estimate(single, None, adjust_baseline=False)
    assert plain.value == pytest.approx(change.mean())
    assert plain.standard_error == pytest.approx(change.std(ddof=1) / math.sqrt(len(change)))
    for found in (completers_estimate(single, None), mmrm_estimate(single, None)):
        assert found.value == pytest.approx(change.mean())
        assert found.standard_error == pytest.approx(plain.standard_error, rel=0.01)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(-50, 50), st.floats(0.1, 20))
def test_estimates_follow_shift_scale_and_swap(seed: int, shift: float, scale: float) -> None:
    outcomes, treated = _trial(np.random.default_rng(seed), 20, -8, -12, _arms(0.05, 0.1))
    for analysis in (mmrm_estimate, locf_estimate, completers_estimate, non_responder_estimate):
        found = analysis(outcomes, treated)
        moved = analysis(shift + scale * outcomes, treated)
        assert moved.value == pytest.approx(scale * found.value, rel=1e-6, abs=1e-6)
        assert moved.standard_error == pytest.approx(scale * found.standard_error, rel=1e-6)
        swapped = analysis(outcomes, ~treated)
        assert swapped.value == pytest.approx(-found.value, rel=1e-6, abs=1e-8)
        order = np.random.default_rng(seed).permutation(len(treated))
        assert analysis(outcomes[order], treated[order]).value == pytest.approx(found.value, rel=1e-6, abs=1e-8)


def test_mmrm_of_a_small_trial() -> None:
    """With few completers the oldest visits leave the model; the estimate stays unbiased, its error honest."""
    found = _replicates({"mmrm": mmrm_estimate}, control=-8, treated=-12, hazard=_arms(0.05, 0.05), trials=500, per_arm=9)
    mean, error, _, ratio = found["mmrm"]
    assert mean == pytest.approx(-4, abs=3 * error)
    assert 0.85 < ratio < 1.3


def test_imputation_repeats_with_its_generator() -> None:
    outcomes, treated = _trial(np.random.default_rng(13), 20, -8, -12, _arms(0.1, 0.1))
    first, second = (multiple_imputation_estimate(outcomes, treated, rng=np.random.default_rng(1)) for _ in range(2))
    assert first == second


def test_data_that_cannot_be_analysed() -> None:
    outcomes, treated = _trial(np.random.default_rng(14), 10, -8, -12, _arms(0, 0))
    gap = outcomes.copy()
    gap[0, 2] = np.nan
    with pytest.raises(ValueError, match="monotone"):
        mmrm_estimate(gap, treated)
    headless = outcomes.copy()
    headless[0, :] = np.nan
    with pytest.raises(ValueError, match="baseline"):
        locf_estimate(headless, treated)
    with pytest.raises(ValueError, match="both arms"):
        locf_estimate(outcomes, np.ones(20, dtype=np.bool_))
    with pytest.raises(ValueError, match="each patient"):
        locf_estimate(outcomes, treated[:-1])
    with pytest.raises(ValueError, match="2 visits"):
        locf_estimate(outcomes[:, :1], treated)
    with pytest.raises(ValueError, match="finite"):
        locf_estimate(np.full((4, 3), np.inf), np.array([True, True, False, False]))
    with pytest.raises(ValueError, match="imputations"):
        multiple_imputation_estimate(outcomes, treated, rng=np.random.default_rng(0), imputations=1)
    with pytest.raises(ValueError, match="rise"):
        expected_locf_change(-12, 0.1, ())
    with pytest.raises(ValueError, match="hazard"):
        completion_probability(1.1, 6)


def test_data_that_allow_no_estimate() -> None:
    outcomes, treated = _trial(np.random.default_rng(15), 10, -8, -12, _arms(0, 0))
    few = outcomes.copy()
    few[1:-1, -1] = np.nan
    with pytest.raises(NotEstimableError, match="too few"):
        mmrm_estimate(few, treated)
    lost_arm = outcomes.copy()
    lost_arm[treated, -1] = np.nan
    with pytest.raises(NotEstimableError, match="apart"):
        completers_estimate(lost_arm, treated)
    with pytest.raises(NotEstimableError):
        locf_estimate(np.full((10, 3), 5.0), np.arange(10) < 5)
    with pytest.raises(NotEstimableError, match="vary"):
        locf_estimate(np.full((10, 3), 5.0), np.arange(10) < 5, adjust_baseline=False)
