"""Metrics: torchmetrics classes over functional twins, and the summary of a suite."""

from lsgen.metrics.failure import FailureRate, MeanTrueProbability
from lsgen.metrics.summary import summarise

__all__ = ["FailureRate", "MeanTrueProbability", "summarise"]
