"""The names that other people's scripts rely on, and two jobs to meet them with.

Listed here by hand rather than read from the program, so that renaming one fails.
"""

import json
import pathlib
import tempfile
import unittest

LLAMA = ["--model", "llama3-8b", "--gpu", "h100-sxm", "--gpus", 8, "--batch", 1, "--seq", 2048, "--precision", "bf16"]
SMALL = ["--model", "bert-base", "--layers", 2, "--gpu", "h100-sxm", "--gpus", 2, "--batch", 4, "--seq", 64, "--precision", "amp-bf16"]


def every_precision(arguments):
    """The same job for `compare`, which takes no --precision."""
    at = arguments.index("--precision")
    return [*arguments[:at], *arguments[at + 2:]]


REPORT_NUMBERS = ["step_s", "step_s_low", "step_s_high", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "mfu_bf16",
                  "tflops_per_gpu", "peak_bytes", "reserved_bytes", "device_bytes", "kernels", "gpu_busy_s", "host_s"]
REPORT_REST = ["fits", "memory", "total_s", "cost_usd", "breakdown", "by_dtype", "by_op_class", "bound", "provenance", "warnings", "request"]
MEMORY = ["parameters", "gradients", "optimizer", "activations", "workspace", "fragmentation"]
BREAKDOWN = ["forward", "backward", "optimizer", "casts", "loss_scaling", "exposed_communication", "pipeline_bubble", "between_kernels", "host", "input"]
COMMANDS = ["predict", "compare", "validate", "inspect", "models", "gpus", "clusters", "precisions", "networks", "hosts", "software", "completion"]
LISTS = {"models": "bert-large", "gpus": "v100-sxm2-32gb", "clusters": "dgx-h100", "precisions": "amp-fp16", "networks": "ib-ndr",
         "hosts": "default", "software": "pytorch-1.4"}
STAGES = ["frontend", "precision", "training", "parallel", "kernel", "cost", "schedule", "sim", "memory", "report"]
GPU_NAMES = """p100 v100-sxm2-16gb v100-sxm2-32gb v100-pcie t4 rtx-2080-ti rtx-3090 rtx-4090 rtx-5090 a10 a30 a100-sxm-40gb a100-sxm-80gb
a100-pcie-40gb a100-pcie-80gb l4 l40s rtx-6000-ada rtx-pro-6000 h100-sxm h100-pcie h100-nvl h200-sxm gh200 b200-sxm b300 gb200 gb300 mi250x
mi300x""".split()
MODEL_NAMES = """resnet18 resnet50 resnet152 vgg16 mobilenet_v2 vit-b vit-l bert-base bert-large gpt2 gpt2-medium gpt2-large gpt2-xl
gpt-neox-20b t5-base llama2-7b llama2-13b llama2-70b llama3-8b llama3-70b llama3-405b mistral-7b mixtral-8x7b qwen2.5-0.5b qwen2.5-72b
deepseek-v3""".split()
PRECISION_NAMES = "fp32 tf32 fp32-default fp16 bf16 amp-fp16 amp-bf16".split()


class InTemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path
