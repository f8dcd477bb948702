"""The seven precisions for the campaign's models; the training loop itself is precog.gpu.trainer."""
import in_package  # noqa: F401
from precog.gpu import trainer
from precog.gpu.trainer import DTYPES, switch  # noqa: F401

import models

ALL = ("fp32", "tf32", "fp32-default", "amp-bf16", "amp-fp16", "bf16", "fp16")


def of_model(name):
    """fp32-default differs from fp32 in convolutions alone."""
    return [p for p in ALL if p != "fp32-default" or name in models.CONVOLUTIONAL]


class Trainer(trainer.Trainer):
    def __init__(self, device, name, model, data, precision, optimizer="foreach"):
        self.name, self.data = name, data
        super().__init__(device, lambda trained: models.loss(self.name, trained, self.data), model, precision, "adamw", optimizer)

    def close(self):
        super().close()
        self.data = None
