"""Estimates of a treatment effect on repeated measures when patients drop out.

Outcomes have shape (patients, visits): column 0 is the baseline, seen in everyone; after a patient drops out all further
visits are NaN (monotone missingness). `treated` has shape (patients,) and is True in the treated arm; None says that
there is one arm only. The effect is the difference (treated - control) of the mean change from baseline to the last
visit, or, with one arm, that mean change itself. With adjust_baseline the comparison is at equal baseline (analysis
of covariance), which randomisation makes as unbiased and more precise.

LOCF and completers are biased whenever dropout depends on the outcome, LOCF even when it only differs by arm; the
likelihood-based analysis and multiple imputation are not, as long as dropout depends on what was seen (missing at random).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtri

from .estimates import Estimate, NotEstimableError

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]

# A column this much shorter after projection on the others is taken as their linear combination.
_RANK_TOLERANCE = 1e-9
_PATIENTS_PER_COEFFICIENT = 3
_VISIT_WEEKS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True, slots=True)
class _Data:
    """Checked outcomes as centred baseline and changes; `effect` is the design's column whose coefficient is wanted."""

    baseline: FloatArray  # (patients,), mean 0
    change: FloatArray  # (patients, visits - 1)
    observed: BoolArray  # (patients, visits - 1)
    effect: FloatArray  # (patients,): 1 where treated; all 1 with one arm
    one_arm: bool

    def covariates(self, adjust_baseline: bool = True) -> FloatArray:
        """Design without earlier visits, `effect` first: shape (patients, columns)."""
        columns = [self.effect]
        if not self.one_arm:
            columns.append(np.ones_like(self.baseline))
        if adjust_baseline:
            columns.append(self.baseline)
        return np.column_stack(columns)

    @property
    def baseline_column(self) -> int:
        """Where `covariates` has the baseline."""
        return 1 if self.one_arm else 2


@dataclass(frozen=True, slots=True)
class _Regression:
    """Ordinary least squares: coefficients (columns,), the inverse of R with X = QR, residual variance and df."""

    coefficients: FloatArray
    inverse_r: FloatArray
    variance: float
    df: int

    def variance_of(self, combination: FloatArray) -> float:
        """Variance of a linear combination of the coefficients."""
        root = combination @ self.inverse_r
        return self.variance * float(root @ root)


def _checked(outcomes: FloatArray, treated: BoolArray | None) -> _Data:
    if outcomes.ndim != 2 or outcomes.shape[0] < 2 or outcomes.shape[1] < 2:
        raise ValueError(f"outcomes need at least 2 patients and 2 visits, got shape {outcomes.shape}")
    observed = ~np.isnan(outcomes)
    if not observed[:, 0].all():
        raise ValueError("every patient needs a baseline")
    if np.isinf(outcomes).any():
        raise ValueError("outcomes must be finite, or NaN where missing")
    if (observed[:, 1:] & ~observed[:, :-1]).any():
        raise ValueError("a visit is missing before a later one that was seen: dropout must be monotone")
    baseline = outcomes[:, 0]
    if treated is None:
        effect = np.ones(len(outcomes))
    else:
        if treated.shape != (len(outcomes),):
            raise ValueError(f"treated needs one entry for each patient, got shape {treated.shape}")
        if treated.all() or not treated.any():
            raise ValueError("treated must have both arms; give None for a single-arm trial")
        effect = treated.astype(np.float64)
    return _Data(
        baseline=baseline - baseline.mean(),
        change=outcomes[:, 1:] - baseline[:, None],
        observed=observed[:, 1:],
        effect=effect,
        one_arm=treated is None,
    )


def _regress(design: FloatArray, response: FloatArray) -> _Regression:
    patients, columns = design.shape
    df = patients - columns
    if df < 1:
        raise NotEstimableError(f"{patients} patients seen at a visit are too few for {columns} coefficients")
    q, r = np.linalg.qr(design)
    if (np.abs(np.diag(r)) <= _RANK_TOLERANCE * np.sqrt((design**2).sum(axis=0))).any():
        raise NotEstimableError("the patients seen at a visit do not tell the arms and earlier visits apart")
    inverse_r = np.asarray(dtrtri(r)[0], dtype=np.float64)
    projected = q.T @ response
    residual = response - q @ projected
    variance = float(residual @ residual) / df
    if not variance > 0:
        raise NotEstimableError("the outcomes do not vary")
    return _Regression(inverse_r @ projected, inverse_r, variance, df)


def _analyse(data: _Data, rows: BoolArray, change: FloatArray, adjust_baseline: bool) -> Estimate:
    """Effect on one change for each patient, among the patients in `rows`."""
    design = data.covariates(adjust_baseline)[rows]
    fit = _regress(design, change[rows])
    combination = np.zeros(design.shape[1])
    combination[0] = 1.0
    variance = fit.variance_of(combination)
    if data.one_arm and adjust_baseline:
        variance += _baseline_sampling(data, float(fit.coefficients[data.baseline_column]))
    return Estimate(float(fit.coefficients[0]), math.sqrt(variance), fit.df)


