"""Variances between few repeats, moderated by those of the other configurations that were measured with them.

Three repeats alone know their variance so badly that their limits are 4.3 standard errors off. But the configurations
of one sweep vary alike, more or less: how alike is estimated too, and each variance is squeezed towards the others' by
as much. Sources: Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression in
microarray experiments" (the prior; limma's squeezeVar. Fitted by maximum likelihood, since moments of log variances
are thrown off by two repeats that agree by chance); Satterthwaite 1946, "An approximate distribution of estimates of
variance components" (degrees of freedom of the prior, where what the machine does in a repeat is common to all);
Phipson et al. 2016, "Robust hyperparameter estimation protects against hypervariable genes" (a configuration that is
wilder than the others is not squeezed).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scalebench.core.stats.estimates import FloatArray
from scalebench.core.stats.log_means import LogMean, mean_of_logs

MIN_OTHERS = 2  # configurations with repeats
MAX_LEFT_OUT = 100  # of more configurations than these one or two do not matter, and are not left out
WILD_SHARE = 0.1  # a variance that so few have by chance, if it is one of the others, keeps to itself
MIN_VARIANCE = 1e-14  # of logarithms: rounding
PRIOR_FREEDOMS: FloatArray = np.append(np.geomspace(0.5, 64, 15), 1e6)  # that are tried; the last: all are alike
FIT_ITERATIONS = 30


class Prior(NamedTuple):
    """The variance that the other configurations let one expect, and how many degrees of freedom that is worth."""

    variance: float
    degrees_of_freedom: float


class RepeatTable:
    """Log throughputs of the configurations of a sweep (rows) in its repeats (columns).

    Serves means and differences with variances that are moderated by the configurations that they are not of. The
    variance of a mean holds what changes for all from one repeat to the next; that of a difference within repeats does
    not, since it cancels.
    """

    def __init__(self, levels: Mapping[Hashable, Mapping[Any, float]]) -> None:
        """`levels`: by configuration, by repeat. Where a configuration has no figure the repeat is missing."""
        self._rows = {name: number for number, name in enumerate(levels)}
        repeats = {key: number for number, key in enumerate(dict.fromkeys(itertools.chain(*levels.values())))}
        self._levels: FloatArray = np.full((len(levels), len(repeats)), np.nan)
        for row, of_configuration in zip(self._levels, levels.values(), strict=True):
            row[[repeats[key] for key in of_configuration]] = list(of_configuration.values())
        self._priors: dict[tuple[int, frozenset[int]], Prior | None] = {}

    def mean(self, name: Hashable, logs: Sequence[float]) -> LogMean:
        """Return the mean of the log throughputs of a configuration."""
        return moderate(logs, self._prior(name), self._max_freedom)

    def difference(self, name: Hashable, base: Hashable, differences: Sequence[float]) -> LogMean:
        """Return the mean of the differences within repeats of two configurations."""
        prior = self._prior(name, base)
        return moderate(differences, None if prior is None else Prior(2 * prior.variance, prior.degrees_of_freedom))

    @cached_property
    def _max_freedom(self) -> float:
        """The degrees of freedom of all configurations for the variance between repeats: with what is common to them
        counted once, so that it does not count as that of a configuration and of the others too."""
        return Layout(self._levels).max_freedom

    def _prior(self, *names: Hashable) -> Prior | None:
        """Return what the configurations other than these say, from a cache; of two, beside what is common."""
        own = [self._rows[name] for name in names if name in self._rows]
        left_out = frozenset(own if len(self._rows) <= MAX_LEFT_OUT else ())
        key = len(names), left_out
        if key not in self._priors:
            layout = Layout(np.delete(self._levels, list(left_out), axis=0))
            self._priors[key] = layout.fit_rest(self._levels[own]) if len(names) == 2 else layout.fit()
        return self._priors[key]


class Layout:
    """The two-way layout, configurations and repeats, of those configurations that have several.

    The variance of a configuration between repeats is a sum of two mean squares, that of repeats and that of the rest.
    What is common to a repeat is seen by all configurations at once: they tell no more of it than a single one would.
    """

    def __init__(self, levels: FloatArray) -> None:
        """`levels`: a row for each configuration, a column for each repeat, nan where there is no figure."""
        counts = (~np.isnan(levels)).sum(axis=1)
        self.levels = levels[counts > 1]
        self.present = ~np.isnan(self.levels)
        self.counts = counts[counts > 1]
        self.freedoms = self.counts - 1.0
        means = np.where(self.present, self.levels, 0).sum(axis=1) / self.counts
        self.deviations: FloatArray = np.where(self.present, self.levels - means[:, None], 0)
        self.members = np.maximum(self.present.sum(axis=0), 1)  # configurations in each repeat
        self.effects = self.deviations.sum(axis=0) / self.members
        self.residuals = np.where(self.present, self.deviations - self.effects, 0)
        self.freedom_of_repeats = float(
            (self.present * (self.freedoms / self.counts)[:, None]).sum(0) @ (1 / self.members)
        )
        self.freedom_of_rest = float(self.freedoms.sum()) - self.freedom_of_repeats

    @property
    def max_freedom(self) -> float:
        """Satterthwaite's degrees of freedom of the mean variance of a configuration between repeats."""
        total = float(self.freedoms.sum())
        if self.freedom_of_rest < 1:
            return total - self.freedom_of_rest
        common, rest = (self.members * self.effects**2).sum() / total, (self.residuals**2).sum() / total
        shares = common**2 / self.freedom_of_repeats + rest**2 / self.freedom_of_rest
        return float((common + rest) ** 2 / shares) if shares > 0 else total

    def fit(self) -> Prior | None:
        """Return the prior of the variance of a configuration between repeats."""
        return fit_prior((self.deviations**2).sum(axis=1) / self.freedoms, self.freedoms, self.max_freedom)

    def fit_rest(self, pair: FloatArray) -> Prior | None:
        """Return the prior of the variance beside what is common to a repeat. A single configuration is seen beside the
        mean of a `pair` of others, which is independent of their difference."""
        if len(self.levels) == 1 and len(pair) == 2:
            beside = self.levels[0] - pair.mean(axis=0)
            own = mean_of_logs(beside[~np.isnan(beside)].tolist() or [0.0])
            count = own.degrees_of_freedom + 1
            return Prior(max(own.variance * count / 1.5, MIN_VARIANCE), own.degrees_of_freedom) if count > 1 else None
        variances, kept = self.rest_of_each()
        some = kept > 0
        return fit_prior(variances[some], self.freedoms[some], self.freedom_of_rest)

    def rest_of_each(self) -> tuple[FloatArray, FloatArray]:
        """Return the variance of each configuration beside what is common to a repeat, and its degrees of freedom, of
        which the mean of a repeat takes its share; nan and 0 of a configuration that is alone in its repeats."""
        kept = self.freedoms * ((self.present * (1 - 1 / self.members)).sum(axis=1) / self.counts)
        squares = (self.residuals**2).sum(axis=1)
        return np.divide(squares, kept, out=np.full_like(squares, np.nan), where=kept > 0), kept


