#include <chrono>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "base/compression.h"
#include "frontend/captured.h"
#include "graph/framework_names.h"
#include "graph/operator.h"
#include "kernel/kernel.h"
#include "memory/memory.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {

// What tests/support.h's two_layers() builds, as a capture of it would be written.
const std::string kTwoLayers = R"({"precog_graph": 1, "name": "two", "made_by": {"torch": "2.11.0"}, "symbols": {"batch": 32},
 "stream": [
  {"tensor": "input", "name": "x", "shape": ["batch", 64]},
  {"tensor": "input", "name": "target", "shape": ["batch"], "type": "int64"},
  {"tensor": "parameter", "name": "first.weight", "shape": [128, 64]},
  {"tensor": "parameter", "name": "first.bias", "shape": [128]},
  {"op": "linear", "in": [0, 2, 3], "out": [[["batch", 128]]], "attrs": {"gemm": [1, "batch", 128, 64]}, "module": "first"},
  {"op": "relu", "in": [-1], "out": [[["batch", 128]]]},
  {"tensor": "parameter", "name": "second.weight", "shape": [10, 128]},
  {"tensor": "parameter", "name": "second.bias", "shape": [10]},
  {"op": "linear", "in": [-3, -2, -1], "out": [[["batch", 10]]], "attrs": {"gemm": [1, "batch", 10, 128]}, "module": "second"},
  {"op": "log_softmax", "in": [-1], "out": [[["batch", 10]]], "attrs": {"dim": 1, "type": "float"}},
  {"op": "nll_loss", "in": [-1, 1], "out": [[[]]]}],
 "loss": -1})";

// x[batch, seq, 16] through `inside` (entries that read tensor 2 and end in one like it), then a mean.
std::string around(const std::string& inside, const std::string& shape = R"(["batch", "seq", 16])") {
  return fmt::format(R"({{"precog_graph": 1, "symbols": {{"batch": 2, "seq": 8}}, "stream": [
    {{"tensor": "input", "name": "x", "shape": {0}}},
    {{"tensor": "parameter", "name": "w", "shape": [16]}},
    {{"op": "mul", "in": [0, 1], "out": [[{0}]]}},
    {1},
    {{"op": "mean", "in": [-1], "out": [[[]]]}}], "loss": -1}})", shape, inside);
}

Graph built(const std::string& text, ModelInputs inputs = {.batch = 2, .seq = 8}) {
  auto model = parse_captured(text, "m.precog.json");
  if (!model) FAIL(model.error().text());
  auto graph = build_captured(*model, inputs);
  if (!graph) FAIL(graph.error().text());
  CHECK(verify(*graph).empty());
  return *graph;
}

std::string problem_of(const std::string& text, ModelInputs inputs = {.batch = 2, .seq = 8}) {
  auto model = parse_captured(text, "m.precog.json");
  if (!model) return model.error().text();
  auto graph = build_captured(*model, inputs);
  return graph ? "" : graph.error().text();
}

StepGraph step_of(const Graph& forward, const PrecisionRecipe& recipe, const TrainingOptions& options = {}) {
  return make_step(apply_precision(recipe, gpu(), forward), recipe, options);
}

const std::vector<PrecisionRecipe>& recipes() {
  static const std::vector<PrecisionRecipe> kAll = {uniform(DType::fp32), uniform(DType::fp16), uniform(DType::bf16), amp(DType::fp16), amp(DType::bf16)};
  return kAll;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

const Op* find(const Graph& graph, std::string_view name, Phase phase = Phase::forward) {
  for (const Op& op : graph.ops)
    if (op.phase == phase && name_of(graph, op) == name) return &op;
  return nullptr;
}

DType type_of(const Graph& graph, std::string_view name, Phase phase = Phase::forward) {
  const Op* op = find(graph, name, phase);
  REQUIRE(op != nullptr);
  return graph.tensors[graph.output(*op)].dtype;
}

}  // namespace

TEST_CASE("ACapturedModelGivesTheStepGraphOfTheSameModelBuiltAtEveryRecipe") {
  const Graph forward = built(kTwoLayers, {.batch = 32});
  CHECK(to_text(forward) == to_text(two_layers()));
  for (const PrecisionRecipe& recipe : recipes())
    for (Recompute recompute : {Recompute::none, Recompute::full}) {
      const TrainingOptions options{.recompute = recompute};
      CHECK(to_text(step_of(forward, recipe, options).graph) == to_text(step_of(two_layers(), recipe, options).graph));
    }
}

