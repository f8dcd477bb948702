#include "memory/lifetimes.h"

#include <algorithm>
#include <array>
#include <utility>

#include "graph/operator.h"
#include "graph/weights_alone.h"
#include "memory/allocator.h"
#include "parallel/layer_plans.h"
#include "training/optimizer.h"

namespace precog {
namespace {

// cuBLAS workspace that PyTorch allocates per handle and stream: 32 MiB on Hopper and later, 8.125 MiB before
// (CUBLAS_WORKSPACE_CONFIG's default ":4096:2:16:8"; aten/src/ATen/cuda/CublasHandlePool.cpp). Handles belong to threads: the
// one that runs forward and autograd's. 332 recorded steps hold 64 MiB and rounding between steps besides model and states.
std::int64_t cublas_workspace(const GpuSpec& gpu) { return gpu.capability() >= 90 ? 32 << 20 : 8519680; }

constexpr std::int32_t kForever = 0x7fffffff;

class Tracer {
 public:
  Tracer(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training, const GpuSpec& gpu)
      : step_(step), graph_(step.graph), program_(program), training_(training), gpu_(gpu), compiled_(!program.last_use.empty()) {}

  MemoryTrace run() {
    find_last_uses();
    find_scores();
    find_returned_scores();
    hold_what_stays();
    of_weights_ = weights_alone(graph_);
    const std::size_t ops = graph_.ops.size();
    dies_.resize(ops);
    trace_.blocks.reserve(graph_.tensors.size());
    trace_.events.reserve(2 * graph_.tensors.size());
    trace_.first_event.reserve(ops + 1);
    find_graphs();
    bool forward_products = false, backward_products = false, updated = false;
    for (std::size_t i = 0; i < ops; ++i) {
      trace_.first_event.push_back(static_cast<std::uint32_t>(trace_.events.size()));
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      if (program_.calls[i].family == Family::gemm) {
        bool& known = op.phase == Phase::forward ? forward_products : backward_products;
        if (!known) hold_workspace(i);
        known = true;
      }
      if (i == first_graph_call_) copy_inputs();
      if (compiled_ && op.phase == Phase::backward && !backward_began_) make_zero_gradient();
      backward_began_ = backward_began_ || op.phase == Phase::backward;
      if (op.phase == Phase::optimizer && !updated) make_states();
      updated = updated || op.phase == Phase::optimizer;
      if (op.phase >= Phase::loss_scaling) convert_gradients();
      flatten_weights(op, i);
      make_outputs(op, i);
      const Bytes workspace = program_.calls[i].workspace;
      if (workspace.value > 0) {
        const std::int32_t block = add({.bytes = workspace.value, .category = MemoryCategory::workspaces, .dtype = op.math, .name = op.module, .in_graph_pool = in_graph(i)});
        put(MemoryEvent::Kind::take, block);
        put(MemoryEvent::Kind::give, block);
      }
      for (std::int32_t block = dies_[i].first; block >= 0; block = after_[static_cast<std::size_t>(block)]) put(MemoryEvent::Kind::give, block);
    }
    trace_.first_event.push_back(static_cast<std::uint32_t>(trace_.events.size()));
    return std::move(trace_);
  }

 private:
  std::int32_t add(const MemoryBlock& block) {
    trace_.blocks.push_back(block);
    return static_cast<std::int32_t>(trace_.blocks.size() - 1);
  }
  void put(MemoryEvent::Kind kind, std::int32_t block) { trace_.events.push_back({kind, block}); }
  void dies_at(std::size_t op, std::int32_t block) {
    while (after_.size() < trace_.blocks.size()) after_.push_back(-1);
    Dying& chain = dies_[op];
    (chain.last >= 0 ? after_[static_cast<std::size_t>(chain.last)] : chain.first) = block;
    chain.last = block;
  }
  void once(const MemoryBlock& block) { put(MemoryEvent::Kind::take_once, add(block)); }
  void reside(const MemoryBlock& block) {
    if (block.bytes > 0) trace_.resident.push_back(add(block));
  }
  std::int64_t share(std::int64_t elements, int ranks) const { return (elements + ranks - 1) / ranks; }
  std::size_t storage(TensorId id) const { return graph_.tensors[id].storage.index(); }

