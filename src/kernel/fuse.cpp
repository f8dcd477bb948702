#include "kernel/fuse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/ensure.h"
#include "graph/framework_names.h"
#include "graph/operator.h"
#include "kernel/fuse_flow.h"
#include "kernel/library_rules.h"

namespace precog {
namespace {

// torch/_inductor/config.py: a value that several read is computed again by each of them while it takes at most this many
// reads to do so; a kernel holds at most so many computed values.
constexpr std::size_t kCheapReads = 4;
constexpr int kMostFused = 64;
constexpr std::int64_t kSharedBytes = 10;  // score_fusion_memory_threshold: less in common is no reason to share a kernel
// MixOrderReduction in torch/_inductor/scheduler.py: sums over columns join the kernel that reduces the same rows.
constexpr std::int64_t kMixedElements = 5 << 20, kMixedRows = 4096, kMixedLength = 16384;
// Half of what the fastest unit computes per byte of bandwidth on current GPUs (is_mm_compute_bound); large products lie far above.
constexpr double kPaddedIntensity = 100;
// From where a second, transposed copy pays: of recorded programs with odd vocabularies GPT-2's has one (692), Marian's (451) and Whisper's (321) have none.
constexpr double kTransposedIntensity = 550;

// Rows that one program of such a kernel sums (_codegen_mix_order_reduction in torch/_inductor/codegen/simd.py).
std::int64_t mixed_block(std::int64_t rows, int sms) {
  constexpr std::int64_t kProgramsPerSm = 8, kLeast = 16, kMost = 128;
  const auto each = static_cast<std::uint64_t>(rows / (kProgramsPerSm * std::max(1, sms)));
  return std::clamp(static_cast<std::int64_t>(std::bit_floor(each)), kLeast, kMost);
}

// A computed value that reaches a buffer: the unit of fusion.
struct Node {
  std::int32_t op = -1;
  FusedKind kind = FusedKind::pointwise;
  Flow::Where where = Flow::forward;
  int level = 0;
  std::int64_t elements = 1, row_length = 0, results = 0;  // row_length 0: reduces no rows; results: of a column reduction
  std::int32_t group = -1;
  bool transposes = false;
  std::int64_t whole_rows = 0;  // of a copy into another order: rows of so many elements stay as they are
  int stages = 1;
  std::vector<FusedRead> sources;
  std::vector<TensorId> outputs;
  Bytes scratch_read, scratch_written, partial_sums;
  FusedTraits traits;
  bool mixed = false;
};

struct Group {
  int level = 0, size = 0;
  std::int64_t elements = 1, row_length = 0, results = 0;
  bool columns = false;
  std::int32_t merged_into = -1;
  bool transposes = false;  // its first member does
};

class Fuser {
 public:
  Fuser(const Graph& graph, int sms, ImageLayout layout, OwnKernels own)
      : graph_(graph), sms_(sms), layout_(layout), own_(own), flow_(follow_values(graph, own)), saved_(saved_values(graph, flow_)), values_(graph.tensors.size()) {}

  FusionPlan run() {
    plan_.ops.resize(graph_.ops.size());
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      if (flow_.where[i] == Flow::forward) last_forward_ = static_cast<std::int32_t>(i);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) visit(i);
    mix_orders();
    make_kernels();
    add_biases();
    find_last_uses();
    return std::move(plan_);
  }

 private:
  using Sources = std::vector<FusedRead>;
  struct Value {
    Sources sources;         // where computing it reads from; itself when it is in memory
    bool known = false;
    std::int32_t node = -1;  // that computes it, when it reaches a buffer
    int level = 0;           // of the library call or node that makes it
    FusedTraits traits;      // of what is computed inside its readers
    Sources in_backward;     // as sources, for a forward value that backward computes again
    bool again = false;
  };

  const Op& op_at(std::size_t i) const { return graph_.ops[graph_.ops.id_at(i)]; }
  Value& value_of(TensorId id) { return values_[flow_.value[id.index()].index()]; }
  std::int64_t elements(TensorId id) const { return std::max<std::int64_t>(1, graph_.tensors[id].shape.elements()); }

  // --- where a value's numbers come from

  void add(Sources& to, const Sources& more, double share = 1) const {
    for (const FusedRead& read : more) {
      const Bytes bytes = read.bytes * share, whole = graph_.bytes(read.tensor);
      auto known = std::find_if(to.begin(), to.end(), [&](const FusedRead& r) { return r.tensor == read.tensor; });
      if (known == to.end()) to.push_back({read.tensor, bytes, read.remade});
      else if (bytes < whole && known->bytes < whole) known->bytes = std::min(whole, known->bytes + bytes);  // another slice
      else known->bytes = std::max(known->bytes, bytes);
    }
  }
  Sources itself(TensorId value) const { return {{value, graph_.bytes(value)}}; }

