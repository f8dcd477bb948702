#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "kernel/kernel.h"
#include "kernel/uneven_products.h"
#include "precision/precision.h"
#include "support.h"
#include "training/step_graph.h"

using namespace precog;
using namespace precog::testing;

namespace {
KernelProgram program_of(Graph forward, const PrecisionRecipe& recipe, MemoryFormat format, GpuSpec on = gpu()) {
  const StepGraph step = make_step(apply_precision(recipe, on, forward), recipe, {});
  return make_kernels(step.graph, on, format);
}
Graph convolutions(std::int64_t batch = 4, std::int64_t channels = 16) {
  GraphBuilder b;
  TensorId x = b.conv2d_layer("c1", b.input("x", {batch, channels, 8, 8}), channels, 3, 1, 1);
  x = b.conv2d_layer("c2", x, channels, 3, 1, 1);
  x = b.view(b.adaptive_avg_pool2d(x, 1), {batch, channels});
  b.cross_entropy(x, b.input("t", {batch}, DType::int64));
  return std::move(b).finish();
}
int layouts(const KernelProgram& program) {
  int found = 0;
  for (const Kernel& kernel : program.kernels) {
    const auto* memory = std::get_if<MemoryShape>(&kernel.shape);
    found += memory && memory->pattern == MemoryPattern::layout ? 1 : 0;
  }
  return found;
}
}  // namespace

TEST_CASE("SixteenBitConvolutionsInNchwAreTransposedOnTheWay") {
  // Both operands in and the result out: forward twice, the data gradient of the second, weight gradients of both ...
  CHECK(layouts(program_of(convolutions(64), uniform(DType::bf16), MemoryFormat::contiguous)) == 3 * (2 + 1 + 2));
  // ... unless they are small: gradients of few pixels, and forward a sum of few channels.
  CHECK(layouts(program_of(convolutions(4), uniform(DType::bf16), MemoryFormat::contiguous)) == 3 * (2 + 1));
  CHECK(layouts(program_of(convolutions(4), uniform(DType::tf32), MemoryFormat::contiguous)) == 3 * 2);
  CHECK(layouts(program_of(convolutions(4, 8), uniform(DType::bf16), MemoryFormat::contiguous)) == 3);
  CHECK(layouts(program_of(convolutions(), uniform(DType::bf16), MemoryFormat::channels_last)) == 0);
  CHECK(layouts(program_of(convolutions(), uniform(DType::fp32), MemoryFormat::contiguous)) == 0);
}

// Speech models: layer norm wants the channels last, convolutions want them first.
TEST_CASE("SequencesAreMadeContiguousForAConvolution") {
  Graph graph;
  const TensorId x = graph.add_tensor({.shape = {4, 16, 96}, .dtype = DType::fp32, .role = Role::input});
  const TensorId weight = graph.add_tensor({.shape = {96, 96, 3}, .dtype = DType::fp32, .role = Role::parameter});
  const TensorId turned = graph.add_tensor({.shape = {4, 96, 16}, .dtype = DType::fp32, .storage = x});
  Op view, conv;
  view.kind = OpKind::view, view.attributes = ViewAttributes{ViewKind::transpose};
  conv.kind = OpKind::conv2d, conv.math = DType::fp32;
  conv.attributes = ConvAttributes{.kernel = {3, 1, 1}, .padding = {1, 0, 0}, .axes = 1};
  const TensorId source[] = {x}, sequence[] = {turned}, operands[] = {turned, weight};
  const TensorId once[] = {graph.add_tensor({.shape = {4, 96, 16}, .dtype = DType::fp32})}, again[] = {graph.add_tensor({.shape = {4, 96, 16}, .dtype = DType::fp32})};
  graph.add_op(view, source, sequence);
  graph.add_op(conv, operands, once);
  const TensorId results[] = {once[0], weight};
  graph.add_op(conv, results, again);
  const KernelProgram program = make_kernels(graph, gpu(), MemoryFormat::contiguous);
  CHECK(std::count_if(program.kernels.begin(), program.kernels.end(), [](const Kernel& kernel) { return kernel.name == "conv_input_copy"; }) == 1);
}

