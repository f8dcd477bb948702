#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "frontend/captured.h"
#include "frontend/traced.h"
#include "frontend/zoo.h"
#include "kernel/fuse.h"
#include "kernel/kernel.h"
#include "kernel/lower_fused.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

constexpr int kSms = 132;

struct Compiled {
  Graph graph;
  FusionPlan plan;
  std::string text() const { return to_text(plan, graph); }
};

Compiled compile(Graph forward, const PrecisionRecipe& recipe, GpuSpec on = gpu(), OwnKernels own = {}) {
  Compiled out;
  out.graph = make_step(apply_precision(recipe, on, forward), recipe, {}).graph;
  out.plan = plan_fusion(out.graph, kSms, {}, own);
  return out;
}
int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}
// A product, what follows it, another product: a transformer's feed-forward half.
Graph feed_forward() {
  GraphBuilder b;
  TensorId x = b.linear_layer("up", b.input("x", {32, 64}), 256);
  x = b.gelu(x);
  x = b.linear_layer("down", x, 64);
  b.cross_entropy(x, b.input("t", {32}, DType::int64));
  return std::move(b).finish();
}

}  // namespace

TEST_CASE("APointwiseChainBetweenProductsIsOneKernel") {
  GraphBuilder b;
  TensorId x = b.linear_layer("a", b.input("x", {32, 64}), 64);
  x = b.relu(b.mul(b.silu(x), b.parameter("scale", {64})));
  x = b.linear_layer("b", x, 64);
  b.cross_entropy(x, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::fp32));
  // silu and mul have one reader each and live inside relu's kernel.
  CHECK(count(c.text(), "pointwise 1x2048: relu <-") == 1);
  CHECK(count(c.text(), ": silu") == 0);
}

TEST_CASE("ANormJoinsTheSumBeforeItAndTheCastAfterIt") {
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  TensorId y = b.linear_layer("a", x, 64);
  y = b.layer_norm_layer("norm", b.add(y, x));
  y = b.linear_layer("b", y, 64);
  b.cross_entropy(y, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), amp(DType::bf16));
  // One kernel: the sum inside it (backward adds again, from the product in bf16), the norm, and its result in bf16 only.
  CAPTURE(c.text());
  CHECK(count(c.text(), "rows 32x64: layer_norm cast <- ") == 1);
}

TEST_CASE("AStacksOwnNormIsAKernelBehindTheSumBeforeIt") {
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  TensorId y = b.linear_layer("a", x, 64);
  y = b.layer_norm_layer("norm", b.add(y, x));
  y = b.linear_layer("b", y, 64);
  b.cross_entropy(y, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::bf16), gpu(), {.norms = true});
  CAPTURE(c.text());
  CHECK(count(c.text(), "layer_norm") == 0);
  CHECK(count(c.text(), "pointwise 1x2048: add <- ") == 1);
  CHECK(verify(c.plan, c.graph) == "");
}

TEST_CASE("MegatronsDropoutOfScoresIsAKernelBehindItsSoftmax") {
  GraphBuilder b;
  TensorId scores = b.matmul(b.input("q", {2, 4, 32, 16}), b.input("k", {2, 4, 16, 32}));
  TensorId y = b.matmul(b.dropout(b.softmax(scores), 0.1), b.parameter("v", {2, 4, 32, 16}));
  b.cross_entropy(b.view(y, {256, 16}), b.input("t", {256}, DType::int64));
  const Graph graph = std::move(b).finish();
  const auto fused_dropouts = [&](OwnKernels own) { return count(compile(graph, uniform(DType::bf16), gpu(), own).text(), "dropout"); };
  CHECK(fused_dropouts({}) > 0);
  CHECK(fused_dropouts({.softmax_and_loss = true}) == 0);
}

TEST_CASE("CastsOfWeightsStayKernelsOfTheirOwn") {
  const Compiled c = compile(feed_forward(), amp(DType::bf16));
  int casts = 0;
  for (const FusedKernel& kernel : c.plan.kernels) {
    if (kernel.ops.size() != 1 || c.graph.ops[kernel.ops[0]].kind != OpKind::cast || c.graph.ops[kernel.ops[0]].phase != Phase::forward) continue;
    CHECK(kernel.reads.size() == 1);
    ++casts;
  }
  CHECK(casts == 5);  // two weights, two biases, the input
}