  // A tensor as an operand of an operator in the given graph.
  Sources sources_of(TensorId id, Flow::Where where) {
    const TensorId value = flow_.value[id.index()];
    const double share = std::min(1.0, static_cast<double>(elements(id)) / static_cast<double>(elements(value)));
    Sources out;
    const std::int32_t maker = flow_.maker[value.index()];
    if (maker < 0) add(out, itself(value), share);
    else if (where == Flow::backward && flow_.where[static_cast<std::size_t>(maker)] == Flow::forward) add(out, again(value), share);
    else add(out, values_[value.index()].known ? values_[value.index()].sources : itself(value), share);
    return out;
  }
  // A forward value as backward gets it: from memory, or computed from what is.
  Sources again(TensorId value) {
    if (saved_[value.index()]) return itself(value);
    Value& v = values_[value.index()];
    if (!v.again) {
      v.again = true;
      const auto maker = static_cast<std::size_t>(flow_.maker[value.index()]);
      Sources made;
      for (TensorId input : graph_.inputs(op_at(maker))) add(made, sources_of(input, Flow::backward));
      // Several readers of what takes many reads: made again once, in a kernel of its own.
      int readers = 0;
      for (std::int32_t reader : flow_.readers[value.index()])
        if (flow_.where[static_cast<std::size_t>(reader)] == Flow::backward)
          readers += flow_.part[static_cast<std::size_t>(reader)] == Part::batch_norm_backward ? 2 : 1;
      if (readers > 0 && feeds_batch_norm(value)) ++readers;
      if (readers > 1 && made.size() > kCheapReads) {
        Node node = new_node(maker, FusedKind::pointwise);
        node.where = Flow::backward;
        node.elements = elements(value);
        node.sources = std::move(made);
        node.scratch_written = graph_.bytes(value);
        place(std::move(node));
        made = {{value, graph_.bytes(value), true}};
      }
      values_[value.index()].in_backward = std::move(made);
    }
    return values_[value.index()].in_backward;
  }
  // Read by a pointwise operator whose result goes into batch norm's sums and again into its last kernel.
  bool feeds_batch_norm(TensorId value) const {
    for (std::int32_t reader : flow_.readers[value.index()]) {
      const auto r = static_cast<std::size_t>(reader);
      if (flow_.where[r] != Flow::backward || flow_.part[r] != Part::pointwise) continue;
      for (TensorId output : graph_.outputs(op_at(r)))
        for (std::int32_t next : flow_.readers[flow_.value[output.index()].index()])
          if (flow_.part[static_cast<std::size_t>(next)] == Part::batch_norm_backward) return true;
    }
    return false;
  }
  Sources operands(const Op& op, Flow::Where where) {
    Sources out;
    for (TensorId input : graph_.inputs(op)) add(out, sources_of(input, where));
    // A gather reads the rows it is asked for, not the table.
    if ((op.kind == OpKind::embedding || op.kind == OpKind::index_select || op.kind == OpKind::gather) && !out.empty() && op.input_count > 0) {
      const TensorId table = flow_.value[graph_.input(op, 0).index()];
      for (FusedRead& read : out)
        if (read.tensor == table) read.bytes = std::min(read.bytes, graph_.bytes(graph_.output(op)));
    }
    return out;
  }

  // --- each operator in turn

  void visit(std::size_t i) {
    const Op& op = op_at(i);
    FusionPlan::PerOp& made = plan_.ops[i];
    made.compiled = flow_.where[i] != Flow::outside;
    made.absorbed = flow_.part[i] != Part::library;
    switch (flow_.part[i]) {
      case Part::view: return;
      case Part::library: return library_call(i);
      case Part::pointwise:
      case Part::window: return pointwise(i, operands(op, flow_.where[i]));
      case Part::rows: return rows(i);
      case Part::columns: return columns(i);
      case Part::batch_norm: {
        std::vector<TensorId> statistics(graph_.outputs(op).begin() + 1, graph_.outputs(op).end());
        return batch_norm(i, 0, sources_of(graph_.input(op, 0), flow_.where[i]), std::move(statistics), true);
      }
      case Part::batch_norm_backward: {
        Sources both = sources_of(graph_.input(op, 0), flow_.where[i]);
        add(both, sources_of(graph_.input(op, 1), flow_.where[i]));
        std::vector<TensorId> parameters;
        for (TensorId id : graph_.outputs(op))
          if (!is_image_gradient(op, id)) parameters.push_back(id);
        return batch_norm(i, 1, std::move(both), std::move(parameters), false);
      }
      case Part::norm_backward: return norm_backward(i);
      case Part::scatter: return scatter(i);
    }
  }
  bool is_image_gradient(const Op& op, TensorId id) const {
    return graph_.tensors[id].shape == graph_.tensors[graph_.input(op, 0)].shape && (graph_.tensors[id].shape.rank() > 1 || id == graph_.output(op));
  }

  void library_call(std::size_t i) {
    const Op& op = op_at(i);
    int level = 0;
    for (TensorId input : graph_.inputs(op)) level = std::max(level, after(flow_.value[input.index()], flow_.where[i]));
    for (TensorId output : graph_.outputs(op)) {
      Value& value = value_of(output);
      value.known = true;
      value.sources = itself(flow_.value[output.index()]);
      value.level = level;
    }
    if (flow_.where[i] == Flow::outside) return;
    if (flow_.where[i] == Flow::forward && op.kind == OpKind::matmul && !is_16bit(op.math) && is_16bit(graph_.tensors[graph_.input(op, 0)].dtype)) widen(op);
    if (std::holds_alternative<GemmAttributes>(op.attributes)) pad(i);
    if (layout_.given != layout_.compiled) turn(i);
  }

  // Traced under autocast, the math path's forward products read and write fp32; what the graph says are the casts that backward keeps.
  void widen(const Op& op) {
    for (TensorId input : graph_.inputs(op)) {
      const TensorId value = flow_.value[input.index()];
      if (const std::int32_t node = values_[value.index()].node; node >= 0) nodes_[static_cast<std::size_t>(node)].scratch_written += graph_.bytes(value);
    }
    for (FusedRead& read : value_of(graph_.output(op)).sources) read.bytes = read.bytes * 2.0;
  }

  // Images and filters that were given in another order are turned once, filters where no cast does it on the way; the filters'
  // gradients are turned back when they are handed to parameters (AccumulateGrad keeps a parameter's strides).
  void turn(std::size_t i) {
    const Op& op = op_at(i);
    const bool backward = op.kind == OpKind::conv2d_backward;
    if (!backward && op.kind != OpKind::conv2d) return;
    auto differs = [&](TensorId id) {  // one channel or one pixel: both orders are the same
      const Shape& shape = graph_.tensors[id].shape;
      return shape.rank() == 4 && shape[1] > 1 && shape[2] * shape[3] > 1;
    };
    if (backward) {
      const Shape& weight = graph_.tensors[graph_.input(op, 2)].shape;
      for (TensorId id : graph_.outputs(op))
        if (graph_.tensors[id].shape == weight && differs(id)) plan_.ops[i].turned.push_back(id);
      return;
    }
    for (TensorId input : graph_.inputs(op)) {
      const TensorId value = flow_.value[input.index()];
      if (flow_.maker[value.index()] < 0 && differs(input) && copied_.try_emplace({value, Flow::forward}, true).second) plan_.ops[i].turned.push_back(value);
    }
  }

