"""Images and labels by name, for training and as a place to take seeds from; faults to put into them."""

from lsgen.data.faults import BiasedPair, BorderBrightness, Fault, MixedPair, OwnCriterion, StrokeThickness
from lsgen.data.features import Background, CornerPatch, Feature, Frame, Orientation, Saturation
from lsgen.data.images import ImageData, InMemory, Split, check_fits

__all__ = [
    "Background",
    "BiasedPair",
    "BorderBrightness",
    "CornerPatch",
    "Fault",
    "Feature",
    "Frame",
    "ImageData",
    "InMemory",
    "MixedPair",
    "Orientation",
    "OwnCriterion",
    "Saturation",
    "Split",
    "StrokeThickness",
    "check_fits",
]