TEST_CASE("RepeatedCastsOfOneTensorAreOne") {
  GraphBuilder b;
  TensorId x = b.layer_norm_layer("norm", b.input("x", {32, 64}));
  TensorId y = b.add(b.linear_layer("q", x, 64, false), b.linear_layer("k", x, 64, false));
  b.cross_entropy(y, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), amp(DType::bf16));
  CHECK(count(c.text(), "rows 32x64: layer_norm cast <-") == 1);
}

TEST_CASE("LogSoftmaxIsNeverWritten") {
  GraphBuilder b;
  TensorId x = b.linear_layer("head", b.input("x", {32, 64}), 50000);
  b.cross_entropy(x, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), amp(DType::bf16));
  const std::int64_t full = 32 * 50000;
  for (const FusedKernel& kernel : c.plan.kernels)
    for (TensorId id : kernel.writes)
      if (c.graph.tensors[id].shape.elements() == full) {
        // Only the gradient of the logits: forward keeps the logits themselves, which a product wrote.
        CHECK(definition(c.graph.ops[kernel.ops[0]].kind).family == Family::softmax);
        CHECK(c.graph.ops[kernel.ops[0]].phase == Phase::backward);
      }
}

TEST_CASE("WhatBackwardCanComputeAgainIsNotKept") {
  GraphBuilder b;
  TensorId x = b.input("x", {32, 64});
  TensorId gate = b.linear_layer("gate", x, 256, false), up = b.linear_layer("up", x, 256, false);
  x = b.linear_layer("down", b.mul(b.silu(gate), up), 64, false);
  b.cross_entropy(x, b.input("t", {32}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::fp32));
  for (std::size_t i = 0; i < c.graph.ops.size(); ++i) {
    const Op& op = c.graph.ops[c.graph.ops.id_at(i)];
    if (op.kind == OpKind::silu) CHECK(c.plan.last_use[c.graph.output(op).index()] == -1);           // from gate, which is kept
    if (op.kind == OpKind::mul && op.phase == Phase::forward) CHECK(c.plan.last_use[c.graph.output(op).index()] > static_cast<std::int32_t>(i));
  }
  // Backward: both gradients of the product in one kernel, from the gradient, gate and up.
  CAPTURE(c.text());
  CHECK(count(c.text(), ": mul pointwise_backward <-") == 1);
}

TEST_CASE("EveryTensorThatALibraryReadsIsWrittenOnce") {
  const Compiled c = compile(feed_forward(), amp(DType::bf16));
  std::vector<int> written(c.graph.tensors.size(), 0);
  for (const FusedKernel& kernel : c.plan.kernels)
    for (TensorId id : kernel.writes) ++written[id.index()];
  CHECK(*std::max_element(written.begin(), written.end()) == 1);
}

TEST_CASE("WhatIsReadWasWrittenInEveryModelOfTheZoo") {
  for (const char* name : {"bert-base", "gpt2", "resnet18", "mobilenet_v2", "t5-base", "llama3-8b", "vit-b", "mixtral-8x7b", "deepseek-v3", "gpt-neox-20b"}) {
    std::ifstream file(std::string(PRECOG_DATA_DIR) + "/models/" + name + ".json");
    REQUIRE(file.good());
    const ModelSpec spec = parse_model(Json::parse(file), name).value();
    ModelInputs inputs{.batch = 2, .seq = spec.language ? 64 : 0};
    if (spec.layers > 0) inputs.layers = 2;
    const Graph forward = build_model(spec, inputs).value();
    for (const PrecisionRecipe& recipe : {uniform(DType::fp32), uniform(DType::bf16), amp(DType::bf16), amp(DType::fp16)})
      for (Recompute recompute : {Recompute::none, Recompute::full}) {
        const Graph graph = make_step(apply_precision(recipe, gpu(), forward), recipe, {.recompute = recompute, .micro_batches = 2}).graph;
        CAPTURE(name);
        CHECK(verify(plan_fusion(graph, kSms), graph) == "");
      }
  }
}