TEST_CASE("CompressedAndPlainFilesReadAlikeAndTheBatchIsSymbolic") {
  auto packed = compress(kTwoLayers);
  REQUIRE(packed);
  auto model = parse_captured(*packed, "m.precog.json.zst");
  REQUIRE(model);
  CHECK(model->name == "two");
  CHECK(model->has_batch);
  CHECK(!model->has_seq);
  CHECK(model->captured_batch == 32);
  auto graph = build_captured(*model, {.batch = 7});
  REQUIRE(graph);
  CHECK(to_text(*graph) == to_text(two_layers(7)));
}

TEST_CASE("ARecordedGradientRunsInTheTypeItsOperatorComputedIn") {
  const std::string file = around(
      R"({"op": "erf", "in": [2], "out": [[["batch", "seq", 16]]],
          "back": {"ops": [{"op": "mul", "in": ["i0"], "out": [[["batch", "seq", 16]]]}, {"op": "exp", "in": ["t0"], "out": [[["batch", "seq", 16]]]},
                           {"op": "mul", "in": ["g0", "t1"], "out": [[["batch", "seq", 16]]]}], "give": [[0, "t2"]]}},
         {"op": "log", "in": [-1], "out": [[["batch", "seq", 16]]],
          "back": {"ops": [{"op": "div", "in": ["g0", "i0"], "out": [[["batch", "seq", 16]]]}], "give": [[0, "t0"]]}})");
  const StepGraph plain = step_of(built(file), uniform(DType::bf16));
  CHECK(verify(plain.graph).empty());
  CHECK(kinds(plain.graph, Phase::backward) ==
        std::vector<std::string>{"fill", "view", "mul_scalar", "div", "mul_scalar", "exp", "mul", "mul", "sum"});
  CHECK(type_of(plain.graph, "div", Phase::backward) == DType::bf16);
  CHECK(plain.gradients.size() == 1);
  // Autocast runs log in fp32: its gradient is computed there and cast where it came from 16 bits.
  PrecisionRecipe mixed = amp(DType::bf16);
  mixed.inputs = mixed.parameters = DType::bf16;
  const StepGraph cast = step_of(built(file), mixed);
  CHECK(type_of(cast.graph, "log") == DType::fp32);
  CHECK(type_of(cast.graph, "div", Phase::backward) == DType::fp32);
  CHECK(type_of(cast.graph, "exp", Phase::backward) == DType::bf16);
  CHECK(count(cast.graph, OpKind::cast) == 2);  // in front of log, and back
}

TEST_CASE("WhatOnlyAnUnwantedGradientNeedsIsNotRun") {
  const std::string entry = R"({"op": "hypot", "in": [2, 0], "out": [[["batch", "seq", 16]]],
      "back": {"ops": [{"op": "div", "in": ["i0", "o0"], "out": [[["batch", "seq", 16]]]}, {"op": "mul", "in": ["g0", "t0"], "out": [[["batch", "seq", 16]]]},
                       {"op": "sub", "in": ["i1", "o0"], "out": [[["batch", "seq", 16]]]}], "give": [[0, "t1"], [1, "t2"]]}})";
  const StepGraph step = step_of(built(around(entry)), uniform(DType::fp32));
  CHECK(find(step.graph, "div", Phase::backward) != nullptr);
  CHECK(find(step.graph, "sub", Phase::backward) == nullptr);  // x is an input: nobody wants its gradient
}

TEST_CASE("ARepeatReadsTheRoundBeforeAndCountsNamesAndBlocks") {
  const std::string file = around(R"({"repeat": 3, "first": 1, "stream": [
      {"tensor": "parameter", "name": "layers.{}.w", "shape": [16]},
      {"op": "mul", "in": [-2, -1], "out": [[["batch", "seq", 16]]], "module": "layers.{}", "block": 1,
       "back": {"ops": [{"op": "mul", "in": ["g0", "i1"], "out": [[["batch", "seq", 16]]]}], "give": [[0, "t0"]]}}]})");
  const Graph graph = built(file);
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == Role::parameter) names.emplace_back(graph.name(tensor.name));
  CHECK(names == std::vector<std::string>{"w", "layers.1.w", "layers.2.w", "layers.3.w"});
  CHECK(graph.recipes.size() == 1);  // shared between the rounds
  std::vector<int> blocks;
  for (const Op& op : graph.ops) blocks.push_back(op.block);
  CHECK(blocks == std::vector<int>{-1, 1, 2, 3, -1});
  for (Recompute recompute : {Recompute::none, Recompute::full}) {
    const StepGraph step = step_of(graph, amp(DType::fp16), {.recompute = recompute});
    CHECK(verify(step.graph).empty());
    CHECK(step.gradients.size() == 1);  // only w: the recorded gradient hands nothing to the others
  }
}