  // CUDA graphs (torch/_inductor/cudagraph_trees.py): what a recorded call makes lies in a pool of their own, forward's and backward's together
  // (CUDAGraphTreeManager), and stays there between replays, where the rest of the step cannot have it.
  bool in_graph(std::size_t i) const { return program_.cuda_graphs && program_.calls[i].compiled; }
  void find_graphs() {
    first_graph_call_ = graph_.ops.size();
    if (!program_.cuda_graphs) return;
    last_graph_call_.fill(0);
    for (std::size_t i = graph_.ops.size(); i-- > 0;) {
      if (!in_graph(i)) continue;
      std::size_t& last = last_graph_call_[graph_.ops[graph_.ops.id_at(i)].phase == Phase::forward ? 0 : 1];
      last = std::max(last, i);
      first_graph_call_ = i;
    }
  }
  // Inputs that are not where they were are copied in at each replay, so that there are two of them (_allocate_and_copy_recording_inputs); the
  // copy is let go when nobody reads it. Parameters and buffers stay where they are.
  void copy_inputs() {
    std::vector<std::size_t> last_read(graph_.tensors.size(), 0);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      if (in_graph(i))
        for (TensorId id : graph_.inputs(graph_.ops[graph_.ops.id_at(i)])) last_read[storage(id)] = i + 1;
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[graph_.tensors.id_at(i)];
      if (tensor.role != Role::input || tensor.storage.index() != i || last_read[i] == 0) continue;
      const std::int32_t block = add({.bytes = graph_.bytes(graph_.tensors.id_at(i)).value, .category = MemoryCategory::inputs, .dtype = tensor.dtype, .in_graph_pool = true});
      put(MemoryEvent::Kind::take, block);
      dies_at(last_read[i] - 1, block);
    }
  }
  // A handle's workspace is held from its first product on; while a graph is recorded, until that ends (clear_cublas_manager).
  void hold_workspace(std::size_t i) {
    if (!in_graph(i)) return once({cublas_workspace(gpu_), MemoryCategory::libraries});
    const std::int32_t block = add({.bytes = cublas_workspace(gpu_), .category = MemoryCategory::libraries, .in_graph_pool = true});
    put(MemoryEvent::Kind::take, block);
    dies_at(std::max(i, last_graph_call_[graph_.ops[graph_.ops.id_at(i)].phase == Phase::forward ? 0 : 1]), block);
  }

  // cuDNN wants a recurrent layer's weights in one piece. nn.RNN keeps them so, but not in bf16 (torch.backends.cudnn does not count it
  // among its types): every forward makes a copy, which backward reads.
  void flatten_weights(const Op& op, std::size_t i) {
    if (op.kind != OpKind::rnn || op.phase != Phase::forward) return;
    std::int64_t bytes = 0;
    for (TensorId id : graph_.inputs(op))
      if (const Tensor& tensor = graph_.tensors[id]; tensor.role == Role::parameter && tensor.dtype == DType::bf16) bytes += graph_.bytes(id).value;
    if (bytes == 0) return;
    const std::int32_t block = add({bytes, MemoryCategory::weight_casts, DType::bf16, op.module});
    put(MemoryEvent::Kind::take, block);
    std::size_t last = i;
    for (std::size_t later = i + 1; later < graph_.ops.size(); ++later)
      if (const Op& other = graph_.ops[graph_.ops.id_at(later)]; other.kind == OpKind::rnn_backward && other.origin == graph_.ops.id_at(i)) last = later;
    dies_at(last, block);
  }

  // A compiled language model returns its scores beside the loss. Nobody differentiates them, but the compiled backward takes a
  // gradient for every result: autograd hands it zeros, which live until the first kernel has added them. Where the scores are another
  // graph's result, it hands over the loss's gradient of them, and nothing is made.
  void make_zero_gradient() {
    if (!scores_.valid() || program_.scores != Scores::returned) return;
    const MemoryBlock zeros{graph_.bytes(scores_).value, MemoryCategory::temporaries, graph_.tensors[scores_].dtype};
    std::int32_t block = add(zeros);
    put(MemoryEvent::Kind::take, block);
    if (program_.cuda_graphs) {  // an input of backward's graph like any other: copied in
      const std::int32_t made = block;
      block = add(zeros);
      trace_.blocks.back().in_graph_pool = true;
      put(MemoryEvent::Kind::take, block);
      put(MemoryEvent::Kind::give, made);
    }
    dies_at(scores_gradient_, block);
    not_ours_.push_back(block);
  }
  void find_returned_scores() {
    for (std::size_t i = 0; i < graph_.ops.size() && compiled_ && !program_.dispatched && program_.scores != Scores::inside; ++i) {
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      if (op.kind != OpKind::log_softmax_backward || !op.origin.valid()) continue;
      scores_ = graph_.tensors[graph_.input(graph_.ops[op.origin], 0)].storage;
      scores_gradient_ = i;
      return;
    }
  }