TEST_CASE("ColumnSumsAreSplitWhereFewResultsLeaveTheGpuIdle") {
  CHECK(column_stages(768, 8192, kSms) == 2);     // a bias's gradient over many tokens
  CHECK(column_stages(768, 32, kSms) == 1);       // few rows
  CHECK(column_stages(30522, 8192, kSms) == 1);   // enough columns to fill the GPU
  CHECK(column_stages(1, 64, kSms) == 1);
  CHECK(column_stages(1, 1 << 20, kSms) == 2);
}

TEST_CASE("ABatchNormsVarianceIsGatheredInStagesWhileThereAreManyPieces") {
  // ResNet's images at a batch of 48: 56 x 56 pixels and 14 x 14.
  CHECK(column_pieces(128, 150528, kSms) > 1000);
  CHECK(column_pieces(512, 9408, kSms) == 74);
  auto forward = [](std::int64_t side) {
    GraphBuilder b;
    TensorId x = b.conv2d_layer("c", b.input("x", {48, 8, side, side}), 128, 3, 1, 1);
    x = b.relu(b.batch_norm_layer("bn", x));
    b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {48, 128}), b.input("t", {48}, DType::int64));
    const PrecisionRecipe recipe = uniform(DType::bf16);
    Graph graph = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {}).graph;
    const std::string text = to_text(plan_fusion(graph, kSms, {MemoryFormat::contiguous, MemoryFormat::channels_last}), graph);
    return std::pair{count(text, "in 3 stages: batch_norm <-"), count(text, "in 2 stages: batch_norm <-")};
  };
  CHECK(forward(56) == std::pair{1, 0});
  CHECK(forward(14) == std::pair{0, 1});
}

TEST_CASE("OrdinaryConvolutionsBecomeChannelsLastWhenCompiled") {
  auto network = [](std::int64_t groups) {
    GraphBuilder b;
    TensorId x = b.conv2d_layer("c1", b.input("x", {4, 16, 8, 8}), 128, 3, 1, 1);
    x = b.relu(b.batch_norm_layer("bn", b.conv2d_layer("c2", x, 128, 3, 1, 1, groups)));
    x = b.view(b.adaptive_avg_pool2d(x, 1), {4, 128});
    b.cross_entropy(x, b.input("t", {4}, DType::int64));
    return std::move(b).finish();
  };
  CHECK(compiled_memory_format(network(1), MemoryFormat::contiguous) == MemoryFormat::channels_last);
  CHECK(compiled_memory_format(network(128), MemoryFormat::contiguous) == MemoryFormat::channels_last);  // depthwise
  CHECK(compiled_memory_format(network(4), MemoryFormat::contiguous) == MemoryFormat::contiguous);
  CHECK(compiled_memory_format(feed_forward(), MemoryFormat::contiguous) == MemoryFormat::contiguous);
}

// RDNet: layer norms leave its images channels last, and filters that narrow keep Inductor from turning all of them.
TEST_CASE("CompiledConvolutionsTakeTheirImagesAsTheTraceHadThem") {
  GraphBuilder b;
  TensorId x = b.view(b.input("tokens", {4, 64, 128}), {4, 128, 64}, ViewKind::transpose);
  x = b.conv2d_layer("narrows", b.view(x, {4, 128, 8, 8}, ViewKind::transpose), 64, 3, 1, 1);
  b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {4, 64}), b.input("t", {4}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::bf16));
  CHECK(compiled_memory_format(c.graph, MemoryFormat::contiguous) == MemoryFormat::contiguous);
  for (const Kernel& kernel : make_kernels(c.graph, gpu(), MemoryFormat::contiguous, &c.plan).kernels)
    if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) CHECK(conv->channels_last);
}

TEST_CASE("AConvolutionsResultIsWrittenBackWithItsBiasWhereSomebodyElseReadsIt") {
  auto planned = [](auto between) {
    GraphBuilder b;
    TensorId x = between(b, b.conv2d_layer("c1", b.input("x", {4, 16, 8, 8}), 128, 3, 1, 1, 1, true));
    x = b.conv2d_layer("c2", x, 128, 3, 1, 1);
    b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {4, 128}), b.input("t", {4}, DType::int64));
    const Compiled c = compile(std::move(b).finish(), uniform(DType::bf16));
    std::size_t written = 0, apart = 0;
    for (const FusedKernel& kernel : c.plan.kernels) written += kernel.biased.size();
    for (const FusionPlan::PerOp& op : c.plan.ops) apart += op.adds_bias ? 1 : 0;
    return std::pair{written, apart};
  };
  using Found = std::pair<std::size_t, std::size_t>;
  CHECK(planned([](GraphBuilder& b, TensorId x) { return b.gelu(x); }) == Found{1, 0});  // backward reads it
  CHECK(planned([](GraphBuilder& b, TensorId x) { return b.relu(x); }) == Found{0, 0});  // backward reads relu's result
  CHECK(planned([](GraphBuilder&, TensorId x) { return x; }) == Found{0, 1});            // only the next convolution does
}