TEST_CASE("CastsFollowATensorOrTheModelAndADoorOpensForAutocastOnly") {
  const std::string file = around(
      R"({"op": "cast", "in": [2], "out": [[["batch", "seq", 16], "fp32"]], "attrs": {"to": "fp32"}},
         {"op": "cast", "in": [-1], "out": [[["batch", "seq", 16]]], "attrs": {"like": 0}},
         {"op": "autocast", "in": [-1], "out": [[["batch", "seq", 16]]], "attrs": {"class": "lower"}},
         {"op": "square", "in": [-1], "out": [[["batch", "seq", 16]]]},
         {"op": "cast", "in": [-1], "out": [[["batch", "seq", 16]]], "attrs": {"like": "float"}})");
  const Graph forward = built(file);
  CHECK(count(apply_precision(uniform(DType::fp32), gpu(), forward), OpKind::cast) == 0);
  CHECK(count(apply_precision(uniform(DType::bf16), gpu(), forward), OpKind::cast) == 2);
  const Graph mixed = apply_precision(amp(DType::bf16), gpu(), forward);
  CHECK(count(mixed, OpKind::cast) == 2);  // the door, and back to the model's own fp32
  CHECK(type_of(mixed, "square") == DType::bf16);
}

TEST_CASE("PromotionIgnoresTensorsWithoutAxesAndIntegers") {
  const std::string file = around(
      R"({"tensor": "buffer", "name": "scale", "shape": [], "type": "fp32"},
         {"tensor": "buffer", "name": "ids", "shape": [16], "type": "int64"},
         {"tensor": "buffer", "name": "wide", "shape": [16], "type": "fp32"},
         {"op": "maximum", "in": [2, 3], "out": [[["batch", "seq", 16]]]},
         {"op": "minimum", "in": [-1, 4], "out": [[["batch", "seq", 16]]]},
         {"op": "hypot", "in": [-1, 5], "out": [[["batch", "seq", 16]]]},
         {"op": "true_divide", "in": [4, 4], "out": [[[16]]]},
         {"op": "add", "in": [-2, -1], "out": [[["batch", "seq", 16], "float", {"of": 0}]]})");
  const Graph graph = apply_precision(uniform(DType::bf16), gpu(), built(file));
  CHECK(type_of(graph, "maximum") == DType::bf16);
  CHECK(type_of(graph, "minimum") == DType::bf16);
  CHECK(type_of(graph, "hypot") == DType::fp32);
  CHECK(verify(graph).empty());
  const Op* add = find(graph, "add");
  REQUIRE(add != nullptr);
  CHECK(add->in_place);
  CHECK(graph.tensors[graph.output(*add)].dtype == DType::fp32);  // an in-place result keeps its operand's type
}