  // torch/_inductor/fx_passes/pad_mm.py: extents of a large product that no wide load can read are rounded up. An operand that a
  // pointwise kernel writes is written so at once, another is copied, once for all products that read it. But where
  // rows of 16-bit numbers are odd, no load of four bytes (the least that cp.async takes) is aligned: there the timing that decides may pad the
  // transposed operand (a weight's gradient) too, by the same kernel.
  void pad(std::size_t i) {
    const Op& op = op_at(i);
    const auto& a = std::get<GemmAttributes>(op.attributes);
    const std::int64_t unit = is_16bit(graph_.tensors[graph_.input(op, 0)].dtype) ? 8 : 4;
    auto off = [&](std::int64_t extent) { return extent > 1 && extent % unit != 0; };
    if (!off(a.m) && !off(a.n) && !off(a.k)) return;
    const double m = static_cast<double>(a.m), n = static_cast<double>(a.n), k = static_cast<double>(a.k);
    const double intensity = m * n * k / (m * k + n * k + m * n);
    if (own_.products || intensity < kPaddedIntensity) return;
    plan_.ops[i].padded = true;
    const bool operand_off[] = {off(a.m) || off(a.k), off(a.k) || off(a.n)};
    for (std::size_t operand = 0; operand < 2 && operand < op.input_count; ++operand) {
      const TensorId value = flow_.value[graph_.input(op, operand).index()];
      const std::int32_t node = values_[value.index()].node;
      const Group* made_in = node < 0 ? nullptr : &group_at(root(nodes_[static_cast<std::size_t>(node)].group));
      if (!operand_off[operand] || (made_in && made_in->row_length == 0 && !made_in->columns)) continue;
      const bool transposed = operand == 0 && a.transposed_a;
      const auto [first, fresh] = padded_.try_emplace({value, flow_.where[i]}, PaddedCopies{i, {}});
      const bool odd = unit == 8 && (a.m % 2 != 0 || a.k % 2 != 0) && intensity > kTransposedIntensity;
      if (std::exchange(first->second.made[transposed ? 1 : 0], true) || (!fresh && !odd)) continue;
      plan_.ops[first->second.where].copied.push_back(value);
    }
    if (op.input_count < 3 || !off(a.n)) return;
    const TensorId bias = flow_.value[graph_.input(op, 2).index()];  // pad_addmm: as long as the result's rows
    if (elements(bias) == a.n && values_[bias.index()].node < 0) plan_.ops[i].copied.push_back(bias);
  }
  // The first level at which a value may be read by another kernel than its own.
  int after(TensorId value, Flow::Where where) const {
    const std::int32_t maker = flow_.maker[value.index()];
    if (maker < 0 || flow_.where[static_cast<std::size_t>(maker)] != where) return 0;
    return values_[value.index()].level + 1;
  }

  void pointwise(std::size_t i, Sources sources) {
    const Op& op = op_at(i);
    if (!realised(i, sources.size())) {
      for (TensorId output : graph_.outputs(op)) {
        Value& value = value_of(output);
        value.known = true;
        value.sources = sources;
        value.traits = traits_of(i);
      }
      return;
    }
    Node node = new_node(i, FusedKind::pointwise);
    if (op.output_count == 0) node.elements = elements(graph_.input(op, 0));
    for (TensorId output : graph_.outputs(op)) {
      node.elements = std::max(node.elements, elements(output));
      node.outputs.push_back(output);
    }
    node.transposes = op.kind == OpKind::contiguous;
    if (node.transposes) node.whole_rows = whole_rows(op);
    node.sources = std::move(sources);
    place(std::move(node));
  }

  // Heads and positions that change places leave a head's row whole: loops over rows are put in another order for it (loop_ordering_after_fusion).
  std::int64_t whole_rows(const Op& op) const {
    constexpr int kAxes = 4;
    const Shape &from = graph_.tensors[flow_.value[graph_.input(op, 0).index()]].shape, &to = graph_.tensors[graph_.output(op)].shape;
    return from.rank() == kAxes && to.rank() == kAxes && from[-1] == to[-1] ? to[-1] : 0;
  }

  // Whether Inductor gives the value a buffer: somebody must find it in memory, or computing it again would read too much.
  bool realised(std::size_t i, std::size_t reads) const {
    const Op& op = op_at(i);
    // A pooling's gradient looks for its pixel in every window: too many operations to be written into its readers (realize_opcount_threshold).
    if (flow_.part[i] == Part::window && flow_.where[i] == Flow::backward) return true;
    bool read = false;
    for (TensorId output : graph_.outputs(op)) {
      const TensorId value = flow_.value[output.index()];
      const Tensor& memory = graph_.tensors[graph_.tensors[output].storage];  // a counter, updated where it stands
      if (graph_.tensors[output].role != Role::activation || memory.role == Role::buffer || memory.role == Role::parameter) return true;
      if (flow_.where[i] == Flow::forward && saved_[value.index()]) return true;
      int users = 0;
      for (std::int32_t reader : flow_.readers[value.index()]) {
        const auto r = static_cast<std::size_t>(reader);
        if (flow_.where[r] == Flow::outside) return true;
        if (flow_.where[r] != flow_.where[i]) continue;
        read = true;
        ++users;
        if (flow_.part[r] == Part::library || flow_.part[r] == Part::window) return true;
      }
      if (users > 1 && reads > kCheapReads) return true;
    }
    // What nobody reads is not computed, but for the loss.
    return !read && flow_.where[i] == Flow::forward && is_last_forward(i);
  }
  bool is_last_forward(std::size_t i) const { return static_cast<std::int32_t>(i) == last_forward_; }

  void rows(std::size_t i) {
    const Op& op = op_at(i);
    Node node = new_node(i, FusedKind::rows);
    node.row_length = row_length(graph_, op);
    node.elements = elements(graph_.input(op, 0));
    node.sources = operands(op, flow_.where[i]);
    node.outputs.assign(graph_.outputs(op).begin(), graph_.outputs(op).end());
    node.stages = row_stages(node.elements / node.row_length, node.row_length, sms_);
    if (node.stages > 1 && definition(op.kind).family == Family::normalization && op.output_count > 1) return split_norm(i, std::move(node));
    place(std::move(node));
  }

  // Rows that are cut: their mean and variance in kernels of their own (one stage more than a sum), then each element.
  void split_norm(std::size_t i, Node sums) {
    const TensorId whole = graph_.output(op_at(i));
    Node each = new_node(i, FusedKind::pointwise);
    each.elements = elements(whole);
    each.outputs = {whole};
    sums.kind = FusedKind::columns;
    sums.results = sums.elements / sums.row_length;
    sums.row_length = 0;
    ++sums.stages;
    sums.outputs.erase(sums.outputs.begin());
    each.sources = sums.sources;
    for (TensorId id : sums.outputs) add(each.sources, itself(id));
    place(std::move(sums));
    place(std::move(each));
  }