TEST_CASE("BatchNormOfImagesInRowsIsOneKernelWhereChannelsFillTheGpu") {
  auto planned = [](std::int64_t channels, ImageLayout layout) {
    GraphBuilder b;
    TensorId x = b.conv2d_layer("c", b.input("x", {32, 8, 32, 32}), channels, 3, 1, 1);
    x = b.relu(b.batch_norm_layer("bn", x));
    x = b.view(b.adaptive_avg_pool2d(x, 1), {32, channels});
    b.cross_entropy(x, b.input("t", {32}, DType::int64));
    const PrecisionRecipe recipe = uniform(DType::bf16);
    Graph graph = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {}).graph;
    const FusionPlan plan = plan_fusion(graph, kSms, layout);
    CHECK(verify(plan, graph) == "");
    return to_text(plan, graph);
  };
  // 32 x 32 x 32 values of a channel side by side: one kernel sums them and goes over them again, each way.
  CHECK(count(planned(512, {}), "rows 512x32768: batch_norm") == 2);
  CHECK(count(planned(64, {}), "columns 32768x64 in 2 stages: batch_norm") + count(planned(64, {}), "columns 64x32768 in 2 stages: batch_norm") == 1);
  // Channels last, a column each: three stages, however many.
  const ImageLayout turned{MemoryFormat::contiguous, MemoryFormat::channels_last};
  CHECK(count(planned(512, turned), "in 3 stages: batch_norm") >= 1);
}

TEST_CASE("FiltersGivenInAnotherOrderAreTurnedAndTheirGradientsTurnedBack") {
  GraphBuilder b;
  TensorId x = b.conv2d_layer("spatial", b.input("x", {4, 16, 8, 8}), 128, 3, 1, 1);
  x = b.conv2d_layer("depthwise", b.conv2d_layer("pointwise", x, 128, 1, 1, 0), 128, 3, 1, 1, 128);
  b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {4, 128}), b.input("t", {4}, DType::int64));
  const PrecisionRecipe recipe = uniform(DType::bf16);
  const Graph graph = make_step(apply_precision(recipe, gpu(), std::move(b).finish()), recipe, {}).graph;
  auto turned = [&](ImageLayout layout) {
    std::size_t found = 0;
    for (const FusionPlan::PerOp& op : plan_fusion(graph, kSms, layout).ops) found += op.turned.size();
    return found;
  };
  // The image and the one filter of more than a pixel and a channel, and that filter's gradient.
  CHECK(turned({MemoryFormat::contiguous, MemoryFormat::channels_last}) == 3);
  CHECK(turned({MemoryFormat::channels_last, MemoryFormat::channels_last}) == 0);
  CHECK(turned({}) == 0);
}

TEST_CASE("CompiledStepsLaunchFewerKernelsAndMoveFewerBytes") {
  const StepGraph step = make_step(apply_precision(amp(DType::bf16), gpu(), feed_forward()), amp(DType::bf16), {});
  const FusionPlan plan = plan_fusion(step.graph, kSms);
  const KernelProgram eager = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  const KernelProgram compiled = make_kernels(step.graph, gpu(), MemoryFormat::contiguous, &plan);
  CHECK(eager.calls.size() == compiled.calls.size());
  auto bytes = [](const KernelProgram& program) {
    std::int64_t total = 0;
    for (const Kernel& kernel : program.kernels) total += kernel.read.value + kernel.written.value;
    return total;
  };
  CHECK(compiled.kernels.size() < eager.kernels.size());
  CHECK(bytes(compiled) < bytes(eager));
}