  // Head and loss in pieces: of all that has the size of the scores one tensor is there, a piece of them in the products' type,
  // from where the first was made to where the last is read.
  void find_scores() {
    if (training_.loss_chunks == 0) return;
    std::int64_t scores = 0;
    for (const Op& op : graph_.ops)
      if (op.kind == OpKind::log_softmax && op.block < 0) scores = std::max(scores, graph_.tensors[graph_.input(op, 0)].shape.elements());
    if (scores == 0) return;
    chunk_.assign(graph_.tensors.size(), 0);
    TensorId first;
    std::int32_t last = -1;
    for (const Op& op : graph_.ops) {
      if (op.block >= 0 || op.phase > Phase::backward) continue;
      for (TensorId id : graph_.outputs(op)) {
        const Tensor& tensor = graph_.tensors[id];
        if (tensor.role != Role::activation || tensor.storage != id || last_use_[id.index()] < 0) continue;
        const bool of_loss = tensor.shape.elements() >= scores - scores / 64 && tensor.shape.elements() <= scores + scores / 64;  // shifted by a token, too
        if (!of_loss) continue;
        chunk_[id.index()] = 1;
        if (!first.valid()) first = id;
        last = std::max(last, last_use_[id.index()]);
      }
    }
    if (!first.valid()) return;
    chunk_[first.index()] = 2;
    last_use_[first.index()] = last;
  }
  // A program that plans its memory turns queries and keys in place and keeps of a tensor what backward reads: the views of it
  // that are read, not all that they are views of.
  void find_parts_read_later() {
    if (training_.allocator != Allocator::planned) return;
    part_.assign(graph_.tensors.size(), 0);
    std::vector<char> counted(graph_.tensors.size(), 0);
    for (const Op& op : graph_.ops) {
      if (op.phase == Phase::forward || op.phase > Phase::backward) continue;
      for (TensorId id : graph_.inputs(op))
        if (!std::exchange(counted[id.index()], 1)) part_[storage(id)] += graph_.bytes(id).value;
    }
  }
  bool in_pieces(TensorId id) const { return id.index() < chunk_.size() && chunk_[id.index()] != 0; }
  std::int64_t bytes_of(TensorId id) const {
    std::int64_t bytes = graph_.bytes(id).value;
    if (!part_.empty() && part_[id.index()] > 0) bytes = std::min(bytes, part_[id.index()]);
    if (!in_pieces(id)) return bytes;
    return chunk_[id.index()] == 2 ? (bytes + training_.loss_chunks - 1) / training_.loss_chunks : 0;
  }

  // A fused kernel writes its result over an operand of the same size that nobody reads afterwards, unless the graph's caller
  // may still hold it: what it returned, what it was given a gradient of.
  void write_over(std::size_t i, std::int64_t bytes, std::size_t made_here) {
    const Call& call = program_.calls[i];
    if (!compiled_ || call.kernel_count == 0 || !program_.kernels[call.first_kernel].fused) return;
    for (std::int32_t before = -1, at = dies_[i].first; at >= 0; before = at, at = after_[static_cast<std::size_t>(at)]) {
      if (static_cast<std::size_t>(at) >= made_here || trace_.blocks[static_cast<std::size_t>(at)].bytes != bytes) continue;
      if (std::find(not_ours_.begin(), not_ours_.end(), at) != not_ours_.end()) continue;
      put(MemoryEvent::Kind::give, at);
      const std::int32_t next = after_[static_cast<std::size_t>(at)];
      (before >= 0 ? after_[static_cast<std::size_t>(before)] : dies_[i].first) = next;
      if (dies_[i].last == at) dies_[i].last = before;
      return;
    }
  }

