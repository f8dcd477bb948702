"""The model garden: published architectures with random weights, their data and their losses.

    import garden
    entry = garden.find("llama3-8b")
    with torch.device("meta"):
        model = entry.build()
        data = entry.inputs(model, entry.batch, entry.seq, torch.device("meta"), torch.float32)
        loss = entry.loss(model, data)

The coverage tool captures every entry, the capture tests some, and the GPU campaign records real steps of those with
a `trace`. Nothing is downloaded. See registry.py for what an entry is.
"""
from .registry import FAMILIES, SOURCES, Entry, entries, find
from . import (torchvision_models, timm_models, hf_vision, hf_encoders, hf_decoders, hf_moe,  # noqa: F401
               hf_encoder_decoders, hf_audio, hf_multimodal, hf_series, own_diffusion, own_recurrent, own_recommendation,
               own_graph, own_adapters, own_other, drawn, drawn_tenth, drawn_eleventh)

__all__ = ["Entry", "FAMILIES", "SOURCES", "entries", "find"]
