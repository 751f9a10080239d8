"""Images and labels by name, for training and as a place to take seeds from."""

from lsgen.data.images import ImageData, InMemory, check_fits

__all__ = ["ImageData", "InMemory", "check_fits"]