// ConvNeXt, hierarchical transformers: the stem meets an image, the layers behind it tokens that are looked at as one.
TEST_CASE("AnImageMadeOfTokensLiesChannelsLastWhateverTheOthersDo") {
  GraphBuilder b;
  TensorId x = b.view(b.input("tokens", {4, 64, 16}), {4, 16, 64}, ViewKind::transpose);
  x = b.conv2d_layer("c", b.view(x, {4, 16, 8, 8}, ViewKind::transpose), 16, 3, 1, 1);
  x = b.view(b.adaptive_avg_pool2d(x, 1), {4, 16});
  b.cross_entropy(x, b.input("t", {4}, DType::int64));
  const KernelProgram program = program_of(std::move(b).finish(), uniform(DType::bf16), MemoryFormat::contiguous);
  CHECK(layouts(program) == 0);
  int last = 0;
  for (const Kernel& kernel : program.kernels)
    if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) last += conv->channels_last ? 1 : 0;
  CHECK(last == 2);  // forward and the weight gradient
}

// cat_out_cuda joins in one kernel what has one type; skip connections under autocast have two.
TEST_CASE("TensorsOfTwoTypesAreJoinedByACopyEach") {
  GraphBuilder b;
  const TensorId wide = b.input("wide", {8, 16}), narrow = b.linear_layer("l", b.input("x", {8, 16}), 16, false);
  const TensorId both = b.cat({narrow, wide}, 1);
  b.cross_entropy(b.linear_layer("out", both, 4, false), b.input("t", {8}, DType::int64));
  int parts = 0, joins = 0;
  for (const Kernel& kernel : program_of(std::move(b).finish(), amp(DType::bf16), MemoryFormat::contiguous).kernels)
    parts += kernel.name == "cat_part" ? 1 : 0, joins += kernel.name == "cat" ? 1 : 0;
  CHECK(parts == 2);
  CHECK(joins == 0);
}

// RDNet under autocast: what convolutions answered beside what was scaled in fp32, images channels last all of them.
TEST_CASE("ImagesOfTwoTypesThatLieChannelsLastAreJoinedSo") {
  GraphBuilder b;
  TensorId x = b.view(b.view(b.input("tokens", {4, 64, 16}), {4, 16, 64}, ViewKind::transpose), {4, 16, 8, 8}, ViewKind::transpose);
  const TensorId answered = b.conv2d_layer("c1", x, 16, 1, 1, 0);
  x = b.conv2d_layer("c2", b.cat({x, answered}, 1), 16, 3, 1, 1);
  b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {4, 16}), b.input("t", {4}, DType::int64));
  const KernelProgram program = program_of(std::move(b).finish(), amp(DType::bf16), MemoryFormat::contiguous);
  int parts = 0;
  for (const Kernel& kernel : program.kernels) {
    parts += kernel.name == "cat_part" ? 1 : 0;
    if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) CHECK(conv->channels_last);
  }
  CHECK(parts == 2);
  CHECK(layouts(program) == 0);
}

TEST_CASE("JoinedRowsOfNoMultipleOfSixteenBytesAreCopiedInPieces") {
  const auto joins = [](std::int64_t width) {
    GraphBuilder b;
    const TensorId both = b.cat({b.input("x", {8, 16}), b.input("y", {8, width})}, 1);
    b.cross_entropy(b.linear_layer("out", both, 4, false), b.input("t", {8}, DType::int64));
    std::string_view name;
    for (const Kernel& kernel : program_of(std::move(b).finish(), uniform(DType::bf16), MemoryFormat::contiguous).kernels)
      if (kernel.name.starts_with("cat")) name = kernel.name;
    return name;
  };
  CHECK(joins(24) == "cat");
  CHECK(joins(27) == "cat_ragged");
}