def _baseline_sampling(data: _Data, slope: float) -> float:
    """Variance that a single-arm mean change at the mean baseline has from that mean being a sample's."""
    n = len(data.baseline)
    return slope**2 * float(data.baseline @ data.baseline) / (n - 1) / n


@dataclass(frozen=True, slots=True)
class _VisitFit:
    """A visit's regression on arm, baseline and the `earlier` changes right before it, which are its last columns."""

    fit: _Regression
    earlier: slice

    @property
    def slopes(self) -> FloatArray:
        """Coefficients of the earlier changes, shape (earlier visits used,)."""
        count = self.earlier.stop - self.earlier.start
        return self.fit.coefficients[self.fit.coefficients.size - count :]


def _fit_visits(data: _Data) -> list[_VisitFit]:
    """The regressions into which the likelihood factors, one for each visit, among the patients seen there."""
    fixed = data.covariates()
    fits: list[_VisitFit] = []
    for visit in range(data.change.shape[1]):
        seen = data.observed[:, visit]
        # Where fewer patients are left, the visits longest ago go first.
        used = min(max(int(seen.sum()) // _PATIENTS_PER_COEFFICIENT - fixed.shape[1], 0), visit)
        earlier = slice(visit - used, visit)
        design = np.hstack([fixed[seen], data.change[seen, earlier]])
        fits.append(_VisitFit(_regress(design, data.change[seen, visit]), earlier))
    return fits


def completers_estimate(outcomes: FloatArray, treated: BoolArray | None, *, adjust_baseline: bool = True) -> Estimate:
    """Effect among the patients seen at the last visit.

    Raises ValueError on outcomes that are not monotone or lack a baseline, or a `treated` that does not fit them;
    NotEstimableError when too few patients complete.
    """
    data = _checked(outcomes, treated)
    return _analyse(data, data.observed[:, -1], data.change[:, -1], adjust_baseline)


def locf_estimate(outcomes: FloatArray, treated: BoolArray | None, *, adjust_baseline: bool = True) -> Estimate:
    """Effect with each patient's last observation carried forward, from the baseline if nothing else was seen.

    Raises as `completers_estimate`.
    """
    data = _checked(outcomes, treated)
    seen = data.observed.sum(axis=1)
    carried = np.where(seen > 0, data.change[np.arange(len(seen)), np.maximum(seen, 1) - 1], 0.0)
    return _analyse(data, np.ones(len(seen), dtype=np.bool_), carried, adjust_baseline)


def non_responder_estimate(outcomes: FloatArray, treated: BoolArray | None, *, adjust_baseline: bool = True) -> Estimate:
    """Effect when whoever is not seen at the last visit counts as unchanged since baseline.

    Raises as `completers_estimate`.
    """
    data = _checked(outcomes, treated)
    change = np.where(data.observed[:, -1], data.change[:, -1], 0.0)
    return _analyse(data, np.ones(len(change), dtype=np.bool_), change, adjust_baseline)


def mmrm_estimate(outcomes: FloatArray, treated: BoolArray | None) -> Estimate:
    """Likelihood-based effect: the mixed model for repeated measures with unstructured covariance, at equal baseline.

    Under monotone missingness the normal likelihood factors into one regression for each visit, on arm, baseline and
    the earlier visits, among the patients seen there; the maximum-likelihood means follow by substitution, without
    iteration (Anderson 1957; Little and Rubin 2020, ch. 7). With effects e_j at the visits and visit k's coefficients
    a_k (arm) and b_kj, e_k = a_k + sum_j b_kj e_j. The standard error is the delta method's over the regressions,
    whose information is block-diagonal; the degrees of freedom are those of the completers' analysis of covariance.
    Both are that analysis's own when nobody drops out.

    Where fewer than three patients for each coefficient are left, a visit's regression drops the visits longest ago (a
    covariance of lower antedependence order), so that a small trial still has an estimate.

    Raises as `completers_estimate`.
    """
    data = _checked(outcomes, treated)
    visits = _fit_visits(data)
    effects = np.zeros(len(visits))
    combinations: list[FloatArray] = []
    for visit, here in enumerate(visits):
        # What the coefficients are multiplied by: 1 for the arm, the effects so far for the earlier visits.
        combination = np.zeros(here.fit.coefficients.size)
        combination[0] = 1.0
        combination[combination.size - here.slopes.size :] = effects[here.earlier]
        effects[visit] = here.fit.coefficients @ combination
        combinations.append(combination)
    # How much the last effect moves with each visit's: backwards through the same recursion.
    weights = np.zeros(len(visits))
    weights[-1] = 1.0
    for visit in range(len(visits) - 1, 0, -1):
        weights[visits[visit].earlier] += weights[visit] * visits[visit].slopes
    # The squares of estimated weights are too large on average; in the sum that is made good by dividing the residual
    # sums of squares as if the earlier visits were not in the regressions.
    variance = sum(
        float(weight) ** 2 * here.fit.variance_of(combination) * here.fit.df / (here.fit.df + here.slopes.size)
        for weight, here, combination in zip(weights, visits, combinations, strict=True)
    )
    df = int(data.observed[:, -1].sum()) - data.covariates().shape[1]
    if data.one_arm:
        slopes = [here.fit.coefficients[data.baseline_column] for here in visits]
        variance += _baseline_sampling(data, float(weights @ slopes))
    return Estimate(float(effects[-1]), math.sqrt(variance), df)


def multiple_imputation_estimate(
    outcomes: FloatArray,
    treated: BoolArray | None,
    *,
    rng: np.random.Generator,
    imputations: int = 20,
    adjust_baseline: bool = True,
) -> Estimate:
    """Effect by multiple imputation under missing at random, pooled by Rubin's rules.

    Each visit's missing values are drawn from its regression on arm, baseline and earlier visits with coefficients and
    variance from their posterior (the monotone regression method; Rubin 1987). Degrees of freedom after Barnard and
    Rubin (1999).

    Raises as `mmrm_estimate`, and ValueError unless imputations >= 2.
    """
    if imputations < 2:
        raise ValueError(f"imputations must be at least 2, got {imputations!r}")
    data = _checked(outcomes, treated)
    filled = np.repeat(data.change[None], imputations, axis=0)
    fixed = data.covariates()
    for visit, here in enumerate(_fit_visits(data)):
        fit = here.fit
        missing = np.flatnonzero(~data.observed[:, visit])
        sd = np.sqrt(fit.variance * fit.df / rng.chisquare(fit.df, size=imputations))
        scatter = rng.standard_normal((imputations, fit.coefficients.size)) @ fit.inverse_r.T
        drawn = fit.coefficients + sd[:, None] * scatter
        noise = sd[:, None] * rng.standard_normal((imputations, missing.size))
        from_fixed = drawn[:, : fixed.shape[1]] @ fixed[missing].T
        from_earlier = np.einsum("mpv,mv->mp", filled[:, missing, here.earlier], drawn[:, fixed.shape[1] :])
        filled[:, missing, visit] = from_fixed + from_earlier + noise
    everyone = np.ones(len(fixed), dtype=np.bool_)
    fits = [_analyse(data, everyone, last, adjust_baseline) for last in filled[:, :, -1]]
    values = np.array([fit.value for fit in fits])
    within = float(np.mean([fit.standard_error**2 for fit in fits]))
    between = (1 + 1 / imputations) * float(values.var(ddof=1))
    total = within + between
    complete_df = fits[0].degrees_of_freedom
    share = between / total
    observed_df = (complete_df + 1) / (complete_df + 3) * complete_df * (1 - share)
    # With nothing missing the imputations agree and only the complete data's df count.
    df = observed_df if share == 0 else 1 / (share**2 / (imputations - 1) + 1 / observed_df)
    return Estimate(float(values.mean()), math.sqrt(total), df)


def completion_probability(hazard: float, visits: int) -> float:
    """Probability of being seen at the last of `visits` visits when a share `hazard` drops out after each but the last.

    Raises ValueError unless 0 <= hazard <= 1 and visits >= 1.
    """
    if not 0 <= hazard <= 1 or visits < 1:
        raise ValueError(f"hazard must be from 0 to 1 and visits at least 1, got {hazard!r} and {visits!r}")
    return float((1 - hazard) ** (visits - 1))


def expected_locf_change(final_change: float, hazard: float, visit_times: Sequence[float] = _VISIT_WEEKS) -> float:
    """Mean change that LOCF reports when the true mean changes linearly by final_change up to the last visit.

    After each visit but the last a share `hazard` of those left drops out at random: slope * (sum_k S_k h V_k + S_last
    V_last), with S_k the share left at visit k and V_k its time since the first.

    Raises ValueError as `completion_probability`, and unless there are at least 2 rising visit times.
    """
    if len(visit_times) < 2 or any(later <= earlier for earlier, later in pairwise(visit_times)):
        raise ValueError(f"visit_times must rise and be at least 2, got {tuple(visit_times)}")
    start, end = visit_times[0], visit_times[-1]
    carried = sum(
        completion_probability(hazard, visit + 1) * hazard * (time - start) for visit, time in enumerate(visit_times[:-1])
    )
    completed = completion_probability(hazard, len(visit_times)) * (end - start)
    return final_change * (carried + completed) / (end - start)