// Sums of a norm's gradients ride along in the kernel over its rows; the framework's own reduction finishes each, in blocks that
// meet through counters where few columns would leave the GPU idle.
TEST_CASE("SumsThatRideAlongAreFinishedThroughCountersWhereBlocksShareThem") {
  auto finishing = [](std::int64_t rows, std::int64_t width) {
    GraphBuilder b;
    TensorId x = b.layer_norm_layer("norm", b.linear_layer("a", b.input("x", {rows, width}), width));
    b.cross_entropy(b.linear_layer("b", x, 64), b.input("t", {rows}, DType::int64));
    const Compiled c = compile(std::move(b).finish(), uniform(DType::fp32));
    const KernelProgram program = make_kernels(c.graph, gpu(), MemoryFormat::contiguous, &c.plan);
    int sums = 0, counters = 0;
    std::int64_t length = 0;
    for (std::size_t k = 1; k < program.kernels.size(); ++k) {
      if (program.kernels[k].name != "sum" || program.kernels[k].fused) continue;
      ++sums;
      length = std::get<MemoryShape>(program.kernels[k].shape).row_length;
      counters += program.kernels[k - 1].name == "memset" ? 1 : 0;
    }
    CHECK(sums == 2);  // of the weight and of the bias
    return std::pair{counters, length};
  };
  // 16 rows a program on 132 SMs.
  CHECK(finishing(8192, 768) == std::pair{0, std::int64_t{512}});
  CHECK(finishing(16384, 384) == std::pair{2, std::int64_t{1024}});
  CHECK(finishing(22064, 768) == std::pair{2, std::int64_t{1379}});
}

// x[4,16,8,8] times a parameter, then `inside`, then a mean.
Compiled images(const std::string& inside, ImageLayout layout = {MemoryFormat::contiguous, MemoryFormat::channels_last}, int last = -1) {
  const std::string text = R"({"precog_graph": 1, "symbols": {"batch": 4}, "stream": [
    {"tensor": "input", "name": "x", "shape": ["batch", 16, 8, 8]},
    {"tensor": "parameter", "name": "w", "shape": [4, 16, 8, 8]},
    {"op": "mul", "in": [0, 1], "out": [[["batch", 16, 8, 8]]], "kind": "pointwise",
     "back": {"ops": [{"op": "mul", "in": ["g0", "i0"], "out": [[["batch", 16, 8, 8]]], "kind": "pointwise"}], "give": [[1, "t0"]]}},
    )" + inside + R"(, {"op": "mean", "in": [)" + std::to_string(last) + R"(], "out": [[[]]]}], "loss": -1})";
  auto model = parse_captured(text, "m.precog.json");
  if (!model) FAIL(model.error().text());
  auto graph = build_captured(*model, {.batch = 4});
  if (!graph) FAIL(graph.error().text());
  const PrecisionRecipe recipe = uniform(DType::fp32);
  Compiled out;
  out.graph = make_step(apply_precision(recipe, gpu(), *graph), recipe, {}).graph;
  out.plan = plan_fusion(out.graph, kSms, layout);
  CHECK(verify(out.plan, out.graph) == "");
  return out;
}

TEST_CASE("GroupNormsGradientSumsAlongChannelsAndThenGoesOverEachElement") {
  const Compiled c = images(R"({"tensor": "parameter", "name": "scale", "shape": [16]}, {"tensor": "parameter", "name": "shift", "shape": [16]},
    {"op": "group_norm", "in": [-3, -2, -1], "out": [[["batch", 16, 8, 8]], [["batch", 1], "fp32", {"hidden": true}], [["batch", 1], "fp32", {"hidden": true}]],
     "attrs": {"groups": 1}, "back": {"ops": [{"op": "native_group_norm_backward", "in": ["g0", "i0", "o1", "o2", "i1"], "out": [[["batch", 16, 8, 8]], [[16]], [[16]]]}],
     "give": [[0, "t0"], [1, "t1"], [2, "t2"]]}})", {MemoryFormat::contiguous, MemoryFormat::channels_last}, 5);
  CAPTURE(c.text());
  CHECK(count(c.text(), "columns 64x64 in 3 stages: group_norm_backward") == 1);  // a row for each image's channel, and what they come to
  CHECK(count(c.text(), "rows 4x1024: group_norm_backward") == 0);
  for (const FusedKernel& kernel : c.plan.kernels)  // the sums move their operands as the framework's own kernels of such a norm do
    if (kernel.kind == FusedKind::columns && c.graph.ops[kernel.ops[0]].kind == OpKind::group_norm_backward)
      CHECK(std::get<MemoryShape>(lower_fused(kernel, c.graph)[0].shape).pattern == MemoryPattern::norm_backward);
  CHECK(count(c.text(), "pointwise 1x4096: group_norm_backward") + count(c.text(), "pointwise 1x4096: mul <-") == 1);
}