TEST_CASE("PartsOfAJoinGetAsManyBlocksAsTheLargestNeeds") {
  const auto idle = [](std::int64_t first, std::int64_t second) {
    GraphBuilder b;
    const TensorId both = b.cat({b.input("x", {8, first, 64}), b.input("y", {8, second, 64}), b.input("z", {8, second, 64})}, 1);
    b.cross_entropy(b.linear_layer("out", b.view(both, {8, (first + 2 * second) * 64}), 4, false), b.input("t", {8}, DType::int64));
    std::int64_t found = -1;
    for (const Kernel& kernel : program_of(std::move(b).finish(), uniform(DType::bf16), MemoryFormat::contiguous).kernels)
      if (kernel.name == "cat") found = kernel.idle_blocks;
    return found;
  };
  CHECK(idle(32, 32) == 0);
  CHECK(idle(32, 2) == 2 * (16 - 1));  // blocks of 128 threads with 8 elements each
}

// A densely connected network adds up what its joins' parts get back.
TEST_CASE("SumsOfPartsOfALargerGradientGoElementByElement") {
  const auto pattern = [](Phase phase) {
    Graph graph;
    const TensorId wide = graph.add_tensor({.shape = {8, 32, 64}, .dtype = DType::bf16});
    Tensor cut = graph.tensors[wide];
    cut.shape = {8, 16, 64};
    const TensorId part = graph.add_tensor(cut), sum = graph.add_tensor({.shape = {8, 16, 64}, .dtype = DType::bf16});
    Op view;
    view.kind = OpKind::view;
    view.phase = phase;
    view.attributes = ViewAttributes{ViewKind::slice};
    graph.add_op(view, std::array{wide}, std::array{part});
    Op add;
    add.kind = OpKind::add;
    add.phase = phase;
    graph.add_op(add, std::array{part, part}, std::array{sum});
    return std::get<MemoryShape>(make_kernels(graph, gpu(), MemoryFormat::contiguous).kernels.front().shape).pattern;
  };
  CHECK(pattern(Phase::backward) == MemoryPattern::broadcast);
  CHECK(pattern(Phase::forward) == MemoryPattern::pointwise);
}

TEST_CASE("MomentsKeptInHalfPrecisionAreDividedAsZeros") {
  const auto kinds = [](DType type) {
    int divided = 0, rooted = 0;
    for (const Kernel& kernel : program_of(convolutions(), uniform(type), MemoryFormat::contiguous).kernels) {
      divided += kernel.zeros == Zeros::divided ? 1 : 0;
      rooted += kernel.zeros == Zeros::rooted ? 1 : 0;
    }
    return std::pair(divided, rooted);
  };
  CHECK(kinds(DType::fp16) == std::pair(2, 1));
  CHECK(kinds(DType::bf16) == std::pair(0, 0));
}

// PatchTST: tokens [samples, length, channels] turned to [samples, channels, length] for the norm.
TEST_CASE("BatchNormOfTurnedRowsIsCopiedForCudnnAndElseGoesTheGeneralWay") {
  const auto names = [](DType type, bool turned) {
    GraphBuilder b;
    TensorId x = turned ? b.transpose(b.input("x", {64, 42, 128}), 1, 2) : b.input("x", {64, 128, 42});
    x = b.mean(b.batch_norm_layer("bn", x), 2, false);
    b.cross_entropy(x, b.input("t", {64}, DType::int64));
    std::vector<std::string_view> found;
    for (const Kernel& kernel : program_of(std::move(b).finish(), uniform(type), MemoryFormat::contiguous).kernels)
      if (kernel.name.starts_with("batch_norm")) found.push_back(kernel.name);
    return found;
  };
  using Names = std::vector<std::string_view>;
  CHECK(names(DType::fp32, false) == Names{"batch_norm", "batch_norm_backward"});
  CHECK(names(DType::fp32, true) == Names{"batch_norm_copy", "batch_norm", "batch_norm_copy", "batch_norm_backward"});
  CHECK(names(DType::bf16, false) == Names{"batch_norm", "batch_norm_backward"});
  CHECK(names(DType::bf16, true) == Names{"batch_norm_of_rows", "batch_norm_backward_of_rows"});
}

