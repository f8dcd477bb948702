"""precog.capture on models a user might write: what is kept symbolic, what autograd saves, what stays untouched, what errors say."""

import collections
import gc
import logging
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

from package_support import HAS_TORCH, WITHOUT_TORCH, program

if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils.checkpoint import checkpoint

    import precog
    from precog import PrecogError
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, seq, width = x.shape
            q, k, v = self.qkv(self.before(x)).view(batch, seq, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
            return x + self.mlp(self.behind(x))

    class Small(nn.Module):
        """The README's kind of model: 30 lines."""

        def __init__(self, words=500, width=64, depth=3):
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
            self.head = nn.Linear(width, words, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def language_loss(ids):
        return lambda model: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def entries(graph):
    """The stream with repeated layers written out."""
    out = []
    for entry in graph.document["stream"]:
        out += entry["stream"] * entry["repeat"] if "repeat" in entry else [entry]
    return out


def calls(graph):
    return collections.Counter(entry["op"] for entry in entries(graph) if "op" in entry and entry["op"] != "view")


def tensors(graph, role):
    return [entry for entry in entries(graph) if entry.get("tensor") == role]


@unittest.skipUnless(HAS_TORCH, WITHOUT_TORCH)
class Capture(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def predict(self, graph, **more):
        return precog.predict({"model": graph, "batch": 4, "precision": "amp-bf16", "cluster": {"gpu": "h200-sxm"}, **more})

    def of(self, forward, *modules, inputs=None, **how):
        """Captures `forward(model, x)` over a model that has the modules as m0, m1 ..."""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                for number, module in enumerate(modules):
                    setattr(self, f"m{number}", module)

            def forward(self, x):
                return forward(self, x)
        x = torch.randn(4, 8) if inputs is None else inputs
        return precog.capture(lambda model: model(x).float().pow(2).mean(), Model(), **how)


class Models(Capture):
    def test_thirty_lines(self):
        model, ids = Small(), torch.randint(0, 500, (4, 32))
        graph = precog.capture(language_loss(ids), model)
        self.assertEqual(graph.symbols, {"batch": 4, "seq": 32})
        self.assertEqual(graph.parameters, sum(parameter.numel() for parameter in model.parameters()))
        counted = calls(graph)
        self.assertEqual(counted["linear"], 3 * 4 + 1)
        self.assertEqual(counted["scaled_dot_product_attention"], 3)
        self.assertEqual(counted["layer_norm"], 6)
        self.assertTrue(any("repeat" in entry for entry in graph.document["stream"]), "the blocks are not folded")
        report = self.predict(graph, seq=32)
        self.assertEqual(report["parameters"], graph.parameters)
        self.assertGreater(report.step_s, 0)

    def test_other_sizes_than_the_captured_ones(self):
        graph = precog.capture(language_loss(torch.randint(0, 500, (4, 32))), Small())
        direct = precog.capture(language_loss(torch.randint(0, 500, (6, 64))), Small())
        for precision in ("fp32", "amp-bf16", "bf16"):
            once = self.predict(graph, batch=6, seq=64, precision=precision)
            again = self.predict(direct, batch=6, seq=64, precision=precision)
            self.assertEqual((once.step_s, once.peak_bytes, once["kernels"]), (again.step_s, again.peak_bytes, again["kernels"]))

    def test_files(self):
        graph = precog.capture(language_loss(torch.randint(0, 500, (4, 32))), Small())
        with tempfile.TemporaryDirectory() as folder:
            steps = set()
            for name in ("m.precog.json.zst", "m.precog.json"):
                path = pathlib.Path(folder) / name
                graph.save(path)
                request = {"model": {"graph": str(path)}, "batch": 4, "seq": 32, "precision": "amp-bf16", "cluster": {"gpu": "h200-sxm"}}
                steps.add(precog.predict(request).step_s)
                done = program.run("compare", "--model", path, "--batch", 4, "--seq", 32, "--gpu", "a100-sxm-80gb", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(steps, {self.predict(graph, seq=32).step_s})

    def test_shared_parameters_are_one(self):
        shared = nn.Linear(8, 8)
        graph = self.of(lambda m, x: m.m1(F.relu(m.m0(x))), shared, shared)
        self.assertEqual([entry["name"] for entry in tensors(graph, "parameter")], ["m0.weight", "m0.bias"])
        self.assertEqual(graph.parameters, 8 * 8 + 8)
        self.assertEqual(calls(graph)["linear"], 2)

    def test_frozen_parameters(self):
        frozen = nn.Linear(8, 8)
        frozen.requires_grad_(False)
        graph = self.of(lambda m, x: m.m1(m.m0(x)), frozen, nn.Linear(8, 8))
        marked = {entry["name"]: entry.get("frozen", False) for entry in tensors(graph, "parameter")}
        self.assertEqual(marked, {"m0.weight": True, "m0.bias": True, "m1.weight": False, "m1.bias": False})
        trained = self.of(lambda m, x: m.m1(m.m0(x)), nn.Linear(8, 8), nn.Linear(8, 8))
        self.assertLess(self.predict(graph)["kernels"], self.predict(trained)["kernels"])

    def test_without_gradients(self):
        def forward(m, x):
            with torch.no_grad():
                target = m.m1(x)
            return m.m0(x) - target
        graph = self.of(forward, nn.Linear(8, 8), nn.Linear(8, 8))
        both = self.of(lambda m, x: m.m0(x) - m.m1(x), nn.Linear(8, 8), nn.Linear(8, 8))
        self.assertEqual(calls(graph)["linear"], calls(both)["linear"])
        self.assertLess(self.predict(graph)["kernels"], self.predict(both)["kernels"])

    def test_detach(self):
        graph = self.of(lambda m, x: m.m1(m.m0(x).detach()), nn.Linear(8, 8), nn.Linear(8, 8))
        whole = self.of(lambda m, x: m.m1(m.m0(x)), nn.Linear(8, 8), nn.Linear(8, 8))
        self.assertLess(self.predict(graph)["kernels"], self.predict(whole)["kernels"])

    def test_in_place(self):
        graph = self.of(lambda m, x: m.m0(x).relu_() + 1.0, nn.Linear(8, 8))
        plain = self.of(lambda m, x: m.m0(x).relu() + 1.0, nn.Linear(8, 8))
        self.assertEqual(self.predict(graph)["kernels"], self.predict(plain)["kernels"])

        def shares_memory(captured):
            return [entry["out"][0][2].get("of") for entry in entries(captured) if entry.get("op", "").startswith("relu") and len(entry["out"][0]) > 2]
        self.assertEqual((shares_memory(graph), shares_memory(plain)), ([0], []))

    def test_channels_last(self):
        def network():
            return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        images = torch.randn(4, 3, 16, 16)
        turned = images.to(memory_format=torch.channels_last)
        plain = precog.capture(lambda m: m(images).mean(), network())
        last = precog.capture(lambda m: m(turned).mean(), network().to(memory_format=torch.channels_last))
        self.assertEqual((plain.document["memory_format"], last.document["memory_format"]), ("contiguous", "channels_last"))
        kernels = [self.predict(graph, batch=32, precision="bf16")["kernels"] for graph in (plain, last)]
        self.assertLess(kernels[1], kernels[0])  # no layout changes around the convolutions

    def test_windows_of_poolings(self):
        network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, (2, 1), (0, 1)), nn.AvgPool2d(2))
        images = torch.randn(4, 3, 16, 16)
        graph = precog.capture(lambda m: m(images).mean(), network)
        found = [(entry["attrs"], entry["back"]["ops"][0]["attrs"]) for entry in entries(graph) if "pool" in entry.get("op", "")]
        wanted = [{"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]}, {"kernel": [2, 2], "stride": [2, 1], "padding": [0, 1]},
                  {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0]}]
        self.assertEqual(found, [(window, window) for window in wanted])

    def test_a_region_without_autocast(self):
        def forward(m, x):
            with torch.autocast("cuda", enabled=False):
                x = m.m0(x.float())
            return m.m1(x)
        graph = self.of(forward, nn.Linear(8, 8), nn.Linear(8, 8))
        products = [entry for entry in entries(graph) if entry.get("op") == "linear"]
        self.assertEqual([entry.get("autocast") for entry in products], ["off", None])

    def test_followed_under_autocast_too(self):
        class Dropped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                gone = x > 1  # nobody sees it before backward reads it
                ctx.save_for_backward(gone)
                return x.masked_fill(gone, 0)

            @staticmethod
            def backward(ctx, gradient):
                return gradient.masked_fill(ctx.saved_tensors[0], 0)

        def forward(m, x):
            x = Dropped.apply(m.m0(x)).unflatten(0, (-1, 2))
            x = m.m1(x[:, :-1])  # not in a row: a product and a sum of their own, but that a cast lays it out anew
            return (x.float() * 2).to(m.m1.weight.dtype)
        graph = self.of(forward, nn.Linear(8, 8), nn.Linear(8, 8))
        self.assertEqual(graph.notes, [])

    def test_a_function_of_ones_own(self):
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return gradient * x.exp() * 2

        graph = self.of(lambda m, x: Square.apply(m.m0(x)), nn.Linear(8, 8))
        text = str(graph.document["stream"])
        self.assertIn("exp", text)  # its own gradient, not that of x * x
        self.assertGreater(self.predict(graph).step_s, 0)

    def test_checkpointing_is_left_to_the_request(self):
        plain = self.of(lambda m, x: m.m0(x), nn.Sequential(nn.Linear(8, 8), nn.GELU()))
        graph = self.of(lambda m, x: checkpoint(m.m0, x, use_reentrant=False), nn.Sequential(nn.Linear(8, 8), nn.GELU()))
        self.assertEqual(calls(graph), calls(plain))
        self.assertTrue(any("checkpoint" in note for note in graph.notes), graph.notes)
        self.assertFalse(plain.notes)

    def test_dropout(self):
        graph = self.of(lambda m, x: m.m1(m.m0(x)), nn.Linear(8, 8), nn.Dropout(0.1))
        self.assertEqual(calls(graph)["dropout"], 1)

    def gradient(self, op, forward):
        """What the gradient of the one `op` in forward runs, an in-place operator with an underscore."""
        graph = self.of(lambda m, x: forward(m.m0(x).sigmoid()), nn.Linear(8, 8))
        (back,) = [entry["back"]["ops"] for entry in entries(graph) if entry.get("op") == op]
        report = self.predict(graph)
        return [one["op"] + "_" * any("of" in made[-1] for made in one["out"]) for one in back if one["op"] != "view"], report

    def test_a_products_gradient_is_that_of_real_tensors_without_zeros(self):
        running, report = self.gradient("cumprod", lambda x: x.cumprod(1))
        self.assertEqual(running, ["mul", "eq", "any", "read_back", "flip", "cumsum", "flip", "div"])
        self.assertLess(report["kernels"], 40)
        self.assertEqual(self.gradient("prod", lambda x: x.prod(1))[0], ["eq", "sum", "sum", "read_back", "div", "mul"])
        self.assertEqual(self.gradient("prod", lambda x: x.prod())[0], ["eq", "nonzero", "div", "mul"])

    def test_products_gradients_are_right(self):
        from precog.capturing.stand_ins import CumulativeProduct, Product
        for stand_in, plain, settings in ((CumulativeProduct, torch.cumprod, (1,)), (Product, torch.prod, ()), (Product, torch.prod, (1, False)),
                                          (Product, torch.prod, (-1, True))):
            x, y = (torch.rand(3, 5, generator=torch.Generator().manual_seed(1)).add_(0.5).requires_grad_() for _ in range(2))
            stand_in.apply(x, *settings).square().sum().backward()
            plain(y, *settings).square().sum().backward()
            torch.testing.assert_close(x.grad, y.grad)

    def test_gradients_that_write_into_zeros_do_not_copy_them(self):
        self.assertEqual(self.gradient("gather", lambda x: x.gather(1, x.detach().argsort(1)))[0], ["new_zeros", "scatter_add_"])
        self.assertIn(self.gradient("max", lambda x: x.max(1)[0])[0], (["zeros", "scatter_"], ["new_zeros", "scatter_"]))  # new_zeros since PyTorch 2.15
        self.assertEqual(self.gradient("index", lambda x: x[:, torch.tensor([1, 2], device=x.device)])[0], ["new_zeros", "index_put_"])

    def test_a_products_layout_that_follows_the_size(self):
        self.predict(self.of(lambda m, x: torch.linalg.qr(m.m0(x).T)[1], nn.Linear(8, 8)))

    def test_a_dtype_taken_from_a_tensor_stays_symbolic(self):
        def norm(m, x):
            y = m.m0(x)
            wide = y.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(y.dtype)
        graph = self.of(norm, nn.Linear(8, 8))
        casts = [self.predict(graph, precision=precision)["breakdown"]["casts"] for precision in ("fp32", "bf16")]
        self.assertEqual(casts[0], 0)
        self.assertGreater(casts[1], 0)


class Values(Capture):
    def test_reading_a_value(self):
        def forward(m, x):
            y = m.m0(x)
            return y * 2 if torch.arange(4).sum().item() > 3 else y
        graph = self.of(forward, nn.Linear(8, 8))
        self.assertGreater(self.predict(graph).step_s, 0)

    def test_the_host_waits_for_what_it_sends_up(self):
        def waits(number):
            graph = self.of(lambda m, x: m.m0(x) * number(x), nn.Linear(8, 8))
            return sum(entry.get("op") == "read_back" for entry in graph.document["stream"])
        self.assertEqual(waits(lambda x: torch.tensor(2.0, device=x.device)), 1)
        self.assertEqual(waits(lambda x: torch.ones(8).to(x.device)), 1)
        self.assertEqual(waits(lambda x: torch.ones(8).to(x.device, non_blocking=True)), 0)
        self.assertEqual(waits(lambda x: torch.tensor(2.0)), 0)  # a number on the host goes along as an argument
        self.assertEqual(waits(lambda x: torch.full((), 2.0, device=x.device)), 0)

    def test_selecting_by_value(self):
        mask, data = torch.tensor([True, False, True, True]), torch.randn(4, 8)
        graph = precog.capture(lambda model: model(data).index_select(0, mask.nonzero().squeeze(1)).mean(), nn.Linear(8, 8))
        self.assertGreater(self.predict(graph, batch=4).step_s, 0)


class Inputs(Capture):
    def kernels(self, graph):
        return self.predict(graph, batch=2, seq=16)["kernels"]

    def test_containers(self):
        ids = torch.randint(0, 500, (2, 16))

        class Encoding(collections.UserDict):
            """Shaped like transformers' BatchEncoding."""
        forms = {"dict": {"ids": ids}, "list": [ids], "tuple": (ids,), "encoding": Encoding({"ids": ids})}
        taken = {"dict": lambda d: d["ids"], "list": lambda d: d[0], "tuple": lambda d: d[0], "encoding": lambda d: d["ids"]}
        plain = self.kernels(precog.capture(language_loss(ids), Small()))
        for kind, data in forms.items():
            with self.subTest(kind):
                graph = precog.capture(lambda model: language_loss(taken[kind](data))(model), Small())
                self.assertEqual(graph.symbols, {"batch": 2, "seq": 16})
                self.assertEqual(self.kernels(graph), plain)

    def test_sizes_as_arguments(self):
        def loss(model, batch, seq=16):
            ids = torch.randint(0, 500, (batch, seq))
            return language_loss(ids)(model)
        graph = precog.capture(loss, Small(), batch=2)
        self.assertEqual(graph.symbols, {"batch": 2, "seq": 16})
        once = self.predict(graph, batch=8, seq=64)
        self.assertGreater(once.step_s, 0)
        self.assertGreater(once.peak_bytes, self.predict(graph, batch=2, seq=16).peak_bytes)

    def test_real_meta_and_fake(self):
        found = set()
        ids = torch.randint(0, 500, (2, 16))
        for kind in ("real", "meta model", "meta", "fake"):
            with self.subTest(kind):
                if kind == "fake":
                    with FakeTensorMode():
                        model, data = Small(), torch.zeros(2, 16, dtype=torch.int64)
                elif kind == "real":
                    model, data = Small(), ids
                else:
                    with torch.device("meta"):
                        model = Small()
                    data = ids if kind == "meta model" else ids.to("meta")
                graph = precog.capture(language_loss(data), model)
                self.assertEqual(graph.symbols, {"batch": 2, "seq": 16})
                found.add((graph.operators, graph.parameters, self.kernels(graph)))
        self.assertEqual(len(found), 1, found)

    def test_another_type_than_fp32(self):
        found = set()
        for dtype in (torch.float32, torch.bfloat16):
            graph = precog.capture(language_loss(torch.randint(0, 500, (2, 16))), Small().to(dtype))
            found.add((self.kernels(graph), self.predict(graph, batch=2, seq=16, precision="fp32").step_s))
        self.assertEqual(len(found), 1, found)

    def test_a_criterion_beside_the_model(self):
        criterion = nn.CrossEntropyLoss()
        images, labels = torch.randn(4, 8), torch.randint(0, 3, (4,))
        graph = precog.capture(lambda model: criterion(model(images), labels), nn.Linear(8, 3))
        self.assertEqual(calls(graph)["nll_loss"] + calls(graph)["cross_entropy"], 1)
        self.assertEqual(graph.symbols, {"batch": 4})


class Untouched(Capture):
    def test_everything_is_as_before(self):
        model, ids = Small(), torch.randint(0, 500, (2, 16))
        data = {"ids": ids, "more": [ids]}
        model.embed.weight.grad = torch.ones_like(model.embed.weight)
        grad = model.embed.weight.grad
        parameters = {name: (id(value), value.detach().clone()) for name, value in model.named_parameters()}
        state, seed = {key: id(value) for key, value in model.__dict__.items()}, torch.get_rng_state()
        precog.capture(lambda m: language_loss(data["more"][0])(m), model)
        self.assertIs(data["ids"], ids)
        self.assertIs(data["more"][0], ids)
        self.assertIs(model.embed.weight.grad, grad)
        self.assertIs(model.head.weight, model.embed.weight)
        for name, value in model.named_parameters():
            self.assertEqual(id(value), parameters[name][0], name)
            self.assertTrue(torch.equal(value, parameters[name][1]), name)
            self.assertIsNot(type(value), FakeTensor)
        self.assertEqual({key: id(value) for key, value in model.__dict__.items()}, state)
        self.assertTrue(torch.equal(torch.get_rng_state(), seed))
        self.assertTrue(model.training)
        self.assertTrue(torch.isfinite(language_loss(ids)(model)))  # and it still runs

    def test_after_an_error_too(self):
        class Broken(Small):
            def forward(self, ids):
                super().forward(ids)
                raise RuntimeError("of my own")
        model, ids = Broken(), torch.randint(0, 500, (2, 16))
        loss = language_loss(ids)
        before = {name: id(value) for name, value in model.named_parameters()}
        with self.assertRaises(PrecogError):
            precog.capture(loss, model)
        self.assertEqual({name: id(value) for name, value in model.named_parameters()}, before)
        self.assertIs(loss.__closure__[0].cell_contents, ids)
        gc.collect()
        self.assertFalse(any(isinstance(value, FakeTensor) for value in [ids, *model.parameters(), *model.buffers()]))

    def test_masks_that_a_compiler_would_see_are_noted(self):
        """A library that leaves masks out where it may look at them (transformers) builds them while it is traced."""
        masking = types.ModuleType("transformers.masking_utils")
        masking._ignore_causal_mask_sdpa = lambda padding_mask, q_length, kv_length: True
        masking._ignore_bidirectional_mask_sdpa = lambda padding_mask, kv_length: padding_mask is None
        known = masking._ignore_causal_mask_sdpa

        class Asking(Small):
            def forward(self, ids):
                masking._ignore_causal_mask_sdpa(None, q_length=ids.shape[1], kv_length=ids.shape[1])
                return super().forward(ids)

        ids = torch.randint(0, 500, (2, 16))
        with unittest.mock.patch.dict(sys.modules, {"transformers.masking_utils": masking}):
            marked = precog.capture(language_loss(ids), Asking())
        self.assertIs(masking._ignore_causal_mask_sdpa, known)
        marks = [entry["attrs"].get("traced_mask") for entry in entries(marked) if entry.get("op") == "scaled_dot_product_attention"]
        self.assertEqual(marks, ["dense"] * 3)
        plain = precog.capture(language_loss(ids), Small())
        self.assertFalse(any("traced_mask" in entry.get("attrs", {}) for entry in entries(plain)))

    def test_what_becomes_of_scores_where_the_model_is_compiled(self):
        """One compiled graph returns scores and loss, unless the trace ends between them or the model returns the loss alone."""
        ids = torch.randint(0, 500, (2, 16))
        log = logging.getLogger("a_library")

        class WithLoss(Small):
            says, alone, looks = False, False, False

            def forward(self, ids):
                if self.looks and bool((ids < 0).any()):  # followed once more, with values
                    raise ValueError
                scores = super().forward(ids)
                if self.says:
                    log.debug("which loss?")
                loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten())
                return loss if self.alone else {"scores": scores, "loss": loss}

        def kind(model, loss):
            return precog.capture(loss, model).document.get("scores", "returned")

        model = WithLoss()
        self.assertEqual(kind(model, lambda model: model(ids)["loss"]), "returned")
        model.looks = True
        self.assertEqual(kind(model, lambda model: model(ids)["loss"]), "returned")
        model.looks, model.says = False, True
        self.assertEqual(kind(model, lambda model: model(ids)["loss"]), "apart")
        model.says, model.alone = False, True
        self.assertEqual(kind(model, lambda model: model(ids)), "inside")
        self.assertEqual(kind(Small(), language_loss(ids)), "apart")
        self.assertEqual(logging.Logger.debug.__module__, "logging")
        self.assertFalse(hasattr(logging.Logger.debug, "__wrapped__"))

    def test_buffers(self):
        model, images = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(4, 8)
        mean, count = model[1].running_mean, model[1].num_batches_tracked
        precog.capture(lambda m: m(images).mean(), model)
        self.assertIs(model[1].running_mean, mean)
        self.assertIs(model[1].num_batches_tracked, count)
        self.assertEqual((float(mean.abs().sum()), int(count)), (0.0, 0))


class Errors(Capture):
    def says(self, words, loss, model, **how):
        with self.assertRaises(PrecogError) as caught:
            precog.capture(loss, model, **how)
        for word in words if isinstance(words, (list, tuple)) else [words]:
            self.assertIn(word, str(caught.exception))

    def test_the_module_is_named(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 8), nn.Linear(9, 8)

            def forward(self, x):
                return self.second(self.first(x)).mean()
        x = torch.randn(4, 8)
        self.says(["'second'", "operator linear"], lambda model: model(x), Model())

    def test_a_model_that_raises(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(8, 8)
                self.inner.register_forward_hook(lambda *_: (_ for _ in ()).throw(ValueError("wrong on purpose")))

            def forward(self, x):
                return self.inner(x).mean()
        x = torch.randn(4, 8)
        self.says(["wrong on purpose", "ValueError"], lambda model: model(x), Model())

    def test_a_loss_of_several_elements(self):
        x = torch.randn(4, 8)
        self.says(["loss"], lambda model: model(x), nn.Linear(8, 8))

    def test_a_loss_that_is_no_tensor(self):
        x = torch.randn(4, 8)
        self.says(["loss"], lambda model: {"loss": model(x).mean()}, nn.Linear(8, 8))

    def test_nothing_to_train(self):
        x = torch.randn(4, 8)
        model = nn.Linear(8, 8)
        model.requires_grad_(False)
        self.says(["grad"], lambda m: m(x).mean(), model)

    def test_wrong_arguments(self):
        x = torch.randn(4, 8)
        self.says("torch.nn.Module", lambda model: model(x).mean(), "resnet50")
        self.says("callable", None, nn.Linear(8, 8))

    def test_a_fixed_size_is_explained(self):
        x = torch.randn(4, 8)
        graph = precog.capture(lambda model: model(x).reshape(4, 2, 4).mean(), nn.Linear(8, 8))
        self.assertNotIn("batch", graph.symbols)
        self.assertIn("batch", graph.document["fixed"])
        with self.assertRaises(PrecogError) as caught:
            self.predict(graph, batch=8)
        self.assertIn("batch", str(caught.exception))
        self.assertGreater(self.predict(graph, batch=4).step_s, 0)


if __name__ == "__main__":
    unittest.main()
