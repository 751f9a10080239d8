"""Systems under test: classifiers, their networks, and how a trained one is opened."""

from lsgen.suts.base import SUT, accuracy, pretrained
from lsgen.suts.classifier import Classifier
from lsgen.suts.external import ExternalSUT

__all__ = ["SUT", "Classifier", "ExternalSUT", "accuracy", "pretrained"]
