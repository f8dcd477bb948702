"""Sharded steps, call by call: torch's own fully_shard on a world that is only pretended, beside what precog writes for the
same model. The order of gathers, copies, products and reductions must be the same, and every message's bytes."""

import pathlib
import re
import tempfile
import unittest

from package_support import HAS_TORCH, WITHOUT_TORCH, program

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    import precog
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

        def forward(self, x):
            return x + self.down(F.relu(self.up(self.norm(x))))

    class Tower(nn.Module):
        def __init__(self, width=64, depth=3):
            super().__init__()
            self.enter = nn.Linear(32, width, bias=False)
            self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
            self.head = nn.Linear(width, 12, bias=False)  # no multiple of eight

        def forward(self, x):
            x = self.enter(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    CALLS = {"aten._foreach_copy_.default": "copy in", "fsdp.all_gather_copy_in.default": "copy in", "c10d._allgather_base_.default": "all_gather",
             "c10d._reduce_scatter_base_.default": "reduce_scatter", "fsdp.split_with_sizes_copy.default": "copy out",
             "fsdp.chunk_cat.default": "copy together", "fsdp.chunk_cat_mixed_dtype.default": "copy together", "aten.mm.default": "product", "c10d.allreduce_.default": "all_reduce"}

    class Recorder(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = CALLS.get(str(function))
            if name == "all_gather":
                self.calls.append((name, args[0].numel() * args[0].element_size()))
            elif name == "all_reduce":
                self.calls.append((name, sum(one.numel() * one.element_size() for one in args[0])))
            elif name == "reduce_scatter":
                self.calls.append((name, args[1].numel() * args[1].element_size()))
            elif name:
                self.calls.append((name, None))
            return function(*args, **(kwargs or {}))


def framework_calls(ranks, policy, groups=1):
    """`groups`: so many hold all shards each (HYBRID_SHARD: a mesh of two axes)."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        model = Tower()
        mesh = init_device_mesh("cpu", (groups, ranks // groups), mesh_dim_names=("replicate", "shard")) if groups > 1 else init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        x, labels = torch.randn(8, 32), torch.zeros(8, dtype=torch.int64)
        F.cross_entropy(model(x), labels).backward()  # the first step finds its groups
        with Recorder() as recorder:
            F.cross_entropy(model(x), labels).backward()
        return recorder.calls
    finally:
        dist.destroy_process_group()


def predicted_calls(text):
    """The same words from the operators after the parallel pass."""
    names = {"shard_copy.all_gather": "copy in", "shard_copy.split_with_sizes_copy": "copy out", "shard_copy.chunk_cat": "copy together",
             "linear": "product", "mm": "product", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "all_reduce.replicas": "all_reduce"}
    out = []
    for line in text.splitlines():
        said = re.match(r"(?:.* = )?([a-z_]+(?:\.[a-z_]+)?)_?\(", line)
        if said and said[1] in names:
            sent = re.search(r" bytes=(\d+)", line)
            out.append((names[said[1]], int(sent[1]) if sent else None))
    return out


@unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
class Sharding(unittest.TestCase):
    def predicted(self, precision, ranks, *plan):
        x, labels = torch.randn(8, 32), torch.zeros(8, dtype=torch.int64)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tower.precog.json.zst"
            precog.capture(lambda model: F.cross_entropy(model(x), labels), Tower()).save(str(path))
            done = program.run("predict", "--model", path, "--precision", precision, "--gpu", "h100-sxm", "--gpus", ranks, *(plan or ("--fsdp", "full")),
                               "--dump-after", "parallel")
        self.assertEqual(done.returncode, 0, done.stderr)
        return predicted_calls(done.stdout)

    def test_fully_shard_call_by_call(self):
        bf16 = torch.bfloat16
        for precision, policy in (("fsdp-bf16", MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16)),
                                  ("fsdp-bf16-fp32reduce", MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=torch.float32)),
                                  ("fp32", MixedPrecisionPolicy())):
            for ranks in (2, 8):
                with self.subTest(precision=precision, ranks=ranks):
                    real = framework_calls(ranks, policy)
                    self.assertGreater(len(real), 40)
                    self.assertEqual(self.predicted(precision, ranks), real)

    def test_hybrid_shards_call_by_call(self):
        bf16 = torch.bfloat16
        for precision, policy in (("fsdp-bf16", MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16)),
                                  ("fsdp-bf16-fp32reduce", MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=torch.float32))):
            for ranks, groups in ((8, 2), (16, 4)):
                with self.subTest(precision=precision, ranks=ranks, groups=groups):
                    real = framework_calls(ranks, policy, groups)
                    self.assertEqual(sum(1 for name, _ in real if name == "all_reduce"), 4)  # three blocks and the rest
                    self.assertEqual(self.predicted(precision, ranks, "--fsdp", "hybrid", "--shard-size", ranks // groups), real)


if __name__ == "__main__":
    unittest.main()