TEST_CASE("ASumPerChannelIsNoKernelOverRows") {
  const std::string scaled = R"({"tensor": "parameter", "name": "scale", "shape": [16, 1, 1]},
    {"op": "mul", "in": [-2, -1], "out": [[["batch", 16, 8, 8]]], "kind": "pointwise", "back": {"ops": [
      {"op": "mul", "in": ["g0", "i0"], "out": [[["batch", 16, 8, 8]]], "kind": "pointwise"},
      {"op": "mul", "in": ["g0", "i1"], "out": [[["batch", 16, 8, 8]]], "kind": "pointwise"},
      {"op": "sum", "in": ["t0"], "out": [[[16, 1, 1]]], "kind": "reduction"}], "give": [[0, "t1"], [1, "t2"]]}})";
  const Compiled last = images(scaled), plain = images(scaled, {});
  CAPTURE(last.text());
  CHECK(count(last.text(), "columns 16x256 in 2 stages: sum") == 1);
  CHECK(count(plain.text(), "columns 16x256: sum") == 1);  // a channel's values lie side by side, too few to cut
  CHECK(count(last.text(), "rows") == 0);
}

TEST_CASE("ATransposedCopySharesNoKernelWithWhatReadsTheSameInItsOrder") {
  GraphBuilder b;
  const TensorId x = b.linear_layer("a", b.input("x", {64, 64}), 64);
  const TensorId turned = b.linear_layer("t", b.contiguous(b.transpose(x, 0, 1)), 64), straight = b.linear_layer("s", b.relu(x), 64);
  b.cross_entropy(b.add(turned, straight), b.input("t", {64}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::fp32));
  CAPTURE(c.text());
  CHECK(count(c.text(), "pointwise 1x4096: contiguous <-") >= 1);
  CHECK(count(c.text(), "contiguous relu") + count(c.text(), "relu contiguous") == 0);
}

TEST_CASE("HeadsCopiedToPositionsJoinTheKernelOverTheirRows") {
  auto planned = [](bool rows) {
    GraphBuilder b;
    TensorId x = b.linear_layer("a", b.input("x", {4, 8, 64, 32}), 32);  // heads before positions
    x = rows ? b.softmax(x) : b.relu(x);
    x = b.contiguous(b.transpose(x, 1, 2));
    b.cross_entropy(b.linear_layer("b", b.view(x, {256, 256}), 64), b.input("t", {256}, DType::int64));
    return compile(std::move(b).finish(), uniform(DType::fp32)).text();
  };
  CHECK(count(planned(true), "rows 2048x32: softmax contiguous <-") == 1);
  CHECK(count(planned(false), "relu contiguous <-") == 0);  // no rows: a loop over elements in one order
}

TEST_CASE("LargeProductsOfAwkwardExtentsArePadded") {
  GraphBuilder b;
  TensorId x = b.linear_layer("body", b.input("x", {2048, 768}), 768, false);
  b.cross_entropy(b.linear_layer("head", x, 50257, false), b.input("t", {2048}, DType::int64));
  const Graph forward = std::move(b).finish();
  const Compiled c = compile(forward, uniform(DType::bf16));
  const KernelProgram program = make_kernels(c.graph, gpu(), MemoryFormat::contiguous, &c.plan);
  int padded = 0, copies = 0, twice = 0;
  for (const Kernel& kernel : program.kernels) {
    twice += kernel.name == "fused_padding" && kernel.written.value == 2 * kernel.read.value ? 1 : 0;
    if (const auto* product = std::get_if<GemmShape>(&kernel.shape))
      padded += product->n == 50264 || product->k == 50264 || product->m == 50264 ? 1 : 0;
    copies += kernel.name == "fused_padding" ? 1 : 0;
  }
  CHECK(padded == 3);  // the head, forward and both ways back
  CHECK(copies == 3);  // the weight in each graph, the gradient of the logits for both products
  CHECK(twice == 1);   // for one of them transposed, as its rows are odd
  // A bias becomes as long as the rows that it is added to.
  GraphBuilder biased;
  x = biased.linear_layer("body", biased.input("x", {2048, 768}), 768, false);
  biased.cross_entropy(biased.linear_layer("head", x, 50257), biased.input("t", {2048}, DType::int64));
  const Compiled with_bias = compile(std::move(biased).finish(), uniform(DType::bf16));
  std::size_t before = 0, after = 0;
  for (const FusionPlan::PerOp& op : c.plan.ops) before += op.copied.size();
  for (const FusionPlan::PerOp& op : with_bias.plan.ops) after += op.copied.size();
  CHECK(after == before + 1);
  const Compiled by_hand = compile(forward, uniform(DType::bf16), gpu(), {.products = true});
  CHECK(std::none_of(by_hand.plan.ops.begin(), by_hand.plan.ops.end(), [](const FusionPlan::PerOp& op) { return op.padded; }));
}

