"""What loading costs: one epoch of loading alone beside one epoch of training the small CNN, on the embedded digits.

Run: python scripts/bench_data.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from lsgen.data import ImageData
from lsgen.suts.classifier import Classifier

TARGET = 0.10  # of an epoch of training


def seconds(run: Callable[[], None]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    data = ImageData(name="mnist5k", batch_size=64)
    sut = Classifier(network="mnist_cnn", image_shape=data.image_shape, num_classes=data.num_classes)
    optimizer = torch.optim.Adam(sut.parameters())

    def load() -> None:
        for _ in data.train_dataloader():
            pass

    def train() -> None:
        for images, labels in data.train_dataloader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(sut.logits(images), labels).backward()
            optimizer.step()

    load()  # the first pass pays for starting threads
    before, training, after = seconds(load), seconds(train), seconds(load)
    loading = max(before, after)  # on a busy machine the quicker one would flatter
    share = loading / training
    print(f"an epoch of loading alone:  {loading:8.3f} s")
    print(f"an epoch of training:       {training:8.3f} s  (mnist_cnn, batches of {data.batch_size})")
    print(f"loading / training:         {share:8.2%}    (target: at most {TARGET:.0%})")


if __name__ == "__main__":
    main()