TEST_CASE("NarrowRecurrentLayersWalkThroughTimeInOneKernelAndWideOnesStepByStep") {
  const auto count = [](std::int64_t hidden, DType type, std::string_view name) {
    Graph graph;
    const TensorId x[] = {graph.add_tensor({.shape = Shape{16, 64, 32}, .dtype = type})}, y[] = {graph.add_tensor({.shape = Shape{16, 64, 2 * hidden}, .dtype = type})};
    Op op;
    op.kind = OpKind::rnn;
    op.math = type;
    op.attributes = RnnAttributes{.batch = 64, .steps = 16, .input = 32, .hidden = hidden, .directions = 2};
    graph.add_op(op, x, y);
    int launches = 0;
    for (const Kernel& kernel : make_kernels(graph, gpu(), MemoryFormat::contiguous).kernels) launches += kernel.name == name ? kernel.launches : 0;
    return launches;
  };
  CHECK(count(192, DType::fp16, "rnn_persistent") == 2);
  CHECK(count(200, DType::fp16, "rnn_persistent") == 0);
  CHECK(count(200, DType::fp16, "rnn_recurrent_pair") == 2 * 16);
  CHECK(count(64, DType::bf16, "rnn_persistent") == 0);
}

TEST_CASE("ARingCopiesBesideItsAttention") {
  const auto copies = [](AttentionAttributes::Ring ring) {
    GraphBuilder b;
    const TensorId x = b.linear_layer("qkv", b.input("x", {2, 8, 64, 64}), 64, false);
    b.cross_entropy(b.view(b.attention(x, x, x, true), {2 * 8 * 64, 64}), b.input("t", {2 * 8 * 64}, DType::int64));
    Graph graph = std::move(b).finish();
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
      if (auto* attention = std::get_if<AttentionAttributes>(&graph.ops[graph.ops.id_at(i)].attributes)) attention->ring = ring;
    int found = 0;
    for (const Kernel& kernel : program_of(std::move(graph), uniform(DType::bf16), MemoryFormat::contiguous).kernels) found += kernel.name.starts_with("context_") ? 1 : 0;
    return found;
  };
  CHECK(copies(AttentionAttributes::Ring::none) == 0);
  CHECK(copies(AttentionAttributes::Ring::first) == 6);  // keys and values, the weighted result; keys and values, and three of gradients
  CHECK(copies(AttentionAttributes::Ring::later) == 3);
}

TEST_CASE("ViewsAreCallsWithoutKernels") {
  const KernelProgram program = program_of(two_layers(), uniform(DType::fp32), MemoryFormat::contiguous);
  for (const Call& call : program.calls)
    if (call.family == Family::view) CHECK(call.kernel_count == 0);
}

TEST_CASE("ArithmeticWithoutHardwareIsMarkedEmulated") {
  const KernelProgram program = program_of(two_layers(), uniform(DType::bf16), MemoryFormat::contiguous, gpu("7.0"));
  int emulated = 0;
  for (const Kernel& kernel : program.kernels) emulated += kernel.emulated ? 1 : 0;
  CHECK(emulated == 5);  // two forward products and three backward
}

TEST_CASE("TheReadBackMakesTheHostWait") {
  int waits = 0;
  for (const Call& call : program_of(two_layers(), amp(DType::fp16), MemoryFormat::contiguous).calls) waits += call.waits_for_gpu ? 1 : 0;
  CHECK(waits == 1);
}

TEST_CASE("GroupedProductsAreOneKernelInBf16OnHopperAndALoopElsewhere") {
  auto grouped = [](DType dtype, const char* capability) {
    GraphBuilder b;
    TensorId x = b.grouped_linear(b.input("x", {64, 32}), b.parameter("experts", {8, 16, 32}), 8);
    b.cross_entropy(x, b.input("t", {64}, DType::int64));
    const KernelProgram program = program_of(std::move(b).finish(), uniform(dtype), MemoryFormat::contiguous, gpu(capability));
    return std::pair{program.kernels.front().launches, program.calls.front().waits_for_gpu};
  };
  CHECK(grouped(DType::bf16, "9.0") == std::pair{1, false});
  CHECK(grouped(DType::fp32, "9.0") == std::pair{8, true});
  CHECK(grouped(DType::bf16, "8.0") == std::pair{8, true});
}