  // The last operator that touches each storage, through whatever view.
  void find_last_uses() {
    last_use_.assign(graph_.tensors.size(), -1);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      for (TensorId id : graph_.inputs(op)) last_use_[storage(id)] = static_cast<std::int32_t>(i);
      for (TensorId id : graph_.outputs(op)) last_use_[storage(id)] = static_cast<std::int32_t>(i);
      if (op.phase == Phase::forward) last_forward_ = static_cast<std::int32_t>(i);
    }
    if (compiled_) {  // some tensors never reach memory
      last_use_ = program_.last_use;
      return;
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      // NllLossBackward keeps the log-probabilities, though its kernel wants their shape only (derivatives.yaml: nll_loss).
      if (op.kind == OpKind::nll_loss_backward && op.origin.valid())
        hold_until(graph_.input(graph_.ops[op.origin], 0), static_cast<std::int32_t>(i));
      if (const int kept = kept_for_its_shape(op); kept >= 0) hold_until(graph_.input(graph_.ops[op.origin], kept), static_cast<std::int32_t>(i));
      // Autocast's cache holds the copy of a weight until the region ends, whoever reads it.
      if (op.phase == Phase::forward && is_weight_cast(op) && graph_.tensors[graph_.input(op, 0)].requires_grad) hold_until(graph_.output(op), last_forward_);
    }
  }
  // Formulas that name an operand for its shape only still keep all of it (derivatives.yaml: index_add's and index_copy's source is
  // what the gradient is expanded as; gather_backward takes the operand itself). The backward operator that is there only where that
  // operand wants a gradient says which: without it, nothing is kept. -1: no such operand.
  int kept_for_its_shape(const Op& op) const {
    if (op.phase != Phase::backward || !op.origin.valid()) return -1;
    const Op& forward = graph_.ops[op.origin];
    if (forward.kind != OpKind::scatter && forward.kind != OpKind::gather) return -1;
    const std::string_view made = name_of(graph_, forward), undone = name_of(graph_, op);
    if ((made == "index_add" || made == "index_copy") && undone == "index_select" && forward.input_count == 3) return 2;
    if (made == "gather" && undone == "scatter_add") return 0;
    return -1;
  }
  void hold_until(TensorId id, std::int32_t op) {
    std::int32_t& last = last_use_[storage(id)];
    if (last >= 0) last = std::max(last, op);
  }
  bool is_weight_cast(const Op& op) const {
    if (op.kind != OpKind::cast || op.input_count == 0 || op.output_count == 0) return false;
    const Role role = graph_.tensors[graph_.tensors[graph_.input(op, 0)].storage].role;
    return role == Role::parameter || role == Role::gathered;
  }

  // Parameters that are not on the GPU between their uses; and, where the host or the optimizer's shares have them, those that only
  // conversions read.
  bool on_host(TensorId parameter) const {
    if (step_.shards.parameters_on_host) return true;
    return step_.shards.converted_on_host && !read_itself_[parameter.index()];
  }
  void find_what_is_read_itself() {
    if (!step_.shards.converted_on_host) return;
    read_itself_.assign(graph_.tensors.size(), 0);
    for (const Op& op : graph_.ops) {
      if (op.kind == OpKind::quantize || op.phase > Phase::backward || (op.kind == OpKind::reduction && graph_.name(op.label) == "amax")) continue;
      // A product of converted operands names the weight last, for its gradient.
      for (TensorId id : graph_.inputs(op))
        if (op.kind != OpKind::scaled_mm) read_itself_[storage(id)] = 1;
    }
  }

  void hold_what_stays() {
    find_what_is_read_itself();
    find_parts_read_later();
    const DType state = step_.optimizer_state_type;
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
      const TensorId id = graph_.tensors.id_at(i);
      const Tensor& tensor = graph_.tensors[id];
      const std::int64_t bytes = graph_.bytes(id).value;
      if (tensor.role == Role::parameter && !on_host(id)) {
        const DType kept = step_.shards.parameter_type.value_or(tensor.dtype);
        reside({share(tensor.shape.elements(), ranks_sharing(step_, id, step_.shards.parameters)) * bits_of(kept) / 8, MemoryCategory::parameters, kept, tensor.name, true});
      }
      if (tensor.role == Role::input) reside({bytes, MemoryCategory::inputs, tensor.dtype});
      if (tensor.role == Role::buffer && tensor.storage == id) reside({bytes, MemoryCategory::parameters, tensor.dtype, tensor.name, true});
      if (tensor.role == Role::gradient_bucket) reside({bytes, MemoryCategory::gradient_buckets, tensor.dtype});
    }
    if (step_.gradients_folded) reside({step_.main_gradients.value, MemoryCategory::gradient_buckets, DType::fp32});
    // Whoever keeps master weights makes them with the optimizer (Megatron, DeepSpeed, apex).
    if (step_.master_weights.value > 0) reside({masters_kept(step_, step_.shards.optimizer).value, MemoryCategory::master_weights, DType::fp32});
    for (const ParameterGradient& g : step_.gradients) {
      const Tensor& parameter = graph_.tensors[g.parameter];
      const std::int64_t elements = static_cast<std::int64_t>(static_cast<double>(share(parameter.shape.elements(), ranks_sharing(step_, g.parameter, step_.shards.optimizer))) * step_.shards.updated_here);
      for (std::int64_t i = 0; i < state_tensors(training_.optimizer); ++i)
        states_.push_back({elements * bits_of(state) / 8, MemoryCategory::optimizer_states, state, parameter.name, true});
      updated_elements_.push_back(elements);
    }
    if (step_.shards.flat) {
      std::int64_t elements = 0;
      for (std::int64_t one : updated_elements_) elements += one;
      for (std::int64_t i = 0; i < state_tensors(training_.optimizer); ++i) reside({elements * bits_of(state) / 8, MemoryCategory::optimizer_states, state});
      states_.clear();
    }