  void columns(std::size_t i) {
    const Op& op = op_at(i);
    Node node = new_node(i, FusedKind::columns);
    node.sources = operands(op, flow_.where[i]);
    node.results = elements(graph_.output(op));
    node.elements = node.results;
    for (TensorId input : graph_.inputs(op)) node.elements = std::max(node.elements, elements(input));
    if (op.kind == OpKind::nll_loss) {  // one value of each row
      const Work work = work_of(graph_, op);
      node.results = 1;
      node.elements = std::max<std::int64_t>(1, static_cast<std::int64_t>(work.flops.value));
      for (FusedRead& read : node.sources) read.bytes = std::min(read.bytes, work.read);
    }
    const std::int64_t length = node.elements / node.results;
    const bool side_by_side = keeps_middle(graph_, op) && (layout_.compiled != MemoryFormat::channels_last || graph_.tensors[graph_.input(op, 0)].shape.rank() < 4);
    node.stages = side_by_side ? row_stages(node.results, length, sms_) : column_stages(node.results, length, sms_);
    node.outputs.assign(graph_.outputs(op).begin(), graph_.outputs(op).end());
    place(std::move(node));
  }

  // Sums per channel in kernels of their own; then each element, which joins what follows. Backward's two sums end in a small
  // kernel each. Channels last, variances are gathered in stages for as long as there are many pieces (WelfordReduction splits its second
  // stage again). Otherwise a channel's elements lie side by side, as in a row: not split, one kernel sums and goes over them again.
  void batch_norm(std::size_t i, std::size_t image, Sources sources, std::vector<TensorId> small, bool forward) {
    const Op& op = op_at(i);
    const Tensor& x = graph_.tensors[graph_.input(op, image)];
    Node sums = new_node(i, FusedKind::columns);
    sums.results = std::max<std::int64_t>(1, x.shape.rank() > 1 ? x.shape[1] : 1);
    sums.elements = std::max(sums.results, x.shape.elements());
    const std::int64_t length = sums.elements / sums.results;
    const bool along_rows = layout_.compiled != MemoryFormat::channels_last && x.shape.rank() > 2;
    if (!along_rows) {
      const std::int64_t pieces = column_pieces(sums.results, length, sms_);
      if (pieces > 1) sums.stages = 1 + (forward ? column_stages(sums.results, pieces, sms_) : 2);
    } else if (row_stages(sums.results, length, sms_) > 1) {
      sums.stages = forward ? 2 : 3;
    } else {
      sums.kind = FusedKind::rows;
      sums.row_length = length;
      sums.results = 0;
    }
    sums.sources = sources;
    sums.outputs = small;
    place(std::move(sums));
    add(sources, operands(op, flow_.where[i]));
    for (TensorId id : small) add(sources, itself(id));
    std::vector<TensorId> full;
    for (TensorId id : graph_.outputs(op))
      if (std::find(small.begin(), small.end(), id) == small.end()) full.push_back(id);
    if (full.empty()) return;
    if (!realised(i, sources.size())) {
      for (TensorId id : full) {
        values_[id.index()].known = true;
        values_[id.index()].sources = sources;
      }
      return;
    }
    Node each = new_node(i, FusedKind::pointwise);
    each.elements = elements(full[0]);
    each.outputs = full;
    each.sources = std::move(sources);
    place(std::move(each));
  }

  void norm_backward(std::size_t i) {
    const Op& op = op_at(i);
    Sources both = operands(op, flow_.where[i]);
    std::vector<TensorId> full, parameters;
    for (TensorId id : graph_.outputs(op)) (is_image_gradient(op, id) ? full : parameters).push_back(id);
    const std::int64_t all = elements(graph_.input(op, 0)), length = row_length(graph_, op);
    if (op.kind == OpKind::group_norm_backward) return group_norm_backward(i, std::move(both), std::move(full), std::move(parameters));
    if (!full.empty()) {
      Node node = new_node(i, FusedKind::rows);
      node.elements = all;
      node.row_length = length;
      node.sources = both;
      node.outputs = full;
      place(std::move(node));
    }
    if (parameters.empty()) return;
    Node sums = new_node(i, FusedKind::columns);
    sums.results = elements(parameters[0]);
    sums.elements = std::max(sums.results, all);
    sums.stages = column_stages(sums.results, sums.elements / sums.results, sms_);
    if (sums.stages > 1) sums.stages += static_cast<int>(parameters.size()) - 1;  // the second stages share nothing
    sums.sources = both;
    sums.outputs = parameters;
    place(std::move(sums));
  }

  // Two sums along each image's channels; what they come to for a group and for a weight, in a small kernel each; then each element
  // (native_group_norm_backward in torch/_decomp/decompositions.py).
  void group_norm_backward(std::size_t i, Sources both, std::vector<TensorId> full, std::vector<TensorId> parameters) {
    const Shape& x = graph_.tensors[graph_.input(op_at(i), 0)].shape;
    Node sums = new_node(i, FusedKind::columns);
    sums.results = x.rank() > 1 ? x[0] * x[1] : 1;
    sums.elements = std::max(sums.results, x.elements());
    sums.stages = 1 + (full.empty() ? 0 : 1) + (parameters.empty() ? 0 : 1);
    sums.sources = both;
    sums.outputs = parameters;
    place(std::move(sums));
    if (full.empty()) return;
    for (TensorId id : parameters) add(both, itself(id));
    Node each = new_node(i, FusedKind::pointwise);
    each.elements = elements(full[0]);
    each.outputs = std::move(full);
    each.sources = std::move(both);
    place(std::move(each));
  }

  // The table first (zeros, or a copy of what it was), then rows added to it one by one. An embedding's gradient is gathered in
  // fp32 and cast last (decompositions.py); others in their own type.
  void scatter(std::size_t i) {
    const Op& op = op_at(i);
    const TensorId table = graph_.output(op);
    const bool embedding = definition(op.kind).family == Family::embedding;
    const Bytes wide = embedding ? Bytes{elements(table) * 4} : graph_.bytes(table);
    Node node = new_node(i, FusedKind::scatter);
    node.elements = elements(graph_.input(op, 0));
    if (!embedding)  // the rows, not the table
      for (TensorId id : graph_.inputs(op))
        if (is_floating(graph_.tensors[id].dtype) && graph_.tensors[id].shape != graph_.tensors[table].shape) node.elements = elements(id);
    node.sources = operands(op, flow_.where[i]);
    node.outputs = {table};
    const Bytes added{node.elements * 4};
    node.scratch_read = added;
    node.scratch_written = added;
    place(std::move(node));
    tables_.push_back({static_cast<std::int32_t>(i), table, wide});
  }