TEST_CASE("AutocastListsGoByTheFrameworksNameAndOffMeansOff") {
  auto type = [](const std::string& op, const std::string& more = "") {
    const std::string file = around(fmt::format(R"({{"op": "gelu", "in": [2], "out": [[["batch", "seq", 16]]]}},
        {{"op": "{}", "in": [-1], "out": [[["batch", "seq", 16]]]{}}})", op, more));
    PrecisionRecipe recipe = amp(DType::fp16);
    recipe.parameters = recipe.inputs = DType::fp16;
    return type_of(apply_precision(recipe, gpu(), built(file)), op);
  };
  CHECK(type("cosh") == DType::fp32);
  CHECK(type("upsample_bilinear2d") == DType::fp32);
  CHECK(type("cumsum") == DType::fp32);
  CHECK(type("sqrt") == DType::fp16);
  CHECK(type("softmax") == DType::fp32);
  CHECK(type("cosh", R"(, "autocast": "off")") == DType::fp16);
  CHECK(type("softmax", R"(, "attrs": {"type": "float"})") == DType::fp16);
  CHECK(framework_name("addcmul")->autocast == Autocast::promote);
  CHECK(framework_name("einsum")->autocast == Autocast::lower);
  CHECK(framework_name("native_group_norm")->autocast == Autocast::none);
  CHECK(framework_name("no_such_operator") == nullptr);
  CHECK(framework_names().size() > 500);
}

TEST_CASE("ConvolutionsOfOneAndThreeAxesAndTransposedOnesDoTheirArithmetic") {
  struct Case { const char* file; double flops; };
  const Case cases[] = {
      {R"({"tensor": "parameter", "name": "f", "shape": [4, 8, 3]},
          {"op": "convolution", "in": [2, 3], "out": [[["batch", 4, 7]]], "attrs": {"kernel": [3], "stride": [2]}})", 2.0 * 2 * 4 * 7 * 8 * 3},
      {R"({"tensor": "parameter", "name": "f", "shape": [8, 4, 2]},
          {"op": "convolution", "in": [2, 3], "out": [[["batch", 4, 32]]], "attrs": {"kernel": [2], "stride": [2], "transposed": true}})", 2.0 * 2 * 8 * 16 * 4 * 2}};
  for (const Case& one : cases) {
    const Graph graph = built(around(one.file, R"(["batch", "seq", 16])"));
    CHECK(training_flops(graph).value == doctest::Approx(3 * one.flops));
    const StepGraph step = step_of(graph, uniform(DType::bf16));
    CHECK(verify(step.graph).empty());
    const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
    int convolutions = 0;
    for (const Kernel& kernel : program.kernels) convolutions += std::holds_alternative<ConvShape>(kernel.shape) ? 1 : 0;
    CHECK(convolutions == 3);
  }
}

TEST_CASE("PoolingsHaveTheirWindows") {
  auto pool = [](const std::string& attrs) {
    return around(R"({"op": "avg_pool2d", "in": [2], "out": [[["batch", 8, 4, 8]]])" + attrs + "}", R"(["batch", 8, 8, 16])");
  };
  auto window = [&](const std::string& attrs) {
    const Graph graph = built(pool(attrs));
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::pool) return std::get_if<PoolAttributes>(&op.attributes) ? std::get<PoolAttributes>(op.attributes) : PoolAttributes{0, 0, 0};
    return PoolAttributes{-1, -1, -1};
  };
  CHECK(window(R"(, "attrs": {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]})") == PoolAttributes{3, 2, 1});
  CHECK(window("") == PoolAttributes{0, 0, 0});
  CHECK(problem_of(pool(R"(, "attrs": {"kernel": [3, 3], "stride": [2], "padding": [1, 1]})")).find("as many numbers") != std::string::npos);
  CHECK(problem_of(pool(R"(, "attrs": {"kernel": [3, 0], "stride": [2, 2], "padding": [1, 1]})")).find("must be from 1") != std::string::npos);
  CHECK(problem_of(pool(R"(, "attrs": {"stride": [2, 2]})")).find("wants attrs.kernel") != std::string::npos);
}

TEST_CASE("RecurrentLayersAreOneLargeProductAndOneSmallPerStep") {
  const Graph graph = built(around(
      R"({"tensor": "parameter", "name": "ih", "shape": [128, 16]}, {"tensor": "parameter", "name": "hh", "shape": [128, 32]},
         {"op": "lstm", "in": [2, 3, 4], "out": [[["batch", "seq", 32]], [[1, "batch", 32]], [[1, "batch", 32]]],
          "attrs": {"layers": 1, "hidden": 32, "directions": 1, "batch_first": true}},
         {"op": "view", "in": [-3], "out": [[["batch", "seq", 32]]]})"));
  const StepGraph step = step_of(graph, amp(DType::fp16));
  CHECK(verify(step.graph).empty());
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  double forward = 0, backward = 0;
  for (const Call& call : program.calls)
    for (std::uint32_t i = 0; i < call.kernel_count; ++i) {
      const Kernel& kernel = program.kernels[call.first_kernel + i];
      if (!std::holds_alternative<GemmShape>(kernel.shape)) continue;
      CHECK(kernel.math == DType::fp16);
      (call.phase == Phase::forward ? forward : backward) += kernel.flops.value;
    }
  CHECK(forward == 2.0 * 2 * 8 * 128 * (16 + 32));
  CHECK(backward == 2 * forward);
  CHECK(step.gradients.size() == 3);
}

TEST_CASE("RmsNormIsOneKernelUnlessItsWeightsHaveAnotherType") {
  const std::string file = around(R"({"tensor": "parameter", "name": "n", "shape": [16]},
      {"op": "linear", "in": [2, 4], "out": [[["batch", "seq", 16]]], "attrs": {"gemm": [1, "batch*seq", 16, 16]}},
      {"op": "rms_norm", "in": [-1, 3], "out": [[["batch", "seq", 16]]], "attrs": {"width": 16}})");
  const std::string with_weight = replaced(file, R"({"op": "linear")", R"({"tensor": "parameter", "name": "l", "shape": [16, 16]}, {"op": "linear")");
  const StepGraph fused = step_of(built(with_weight), uniform(DType::bf16));
  CHECK(count(fused.graph, OpKind::rms_norm) == 1);
  CHECK(count(fused.graph, OpKind::rms_norm_backward) == 1);
  const StepGraph formula = step_of(built(with_weight), amp(DType::bf16));  // bf16 from linear meets an fp32 weight
  CHECK(verify(formula.graph).empty());
  CHECK(count(formula.graph, OpKind::rms_norm) == 0);
  CHECK(count(formula.graph, OpKind::rsqrt) == 1);
  CHECK(formula.gradients.size() == 3);
}

TEST_CASE("AnUnknownOperatorIsCostedByItsBytesAndMarked") {
  const Graph graph = built(around(R"({"op": "mylib::strange", "in": [2], "out": [[["batch", "seq", 16]]]})"));
  const KernelProgram program = make_kernels(apply_precision(uniform(DType::fp32), gpu(), graph), gpu(), MemoryFormat::contiguous);
  REQUIRE(program.kernels.size() == 3);
  CHECK(program.kernels[1].unknown);
  CHECK(program.kernels[1].read.value == 2 * 8 * 16 * 4);
  CHECK(!program.kernels[0].unknown);
  // A hint is enough to be known.
  const Graph hinted = built(around(R"({"op": "mylib::strange", "kind": "pointwise", "in": [2], "out": [[["batch", "seq", 16]]]})"));
  CHECK(!make_kernels(apply_precision(uniform(DType::fp32), gpu(), hinted), gpu(), MemoryFormat::contiguous).kernels[1].unknown);
}

TEST_CASE("ALossThatIsNotTheLastResultIsFoundAllTheSame") {
  const std::string file = replaced(replaced(kTwoLayers, R"({"op": "nll_loss", "in": [-1, 1], "out": [[[]]]}],)",
      R"({"op": "nll_loss", "in": [-1, 1], "out": [[[]]]}, {"op": "argmax", "in": [9], "out": [[["batch"], "int64"]]},
         {"op": "read_back", "in": [-1], "out": []}],)"), R"("loss": -1)", R"("loss": 10)");
  const StepGraph step = step_of(built(file, {.batch = 32}), uniform(DType::fp32));
  CHECK(verify(step.graph).empty());
  CHECK(step.gradients.size() == 4);
}

TEST_CASE("ARecordedGradientMayLookAtAValue") {
  const Graph graph = built(around(R"({"op": "cumprod", "in": [2], "out": [[["batch", "seq", 16]]], "back": {"ops": [
      {"op": "eq", "in": ["i0"], "out": [[["batch", "seq", 16], "bool"]]}, {"op": "any", "in": ["t0"], "out": [[[], "bool"]]},
      {"op": "read_back", "in": ["t1"], "out": []}, {"op": "div", "in": ["g0", "i0"], "out": [[["batch", "seq", 16]]]}], "give": [[0, "t2"]]}})"));
  const StepGraph step = step_of(graph, uniform(DType::fp32));
  CHECK(verify(step.graph).empty());
  const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
  int waits = 0;
  for (const Call& call : program.calls) waits += call.waits_for_gpu && call.phase == Phase::backward ? 1 : 0;
  CHECK(waits == 1);
  for (const Kernel& kernel : program.kernels) CHECK(!kernel.unknown);
}