TEST_CASE("ExpertsOneByOneSplitTheirSumsAsOtherProductsDo") {
  GraphBuilder b;
  TensorId x = b.grouped_linear(b.input("x", {512, 2048}), b.parameter("experts", {8, 1024, 2048}), 8);
  b.cross_entropy(x, b.input("t", {512}, DType::int64));
  const KernelProgram program = program_of(std::move(b).finish(), uniform(DType::fp32), MemoryFormat::contiguous, gpu("9.0"));
  CHECK(program.kernels[0].launches == 8);
  CHECK(program.kernels[1].name == "split_sum");
  CHECK(program.kernels[1].launches == 8);
  CHECK(program.kernels[1].written.value == 512 * 1024 * 4);
}

TEST_CASE("LayerNormCopiesWhatIsNotContiguousEachWay") {
  auto kernels = [](bool strided, std::string_view name) {
    GraphBuilder b;
    TensorId x = b.transpose(b.linear_layer("l", b.input("x", {4, 8, 16}), 16), 0, 1);
    x = b.layer_norm_layer("n", x, true, strided);
    b.cross_entropy(b.view(x, {32, 16}), b.input("t", {32}, DType::int64));
    int found = 0;
    for (const Kernel& kernel : program_of(std::move(b).finish(), uniform(DType::fp32), MemoryFormat::contiguous).kernels)
      found += kernel.name == name ? 1 : 0;
    return found;
  };
  CHECK(kernels(false, "layer_norm_copy") == 0);
  CHECK(kernels(true, "layer_norm_copy") == 2);
  CHECK(kernels(true, "layer_norm") == 1);
}

TEST_CASE("AnExpandedOperandIsBroadcast") {
  GraphBuilder b;
  TensorId x = b.linear_layer("l", b.input("x", {4, 16}), 16);
  x = b.mean(b.mul(x, x), -1);  // its gradient is a view of [4, 1] as [4, 16], then a kernel that reads only four numbers
  b.cross_entropy(b.cat({x, x}, -1), b.input("t", {4}, DType::int64));
  bool found = false;
  for (const Kernel& kernel : program_of(std::move(b).finish(), uniform(DType::fp32), MemoryFormat::contiguous).kernels)
    if (kernel.name == "mul_scalar") {
      found = true;
      CHECK(std::get<MemoryShape>(kernel.shape).pattern == MemoryPattern::broadcast);
    }
  CHECK(found);
}

namespace {
// Whether PyTorch's own kernel runs a depthwise convolution of these channels, or cuDNN's.
bool runs_native(DType dtype, std::int64_t channels, std::int64_t kernel, std::int64_t stride, MemoryFormat format = MemoryFormat::contiguous,
                 GpuSpec on = gpu()) {
  GraphBuilder b;
  TensorId x = b.conv2d_layer("c", b.input("x", {4, channels, 16, 16}), channels, kernel, stride, kernel / 2, channels);
  b.cross_entropy(b.view(b.adaptive_avg_pool2d(x, 1), {4, channels}), b.input("t", {4}, DType::int64));
  const KernelProgram program = program_of(std::move(b).finish(), uniform(dtype), format, on);
  int native = 0, all = 0;
  for (const Kernel& one : program.kernels)
    if (const auto* conv = std::get_if<ConvShape>(&one.shape)) native += conv->native ? 1 : 0, ++all;
  CHECK((native == 0 || native == all));  // both ways alike
  return native > 0;
}
}  // namespace

TEST_CASE("CudnnRunsDepthwiseConvolutionsOnlyInHalfPrecisionOrChannelsLast") {
  CHECK(!runs_native(DType::fp16, 64, 3, 1));
  CHECK(runs_native(DType::bf16, 64, 3, 1));
  CHECK(runs_native(DType::fp32, 64, 3, 1));
  CHECK(!runs_native(DType::bf16, 64, 3, 1, MemoryFormat::channels_last));
  CHECK(runs_native(DType::fp16, 64, 7, 1));   // filters of 1, 3 and 5 alone
  CHECK(runs_native(DType::fp16, 16, 3, 1));   // too few channels
  CHECK(runs_native(DType::fp16, 64, 3, 2));   // strided: from 512 channels
  CHECK(!runs_native(DType::fp16, 512, 3, 2));
  CHECK(runs_native(DType::fp16, 64, 3, 1, MemoryFormat::contiguous, gpu("6.0")));  // no tensor cores
}

