"""Metrics: torchmetrics classes over functional twins, the summary of a suite, and the table of definitions."""

from lsgen.metrics.comparison import DetectionRate, ImprovedAccuracy, Robustness
from lsgen.metrics.diversity import FeatureCoverage, FeatureDistance
from lsgen.metrics.failure import (
    BoundaryGap,
    ConfidentFailureRate,
    DistinctPairs,
    Effectiveness,
    EscapeRate,
    FailureRate,
    LabelDiversity,
    MeanIterations,
    MeanTrueProbability,
    MisclassificationRate,
    QueriesPerFailure,
    SecondsPerFailure,
    SeedViability,
    SuccessRate,
)
from lsgen.metrics.images import LPIPS, ImageMSE, ImageSSIM, PixelL2, PixelLinf
from lsgen.metrics.summary import summarise

__all__ = [
    "LPIPS",
    "BoundaryGap",
    "ConfidentFailureRate",
    "DetectionRate",
    "DistinctPairs",
    "Effectiveness",
    "EscapeRate",
    "FailureRate",
    "FeatureCoverage",
    "FeatureDistance",
    "ImageMSE",
    "ImageSSIM",
    "ImprovedAccuracy",
    "LabelDiversity",
    "MeanIterations",
    "MeanTrueProbability",
    "MisclassificationRate",
    "PixelL2",
    "PixelLinf",
    "QueriesPerFailure",
    "Robustness",
    "SecondsPerFailure",
    "SeedViability",
    "SuccessRate",
    "summarise",
]
