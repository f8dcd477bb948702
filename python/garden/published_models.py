"""The architectures that published benchmarks measured and neither the zoo nor the garden's libraries have.

They stand apart from the garden's list: they are captured for tools/published_speedups.py (tools/capture_published.py writes
tests/data/published), not for coverage. An entry is a name, what builds the model, its data, its loss, and the sizes of the
capture: batch and, for text, the length.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from torch import Tensor, nn

from .images import classify, images
from . import published_detection as detection
from . import published_graph as graph
from . import published_language as language
from . import published_medical as medical
from . import published_recommendation as recommendation
from . import published_speech as speech


@dataclass(frozen=True)
class Published:
    build: Callable[[], nn.Module]
    inputs: Callable[..., dict[str, Any]]
    loss: Callable[[nn.Module, dict[str, Any]], Tensor]
    batch: int
    seq: int | None = None


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision
        return getattr(torchvision.models, name)(weights=None).train()
    return build


def _resnet50_fused() -> nn.Module:
    """ResNet-50 whose norms apply the ReLU themselves (cuDNN's BN_ACTIVATION and BN_ADD_ACTIVATION): none runs as a kernel.

    The residual addition, which such a kernel does too, stays an operator: a little too long.
    """
    import torchvision
    model = torchvision.models.resnet50(weights=None).train()
    for module in model.modules():
        if hasattr(module, "relu"):
            module.relu = nn.Identity()
    return model


# The classifiers of ryujaehun/pytorch-gpu-benchmark that the zoo has not.
TORCHVISION = ("densenet121", "densenet161", "densenet169", "densenet201", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
               "resnext50_32x4d", "resnext101_32x8d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5",
               "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16_bn", "vgg19",
               "vgg19_bn", "wide_resnet50_2", "wide_resnet101_2")

MODELS = {
    "nnunet-2d": Published(medical.nnunet_2d, medical.pictures(192, 160), medical.dice_and_entropy, 4),
    "nnunet-3d": Published(medical.nnunet_3d, medical.pictures(128, 128, 128), medical.dice_and_entropy, 2),
    "nnunet-3d-fused": Published(medical.nnunet_3d_fused, medical.pictures(128, 128, 128), medical.dice_and_entropy, 2),
    "unet-3d-plain": Published(medical.unet_3d_plain, medical.pictures(128, 128, 128), medical.dice_and_entropy, 2),
    "nnunet-2d-fused": Published(medical.nnunet_2d_fused, medical.pictures(192, 160), medical.decayed, 4),
    "transformer-xl-base": Published(language.transformer_xl_base, language.segments, language.next_word, 4, 192),
    "transformer-xl-base-first": Published(language.transformer_xl_base_first, language.segments, language.next_word, 4, 192),
    "transformer-xl-base-early": Published(language.transformer_xl_base_early, language.segments, language.next_word, 4, 192),
    "transformer-xl-large-early": Published(language.transformer_xl_large_early, language.segments, language.next_word, 4, 384),
    "transformer-xl-large-256-early": Published(language.transformer_xl_large_wide_early, language.segments, language.next_word, 4, 256),
    "transformer-xl-base-plain": Published(language.transformer_xl_base_plain, language.segments, language.next_word, 4, 192),
    "bert-base-plain": Published(lambda: language.bert_base(plain=True), language.masked_text, language.pre_training, 4, 128),
    "bert-base-pretraining": Published(language.bert_base, language.masked_text, language.pre_training, 4, 128),
    "bert-base-pretraining-512": Published(language.bert_base, language.masked_text, language.pre_training, 4, 512),
    "bert-base-apart": Published(lambda: language.bert_base(apart=True), language.masked_text, language.pre_training, 4, 128),
    "bert-base-labels": Published(lambda: language.bert_base(labels=3), language.labelled_text, language.labelling, 4, 128),
    "transformer-xl-large": Published(language.transformer_xl_large, language.segments, language.next_word, 4, 384),
    "transformer-xl-large-256": Published(language.transformer_xl_large_wide, language.segments, language.next_word, 4, 256),
    "maskrcnn-r50-fpn": Published(detection.mask_rcnn, detection.scenes(800, 1216, masks=True), detection.losses, 1),
    "fasterrcnn-r50-fpn": Published(detection.faster_rcnn, detection.scenes(800, 1216), detection.losses, 1),
    "retinanet-r50-fpn": Published(lambda: detection.RetinaNet().train(), detection.matched(800, 1216), detection.focal, 2),
    "retinanet-r50-fpn-320": Published(lambda: detection.RetinaNet().train(), detection.matched(320, 320), detection.focal, 2),
    "ssd-r50-fpn-320": Published(lambda: detection.TensorFlowSsd(), detection.padded(320, 320), detection.matching_loss, 32),
    "dlrm-criteo": Published(lambda: recommendation.Dlrm().train(), recommendation.clicks, recommendation.click_loss, 2048),
    "vae-cf": Published(lambda: recommendation.VaeCf().train(), recommendation.histories, recommendation.likelihood, 512),
    "ncf": Published(lambda: recommendation.Ncf().train(), recommendation.visits, recommendation.visit_loss, 4096),
    "se3-transformer": Published(graph.se3_transformer, graph.molecules, graph.property_loss, 8),
    "se3-transformer-by-degree": Published(graph.se3_transformer_by_degree, graph.molecules, graph.property_loss, 8),
    "tacotron2": Published(speech.tacotron2, speech.clips, speech.spectrum_loss, 8, 96),
    "fastspeech": Published(speech.fast_speech, speech.sentences, speech.frame_loss, 8),
    "resnet50-fused": Published(_resnet50_fused, images(224), classify, 12),
    **{name: Published(_torchvision(name), images(224), classify, 12) for name in TORCHVISION},
}