def moderate(logs: Sequence[float], prior: Prior | None, max_freedom: float = math.inf) -> LogMean:
    """Return the mean of logarithms with its variance squeezed towards the prior's; with its own variance where there
    is no prior, or where that is so much larger that it would hardly be one of the others."""
    own = mean_of_logs(logs)
    if prior is None or own.degrees_of_freedom == 0:
        return own
    from scipy.special import fdtrc

    freedom, variance = own.degrees_of_freedom, own.variance * len(logs)
    if fdtrc(freedom, prior.degrees_of_freedom, variance / prior.variance) < WILD_SHARE:
        return own
    total = prior.degrees_of_freedom + freedom
    squeezed = (prior.degrees_of_freedom * prior.variance + freedom * variance) / total
    return LogMean(own.mean, squeezed / len(logs), max(freedom, min(total, max_freedom)))


def fit_prior(variances: FloatArray, freedoms: FloatArray, max_freedom: float) -> Prior | None:
    """Fit a scaled inverse chi-squared distribution to variances, by maximum likelihood.

    `freedoms` are their degrees of freedom. No prior is worth more than `max_freedom`. None for fewer than MIN_OTHERS.
    """
    if len(variances) < MIN_OTHERS or max_freedom < 1:
        return None
    from scipy.special import gammaln

    squares, priors = freedoms * np.maximum(variances, MIN_VARIANCE), PRIOR_FREEDOMS[:, None]
    scales = np.full_like(priors, squares.sum() / freedoms.sum())
    for _ in range(FIT_ITERATIONS):
        # Each variance, and with it the scale, is expected from its own squares and the scale before (EM).
        weights = (freedoms + priors) / (squares + priors * scales)
        scales = scales * (weights @ squares)[:, None] / freedoms.sum()
    likelihoods = (
        gammaln((freedoms + priors) / 2) - gammaln(priors / 2) + priors / 2 * np.log(priors * scales)
        - (freedoms + priors) / 2 * np.log(squares + priors * scales)
    ).sum(axis=1)  # fmt: skip
    best = int(likelihoods.argmax())
    return Prior(float(scales[best, 0]), min(float(PRIOR_FREEDOMS[best]), max_freedom))