TEST_CASE("BadFilesGiveOneClearError") {
  const ModelInputs at{.batch = 32};
  auto says = [&](const std::string& text, std::string_view part) {
    const std::string problem = problem_of(text, at);
    CHECK_MESSAGE(problem.find(part) != std::string::npos, problem);
    CHECK(problem.find("m.precog.json") != std::string::npos);
  };
  says(replaced(kTwoLayers, "\"precog_graph\": 1", "\"precog_graph\": 2"), "newer precog: format 2, this program reads 1");
  says(replaced(kTwoLayers, "\"precog_graph\": 1,", ""), "'precog_graph'");
  says(replaced(kTwoLayers, "\"loss\": -1", "\"loss\": 99"), "'loss' refers to tensor 99");
  says(replaced(kTwoLayers, "\"loss\": -1", "\"loss\": 4"), "must be a single value");
  says(replaced(kTwoLayers, "\"loss\": -1", "\"loss\": 0"), "from outside");
  says(replaced(kTwoLayers, "\"module\": \"first\"", "\"modul\": \"first\""), "entry 4 (linear): unknown field 'modul'");
  says(replaced(kTwoLayers, "[1, \"batch\", 128, 64]", "[1, \"batch\", 128, 65]"), "entry 4 (linear in 'first'): attrs.gemm");
  says(replaced(kTwoLayers, "[1, \"batch\", 128, 64]", "[1, \"batch\", 128]"), "attrs.gemm: [batch, m, n, k]");
  says(replaced(kTwoLayers, "[\"batch\", 64]", "[\"seq\", 64]"), "'symbols' has no seq");
  says(replaced(kTwoLayers, "[\"batch\", 64]", "[\"batch*\", 64]"), "a size is");
  says(replaced(kTwoLayers, "[\"batch\", 64]", "[-1, 64]"), "from 0 to 2^50");
  says(replaced(kTwoLayers, "[\"batch\", 64]", "[1000000000, 1000000000]"), "2^50");
  says(replaced(kTwoLayers, "[\"batch\", 64]", "[1,1,1,1,1,1,1,1,1]"), "at most 8");
  says(replaced(kTwoLayers, "\"int64\"", "\"int65\""), "the type \"int65\" is unknown");
  says(replaced(kTwoLayers, "\"in\": [0, 2, 3]", "\"in\": [0, 2, 30]"), "refers to tensor 30, but 4 are defined so far");
  says(replaced(kTwoLayers, "\"dim\": 1", "\"axis\": 1"), "unknown setting 'axis'");
  says(replaced(kTwoLayers, "{\"op\": \"relu\"", "{\"repeat\": 100000, \"stream\": [], \"op\": \"relu\""), "unknown field");
  says("[]", "one JSON object");
  says("{\"precog_graph\": 1", "not valid JSON");
  auto packed = compress(kTwoLayers);
  REQUIRE(packed);
  says(packed->substr(0, packed->size() / 2), "cut short");
  says("\x28\xb5\x2f\xfdgarbage", "damaged");
  CHECK(problem_of(replaced(kTwoLayers, "\"symbols\": {\"batch\": 32}", "\"symbols\": {}"), at).find("'symbols' has no batch") != std::string::npos);
  std::string frozen = kTwoLayers;
  for (std::size_t at_parameter = 0; (at_parameter = frozen.find("\"parameter\"", at_parameter)) != std::string::npos;)
    frozen.replace(at_parameter, 11, "\"constant\"");
  says(frozen, "no parameter that is trained");
  CHECK(problem_of(around(R"({"repeat": 10000, "stream": [{"op": "sqrt", "in": [-1], "out": [[["batch", "seq", 16]]]}, {"op": "sqrt", "in": [-1], "out": [[["batch", "seq", 16]]]}]},
    {"repeat": 10000, "stream": [{"repeat": 2, "stream": []}]})")).find("do not nest") != std::string::npos);
}

TEST_CASE("AFixedSizeIsRefusedAtAnother") {
  const std::string fixed = R"({"precog_graph": 1, "captured": {"batch": 4}, "stream": [
    {"tensor": "parameter", "name": "w", "shape": [4]}, {"op": "sum", "in": [0], "out": [[[]]]}], "loss": -1})";
  CHECK(problem_of(fixed, {.batch = 4}).empty());
  CHECK(problem_of(fixed, {.batch = 8}).find("captured at 4 only") != std::string::npos);
  CHECK(problem_of(fixed, {.batch = 4, .layers = 2}).find("depth cannot be changed") != std::string::npos);
}