TEST_CASE("CopiesThatKeepTheInnermostAxisAreNoTranspositions") {
  GraphBuilder b;
  TensorId x = b.linear_layer("l", b.input("x", {2, 8, 12}), 12);
  const TensorId heads = b.transpose(b.view(x, {2, 8, 3, 4}), 1, 2);
  x = b.contiguous(heads);                                           // [2,3,8,4]: rows of 4 stay together
  x = b.contiguous(b.transpose(x, 2, 3));                            // [2,3,4,8]: they do not
  x = b.contiguous(b.transpose(b.transpose(x, 2, 3), 1, 2));         // ... and back
  x = b.contiguous(x);                                               // a clone
  b.cross_entropy(b.view(x, {16, 12}), b.input("t", {16}, DType::int64));
  std::vector<MemoryPattern> copies;
  const KernelProgram program = program_of(std::move(b).finish(), uniform(DType::bf16), MemoryFormat::contiguous);
  for (const Call& call : program.calls)
    if (call.family == Family::copy && call.phase == Phase::forward)
      copies.push_back(std::get<MemoryShape>(program.kernels[call.first_kernel].shape).pattern);
  CHECK(copies == std::vector{MemoryPattern::permute, MemoryPattern::transpose, MemoryPattern::transpose, MemoryPattern::copy});
}

TEST_CASE("OldLibrariesLeaveTheTensorCoresWhereRowsAreUneven") {
  KernelProgram program;
  const auto add = [&](GemmShape shape, DType math) {
    Kernel kernel;
    kernel.shape = shape;
    kernel.math = kernel.input = math;
    program.kernels.push_back(kernel);
  };
  add({1, 1280, 30528, 768}, DType::fp16);
  add({1, 1280, 30522, 768}, DType::fp16);        // rows of the result
  add({1, 1280, 768, 30522}, DType::fp16);        // rows of the first operand
  add({1, 1281, 768, 1024}, DType::fp16);         // how many rows does not matter,
  add({1, 1281, 768, 1024, true}, DType::fp16);   // unless they are its columns
  add({1, 1280, 30522, 768}, DType::fp32);
  leave_tensor_cores_where_uneven(program);
  std::vector<DType> runs;
  for (const Kernel& kernel : program.kernels) runs.push_back(kernel.math);
  CHECK(runs == std::vector{DType::fp16, DType::fp32, DType::fp32, DType::fp16, DType::fp32, DType::fp32});
  CHECK(program.kernels[1].input == DType::fp16);
}

TEST_CASE("AnAlignmentGoesFrameByFrame") {
  const auto kernels = [](std::int64_t utterances) {
    GraphBuilder b;
    const TensorId forward[] = {b.input("scores", {199, utterances, 32}), b.input("targets", {utterances, 20}, DType::int64)};
    const TensorId loss = b.by_name("ctc_loss", forward, {});
    const TensorId backward[] = {loss, forward[0], forward[1]};
    b.by_name("_ctc_loss_backward", backward, {199, utterances, 32});
    return make_kernels(std::move(b).finish(), gpu(), MemoryFormat::contiguous);
  };
  const auto find = [](const KernelProgram& program, std::string_view name) {
    for (const Kernel& kernel : program.kernels)
      if (kernel.name == name) return std::get<MemoryShape>(kernel.shape);
    return MemoryShape{};
  };
  const KernelProgram few = kernels(2), many = kernels(32);
  for (const Kernel& kernel : few.kernels) CHECK(!kernel.unknown);
  CHECK(find(few, "ctc_log_alpha").rows == 199);
  CHECK(find(few, "ctc_log_alpha").row_length == 64 * 2);  // 20 letters and the blanks around them
  CHECK(find(few, "ctc_log_beta").row_length == 64 * 2);
  CHECK(find(few, "ctc_collect").rows == 41 + 32);
  CHECK(find(many, "ctc_log_alpha").row_length == 1024);  // and no more in a block
  CHECK(find(many, "ctc_collect_letters").rows == 199);
  CHECK(find(many, "ctc_collect").pattern != MemoryPattern::loss);
}
