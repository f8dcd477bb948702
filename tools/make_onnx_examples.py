"""Exports the ONNX files that tests/onnx_test.py predicts, without their weights.

    python tools/make_onnx_examples.py tests/data/onnx resnet50
    python tools/make_onnx_examples.py tests/data/onnx bert-base --layers 4
    python tools/make_onnx_examples.py tests/data/onnx resnet50 vit-b bert-base gpt2 --dynamo
    python tools/make_onnx_examples.py tests/data/onnx qwen2.5-0.5b t5-base --dynamo --layers 4

Wants torch, torchvision, transformers and onnx (onnxscript too for the "dynamo" exporter). Models get random weights and
are exported in training mode with a symbolic batch (and sequence); every large initializer is then made external data of
a file that is never written: the graph, the names and the shapes stay, the bytes do not. Small integer and scalar
tensors, which shape arithmetic reads, stay in the file.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from typing import Any, Callable

import onnx
import torch

KEEP_BYTES = 256  # an initializer up to this size keeps its values


Example = tuple[torch.nn.Module, tuple[Any, ...], list[str], list[str], dict[str, dict[int, str]]]


def image_model(name: str) -> Example:
    import torchvision

    return (getattr(torchvision.models, name)(weights=None), (torch.randn(2, 3, 224, 224),), ["image"], ["logits"],
            {"image": {0: "batch"}, "logits": {0: "batch"}})


class LogitsOnly(torch.nn.Module):
    """A Hugging Face model as a function of its token ids."""

    def __init__(self, model: torch.nn.Module, encoder_decoder: bool = False):
        super().__init__()
        self.model = model
        self.encoder_decoder = encoder_decoder

    def forward(self, input_ids: torch.Tensor, decoder_input_ids: torch.Tensor | None = None) -> torch.Tensor:
        if self.encoder_decoder:
            return self.model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits
        options = {} if "Bert" in type(self.model).__name__ else {"use_cache": False}
        return self.model(input_ids=input_ids, **options).logits


def text_model(kind: str, layers: int | None) -> Example:
    import transformers as hf

    ids = torch.randint(0, 1000, (2, 128))
    axes = {"input_ids": {0: "batch", 1: "seq"}, "logits": {0: "batch", 1: "seq"}}
    if kind == "bert-base":
        model = hf.BertForMaskedLM(hf.BertConfig(num_hidden_layers=layers or 12))
    elif kind == "gpt2":
        model = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=layers or 12))
    elif kind == "qwen2.5-0.5b":
        model = hf.Qwen2ForCausalLM(hf.Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=layers or 24,
            num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True))
    elif kind == "t5-base":
        model = hf.T5ForConditionalGeneration(hf.T5Config(
            d_model=768, d_kv=64, d_ff=3072, num_layers=layers or 12, num_decoder_layers=layers or 12, num_heads=12))
        axes = {"input_ids": {0: "batch", 1: "src_seq"}, "decoder_input_ids": {0: "batch", 1: "seq"},
                "logits": {0: "batch", 1: "seq"}}
        names = ["input_ids", "decoder_input_ids"]
        return LogitsOnly(model, True), (ids, ids[:, :64].clone()), names, ["logits"], axes
    else:
        raise ValueError(kind)
    return LogitsOnly(model), (ids,), ["input_ids"], ["logits"], axes


MODELS: dict[str, Callable[[int | None], Any]] = {
    "resnet18": lambda _: image_model("resnet18"),
    "resnet50": lambda _: image_model("resnet50"),
    "vit-b": lambda _: image_model("vit_b_16"),
    "bert-base": lambda layers: text_model("bert-base", layers),
    "gpt2": lambda layers: text_model("gpt2", layers),
    "qwen2.5-0.5b": lambda layers: text_model("qwen2.5-0.5b", layers),
    "t5-base": lambda layers: text_model("t5-base", layers),
}


def strip(model: onnx.ModelProto) -> None:
    """Initializers and constants larger than a few numbers lose their bytes, as if a file beside it held them."""

    def empty(tensor: onnx.TensorProto) -> None:
        if tensor.ByteSize() <= KEEP_BYTES + 64 and tensor.data_location != onnx.TensorProto.EXTERNAL:
            return
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        place = tensor.external_data.add()
        place.key, place.value = "location", "weights-not-stored.bin"

    for tensor in model.graph.initializer:
        empty(tensor)
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                empty(attribute.t)
    del model.graph.value_info[:]  # a reader must not depend on them, and they are most of the file
    for value in [*model.graph.input, *model.graph.output, *model.graph.initializer]:
        if hasattr(value, "metadata_props"):
            del value.metadata_props[:]
    del model.graph.metadata_props[:]
    model.graph.doc_string = model.doc_string = ""


def export(name: str, dynamo: bool, training: bool, layers: int | None, folder: pathlib.Path) -> pathlib.Path:
    torch.manual_seed(0)
    model, arguments, inputs, outputs, axes = MODELS[name](layers)
    with torch.no_grad():  # fresh biases are equal, and exporters store equal tensors once: not so when trained
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1)
    model.train(training)
    with tempfile.TemporaryDirectory() as scratch:
        whole = pathlib.Path(scratch) / "whole.onnx"
        if dynamo:
            dims: dict[str, Any] = {}
            for dim in {name for named in axes.values() for name in named.values()}:
                dims[dim] = torch.export.Dim(dim, min=2, max=1024)
            shapes = tuple({axis: dims[dim] for axis, dim in axes[i].items()} for i in inputs)
            torch.onnx.export(model, arguments, str(whole), input_names=inputs, output_names=outputs,
                              dynamic_shapes=shapes, dynamo=True, optimize=True, external_data=True)
        else:
            mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
            torch.onnx.export(model, arguments, str(whole), input_names=inputs, output_names=outputs,
                              dynamic_axes=axes, dynamo=False, opset_version=17, training=mode,
                              do_constant_folding=not training)
        proto = onnx.load(str(whole), load_external_data=False)
    strip(proto)
    proto.graph.name = name
    target = folder / f"{name}{'.dynamo' if dynamo else ''}{'' if training else '.eval'}.onnx"
    onnx.save(proto, str(target))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--dynamo", action="store_true", help="torch.export's exporter, not TorchScript's")
    parser.add_argument("--layers", type=int, help="another depth than the text model's own, for a smaller file")
    parser.add_argument("--eval", action="store_true", help="inference mode: dropout gone, batch norm folded")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or list(MODELS):
        target = export(name, options.dynamo, not options.eval, options.layers, options.folder)
        print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