namespace {

// Numbers that have broken readers before, and texts that mean something here.
const Json& oddities() {
  static const Json kAll = {0, 1, -1, 2, 3, 7, 255, 65536, -2147483648LL, 1LL << 31, 1LL << 50, 1LL << 62, 18446744073709551615ULL, 1e308, 0.5, true, nullptr, "", "batch",
      "seq*seq*seq*seq*seq*seq*seq*seq", "9223372036854775807*batch", "1-batch", "float", "fp64", "bool", "complex64", "view", "linear", "convolution", "cat", "split", "sum",
      "scaled_dot_product_attention", "layer_norm", "batch_norm", "group_norm", "rms_norm", "lstm", "embedding", "nll_loss", "grouped_mm", "max_pool2d", "topk", "gather", "sort",
      "cumsum", "mse_loss", "nll_loss_backward", "native_layer_norm_backward", "dropout", "cast", "autocast", "empty", "zeros", "rand", "index_put", "constant_pad_nd", "read_back",
      "g0", "i0", "i1", "o0", "t0", "slice", "expand", "of", "hidden", Json::array(), Json::object(), Json::array({0}), Json::array({"batch", 0}), Json::array({1, 1, 1, 1})};
  return kAll;
}

struct Random {
  std::uint64_t state = 88172645463325252ULL;
  std::size_t below(std::size_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return n == 0 ? 0 : static_cast<std::size_t>(state % n);
  }
};

void collect(Json& value, std::vector<Json*>& out) {
  out.push_back(&value);
  if (value.is_structured())
    for (Json& item : value) collect(item, out);
}

// Everything after reading that looks at shapes: it must hold whatever was read.
bool run_all(const std::string& text) {  // whether it could be read
  auto model = parse_captured(text, "m");
  if (!model) {
    CHECK(!model.error().text().empty());
    return false;
  }
  auto graph = build_captured(*model, {.batch = 3, .seq = 5});
  if (!graph) {
    CHECK(!graph.error().text().empty());
    return false;
  }
  REQUIRE(verify(*graph).empty());
  for (const PrecisionRecipe& recipe : {uniform(DType::fp32), amp(DType::bf16), amp(DType::fp16)}) {
    const StepGraph step = step_of(*graph, recipe, {.recompute = recipe.loss_scaling ? Recompute::full : Recompute::none});
    const std::string broken = verify(step.graph);
    REQUIRE_MESSAGE(broken.empty(), broken);
    const KernelProgram program = make_kernels(step.graph, gpu(), MemoryFormat::contiguous);
    memory_use(step, program, {}, gpu(), 1);
  }
  return true;
}

}  // namespace