  Node new_node(std::size_t i, FusedKind kind) {
    Node node;
    node.op = static_cast<std::int32_t>(i);
    node.kind = kind;
    node.where = flow_.where[i];
    node.traits = traits_of(i);
    return node;
  }

  // Its own, and those of what is computed inside it.
  FusedTraits traits_of(std::size_t i) {
    const Op& op = op_at(i);
    FusedTraits out;
    const FrameworkName* known = is_generic(op.kind) ? framework_name(graph_.name(op.label)) : nullptr;
    out.transcendental = definition(arithmetic_of(graph_, op)).transcendental || (known && known->transcendental);
    out.random = (op.kind == OpKind::dropout || op.kind == OpKind::random) && op.phase != Phase::backward;
    if (flow_.part[i] == Part::window) look(op, out);
    for (TensorId input : graph_.inputs(op)) join(out, value_of(input).traits);
    return out;
  }
  static void join(FusedTraits& to, const FusedTraits& more) {
    to.transcendental = to.transcendental || more.transcendental;
    to.random = to.random || more.random;
    to.taps = std::max(to.taps, more.taps);
    to.windows = std::max(to.windows, more.windows);
  }
  // A graph that does not say the window says by how much the image shrinks: at least that, and no two overlap.
  void look(const Op& op, FusedTraits& traits) const {
    const Shape &from = graph_.tensors[graph_.input(op, 0)].shape, &to = graph_.tensors[graph_.output(op)].shape;
    const auto* pool = std::get_if<PoolAttributes>(&op.attributes);
    std::int64_t taps = 1, windows = 1;
    for (int axis = 2; axis < std::min(from.rank(), to.rank()); ++axis) {
      const std::int64_t shrunk = std::max(from[axis], to[axis]) / std::max<std::int64_t>(1, std::min(from[axis], to[axis]));
      taps *= pool ? pool->kernel : std::max<std::int64_t>(1, shrunk);
      if (pool) windows *= (pool->kernel + pool->stride - 1) / std::max<std::int64_t>(1, pool->stride);
    }
    (op.phase == Phase::backward ? traits.windows : traits.taps) = op.phase == Phase::backward ? windows : taps;
  }

  // --- which node goes into which kernel
  //
  // A level counts the kernels that must have run before. Nodes of one level that read from each other are in one group, so
  // no path leads from one group to another of the same level, and any two of them may be merged.

  std::int32_t root(std::int32_t group) const {
    while (groups_[static_cast<std::size_t>(group)].merged_into >= 0) group = groups_[static_cast<std::size_t>(group)].merged_into;
    return group;
  }
  Group& group_at(std::int32_t id) { return groups_[static_cast<std::size_t>(id)]; }

  static bool compatible(const Node& node, const Group& group) {
    if (group.size >= kMostFused) return false;
    if (node.kind == FusedKind::columns || group.columns) {
      if (node.kind == FusedKind::columns && group.columns) return node.results == group.results && node.elements == group.elements;
      return group.columns && node.kind == FusedKind::pointwise && node.elements == group.results;  // after the sum
    }
    if (node.row_length > 0 && group.row_length > 0) return node.row_length == group.row_length && node.elements == group.elements;
    const std::int64_t length = std::max(node.row_length, group.row_length);
    if (node.elements == group.elements) return true;
    if (length == 0) return false;
    return node.row_length > 0 ? group.elements == node.elements / length : node.elements == group.elements / length;
  }

  void place(Node node) {
    int level = 0;
    for (const FusedRead& read : node.sources) {
      const std::int32_t maker = flow_.maker[read.tensor.index()];
      if (maker < 0 || flow_.where[static_cast<std::size_t>(maker)] != node.where) continue;
      const Value& value = values_[read.tensor.index()];
      level = std::max(level, value.node >= 0 ? value.level : value.level + 1);
    }
    std::vector<std::int32_t> joined;
    auto join_group = [&](std::int32_t group) {
      group = root(group);
      if (std::find(joined.begin(), joined.end(), group) == joined.end()) joined.push_back(group);
    };
    bool fits = true;
    for (const FusedRead& read : node.sources) {
      const Value& value = values_[read.tensor.index()];
      if (value.node < 0 || value.level != level || nodes_[static_cast<std::size_t>(value.node)].where != node.where) continue;
      join_group(nodes_[static_cast<std::size_t>(value.node)].group);
      const Group& made_in = group_at(root(nodes_[static_cast<std::size_t>(value.node)].group));
      const bool reorders = !node.transposes || (node.whole_rows > 0 && made_in.row_length == node.whole_rows && made_in.elements == node.elements);
      fits = fits && reorders && node.kind != FusedKind::columns;
    }
    for (std::int32_t group : joined) fits = fits && compatible(node, group_at(group));
    for (std::int32_t group : joined) fits = fits && group_at(group).size + group_at(joined[0]).size < kMostFused && together(group_at(group), group_at(joined[0]));
    if (!fits) {
      ++level;
      joined.clear();
    }
    // Another kernel of this level that reads some of the same.
    for (const FusedRead& read : node.sources) {
      const auto known = by_source_.find({read.tensor, {sharing_level(node, level), node.where}});
      if (known == by_source_.end() || read.bytes < graph_.bytes(read.tensor)) continue;  // slices are not the same elements
      const std::int32_t other = root(known->second);
      if (group_at(other).transposes != node.transposes) continue;  // goes through it in another order
      if (group_at(other).elements != node.elements || !compatible(node, group_at(other))) continue;
      if (!joined.empty() && !together(group_at(other), group_at(joined[0]))) continue;
      join_group(other);
    }
    node.level = level;
    if (joined.empty()) {
      joined.push_back(static_cast<std::int32_t>(groups_.size()));
      groups_.push_back({level, 0, node.elements, 0, 0, node.kind == FusedKind::columns, -1, node.transposes});
    }
    const std::int32_t into = joined[0];
    for (std::size_t k = 1; k < joined.size(); ++k) {
      Group &to = group_at(into), &from = group_at(joined[k]);
      to.size += from.size;
      to.elements = std::max(to.elements, from.elements);
      to.row_length = std::max(to.row_length, from.row_length);
      from.merged_into = into;
    }
    Group& group = group_at(into);
    ++group.size;
    group.elements = std::max(group.elements, node.elements);
    group.row_length = std::max(group.row_length, node.row_length);
    group.results = std::max(group.results, node.results);
    node.group = into;
    const auto id = static_cast<std::int32_t>(nodes_.size());
    for (TensorId output : node.outputs) {
      Value& value = values_[output.index()];
      value.known = true;
      value.sources = itself(output);
      value.node = node.kind == FusedKind::scatter ? -1 : id;
      value.level = level;
    }
    for (const FusedRead& read : node.sources)
      if (read.bytes.value >= kSharedBytes && read.bytes == graph_.bytes(read.tensor)) by_source_.try_emplace({read.tensor, {sharing_level(node, level), node.where}}, into);
    nodes_.push_back(std::move(node));
  }
  // Layers that are recomputed wait for each other though no value passes between them: what reads the same table (angles of
  // rotations) in two of them is no work of the same time.
  int sharing_level(const Node& node, int level) const {
    if (node.op < 0 || op_at(static_cast<std::size_t>(node.op)).phase != Phase::recompute) return level;
    return level + kLevelsPerLayer * (2 + op_at(static_cast<std::size_t>(node.op)).block);
  }
  static constexpr int kLevelsPerLayer = 1 << 14;