TEST_CASE("TracedTransformersBuildTheirMasks") {
  GraphBuilder b;
  TensorId q = b.input("q", {2, 8, 64, 32}), kv = b.input("kv", {2, 2, 64, 32});
  TensorId x = b.attention(q, kv, kv, true);
  x = b.attention(x, x, x, false);
  b.cross_entropy(b.view(x, {1024, 32}), b.input("t", {1024}, DType::int64));
  const Graph traced = with_traced_masks(mark_left_out_masks(std::move(b).finish(), false));
  CHECK(verify(traced) == "");
  std::vector<AttentionAttributes> found;
  for (const Op& op : traced.ops)
    if (const auto* a = std::get_if<AttentionAttributes>(&op.attributes)) found.push_back(*a);
  REQUIRE(found.size() == 2);
  CHECK((found[0].mask && !found[0].causal && found[0].kv_heads == 8));  // no kernel skips half, keys are repeated
  int repeats = 0;
  for (const Op& op : traced.ops)
    repeats += op.kind == OpKind::contiguous && traced.tensors[traced.output(op)].shape == Shape{2, 2, 4, 64, 32} ? 1 : 0;
  CHECK(repeats == 2);  // keys and values
  CHECK(found[1].backend == AttentionBackend::math);                     // an encoder's mask is one no fused kernel reads
}

// A traced encoder's attention between products, its heads beside each other in memory.
Graph encoder_attention(bool copies) {
  GraphBuilder b;
  auto heads = [&](TensorId x) { return b.transpose(b.view(x, {4, 64, 8, 32}), 1, 2); };
  const TensorId x = b.input("x", {4, 64, 256});
  TensorId y = b.attention(heads(b.linear_layer("q", x, 256)), heads(b.linear_layer("k", x, 256)), heads(b.linear_layer("v", x, 256)), false);
  y = b.transpose(y, 1, 2);
  if (copies) y = b.contiguous(y);
  b.cross_entropy(b.linear_layer("out", b.view(y, {256, 256}), 64), b.input("t", {256}, DType::int64));
  return with_traced_masks(mark_left_out_masks(std::move(b).finish(), false));
}

TEST_CASE("WhatAttentionWrittenOutReturnsIsCopiedToPositionsEachWay") {
  auto copies = [](bool own) {
    const Compiled c = compile(encoder_attention(own), uniform(DType::fp32));
    int found = 0;
    for (const Op& op : c.graph.ops) found += op.kind == OpKind::contiguous ? 1 : 0;
    CHECK(verify(c.plan, c.graph) == "");
    return found;
  };
  CHECK(copies(false) == 8);  // query, key, value and the result, forward and their gradients
  CHECK(copies(true) <= 8);   // not twice where the model copies itself
}

TEST_CASE("UnderAutocastAWrittenOutAttentionsForwardProductsMoveFp32") {
  const Compiled c = compile(encoder_attention(false), amp(DType::bf16));
  const std::int64_t scores = 4 * 8 * 64 * 64, values = 4 * 64 * 256;
  int softmaxes = 0, operands = 0;
  for (const FusedKernel& kernel : c.plan.kernels) {
    if (c.graph.ops[kernel.ops[0]].phase != Phase::forward) continue;
    if (kernel.kind == FusedKind::rows && family_of(kernel, c.graph) == Family::softmax && kernel.row_length == 64 && kernel.rows == 2048) {
      ++softmaxes;
      CHECK(kernel.reads[0].bytes == Bytes{scores * 4});
      CHECK(kernel.scratch_written == Bytes{scores * 2});  // beside the cast that backward keeps
    }
    operands += kernel.scratch_written == Bytes{values * 2} ? 1 : 0;
  }
  CHECK(softmaxes == 1);
  CHECK(operands == 3);  // query, key, value
}