TEST_CASE("MutatedFilesAreReadOrRefusedNeverMore") {
  const std::vector<std::string> samples = {
      kTwoLayers,
      around(R"({"op": "erf", "in": [2], "out": [[["batch", "seq", 16]]], "back": {"ops": [{"op": "mul", "in": ["g0", "i0"], "out": [[["batch", "seq", 16]]]},
               {"op": "view", "in": ["t0"], "out": [[["batch", 16]]], "attrs": {"kind": "slice"}}, {"op": "sum", "in": ["t0"], "out": [[[1, 16]]]},
               {"op": "add", "in": ["t0", "o0"], "out": [[["batch", "seq", 16], "float", {"of": 0}]]}], "give": [[0, "t0"]]}},
             {"op": "topk", "in": [-1], "out": [[["batch", "seq", 4]], [["batch", "seq", 4], "int64"]]},
             {"op": "cat", "in": [-2, -2, -2], "out": [[["batch", "seq", 12]]]},
             {"op": "split", "in": [-1], "out": [[["batch", "seq", 4], "float", {"of": 0}], [["batch", "seq", 8], "float", {"of": 0}]]},
             {"op": "constant_pad_nd", "in": [-1], "out": [[["batch", "seq", 16]]]}, {"op": "dropout", "in": [-1], "out": [[["batch", "seq", 16]]], "attrs": {"p": 0.1}})"),
      around(R"({"op": "view", "in": [2], "out": [[["batch", 4, "seq", 4]]], "attrs": {"kind": "transpose"}},
             {"op": "scaled_dot_product_attention", "in": [-1, -1, -1], "out": [[["batch", 4, "seq", 4]]], "attrs": {"causal": true, "dropout": 0.0}},
             {"op": "view", "in": [-1], "out": [[["batch", "seq", 16]]], "attrs": {"kind": "reshape"}},
             {"repeat": 3, "first": 0, "stream": [{"tensor": "parameter", "name": "l.{}", "shape": [16]},
               {"op": "layer_norm", "in": [-2, -1, null], "out": [[["batch", "seq", 16]], [["batch", "seq", 1], "fp32", {"hidden": true}]], "attrs": {"width": 16}, "block": 0},
               {"op": "cast", "in": [-2], "out": [[["batch", "seq", 16]]], "attrs": {"like": 0}, "block": 0}]})"),
      around(R"({"tensor": "parameter", "name": "f", "shape": [8, "seq", 3]}, {"op": "convolution", "in": [2, 3, null], "out": [[["batch", 8, 14]]], "attrs": {"kernel": [3], "stride": [1], "padding": [0], "dilation": [1], "groups": 1}},
             {"op": "batch_norm", "in": [-1], "out": [[["batch", 8, 14]]], "attrs": {"training": true}},
             {"op": "lstm", "in": [-1, 3], "out": [[["batch", 8, 6]]], "attrs": {"layers": 1, "hidden": 6, "directions": 1}},
             {"op": "index_put", "in": [-1, -1], "out": [[["batch", 8, 6]]], "kind": "scatter"}, {"op": "cumsum", "in": [-1], "out": [[["batch", 8, 6]]]})"
             , R"(["batch", "seq", 16])")};
  for (const std::string& sample : samples) CHECK(run_all(sample));
  Random random;
  const auto begin = std::chrono::steady_clock::now();
  std::size_t done = 0, whole = 0;
  for (; done < 20'000; ++done) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60)) break;  // a slow or instrumented machine
    const std::string& sample = samples[done % samples.size()];
    std::string text = sample;
    if (done % 4 == 3) {  // bytes
      for (std::size_t i = random.below(3) + 1; i-- > 0;) {
        const std::size_t at = random.below(text.size());
        if (random.below(3) == 0) text.erase(at, random.below(20) + 1);
        else text[at] = static_cast<char>(random.below(256));
      }
    } else {  // structure
      Json json = Json::parse(sample);
      for (std::size_t i = random.below(3) + 1; i-- > 0;) {
        std::vector<Json*> nodes;
        collect(json, nodes);
        Json& target = *nodes[random.below(nodes.size())];
        const std::size_t how = random.below(4);
        if (how == 0 && target.is_structured() && !target.empty()) {
          if (target.is_array()) target.erase(random.below(target.size()));
          else target.erase(std::next(target.begin(), static_cast<std::ptrdiff_t>(random.below(target.size()))).key());
        } else if (how == 1) {
          const Json other = *nodes[random.below(nodes.size())];
          target = other;
        } else if (target.is_number_integer() && how == 2) {
          target = target.get<std::int64_t>() + static_cast<std::int64_t>(random.below(5)) - 2;
        } else {
          target = oddities()[random.below(oddities().size())];
        }
      }
      text = json.dump();
    }
    INFO(text);
    whole += run_all(text) ? 1 : 0;
  }
  CHECK(done > 1000);
  CHECK(whole > done / 50);  // enough get through to the passes behind
}