  static bool together(const Group& a, const Group& b) {
    if (&a == &b) return true;
    if (a.columns != b.columns) return false;
    if (a.row_length > 0 && b.row_length > 0) return a.row_length == b.row_length && a.elements == b.elements;
    const std::int64_t length = std::max(a.row_length, b.row_length);
    return a.elements == b.elements || (length > 0 && std::max(a.elements, b.elements) / length == std::min(a.elements, b.elements));
  }

  // Sums over columns join the kernel of the same level that reduces the same rows: partial sums of a block of rows each, then
  // one small kernel for all of them.
  void mix_orders() {
    std::map<std::pair<TensorId, std::pair<int, Flow::Where>>, std::int32_t> by_row_source;
    auto full = [&](const Node& node, const FusedRead& read) { return elements(read.tensor) == node.elements; };
    for (const Node& node : nodes_)
      if (node.row_length > 0)
        for (const FusedRead& read : node.sources)
          if (full(node, read)) by_row_source.try_emplace({read.tensor, {node.level, node.where}}, node.group);
    for (Node& node : nodes_) {
      if (node.kind != FusedKind::columns || node.elements < kMixedElements || node.results > kMixedLength) continue;
      const std::int64_t count = node.elements / node.results;
      if (count < kMixedRows || count < 2 * node.results) continue;
      for (const FusedRead& read : node.sources) {
        const auto known = by_row_source.find({read.tensor, {node.level, node.where}});
        if (!full(node, read) || known == by_row_source.end()) continue;
        const std::int32_t rows = root(known->second), own = root(node.group);
        if (rows == own || group_at(rows).row_length != node.results || group_at(rows).elements != node.elements) continue;
        const std::int64_t block = mixed_block(count, sms_);
        node.partial_sums = {node.results * 4 * ((count + block - 1) / block)};
        node.scratch_written = node.partial_sums * static_cast<double>(node.outputs.size());
        node.mixed = true;
        node.stages = 1;
        group_at(own).merged_into = rows;
        group_at(rows).size += group_at(own).size;
        break;
      }
    }
  }

  // --- kernels

  // A softmax or the like that another kernel reads is computed again there from its operand and its sums.
  bool computed_again(std::int32_t node) const {
    const Node& n = nodes_[static_cast<std::size_t>(node)];
    const OpKind kind = op_at(static_cast<std::size_t>(n.op)).kind;
    return (kind == OpKind::softmax || kind == OpKind::log_softmax || kind == OpKind::rms_norm) && n.sources.size() < kCheapReads;
  }

