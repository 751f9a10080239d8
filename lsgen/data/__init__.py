"""Images and labels by name, for training and as a place to take seeds from."""

from lsgen.data.images import ImageData, InMemory, Split, check_fits

__all__ = ["ImageData", "InMemory", "Split", "check_fits"]