TEST_CASE("IndexAddKeepsItsSourceWhereThatWantsAGradient") {
  // 1024 nodes, 65536 edges of 16 columns; the edges' gradient and the edges themselves are there at once.
  const auto peak = [](const std::string& gradient) {
    const Graph graph = built(fmt::format(R"({{"precog_graph": 1, "symbols": {{"batch": 2}}, "stream": [
      {{"tensor": "input", "name": "x", "shape": [1024, 16]}},
      {{"tensor": "input", "name": "places", "shape": [65536], "type": "int64"}},
      {{"tensor": "parameter", "name": "w", "shape": [16]}},
      {{"op": "mul", "in": [0, 2], "out": [[[1024, 16]]]}},
      {{"op": "index", "in": [3, 1], "out": [[[65536, 16]]], "kind": "gather"}},
      {{"op": "index_add", "in": [3, 1, 4], "out": [[[1024, 16]]], "kind": "scatter", "back": {0}}},
      {{"op": "mean", "in": [-1], "out": [[[]]]}}], "loss": -1}})", gradient));
    const PrecisionRecipe recipe = uniform(DType::fp32);
    const StepGraph step = make_step(apply_precision(recipe, gpu(), graph), recipe, {});
    return memory_use(step, make_kernels(step.graph, gpu(), MemoryFormat::contiguous), {}, gpu(), 1).peak.value;
  };
  constexpr std::int64_t kEdges = 65536 * 16 * 4;
  CHECK(peak(R"({"ops": [], "give": [[0, "g0"]]})") < 2 * kEdges);
  CHECK(peak(R"({"ops": [{"op": "index_select", "in": ["g0", "i1"], "out": [[[65536, 16]]], "kind": "gather"}], "give": [[0, "g0"], [2, "t0"]]})") >= 2 * kEdges);
}

TEST_CASE("NoFusedAttentionKernelTakesFiveAxes") {
  const auto fused = [](const std::string& shape) {
    const Graph graph = built(around(fmt::format(R"({{"op": "scaled_dot_product_attention", "in": [2, 2, 2], "out": [[{}]], "attrs": {{"causal": false, "dropout": 0.0}}}})", shape), shape));
    const Graph decided = apply_precision(uniform(DType::bf16), gpu(), graph);
    CHECK(verify(decided).empty());
    return std::any_of(decided.ops.begin(), decided.ops.end(), [](const Op& op) { return op.kind == OpKind::scaled_dot_product_attention; });
  };
  CHECK(fused(R"(["batch", 2, "seq", 16])"));
  CHECK_FALSE(fused(R"(["batch", 2, 4, "seq", 16])"));
}