  void make_kernels() {
    std::map<std::int32_t, std::size_t> index;  // group -> kernel
    std::vector<std::vector<const Node*>> members;
    for (const Node& node : nodes_) {
      const auto [place, first] = index.try_emplace(root(node.group), members.size());
      if (first) members.emplace_back();
      members[place->second].push_back(&node);
    }
    std::vector<char> wanted(graph_.tensors.size(), 0);
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      const TensorId id = graph_.tensors.id_at(t);
      const std::int32_t maker = flow_.maker[t];
      if (graph_.tensors[id].role != Role::activation || (maker >= 0 && is_loss(static_cast<std::size_t>(maker)))) wanted[t] = 1;
      for (std::int32_t reader : flow_.readers[t])
        if (flow_.part[static_cast<std::size_t>(reader)] == Part::library) wanted[t] = 1;
    }
    for (const auto& nodes : members) {
      FusedKernel kernel;
      const Group& group = groups_[static_cast<std::size_t>(root(nodes[0]->group))];
      kernel.kind = group.columns ? FusedKind::columns : group.row_length > 0 ? FusedKind::rows : FusedKind::pointwise;
      kernel.row_length = group.columns ? group.elements / std::max<std::int64_t>(1, group.results) : group.row_length > 0 ? group.row_length : group.elements;
      kernel.rows = group.elements / kernel.row_length;
      for (const Node* node : nodes) {
        kernel.ops.push_back(graph_.ops.id_at(static_cast<std::size_t>(node->op)));
        kernel.stages = std::max(kernel.stages, node->stages);
        kernel.transposes = kernel.transposes || node->transposes;
        kernel.scratch_read += node->scratch_read;
        kernel.scratch_written += node->scratch_written;
        join(kernel.traits, node->traits);
        if (node->mixed) {
          kernel.finished_sums += static_cast<int>(node->outputs.size());
          kernel.narrowed_sums = is_16bit(graph_.tensors[node->outputs[0]].dtype);
          kernel.partial_sums = node->partial_sums;
          kernel.counted_sums = sums_across_blocks(node->results, node->partial_sums.value / 4 / node->results, true, sms_);
        }
        if (node->kind == FusedKind::scatter && kernel.kind == FusedKind::pointwise) kernel.kind = FusedKind::scatter;
        read_into(kernel.reads, node->sources, root(node->group), node->where);
      }
      for (const FusedRead& read : kernel.reads)
        if (!read.remade) wanted[read.tensor.index()] = 1;
      plan_.kernels.push_back(std::move(kernel));
    }
    for (std::size_t k = 0; k < members.size(); ++k) {
      FusedKernel& kernel = plan_.kernels[k];
      for (const Node* node : members[k])
        for (TensorId output : node->outputs)
          if (wanted[output.index()] && node->kind != FusedKind::scatter) kernel.writes.push_back(output);
      std::int32_t ready = -1, at = members[k].back()->op;
      for (const FusedRead& read : kernel.reads) ready = std::max(ready, flow_.maker[read.tensor.index()]);
      for (const Node* node : members[k])
        if (node->op > ready) at = std::min(at, node->op);
      plan_.ops[static_cast<std::size_t>(at)].kernels.push_back(static_cast<std::int32_t>(k));
    }
    for (const Table& table : tables_) {
      FusedKernel zeros;
      zeros.ops = {graph_.ops.id_at(static_cast<std::size_t>(table.op))};
      zeros.row_length = elements(table.tensor);
      zeros.scratch_written = table.wide;
      add_kernel(table.op, zeros);
      const Bytes wanted_bytes = graph_.bytes(table.tensor);
      if (wanted_bytes == table.wide) continue;
      FusedKernel narrow = zeros;
      narrow.scratch_written = {};
      narrow.scratch_read = table.wide;
      narrow.writes = {table.tensor};
      add_kernel(table.op, narrow);
    }
  }
  void add_kernel(std::int32_t op, FusedKernel kernel) {
    plan_.ops[static_cast<std::size_t>(op)].kernels.push_back(static_cast<std::int32_t>(plan_.kernels.size()));
    plan_.kernels.push_back(std::move(kernel));
  }
  // A convolution is called without its bias (torch/_inductor/kernel/conv.py); the first kernel that reads the result element by element adds it,
  // and writes it back where a library call, a pooling window or backward reads it too. No such kernel: one of its own.
  void add_biases() {
    std::vector<std::int32_t> adds(graph_.tensors.size(), -1);
    std::vector<char> kept(graph_.tensors.size(), 0);
    for (std::size_t k = 0; k < plan_.kernels.size(); ++k) {
      const FusedKernel& kernel = plan_.kernels[k];
      const bool forward = flow_.where[kernel.ops.front().index()] == Flow::forward && kernel.traits.taps == 0;
      for (const FusedRead& read : kernel.reads) {
        if (read.remade) continue;
        if (!forward) kept[read.tensor.index()] = 1;
        else if (adds[read.tensor.index()] < 0) adds[read.tensor.index()] = static_cast<std::int32_t>(k);
      }
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = op_at(i);
      if (op.kind != OpKind::conv2d || op.input_count < 3 || flow_.where[i] != Flow::forward) continue;
      const TensorId result = graph_.output(op);
      bool wanted = kept[result.index()] != 0;
      for (std::int32_t reader : flow_.readers[result.index()]) wanted = wanted || flow_.part[static_cast<std::size_t>(reader)] == Part::library;
      if (!wanted) continue;
      const std::int32_t first = adds[result.index()];
      if (first < 0) plan_.ops[i].adds_bias = true;
      else plan_.kernels[static_cast<std::size_t>(first)].biased.push_back(result);
    }
  }
  bool is_loss(std::size_t i) const { return flow_.where[i] == Flow::forward && is_last_forward(i); }

  void read_into(Sources& reads, const Sources& sources, std::int32_t group, Flow::Where where) const {
    for (const FusedRead& read : sources) {
      const std::int32_t node = values_[read.tensor.index()].node;
      const std::int32_t maker = flow_.maker[read.tensor.index()];
      if (node >= 0 && nodes_[static_cast<std::size_t>(node)].where == where) {
        if (root(nodes_[static_cast<std::size_t>(node)].group) == group) continue;  // stays in registers
        if (computed_again(node) && maker >= 0 && read.tensor == graph_.output(op_at(static_cast<std::size_t>(maker)))) {
          const double share = static_cast<double>(read.bytes.value) / std::max(1.0, static_cast<double>(graph_.bytes(read.tensor).value));
          Sources scaled;
          add(scaled, nodes_[static_cast<std::size_t>(node)].sources, std::min(1.0, share));
          read_into(reads, scaled, group, where);
          continue;
        }
      }
      add(reads, {read});
    }
  }

  void find_last_uses() {
    plan_.last_use.assign(graph_.tensors.size(), -1);
    auto touch = [&](TensorId value, std::size_t at) {
      std::int32_t& last = plan_.last_use[graph_.tensors[value].storage.index()];
      last = std::max(last, static_cast<std::int32_t>(at));
    };
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = op_at(i);
      if (flow_.part[i] == Part::library) {
        for (TensorId id : graph_.inputs(op)) touch(flow_.value[id.index()], i);
        for (TensorId id : graph_.outputs(op)) touch(id, i);
      }
      for (std::int32_t k : plan_.ops[i].kernels) {
        for (const FusedRead& read : plan_.kernels[static_cast<std::size_t>(k)].reads)
          if (!read.remade) touch(read.tensor, i);
        for (TensorId id : plan_.kernels[static_cast<std::size_t>(k)].writes) touch(id, i);
      }
      if (flow_.part[i] == Part::scatter) touch(graph_.output(op), i);
    }
  }

  struct Table {
    std::int32_t op;
    TensorId tensor;
    Bytes wide;
  };

  const Graph& graph_;
  int sms_;
  ImageLayout layout_;
  OwnKernels own_;
  Flow flow_;
  std::vector<char> saved_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<Group> groups_;
  std::vector<Table> tables_;
  std::map<std::pair<TensorId, Flow::Where>, bool> copied_;
  struct PaddedCopies {
    std::size_t where = 0;            // the operator before which they are made
    std::array<bool, 2> made{};       // as it is, transposed
  };
  std::map<std::pair<TensorId, Flow::Where>, PaddedCopies> padded_;
  std::map<std::pair<TensorId, std::pair<int, Flow::Where>>, std::int32_t> by_source_;
  FusionPlan plan_;
  std::int32_t last_forward_ = -1;  // the loss
};

}  // namespace

FusionPlan plan_fusion(const Graph& step_graph, int sms, ImageLayout layout, OwnKernels own) {
  FusionPlan plan = Fuser(step_graph, sms, layout, own).run();
  plan.own = own;
  return plan;
}