    // A gradient stays until the next step clears it; when accumulating, those of earlier micro-batches are there all
    // along and a new one is folded in as soon as it is complete.
    is_gradient_.assign(graph_.tensors.size(), 0);
    // Gradients that are zeroed and not dropped are there from the first step on (software of old; step_graph.h says when).
    const bool zeroed = training_.zeroes_gradients && step_.master_weights.value == 0;
    const bool accumulating = training_.micro_batches > 1 || zeroed, folded = accumulating || step_.gradients_folded;
    auto keep = [&](TensorId gradient, std::int32_t folded_in_by) {
      const std::size_t at = storage(gradient);
      is_gradient_[at] = folded ? 0 : 1;
      last_use_[at] = folded ? folded_in_by : kForever;
      if (accumulating && !step_.gradients_folded) reside({graph_.bytes(gradient).value, MemoryCategory::gradients, graph_.tensors[gradient].dtype});
    };
    if (!step_.shards.gradients_released)
      for (const ParameterGradient& g : step_.gradients) keep(g.gradient, g.made_by.value);
    if (step_.shards.flat) keep_in_one_buffer(step_.shards.kept_gradients);
    else
      for (TensorId shard : step_.shards.kept_gradients) keep(shard, last_use_[shard.index()]);
  }

  // What reductions leave is copied to its place there.
  void keep_in_one_buffer(const std::vector<TensorId>& shards) {
    std::int64_t bytes = 0;
    for (TensorId shard : shards) bytes += graph_.bytes(shard).value;
    if (!shards.empty()) reside({bytes, MemoryCategory::gradients, graph_.tensors[shards.front()].dtype});
  }

  // Main gradients that are made at the end of a step are let go with it.
  void convert_gradients() {
    if (step_.gradients_folded || step_.main_gradients.value == 0 || std::exchange(converted_, true)) return;
    const std::int32_t block = add({step_.main_gradients.value, MemoryCategory::gradient_buckets, DType::fp32});
    put(MemoryEvent::Kind::take, block);
    dies_at(graph_.ops.size() - 1, block);
  }

  // States appear in the first update, where what backward has given back lies free: that is where they settle.
  void make_states() {
    for (const MemoryBlock& state : states_) once(state);
  }

  void make_outputs(const Op& op, std::size_t i) {
    const std::size_t made_here = trace_.blocks.size();
    for (TensorId id : graph_.outputs(op)) {
      const Tensor& tensor = graph_.tensors[id];
      const bool allocated = tensor.storage == id && (tensor.role == Role::activation || tensor.role == Role::gradient);
      if (!allocated || (compiled_ && last_use_[id.index()] < 0)) continue;
      const std::int32_t last = last_use_[id.index()];
      const MemoryCategory category = category_of(op, id, last);
      auto make = [&](std::int64_t bytes) {
        write_over(i, bytes, made_here);
        const std::int32_t block = add({.bytes = bytes, .category = category, .dtype = tensor.dtype, .name = op.module, .in_graph_pool = in_graph(i)});
        put(MemoryEvent::Kind::take, block);
        if (id == scores_) not_ours_.push_back(block);
        if (op.phase == Phase::forward && category == MemoryCategory::activations && bytes > 0 && !of_weights_[id.index()] && !in_pieces(id))
          trace_.kept.push_back(block);
        if (last == kForever) trace_.cleared.push_back(block);
        else dies_at(static_cast<std::size_t>(std::max<std::int32_t>(last, static_cast<std::int32_t>(i))), block);
      };
      if (!make_one_per_parameter(op, tensor, make)) make(bytes_of(id));
    }
  }
  // What a multi-tensor call makes is a list with one tensor per parameter.
  template <class Make>
  bool make_one_per_parameter(const Op& op, const Tensor& tensor, Make make) const {
    if (op.kind != OpKind::multi_tensor) return false;
    std::int64_t elements = 0;
    for (std::int64_t one : updated_elements_) elements += one;
    if (elements != tensor.shape.elements()) return false;
    for (std::int64_t one : updated_elements_) make(one * bits_of(tensor.dtype) / 8);
    return true;
  }

  MemoryCategory category_of(const Op& op, TensorId id, std::int32_t last) const {
    if (is_gradient_[id.index()]) return MemoryCategory::gradients;
    // What the optimizer makes on its way is no activation: recomputation would not save it.
    if (op.phase == Phase::optimizer || op.phase == Phase::loss_scaling) return MemoryCategory::optimizer_temporaries;
    if (op.kind == OpKind::shard_copy && graph_.name(op.label) == "from_host")
      return graph_.tensors[id].dtype == DType::uint8 ? MemoryCategory::gathered_parameters : MemoryCategory::activations;
    if (op.kind == OpKind::shard_copy)
      return op.phase == Phase::backward && graph_.name(op.label) != "all_gather" && graph_.name(op.label) != "split_with_sizes_copy"
                 ? MemoryCategory::gradient_buckets : MemoryCategory::gathered_parameters;
    if (is_weight_cast(op)) return MemoryCategory::weight_casts;
    if (op.phase == Phase::recompute) return MemoryCategory::recomputed;
    return op.phase == Phase::forward && last > last_forward_ ? MemoryCategory::activations : MemoryCategory::temporaries;
  }

  const StepGraph& step_;
  const Graph& graph_;
  const KernelProgram& program_;
  const TrainingOptions& training_;
  const GpuSpec& gpu_;
  bool compiled_;
  bool backward_began_ = false, converted_ = false;
  TensorId scores_;                      // compiled: what the model returns beside the loss
  std::size_t scores_gradient_ = 0;      // the operator that reads its gradient
  std::vector<std::int32_t> not_ours_;   // blocks that no kernel may write over
  std::size_t first_graph_call_ = 0;                 // of CUDA graphs; past the last where there are none
  std::array<std::size_t, 2> last_graph_call_{};     // of forward's, of backward's
  std::int32_t last_forward_ = -1;
  std::vector<std::int32_t> last_use_;
  std::vector<char> is_gradient_;
  std::vector<char> chunk_;              // by tensor: of the scores' size, and the one that stands for all; where they are made in pieces
  std::vector<char> of_weights_;         // by tensor
  std::vector<std::int64_t> part_;       // by storage: bytes of it that backward reads
  std::vector<char> read_itself_;        // by parameter, see on_host
  std::vector<MemoryBlock> states_;
  std::vector<std::int64_t> updated_elements_;
  struct Dying {
    std::int32_t first = -1, last = -1;  // of a chain of blocks
  };
  std::vector<Dying> dies_;              // by operator: what nobody needs after it
  std::vector<std::int32_t> after_;      // by block: the next one of its chain
  MemoryTrace trace_;
};

}  // namespace

MemoryTrace memory_trace(const StepGraph& step, const KernelProgram& program, const TrainingOptions& training, const GpuSpec& gpu) {
  return Tracer(step, program, training, gpu).run();
}

BytesByType kept_by_type(const MemoryTrace& trace) {
  BytesByType out{};
  for (std::int32_t kept : trace.kept) {
    const MemoryBlock& block = trace.blocks[static_cast<std::size_t>(kept)];
    out[static_cast<std::size_t>(block.dtype)] += Bytes{CachingAllocator::rounded(block.bytes)};
  }
  return out;
}

std::string_view to_text(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "parameters", "gradients",  "gradient_buckets", "gathered_parameters", "optimizer_states",      "master_weights", "inputs",
      "weight_casts", "activations", "recomputed",    "temporaries",         "optimizer_temporaries", "workspaces",     "libraries"};
  return kNames[static_cast<std::size_t>(category)];
}

}  // namespace precog