TEST_CASE("TracedTransformersLookAtNoMask") {
  auto reads = [](bool marked) {
    GraphBuilder b;
    TensorId q = b.input("q", {2, 8, 64, 32});
    b.read_back(b.integer_op({b.input("mask", {2, 64}, DType::int64)}, {}, DType::boolean));
    TensorId x = b.attention(q, q, q, true);
    b.cross_entropy(b.view(x, {1024, 32}), b.input("t", {1024}, DType::int64));
    const Graph forward = std::move(b).finish();
    const Graph traced = with_traced_masks(marked ? mark_left_out_masks(forward, false) : forward);
    CHECK(verify(traced) == "");
    int found = 0;
    for (const Op& op : traced.ops) found += op.kind == OpKind::read_back ? 1 : 0;
    return found;
  };
  CHECK(reads(true) == 0);
  CHECK(reads(false) == 1);  // a model whose own code looks: a break in the graph
}

TEST_CASE("ScalingToEightBitsIsTwoKernelsPerOperandAndNotTwelve") {
  // As torchao writes it: abs, largest element, the scale in fp64 and back, times scale, saturated, converted.
  GraphBuilder b;
  TensorId x = b.linear_layer("a", b.input("x", {4096, 1024}), 1024);
  const TensorId largest = b.by_name("max", std::array{b.by_name("abs", std::array{x}, {4096, 1024})}, {});
  const TensorId scale = b.mul(b.by_name("reciprocal", std::array{largest}, {}), b.parameter("limit", {}));
  x = b.by_name("clamp", std::array{b.mul(x, scale)}, {4096, 1024});
  b.cross_entropy(b.linear_layer("b", x, 64), b.input("t", {4096}, DType::int64));
  const Compiled c = compile(std::move(b).finish(), uniform(DType::bf16));
  CAPTURE(c.text());
  CHECK(count(c.text(), "columns 1x4194304 in 2 stages: max") == 1);
  CHECK(count(c.text(), "pointwise 1x4194304: clamp <-") == 1);
  CHECK(count(c.text(), "abs") == 0);
}

TEST_CASE("RowsAddedToPlacesInBf16AreTheFrameworksOwn") {
  GraphBuilder b;
  TensorId x = b.linear_layer("a", b.input("x", {32, 64}), 64);
  x = b.index_select(x, b.input("i", {16}, DType::int64), {16, 64});
  b.cross_entropy(b.linear_layer("b", x, 64), b.input("t", {16}, DType::int64));
  const Graph graph = std::move(b).finish();
  const auto scatters = [&](DType type) { return count(compile(graph, uniform(type)).text(), "scatter"); };
  CHECK(scatters(DType::fp32) == 1);
  CHECK(scatters(DType::bf16) == 0);
}

TEST_CASE("ValuesThatMeetInAPlaceInBf16AreToldByTheTable") {
  const auto places = [](DType type, const char* name) {
    Graph graph;
    const TensorId table = graph.add_tensor({.shape = {12, 196}, .dtype = type}), values = graph.add_tensor({.shape = {12, 196, 196}, .dtype = type});
    const TensorId added = graph.add_tensor({.shape = {12, 196}, .dtype = type});
    Op op;
    op.kind = OpKind::scatter;
    op.label = graph.intern(name);
    const TensorId in[] = {table, values}, out[] = {added};
    FusedKernel fused;
    fused.kind = FusedKind::scatter;
    fused.ops = {graph.add_op(op, in, out)};
    fused.row_length = 12 * 196 * 196;
    return std::get<MemoryShape>(lower_fused(fused, graph).front().shape).part;
  };
  CHECK(places(DType::bf16, "index_put_") == 12 * 196);
  CHECK(places(DType::fp32, "index_put_") == 0);
  CHECK(places(DType::bf16, "scatter_add") == 0);
}