std::string verify(const FusionPlan& plan, const Graph& graph) {
  const Flow flow = follow_values(graph, plan.own);
  const std::size_t library = plan.kernels.size();  // steps: kernels, then library calls by operator
  std::vector<std::int32_t> writer(graph.tensors.size(), -1);
  std::vector<std::vector<TensorId>> reads(library + graph.ops.size());
  auto write = [&](TensorId id, std::size_t step) {
    if (writer[id.index()] >= 0) return false;
    writer[id.index()] = static_cast<std::int32_t>(step);
    return true;
  };
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[graph.ops.id_at(i)];
    if (flow.part[i] == Part::scatter) write(graph.output(op), library + i);
    if (flow.part[i] != Part::library) continue;
    for (TensorId id : graph.outputs(op))
      if (!write(id, library + i)) return fmt::format("{} is written twice", to_text(graph, id));
    for (TensorId id : graph.inputs(op)) reads[library + i].push_back(flow.value[id.index()]);
  }
  for (std::size_t k = 0; k < library; ++k) {
    for (TensorId id : plan.kernels[k].writes)
      if (flow.part[static_cast<std::size_t>(flow.maker[id.index()])] != Part::scatter && !write(id, k))
        return fmt::format("{} is written twice", to_text(graph, id));
    for (const FusedRead& read : plan.kernels[k].reads)
      if (!read.remade) reads[k].push_back(read.tensor);
  }
  // Depth first over who must run before whom: 1 is under way, 2 is done.
  std::vector<char> state(reads.size(), 0);
  std::vector<std::pair<std::size_t, std::size_t>> stack;
  for (std::size_t first = 0; first < reads.size(); ++first) {
    if (state[first] != 0) continue;
    stack.push_back({first, 0});
    state[first] = 1;
    while (!stack.empty()) {
      auto& [step, next] = stack.back();
      if (next == reads[step].size()) {
        state[step] = 2;
        stack.pop_back();
        continue;
      }
      const TensorId id = reads[step][next++];
      if (flow.maker[id.index()] < 0) continue;
      if (writer[id.index()] < 0) return fmt::format("{} is read and never written", to_text(graph, id));
      const auto before = static_cast<std::size_t>(writer[id.index()]);
      if (state[before] == 1) return fmt::format("{} is needed to make itself", to_text(graph, id));
      if (state[before] == 0) {
        state[before] = 1;
        stack.push_back({before, 0});
      }
    }
  }
  return {};
}

// reduction_split_factor in torch/_inductor/choices.py, as far as one, two or more stages go.
int row_stages(std::int64_t rows, std::int64_t length, int sms) { return rows < 2 * static_cast<std::int64_t>(sms) && length > 8192 ? 2 : 1; }
std::int64_t column_pieces(std::int64_t results, std::int64_t length, int sms) {
  if (length <= 32 || results >= 64 * static_cast<std::int64_t>(sms)) return 1;
  constexpr std::int64_t kLeastPerThread = 32, kThreadsPerSm = 2048, kReadsPerThread = 4, kThreads = 256, kColumns = 128;
  std::int64_t split = kLeastPerThread;
  if (length * results >= kLeastPerThread * sms * kThreadsPerSm) {
    const std::int64_t column_blocks = (results + kColumns - 1) / kColumns;
    const std::int64_t blocks = (sms * kThreadsPerSm / kThreads + column_blocks - 1) / column_blocks;
    split = std::clamp<std::int64_t>((length + kReadsPerThread * blocks - 1) / (kReadsPerThread * blocks), kLeastPerThread, 512);
  }
  return (length + kReadsPerThread * split - 1) / (kReadsPerThread * split);
}
int column_stages(std::int64_t results, std::int64_t length, int sms) {
  if (results == 1) return length > 8192 ? 2 : 1;
  return column_pieces(results, length, sms) > 1 ? 2 : 1;
}

void compact_indices(Graph& step_graph) {
  for (const Op& op : step_graph.ops)
    if (op.kind == OpKind::max_pool2d && op.output_count > 1) step_graph.tensors[step_graph.output(op, 1)].dtype = DType::int8;
}

// decide_layout_opt in torch/_inductor/graph.py.
MemoryFormat compiled_memory_format(const Graph& step_graph, MemoryFormat asked) {
  std::size_t convolutions = 0, forward = 0;
  bool grouped = false, narrowing = false, all_small = true;
  for (const Op& op : step_graph.ops) {
    if (op.phase != Phase::forward) continue;
    if (definition(op.kind).family != Family::view) ++forward;
    if (op.kind != OpKind::conv2d) continue;
    ++convolutions;
    const Shape& weight = step_graph.tensors[step_graph.input(op, 1)].shape;
    if (weight.rank() < 3) continue;
    const auto& conv = std::get<ConvAttributes>(op.attributes);
    grouped = grouped || (conv.groups > 1 && weight[1] > 1);
    narrowing = narrowing || (weight[0] * 2 <= weight[1] && weight[2] > 1);
    all_small = all_small && weight[0] <= 64 && weight[1] <= 64;
  }
  if (convolutions == 0 || grouped || narrowing || all_small || forward >= 300 * convolutions) return asked;
  return MemoryFormat::channels_last;
}

std::string to_text(const FusionPlan& plan, const Graph& graph) {
  static constexpr std::array<std::string_view, 4> kNames = {"pointwise", "rows", "columns", "scatter"};
  std::string out;
  for (const FusionPlan::PerOp& at : plan.ops)
    for (std::int32_t index : at.kernels) {
      const FusedKernel& kernel = plan.kernels[static_cast<std::size_t>(index)];
      out += fmt::format("{} {}x{}", kNames[static_cast<std::size_t>(kernel.kind)], kernel.rows, kernel.row_length);
      if (kernel.stages > 1) out += fmt::format(" in {} stages", kernel.stages);
      out += ':';
      for (OpId op : kernel.ops) out += fmt::format(" {}", name_of(graph, graph.ops[op]));
      out += " <-";
      for (const FusedRead& read : kernel.reads) out += ' ' + to_text(graph, read.tensor);
      out += " ->";
      for (TensorId id : kernel.writes) out += ' ' + to_text(graph, id);
      out += '\n';
    }
  return out;
}

}  // namespace precog
