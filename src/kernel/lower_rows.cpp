// What goes along rows or channels: norms, softmax, losses; and what looks rows up.
#include <algorithm>

#include "kernel/library_rules.h"
#include "kernel/library_space.h"
#include "kernel/lowering.h"

namespace precog {

// Of one row a sample, or of every pixel: then kernels of their own, which read the one score that each is about.
void Lowering::lower_nll_loss(const Op& op) {
  if (op.kind != OpKind::nll_loss && op.kind != OpKind::nll_loss_backward) return row_wise(op, MemoryPattern::loss);
  const bool backward = op.kind == OpKind::nll_loss_backward;
  std::size_t target = 1;  // the first operand of integers
  while (target + 1 < op.input_count && is_floating(in(op, target).dtype)) ++target;
  const bool maps = (backward ? out(op) : in(op, 0)).shape.rank() >= 4;
  const std::int64_t places = std::max<std::int64_t>(1, in(op, target).shape.elements()), images = maps ? std::max<std::int64_t>(1, in(op, target).shape[0]) : 1;
  const Bytes scores{places * 32};  // a sector each
  if (backward) {
    memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
    if (maps) memory("nll_loss2d_backward", op, MemoryPattern::loss, in_bytes(op, target), scores, images, places / images).estimated = true;
    else memory("nll_loss_backward", op, MemoryPattern::loss, in_bytes(op, target), scores).estimated = true;
  } else if (maps) {
    memory("nll_loss2d", op, MemoryPattern::loss, in_bytes(op, target) + scores, {8}, images, places / images).estimated = true;
  } else {
    row_wise(op, MemoryPattern::loss);
  }
}

// CTC by PyTorch's own kernels (aten/src/ATen/native/cuda/LossCTC.cu). A block has some utterances, a thread for each letter and each blank
// between them, and goes through the frames one after the other; backward does so from the end and then sums what meets in a class: a
// thread for each frame, or, of larger problems, for each letter, with the blanks in pointwise kernels. `rows` are the steps in turn,
// `row_length` the threads of a block.
bool Lowering::lower_alignment(const Op& op) {
  const std::string_view name = precog::name_of(graph_, op);  // no framework name stands for it: its kind is unknown
  const bool backward = name == "_ctc_loss_backward";
  if (!backward && name != "ctc_loss") return false;
  const std::size_t first = backward ? 1 : 0;  // a gradient comes before
  if (op.input_count < first + 2 || op.output_count == 0 || in(op, first).shape.rank() < 2) return false;
  constexpr std::int64_t kThreads = 1024;
  const Shape& scores = in(op, first).shape;
  const std::int64_t frames = scores[0], utterances = scores.rank() > 2 ? std::max<std::int64_t>(1, scores[1]) : 1, classes = scores[-1];
  const std::int64_t places = 2 * (in(op, first + 1).shape.elements() / utterances) + 1;
  const auto threads = [&](std::int64_t wanted) {
    std::int64_t found = kThreads;
    while (found / 2 >= wanted) found /= 2;
    return found;
  };
  const auto utterances_of = [&](std::int64_t wanted) { return std::min(kThreads / threads(wanted), utterances); };
  const Bytes table{4 * utterances * frames * places}, all = in_bytes(op, first);
  const auto step_by_step = [&](std::string_view kernel, Bytes read, Bytes written, std::int64_t steps, std::int64_t width) {
    memory(kernel, op, MemoryPattern::loss, read, written, steps, width).estimated = true;
  };
  const auto small = [&](std::string_view kernel, std::int32_t times) {
    memory(kernel, op, MemoryPattern::pointwise, Bytes{8 * utterances}, Bytes{8 * utterances}).launches = times;
  };
  call_.family = Family::loss;
  call_.workspace += table;
  memory("copy", op, MemoryPattern::copy, Bytes{8 * utterances}, Bytes{8 * utterances}).launches = 3;  // where each begins and how long it is
  const std::int64_t block = threads(places) * utterances_of(places);
  if (!backward) {
    step_by_step("ctc_log_alpha", all, table, frames, block);
    small("ctc_mean", 3);  // by each one's length
    return true;
  }
  memory("fill", op, MemoryPattern::fill, {0}, all);
  step_by_step("ctc_log_beta", all, table, frames, block);
  if (2 * frames + 24 * utterances / 10 + 2 * classes / 10 > 450) {
    memory("exp", op, MemoryPattern::activation, all, all);
    memory("ctc_blanks", op, MemoryPattern::pointwise, table, Bytes{table.value / 2}).launches = 10;  // alpha and beta of the blanks, their log-sum-exp
    memory("mul", op, MemoryPattern::pointwise, all, all);
    step_by_step("ctc_collect_letters", table + table, all, frames, block);
  } else {
    step_by_step("ctc_collect", table + table, all, places + classes, frames * utterances_of(frames));
  }
  small("ctc_padding", 1);
  return true;
}

// A logarithm of four axes is of classes, the second of them, for every pixel: a kernel of its own that goes through them three
// times, a pixel a thread (cunn_SpatialSoftMaxForward, aten/native/cuda/SoftMax.cu). Others are along rows.
void Lowering::lower_softmax(const Op& op) {
  const bool forward = op.kind == OpKind::softmax || op.kind == OpKind::log_softmax;
  const MemoryPattern pattern = forward ? MemoryPattern::softmax_forward : MemoryPattern::softmax_backward;
  const Shape& shape = op.input_count > 0 ? in(op, 0).shape : out(op).shape;
  const bool logarithm = op.kind == OpKind::log_softmax || op.kind == OpKind::log_softmax_backward;
  if (!forward && !logarithm && !call_.compiled) {  // the product of gradient and result comes first (softmax_backward_cuda_out, aten/src/ATen/native/cuda/SoftMax.cu)
    call_.workspace += in_bytes(op, 0);
    memory("softmax_product", op, MemoryPattern::pointwise);
  }
  if (!logarithm || shape.rank() < 4 || call_.compiled) return row_wise(op, pattern);
  const std::int64_t classes = std::max<std::int64_t>(1, shape[1]);
  Kernel& kernel = memory(forward ? "log_softmax2d" : "log_softmax2d_backward", op, pattern, shape.elements() / classes, classes);
  kernel.estimated = true;  // by timings of its own, where there are any
  auto& place = std::get<MemoryShape>(kernel.shape);
  place.channels_last = true;  // down the columns
  place.part = pixels(shape);
  place.across = 100;
}

// A pointwise kernel into a temporary, then its sum or mean.
void Lowering::lower_loss(const Op& op) {
  const Bytes temporary{input_elements(op) * bits_of(out(op).dtype) / 8};
  const Work work = work_of(graph_, op);
  memory(name_of(op), op, known_->transcendental ? MemoryPattern::activation : MemoryPattern::pointwise, work.read, temporary);
  reduce("mean", op, temporary, out_bytes(op), 1, input_elements(op), false);
  call_.workspace += temporary;
}

void Lowering::lower_index(const Op& op) {
  prepare(op);
  if (known_ && known_->waits) call_.waits_for_gpu = true;
  if (known_ && op.phase == Phase::backward && name_of(op) == "index_put" && op.input_count > 0) return lower_index_gradient(op);
  if (lower_sort(op)) return;
  if (op.kind == OpKind::sort) {  // a radix sort: keys and places read and written a few times over, and its helpers
    const Work work = work_of(graph_, op);
    memory(name_of(op), op, MemoryPattern::index, (work.read + work.written) * 2.0, (work.read + work.written) * 2.0).launches = 6;
  } else if (known_ && name_of(op) == "_embedding_bag" && op.input_count > 1) {  // a bag reads a row for every index in it
    const std::int64_t width = out(op).shape.rank() > 0 ? out(op).shape[-1] : 1, indices = in(op, 1).shape.elements();
    memory(name_of(op), op, MemoryPattern::index, in_bytes(op, 1) + Bytes{indices * width * bits_of(out(op).dtype) / 8}, out_bytes(op));
  } else {
    Kernel& kernel = memory(name_of(op), op, MemoryPattern::index);
    rows_of(kernel, op, places(op));
    if (picks_last(op)) std::get<MemoryShape>(kernel.shape).axes = 2, std::get<MemoryShape>(kernel.shape).across = 100;
  }
}

// Sorts along the last axis, as PyTorch chooses (native/cuda/Sort.cpp, SortStable.cu, TensorTopK.cu, Sorting.cu). Up to 4096 columns a block sorts a row, with copies and
// places written before; wider ones go by CUB, eight bits a pass: few rows all at once, first by value, then by row; single or very long ones one after the other; many
// in a kernel for each pass of all. The best of a row are picked by their digits, by one block or by several, and sorted.
bool Lowering::lower_sort(const Op& op) {
  const std::string_view name = name_of(op);
  const bool best = op.kind == OpKind::topk, nth = name == "kthvalue";
  if (!(best || nth || name == "sort" || name == "argsort" || name == "msort") || op.input_count == 0 || op.output_count == 0) return false;
  constexpr std::int64_t kOneBlock = 4096, kFewRows = 128, kVeryLong = 1'000'000, kDigitBits = 8;
  const Shape& x = in(op, 0).shape;
  const std::int64_t columns = x.rank() > 0 ? std::max<std::int64_t>(1, x[-1]) : 1, rows = std::max<std::int64_t>(1, x.elements() / columns);
  const std::int64_t digits = std::max<std::int64_t>(1, bits_of(in(op, 0).dtype) / kDigitBits), kept = best && out(op).shape.rank() > 0 ? out(op).shape[-1] : 1;
  const Bytes all = in_bytes(op, 0), places{8 * x.elements()}, chosen{rows * kept * (8 + bits_of(in(op, 0).dtype) / 8)};
  std::int64_t launches = 1;
  Bytes read = all, written = chosen;
  if (best) {
    const bool several = several_blocks_pick(rows, columns);
    launches = several ? 10 + 3 * digits : kept > 1 ? 2 : 1;
    read = all * static_cast<double>(several ? digits + 1 : 2) + chosen;
  } else if (!nth && columns <= kOneBlock) {
    launches = columns > 1 ? 5 : 1;
    read = all * 2.0 + places, written = all * 2.0 + places * 2.0;
  } else if (!nth) {
    const bool in_turn = rows == 1 || columns >= kVeryLong, at_once = rows < kFewRows;
    launches = in_turn ? 2 + rows * 2 * (2 + digits) : at_once ? 13 + 2 * digits : 2 + 3 * digits / 2;
    read = written = (all + places) * static_cast<double>(digits + (in_turn ? 1 : at_once ? 3 : 2));
  }
  Kernel& kernel = memory(name, op, MemoryPattern::index, read, written, rows, columns);
  kernel.launches = static_cast<std::int32_t>(launches);
  kernel.estimated = true;
  std::get<MemoryShape>(kernel.shape).part = kept;
  return true;
}

// Whether the same places are taken of every row, or added to: each element is found by itself, where others move whole rows.
bool Lowering::picks_last(const Op& op) const {
  if (op.input_count < 2 || op.output_count == 0) return false;
  const std::int64_t picked = places(op);
  const Shape &table = in(op, 0).shape, &result = out(op).shape;
  if (picked < 2 || table.rank() < 2 || result.rank() != table.rank()) return false;
  for (TensorId id : graph_.inputs(op)) {  // rows of the table, or of what is added to it
    const Shape& shape = graph_.tensors[id].shape;
    if (is_floating(graph_.tensors[id].dtype) && shape.rank() == result.rank() && shape[-1] != result[-1]) return std::min(shape[-1], result[-1]) == picked;
  }
  return false;
}

// Each place's values are added one after the other. Of a table that is read many times over (relative positions) the busiest place has
// about as many as there are tokens, the root of the reads.
constexpr std::int64_t kRepeated = 8;

// The gradient of an indexed read adds in a fixed order (index_put_with_sort_kernel, native/cuda/Indexing.cu): places computed
// in a few small kernels, numbered, sorted by as many bits as the table has rows, then summed.
void Lowering::lower_index_gradient(const Op& op) {
  std::int64_t places = 1;  // of the largest operand of integers
  for (TensorId id : graph_.inputs(op))
    if (!is_floating(graph_.tensors[id].dtype)) places = std::max(places, graph_.tensors[id].shape.elements());
  // Whichever axis is indexed, a place has as many values as all places have together, divided by their number.
  const Shape& table_shape = op.output_count > 0 ? out(op).shape : in(op, 0).shape;
  std::int64_t values = 0;  // of the last operand that holds any
  for (TensorId id : graph_.inputs(op))
    if (is_floating(graph_.tensors[id].dtype)) values = graph_.tensors[id].shape.elements();
  const std::int64_t width = std::clamp<std::int64_t>(values / places, 1, std::max<std::int64_t>(1, table_shape.elements()));
  const std::int64_t table = std::max<std::int64_t>(1, table_shape.elements() / width);
  int bits = 1;
  while (bits < 62 && (std::int64_t{1} << bits) < table) ++bits;
  const Bytes keys{places * 8};
  memory("index_places", op, MemoryPattern::pointwise, keys, keys, 1, places).launches = 4;
  if (places > kSingleTile) clear(op, sort_launches(bits).memsets);
  memory("sort_indices", op, MemoryPattern::index, keys * 2.0, keys * 2.0, 1, places).launches = places > kSingleTile ? sort_launches(bits).kernels : 1;
  const bool repeated = places > kRepeated * table;
  Kernel& added = memory(repeated ? "index_put_repeated" : name_of(op), op, MemoryPattern::index);
  if (!repeated) return;
  auto& shape = std::get<MemoryShape>(added.shape);
  shape.part = places, shape.rows = table, shape.row_length = width;
}

// Elements of a normalised row: the last axis unless the operator says otherwise.
std::int64_t Lowering::row_of(const Op& op, const Shape& shape) {
  const auto* norm = std::get_if<NormAttributes>(&op.attributes);
  const std::int64_t width = norm && norm->width > 0 ? norm->width : shape.rank() > 0 ? shape[-1] : 1;
  return std::max<std::int64_t>(1, width);
}

// Norms of rows are such kernels (the recorded kernels of ViT: 24 of its 25 forward, and again backward, which is handed the
// original).
void Lowering::copy_for_norm(const Op& op, std::size_t operand, bool told) {
  if (copy_inside(op, operand, "layer_norm_copy") || !told) return;
  // Rows were strided because a convolution's image was turned into tokens: the channels lie outermost.
  memory("layer_norm_copy", op, MemoryPattern::transpose, in_bytes(op, operand), in_bytes(op, operand));
  call_.workspace += in_bytes(op, operand);
}

// inputs: gradient, x, ...; outputs: those of {x, weight, bias} that need one.
void Lowering::lower_row_norm_backward(const Op& op) {
  const std::int64_t length = row_of(op, in(op, 0).shape), rows = in(op, 0).shape.elements() / length;
  const Bytes both = in_bytes(op, 0) + in_bytes(op, 1);
  Bytes parameters{};
  bool input_gradient = false;
  for (std::size_t i = 0; i < op.output_count; ++i) {
    if (out(op, i).shape == in(op, 0).shape && (out(op, i).shape.rank() > 1 || i == 0)) input_gradient = true;
    else parameters += out_bytes(op, i);
  }
  const bool rms = op.kind == OpKind::rms_norm_backward;
  copy_for_norm(op, 0, false);
  if (op.strided || rms) copy_for_norm(op, 1, op.strided && !rms);
  if (input_gradient) memory(rms ? "rms_norm_backward" : "layer_norm_backward", op, MemoryPattern::norm_backward, both, out_bytes(op), rows, length);
  if (parameters.value > 0)
    memory(rms ? "rms_norm_parameter_gradients" : "layer_norm_parameter_gradients", op, MemoryPattern::norm_parameters, both, parameters, length,
           rows);
  // Many rows of few columns: blocks share a column, and PyTorch adds what they found (cuda/layer_norm_kernel.cu).
  if (parameters.value > 0 && !rms && rows > kNormSplitRows && length < gpu_.sms / 2 * 32) {
    const std::int64_t parts = std::max<std::int64_t>(1, gpu_.sms * 32 / length) * 8;
    for (std::size_t i = 0; i < op.output_count; ++i)
      if (!(out(op, i).shape == in(op, 0).shape) || out(op, i).shape.rank() <= 1)
        if (!(input_gradient && i == 0)) reduce("layer_norm_partial_sums", op, Bytes{parts * length * 4}, out_bytes(op, i), length, parts, true);
  }
}

// PyTorch's own kernels (native/cuda/group_norm_kernel.cu). Moments are of a group of a sample; scale and shift are worked out for each channel of
// each sample, and so are the two sums that a gradient needs. Without pixels there is nothing to sum or to work out.
void Lowering::lower_group_norm(const Op& op) {
  const bool backward = op.kind == OpKind::group_norm_backward;
  const Shape& x = in(op, 0).shape;
  const auto* norm = std::get_if<NormAttributes>(&op.attributes);
  const std::int64_t samples = std::max<std::int64_t>(1, x.rank() > 0 ? x[0] : 1), channels = std::max<std::int64_t>(1, x.rank() > 1 ? x[1] : 1);
  const std::int64_t rows = samples * std::max<std::int64_t>(1, norm ? norm->groups : 1), planes = samples * channels;
  const std::int64_t length = std::max<std::int64_t>(1, x.elements() / rows), area = std::max<std::int64_t>(1, x.elements() / planes);
  const Bytes image = in_bytes(op, 0), statistics{rows * 8}, scales{planes * 8};
  const Bytes read = backward && op.input_count > 1 ? image + in_bytes(op, 1) : image;
  // Its kernels want images plane by plane (Tensor::contiguous in native/group_norm.cpp).
  if (!backward && last_ && x.rank() >= 4 && !call_.compiled)
    std::get<MemoryShape>(memory("group_norm_copy", op, MemoryPattern::transpose, image, image, x[0] * pixels(x), x[1]).shape).part = x[1];
  // Each kernel says how many groups, or planes, there are beside its own rows: what a call takes is divided among them all.
  const auto put = [&](std::string_view name, MemoryPattern pattern, Bytes from, Bytes to, std::int64_t many, std::int64_t each) {
    std::get<MemoryShape>(memory(name, op, pattern, from, to, many, each).shape).part = many == rows ? planes : rows;
  };
  if (!backward) {
    put("group_norm_moments", MemoryPattern::reduction, image, statistics, rows, length);
    if (area > 1) put("group_norm_parameters", MemoryPattern::pointwise, statistics, scales, 1, planes);
    return put(name_of(op), MemoryPattern::broadcast, image + (area > 1 ? scales : statistics), image, planes, area);
  }
  if (area > 1) {
    put("group_norm_sums", MemoryPattern::reduction, read, scales, planes, area);
    put("group_norm_scales", MemoryPattern::pointwise, statistics, {planes * 4}, 1, planes);
  }
  put("group_norm_coefficients", MemoryPattern::reduction, area > 1 ? scales : read, statistics, rows, std::max<std::int64_t>(1, planes / rows));
  put(name_of(op), MemoryPattern::broadcast, read + scales, image, planes, area);
  if (op.output_count > 1)  // a thread for each channel goes through the samples, or of many a block
    put("group_norm_parameter_gradients", MemoryPattern::bias_gradient, area > 1 ? scales : read, out_bytes(op, 1) * 2.0, channels, samples);
}

void Lowering::lower_normalization(const Op& op) {
  switch (op.kind) {
    case OpKind::layer_norm_backward:
    case OpKind::rms_norm_backward: return lower_row_norm_backward(op);
    case OpKind::layer_norm:
    case OpKind::rms_norm: {
      const std::int64_t length = row_of(op, in(op, 0).shape);
      const bool rms = op.kind == OpKind::rms_norm;
      if (op.strided || rms) copy_for_norm(op, 0, op.strided && !rms);
      memory(name_of(op), op, MemoryPattern::norm_forward, in(op, 0).shape.elements() / length, length);
      return;
    }
    case OpKind::group_norm:
    case OpKind::group_norm_backward: return lower_group_norm(op);
    default: return lower_batch_norm(op);
  }
}

void Lowering::lower_batch_norm(const Op& op) {
  const bool backward = op.kind == OpKind::batch_norm_backward;
  const auto* norm = std::get_if<NormAttributes>(&op.attributes);
  if (norm && !norm->training) {  // the running statistics: a scale and a shift, nothing to sum but the weights' gradients
    const Bytes image = in_bytes(op, 0);
    if (backward && op.output_count > 1)
      memory("batch_norm_parameter_gradients", op, MemoryPattern::bias_gradient, image * 2.0, out_bytes(op, 1));
    memory(name_of(op), op, MemoryPattern::broadcast, image, image);
    return;
  }
  // cuDNN's batch norm takes fp32, or fp16 with fp32 weights; everything else runs PyTorch's own kernels, three forward.
  const DType image_type = in(op, backward ? 1 : 0).dtype;
  const DType weight_type = backward ? out(op, op.output_count - 1u).dtype : in(op, op.input_count > 1 ? 1 : 0).dtype;
  const Shape& image = in(op, 0).shape;  // one row per channel
  // Nor does it take rows without pixels, of which the channels lie innermost (native/Normalization.cpp, cuda/Normalization.cuh).
  const bool rows_alone = image.rank() == 2;
  const bool native = rows_alone || image_type == DType::bf16 || (image_type == DType::fp16 && weight_type == DType::fp16);
  const bool apart = backward && format_ == MemoryFormat::contiguous && lies_last(graph_.input(op, 0)) != last_;  // gradient and image
  const bool last = rows_alone || (native && image.rank() == 3 && image[2] == 1) || (last_ && !(apart && native));
  const bool turned = image.rank() == 3 && image[2] > 1 && !call_.compiled && format_ == MemoryFormat::contiguous && op.input_count > 1 && op.output_count > 0 &&
                      !layouts_.is_plain(graph_.input(op, backward ? 1 : 0));  // [samples, channels, length] with the channels innermost
  const MemoryPattern pattern = backward ? (native ? MemoryPattern::native_batch_norm_backward : MemoryPattern::batch_norm_backward)
                                         : (native ? MemoryPattern::native_batch_norm_forward : MemoryPattern::batch_norm_forward);
  if (last && !call_.compiled) {  // counters of blocks that share a channel
    if (!native) clear(op);
    else if (image.elements() / std::max<std::int64_t>(1, image[1]) >= kSharedChannelPixels) helper(op, "batch_norm_counters", {0}, {image[1]}, 1);
  }
  // cuDNN's wants them as the shape says: a transposed sequence is copied, and so is the gradient that comes back along it.
  if (turned && !native) {
    copy_turned("batch_norm_copy", op, 0);
    answered_plain_[graph_.output(op, 0).index()] = true;
  }
  Kernel& kernel = memory(name_of(op), op, pattern, image[1], image.elements() / std::max<std::int64_t>(1, image[1]));
  std::get<MemoryShape>(kernel.shape).channels_last = last;
  std::get<MemoryShape>(kernel.shape).part = pixels(image);  // one plane: how many threads share it, and how it is aligned
  if (native && !backward) kernel.launches = 3;
  else if (native && last) kernel.launches = 2;
  if (!turned || !native) return;
  // PyTorch's general way: bf16 to fp32, moments down the columns, running statistics, and an elementwise kernel that works out every place
  // (Impl::General of batch_norm_choose_impl, native/cuda/Normalization.cu); backward its ordinary kernel across memory.
  kernel.name = backward ? "batch_norm_backward_of_rows" : "batch_norm_of_rows";
  kernel.estimated = true;
  if (backward) return;
  kernel.launches = image_type == DType::bf16 ? 4 : 3;
  if (sums_across_blocks(image[1], image.elements() / std::max<std::int64_t>(1, image[1]), true, gpu_.sms)) clear(op);
}

void Lowering::lower_embedding(const Op& op) {
  if (op.kind == OpKind::embedding) {
    rows_of(memory("embedding", op, MemoryPattern::embedding), op, places(op));
    return;
  }
  // Zero the table's gradient; then one kernel, or for many indices: sort them, find the segments, sum each (Embedding.cu,
  // EmbeddingBackwardKernel.cu).
  // A bag's gradient is read for every index in it.
  const std::int64_t width = out(op).shape.rank() > 1 ? out(op).shape[-1] : 1;
  const Bytes indices = in_bytes(op, 1), rows = std::max(in_bytes(op, 0), Bytes{in(op, 1).shape.elements() * width * bits_of(in(op, 0).dtype) / 8});
  memory("fill", op, MemoryPattern::fill, {0}, out_bytes(op));
  if (in(op, 1).shape.elements() > kUnsortedIndices) {
    const SortLaunches sort = sort_launches(64);
    clear(op, sort.memsets);
    memory("embedding_sort", op, MemoryPattern::index, indices * 4.0, indices * 4.0).launches = sort.kernels;
    memory("embedding_segments", op, MemoryPattern::index, indices * 2.0, indices * 2.0).launches = 8;
    memory("embedding_sum_segments", op, MemoryPattern::index, rows * 0.25, rows * 0.25);
  }
  const std::int64_t tokens = std::max<std::int64_t>(1, in(op, 1).shape.elements());
  Kernel& kernel = memory("embedding_backward", op, MemoryPattern::embedding_backward, rows, rows, tokens, std::max({std::int64_t{1}, in(op, 0).shape.elements() / tokens, width}));
  std::get<MemoryShape>(kernel.shape).part = out(op).shape.rank() > 0 ? out(op).shape[0] : 0;
  if (out(op).shape.rank() > 1) call_.workspace += embedding_space(out(op).shape[0], out(op).shape[-1], tokens);
}

}  // namespace precog
