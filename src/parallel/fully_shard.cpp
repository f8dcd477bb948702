// torch.distributed.fsdp.fully_shard (FSDP2, PyTorch 2.11) on every repeated block (or what else UnitGathers says) and on the model around them.
// Each block's parameters are one group: gathered before its forward, let go after it, gathered again before its backward; its
// gradients are reduce_scattered when its backward is done. The rest of the model is the root's group, gathered once and kept.
//
// The order on the streams is _fsdp_param_group.py's and _fsdp_collectives.py's:
// - a gather is a foreach copy of the shards into the message (a cast before it where shards are kept in another type) and an
//   all_gather, both on streams of their own; the compute stream waits for it and copies the parameters out of the message.
// - in forward the host issues it when it reaches the block, and it may run once the group before the last has been copied
//   out: it is hidden as far as the host runs ahead. In backward the next group's is issued before a group computes.
// - after a group's backward the compute stream waits for the reduction before, copies the gradients into one message
//   (chunk_cat, which also casts) and goes on; the reduction and the cast of the shard that it leaves run beside it.
// - where several groups hold copies (HYBRID_SHARD), each reduced shard is summed over the groups on a third stream, and what is
//   done with it afterwards is done there.
// A world of one gathers nothing, but casts and copies all the same.
//
// DeepSpeed's ZeRO 3 (runtime/zero/partitioned_param_coordinator.py, stage3.py) goes by modules instead: when one begins, what it lacks is
// gathered, and in one more message the parameters that come next, up to prefetch elements and as many as may live; what is wanted again
// within a distance is kept, which is so of the last modules of forward; gradients are reduced when a bucket of them is full. ZeRO++ adds to
// that: a second copy of the weights that backward gathers inside the node, made when forward lets the first go (_partition_param_sec), and
// messages of fewer bits (quantised_messages.h).
#include <algorithm>
#include <map>
#include <set>

#include "parallel/quantised_messages.h"
#include "parallel/rewrite.h"
#include "parallel/shard_groups.h"

namespace precog {
namespace {

// torchao's conversion of a shard to fp8, operator by operator: scaled, clamped, converted.
constexpr std::int64_t kQuantiseKernels = 3;

class FullySharded {
 public:
  FullySharded(int ranks, int copies, bool keep_gathered, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step)
      : ranks_(ranks), copies_(copies), node_ranks_(std::min(ranks, how.node_ranks)), keep_gathered_(keep_gathered), on_host_(how.offload_parameters), gathers_(how.gathers), by_module_(how.by_module ? &*how.by_module : nullptr), recipe_(recipe),
        step_(step), groups_(ranks, how, recipe, step), out_(step), graph_(step.graph) {
    bucket_ = of_all_ranks();
    if (recipe.master_weights && recipe.master_weights->copied == MasterWeights::Copied::on_gather) stored_ = recipe.master_weights->dtype;
    for (std::size_t i = 0; i < out_.size(); ++i) accumulates_ = accumulates_ || out_.old(i).phase == Phase::accumulate;
    if (!step.gradients_folded) return;
    // No whole buffers of main gradients here: each group's reduction leaves a shard of them, and shards are summed.
    accumulates_ = true;
    step.gradients_folded = false;
    step.main_gradients = {};
    for (const ParameterGradient& g : step.gradients) graph_.tensors[g.gradient].role = Role::gradient;
  }

  void run() {
    if (by_module_) go_by_modules();
    else go_by_blocks();
    agree_on_scales();
    out_.finish();
    step_.shards.parameters = step_.shards.optimizer = {ranks_, step_.expert_sharers(ranks_)};
    step_.shards.parameter_type = stored_;
    step_.shards.parameters_on_host = on_host_;
    step_.shards.gradients_released = true;
  }

 private:
  void go_by_blocks() {
    std::size_t prefetched = 0, reduced = 0;
    bool backward_began = false, root_done = false;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      const Op& op = out_.old(i);
      ShardGroup* group = groups_.of(op);
      if (i == 0 && groups_.root) gather_in_forward(*groups_.root);
      if (group && group->first_forward == i) gather_in_forward(*group);
      if (!backward_began && (op.phase == Phase::backward || op.phase == Phase::recompute)) {
        backward_began = true;
        if (gathers_.backward != UnitGathers::Backward::none) prefetch(prefetched++);
      }
      if (group && group->first_backward == i && !keep_gathered_) {
        if (gathers_.backward == UnitGathers::Backward::none) prefetch(prefetched++);
        copy_out(*group, Phase::backward);
        if (gathers_.backward == UnitGathers::Backward::before) prefetch(prefetched++);
      }
      if (ends_step(op.phase) && !root_done) finish_root(root_done);
      if (out_.accumulates(i)) out_.drop(i);
      else out_.keep(i);
      if (group && group->last_forward == i && !keep_gathered_) release(*group, Phase::forward);
      for (; reduced < groups_.by_end_of_backward.size() && groups_.by_end_of_backward[reduced]->last_backward == i; ++reduced) {
        release(*groups_.by_end_of_backward[reduced], Phase::backward);
        if (gathers_.backward == UnitGathers::Backward::after && !groups_.by_end_of_backward[reduced]->of_experts) prefetch(prefetched++);
        reduce(*groups_.by_end_of_backward[reduced]);
      }
    }
    if (!root_done) finish_root(root_done);
  }

  // The group of no unit, to be filled.
  ShardGroup of_all_ranks() const {
    ShardGroup group;
    group.ranks = ranks_, group.stride = step_.replica_stride;
    return group;
  }

  void go_by_modules() {
    keep_what_is_wanted_soon();
    keep_persistent();
    keep_second_copy();
    std::size_t reduced = 0;
    bool root_done = false;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      ShardGroup* group = groups_.of(out_.old(i));
      if (i == 0 && groups_.root) gather_in_forward(*groups_.root);
      if (group && group->first_forward == i) fetch(groups_.by_begin_of_forward, *group, Phase::forward);
      if (group && group->first_backward == i) fetch(groups_.by_begin_of_backward, *group, Phase::backward);
      if (ends_step(out_.old(i).phase) && !root_done) finish_modules(root_done);
      if (out_.accumulates(i)) out_.drop(i);
      else out_.keep(i);
      if (group && group->last_forward == i && !kept_.contains(group)) let_go(*group, Phase::forward);
      for (; reduced < groups_.by_end_of_backward.size() && groups_.by_end_of_backward[reduced]->last_backward == i; ++reduced) {
        let_go(*groups_.by_end_of_backward[reduced], Phase::backward);
        put_in_bucket(*groups_.by_end_of_backward[reduced]);
      }
    }
    if (!root_done) finish_modules(root_done);
  }

  // What every rank has of parameters that are not shared out, beyond the share that is counted of all.
  void keep_persistent() {
    std::int64_t elements = 0;
    std::optional<DType> type = stored_;
    for (const ParameterGradient& g : step_.gradients)
      if (const Tensor& parameter = graph_.tensors[g.parameter]; parameter.shape.elements() <= by_module_->persistent) {
        elements += parameter.shape.elements() - share_of(parameter.shape.elements(), ranks_);
        if (!type) type = parameter.dtype;
      }
    if (elements > 0) graph_.add_tensor({.shape = {elements}, .dtype = *type, .role = Role::buffer, .name = graph_.intern("persistent_parameters")});
  }

  // In the type that the model computes in, from the first forward of a step to its end.
  bool has_second_copy() const { return by_module_ && by_module_->secondary > 0; }
  void keep_second_copy() {
    if (!has_second_copy()) return;
    std::map<DType, std::int64_t> elements;
    for (const ShardGroup& group : groups_.all) elements[gathered_type(group)] += share_of(group.elements, by_module_->secondary);
    for (const auto& [type, count] : elements)
      if (count > 0) graph_.add_tensor({.shape = {count}, .dtype = type, .role = Role::buffer, .name = graph_.intern("second_copy")});
  }

  // Those that backward asks for before so many others have been used.
  void keep_what_is_wanted_soon() {
    std::int64_t between = 0;
    for (std::size_t i = groups_.by_begin_of_forward.size(); i-- > 0 && between < by_module_->reuse; between += 2 * groups_.by_begin_of_forward[i]->elements)
      if (groups_.by_begin_of_forward[i]->first_backward != ShardGroup::kNever) kept_.insert(groups_.by_begin_of_forward[i]);
  }

  void fetch(const std::vector<ShardGroup*>& order, ShardGroup& group, Phase phase) {
    if (!group.here) gather_together({&group}, phase);
    if (!group.whole.valid()) copy_out(group, phase);
    std::vector<ShardGroup*> next;
    std::int64_t elements = 0;
    const std::int64_t room = std::min(by_module_->live - live_, by_module_->prefetch);
    auto at = std::find(order.begin(), order.end(), &group);
    for (at = at == order.end() ? at : at + 1; at != order.end() && elements < room; ++at)
      if (!(*at)->here && !(*at)->parameters.empty()) next.push_back(*at), elements += (*at)->elements;
    gather_together(next, phase);
  }

  // One message for the parameters of all of them.
  void gather_together(const std::vector<ShardGroup*>& groups, Phase phase) {
    ShardGroup message = of_all_ranks();
    for (const ShardGroup* group : groups) {
      message.parameters.insert(message.parameters.end(), group->parameters.begin(), group->parameters.end());
      message.elements += group->elements, message.gathered += group->gathered;
      message.quantised_elements += group->quantised_elements, message.quantised_tensors += group->quantised_tensors;
    }
    gather(message, phase, {});
    for (ShardGroup* group : groups) group->arriving = message.arriving, group->arrived = message.arrived, group->here = true, live_ += group->elements;
  }

  void let_go(ShardGroup& group, Phase phase) {
    if (has_second_copy() && phase == Phase::forward && group.whole.valid()) {
      const Bytes part = bytes_of(share_of(group.elements, by_module_->secondary), gathered_type(group));
      out_.put({OpKind::shard_copy, phase, gathered_type(group), ShardCopyAttributes{group.elements / by_module_->secondary, static_cast<std::int64_t>(group.parameters.size()), part, part}, "second_copy"}, {group.whole}, {});
    }
    release(group, phase);
    if (group.here) live_ -= group.elements;
    group.here = false;
  }

  void put_in_bucket(const ShardGroup& group) {
    std::int64_t elements = 0;
    for (std::size_t i : group.gradients) elements += graph_.tensors[step_.gradients[i].gradient].shape.elements();
    if (!bucket_.gradients.empty() && bucket_.elements + elements > by_module_->reduced) empty_bucket();
    bucket_.gradients.insert(bucket_.gradients.end(), group.gradients.begin(), group.gradients.end());
    bucket_.elements += elements;
  }
  void empty_bucket() {
    reduce(bucket_);
    bucket_ = of_all_ranks();
  }
  void finish_modules(bool& done) {
    empty_bucket();
    finish_root(done);
  }

  DType gathered_type(const ShardGroup& group) const {
    return group.parameters.empty() ? DType::fp32 : graph_.tensors[group.parameters.front()].dtype;
  }

  // The shards' copies into the message, and the message. `after`: what must be done first, besides all earlier messages.
  void gather(ShardGroup& group, Phase phase, TensorId after) {
    gather_own(group, phase, after);
    if (group.experts) gather_own(*group.experts, phase, after);
  }
  void gather_own(ShardGroup& group, Phase phase, TensorId after) {
    if (group.parameters.empty() || (group.ranks == 1 && !on_host_)) return;
    const bool second = has_second_copy() && phase != Phase::forward;
    const DType type = gathered_type(group), kept = second ? type : stored_.value_or(type);
    const int ranks = second ? std::min(by_module_->secondary, group.ranks) : group.ranks;
    if (group.ranks == 1) return arrive_from_host(group, phase, after);
    const std::int64_t tensors = static_cast<std::int64_t>(group.parameters.size());
    const std::int64_t plain = share_of(group.elements - group.quantised_elements, ranks), narrow = share_of(group.quantised_elements, ranks);
    const Bytes shard = {share_of(group.gathered.value, ranks)};
    std::vector<TensorId> waits;
    if (const TensorId first = gathers_.limited ? after : arrived_; first.valid()) waits.push_back(first);
    if (on_host_) {  // this rank's shard comes up before it is sent round
      const Bytes own = bytes_of(share_of(group.elements, group.ranks), kept);
      const TensorId up = out_.tensor(own.value, DType::uint8);
      out_.put({OpKind::shard_copy, phase, kept, ShardCopyAttributes{group.elements, 1, own, own}, "from_host", true}, waits, std::vector{up});
      waits = {up};
    }
    auto copy = [&](std::int64_t elements, std::int64_t launches, Bytes read, Bytes written, TensorId made) {
      out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{elements, launches, read, written}, "all_gather", true}, waits,
               std::vector{made});
      waits = {made};
    };
    if (narrow > 0) {
      const ShardCopyAttributes a = quantisation(group, narrow);
      copy(a.elements, a.launches, a.read, a.written, out_.tensor(narrow, DType::fp8));
    }
    if (plain > 0 && kept != type) copy(plain, foreach_launches(tensors), bytes_of(plain, kept), bytes_of(plain, type), out_.tensor(plain, type));
    if (by_module_ && by_module_->quantised_weights) return gather_quantised(group, phase, ranks, tensors, waits);
    group.arriving = out_.tensor(group.gathered.value, DType::uint8);
    copy(plain + narrow, foreach_launches(tensors), shard, shard, group.arriving);
    arrived_ = group.arrived = out_.event();
    const bool lists = by_module_ && by_module_->lists;
    const TensorId sent = lists ? out_.event() : group.arrived;
    out_.put({OpKind::all_gather, phase, type, CollectiveAttributes{group.gathered, ranks, group.stride}}, {group.arriving}, {sent});
    if (lists) out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{group.elements, group.ranks, group.gathered, group.gathered}, kListOfRanks, true}, {group.arriving, sent}, {group.arrived});
  }

  // The shards laid together, made 8 bits wide, and gathered; their scales after them.
  void gather_quantised(ShardGroup& group, Phase phase, int ranks, std::int64_t tensors, std::vector<TensorId> waits) {
    const DType type = gathered_type(group);
    const std::int64_t part = share_of(group.elements, ranks), scales = scales_of(part);
    const TensorId flat = out_.tensor(part, type), factors = out_.tensor(scales * ranks, DType::fp32), gathered = out_.event();
    group.arriving = out_.tensor(part * ranks, DType::int8);
    arrived_ = group.arrived = out_.event();
    const Bytes wide = bytes_of(part, type), narrow{part + 4 * scales};
    out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{part, foreach_launches(tensors), wide, wide}, "all_gather", true}, waits, std::vector{flat});
    out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{part, 1, wide, narrow}, "all_gather", true}, {flat}, {group.arriving});
    out_.put({OpKind::all_gather, phase, DType::int8, CollectiveAttributes{{part * ranks}, ranks, group.stride}}, {group.arriving}, {gathered});
    out_.put({OpKind::all_gather, phase, DType::fp32, CollectiveAttributes{{4 * scales * ranks}, ranks, group.stride}}, {gathered}, {factors, group.arrived});
    widened_[group.arriving.value] = {part * ranks, scales * ranks, {}, factors};
  }
  // What arrived in 8 bits, as wide as the model wants it: once for a message, where its first parameters are waited for.
  TensorId widened(ShardGroup& group, Phase phase) {
    const auto found = widened_.find(group.arriving.value);
    if (found == widened_.end()) return group.arriving;
    Widened& message = found->second;
    if (message.whole.valid()) return message.whole;
    const DType type = gathered_type(group);
    message.whole = out_.tensor(message.elements, type);
    out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{message.elements, 1, {message.elements + 4 * message.scales}, bytes_of(message.elements, type)}, "dequantise"},
             {group.arriving, group.arrived, message.factors}, {message.whole});
    return message.whole;
  }

  // A rank by itself has all of a group's parameters come up, in the type that the host keeps them in.
  void arrive_from_host(ShardGroup& group, Phase phase, TensorId after) {
    const Bytes bytes = bytes_of(group.elements, stored_.value_or(gathered_type(group)));
    group.arriving = out_.tensor(bytes.value, DType::uint8);
    arrived_ = group.arrived = out_.event();
    std::vector<TensorId> waits;
    if (after.valid()) waits.push_back(after);
    out_.put({OpKind::shard_copy, phase, gathered_type(group), ShardCopyAttributes{group.elements, 1, bytes, bytes}, "from_host", true}, waits, std::vector{group.arriving, group.arrived});
  }

  ShardCopyAttributes quantisation(const ShardGroup& group, std::int64_t elements) const {
    const Bytes wide = bytes_of(elements, stored_.value_or(DType::fp32));
    return {elements, kQuantiseKernels * group.quantised_tensors, wide * 3.0, wide * 2.0 + bytes_of(elements, DType::fp8)};
  }

  // torchao's precompute_float8_dynamic_scale_for_fsdp, once a step: the largest element of every shard, then of every weight.
  void agree_on_scales() {
    std::int64_t elements = 0, tensors = 0;
    for (const ShardGroup& group : groups_.all) elements += group.quantised_elements, tensors += group.quantised_tensors;
    if (tensors == 0) return;
    const std::int64_t part = share_of(elements, ranks_);
    out_.put({OpKind::shard_copy, Phase::optimizer, DType::fp32, ShardCopyAttributes{part, foreach_launches(tensors), bytes_of(part, stored_.value_or(DType::fp32)), bytes_of(tensors, DType::fp32)}, "amax"}, {}, {});
    if (ranks_ > 1) out_.put({OpKind::all_reduce, Phase::optimizer, DType::fp32, CollectiveAttributes{bytes_of(tensors, DType::fp32), ranks_, step_.replica_stride}}, {}, {});
  }

  void copy_out(ShardGroup& group, Phase phase) {
    if (group.parameters.empty() && !group.experts) return;
    copied_out_before_ = copied_out_;
    copy_own_out(group, phase);
    if (group.experts) copy_own_out(*group.experts, phase);
  }

  void copy_own_out(ShardGroup& group, Phase phase) {
    if (group.parameters.empty()) return;
    const DType type = gathered_type(group), kept = stored_.value_or(type);
    group.whole = out_.tensor(group.gathered.value, DType::uint8);
    copied_out_ = out_.event();
    if (group.ranks == 1 && on_host_ && kept == type) {  // what came is what is read; the layer waits for it, and with it the next copy but one
      group.whole = group.arriving;
      out_.put({OpKind::shard_copy, phase, DType::uint8, ShardCopyAttributes{1, 1, {1}, {1}}, "wait_for_host"}, {group.arriving, group.arrived}, {copied_out_});
      return;
    }
    if (group.ranks == 1) {  // parameter by parameter: cast where the types differ, then copied
      for (TensorId parameter : group.parameters) {
        const std::int64_t elements = graph_.tensors[parameter].shape.elements();
        if (kept == type || groups_.arrives_quantised(parameter)) continue;
        out_.put({OpKind::cast, phase, type, CastAttributes{.to = type}}, {shard_of(parameter, kept)}, {out_.tensor(elements, type)});
      }
      if (group.quantised_elements > 0)
        out_.put({OpKind::shard_copy, phase, type, quantisation(group, group.quantised_elements), "quantise"}, {}, {});
      const ShardCopyAttributes copies{group.elements, static_cast<std::int64_t>(group.parameters.size()), group.gathered, group.gathered};
      const std::vector<TensorId> read = on_host_ ? std::vector{group.arriving, group.arrived} : std::vector<TensorId>{};
      out_.put({OpKind::shard_copy, phase, type, copies, "copy_out"}, read, std::vector{group.whole, copied_out_});
      return;
    }
    out_.put({OpKind::shard_copy, phase, type, ShardCopyAttributes{group.elements, 1, group.gathered, group.gathered}, "split_with_sizes_copy"},
             {widened(group, phase), group.arrived}, {group.whole, copied_out_});
  }

  void gather_in_forward(ShardGroup& group) {
    if (!group.here) gather(group, Phase::forward, copied_out_before_.valid() ? copied_out_before_ : arrived_);
    copy_out(group, Phase::forward);
    if (!gathers_.forward_ahead) return;
    auto next = std::find(groups_.by_begin_of_forward.begin(), groups_.by_begin_of_forward.end(), &group);
    next = next == groups_.by_begin_of_forward.end() ? groups_.by_begin_of_forward.begin() : next + 1;  // the root's comes before all
    if (next == groups_.by_begin_of_forward.end()) return;
    gather(**next, Phase::forward, copied_out_);
    (*next)->here = true;
  }

  void prefetch(std::size_t place) {
    if (!keep_gathered_ && place < groups_.by_begin_of_backward.size()) gather(*groups_.by_begin_of_backward[place], Phase::backward, copied_out_);
  }

  // The gathered parameters are let go: no kernel, but what memory they took is free from here on.
  void release(ShardGroup& group, Phase phase) {
    if (group.experts && phase == Phase::forward) release(*group.experts, phase);  // in backward they end before their unit
    // With them goes the message of the reduction before, whose end was waited for (post_backward unsets reduce_scatter_state).
    std::vector<TensorId> let_go;
    if (group.whole.valid()) let_go.push_back(group.whole);
    if (phase == Phase::backward && message_.valid()) let_go.push_back(message_);
    if (!let_go.empty()) out_.put({OpKind::allocate, phase, DType::fp32, {}, "reshard"}, let_go, {});
    group.whole = {};
  }

  void finish_root(bool& done) {
    done = true;
    if (!groups_.root) return;
    for (ShardGroup* group : {groups_.root->experts, groups_.root})
      if (group) release(*group, Phase::backward), reduce(*group);
  }

  // On one node DeepSpeed reduces as ever.
  bool tensor_by_tensor() const { return by_module_ && by_module_->quantised_gradients && node_ranks_ < ranks_; }
  bool in_4_bits(const Shape& gradient) const { return tensor_by_tensor() && exchanged_in_4_bits(gradient, ranks_); }
  // Each of a message's gradients by itself, one after the other.
  std::vector<TensorId> reduce_each(const ShardGroup& group, DType sent) {
    std::vector<TensorId> shards;
    TensorId after = message_;
    for (std::size_t i : group.gradients) {
      const Shape shape = graph_.tensors[step_.gradients[i].gradient].shape;
      const std::int64_t elements = in_4_bits(shape) ? shape.elements() : padded(shape, group);
      shards.push_back(out_.tensor(share_of(elements, group.ranks), sent));
      reduced_ = out_.event();
      if (in_4_bits(shape)) exchange_in_4_bits(out_, shape, sent, node_ranks_, ranks_ / node_ranks_, {message_, after}, shards.back(), reduced_);
      else out_.put({OpKind::reduce_scatter, Phase::backward, sent, CollectiveAttributes{bytes_of(elements, sent), group.ranks, group.stride}}, {message_, after}, {shards.back(), reduced_});
      after = reduced_;
    }
    return shards;
  }

  void reduce(ShardGroup& group) {
    if (group.gradients.empty()) return;
    const DType own = graph_.tensors[step_.gradients[group.gradients.front()].gradient].dtype;
    const DType kept = kept_type(recipe_, own), sent = recipe_.reduced_gradients.value_or(kept), wanted = stored_.value_or(kept);
    std::vector<TensorId> inputs;
    std::int64_t elements = 0;
    for (std::size_t i : group.gradients) {
      inputs.push_back(step_.gradients[i].gradient);
      const Shape& shape = graph_.tensors[inputs.back()].shape;
      elements += in_4_bits(shape) ? shape.elements() : padded(shape, group);
    }
    if (reduced_.valid()) inputs.push_back(reduced_);  // one reduction at a time: the one before must be done
    message_ = out_.tensor(elements, sent);
    const Bytes read = bytes_of(elements, own), whole = bytes_of(elements, sent);
    out_.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{elements, 1, read, whole}, "chunk_cat"}, inputs, std::vector{message_});
    const std::int64_t part = share_of(elements, group.ranks);
    std::vector<TensorId> shards = tensor_by_tensor() ? reduce_each(group, sent) : std::vector{out_.tensor(part, sent)};
    const TensorId shard = shards.front();
    if (!tensor_by_tensor()) reduced_ = {};
    const bool travels = group.ranks > 1 || copies_ > 1;
    // Where groups hold copies, what follows the reduction inside the group runs on the stream of the sum over groups.
    const std::string_view beside = copies_ > 1 ? kAcrossGroups : "reduce_scatter";
    auto copy = [&](std::int64_t count, DType from, DType to, const std::vector<TensorId>& in, TensorId made) {
      out_.put({OpKind::shard_copy, Phase::backward, to, ShardCopyAttributes{count, 1, bytes_of(count, from), bytes_of(count, to)},
                travels ? beside : "copy", travels}, in, std::vector<TensorId>(made.valid() ? 1u : 0u, made));
    };
    if (travels && !tensor_by_tensor()) {
      const bool divides = sent == DType::fp16;  // the range of fp16: divided by about the root of the ranks before and after
      if (divides) out_.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{elements, 1, whole, whole}, "reduce_scatter", true}, {message_}, {});
      reduced_ = out_.event();
      if (by_module_ && by_module_->lists) out_.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{elements, group.ranks, whole, whole}, kListOfRanks, true}, {message_}, {});
      if (group.ranks > 1) out_.put({OpKind::reduce_scatter, Phase::backward, sent, CollectiveAttributes{whole, group.ranks, group.stride}}, {message_}, {shard, reduced_});
      else out_.put({OpKind::shard_copy, Phase::backward, sent, ShardCopyAttributes{elements, 1, whole, whole}, "reduce_scatter", true}, {message_}, {shard, reduced_});  // nobody to share with: a copy, and its copies all the same to sum up
      if (copies_ > 1) sum_over_groups(out_, Phase::backward, sent, bytes_of(part, sent), group.stride * group.ranks, copies_, shard);
      if (divides) copy(part, sent, sent, shards, {});
    } else if (!travels) {
      copy(part, sent, sent, {message_}, shard);
    }
    if (sent != wanted) {
      const TensorId converted = out_.tensor(part, wanted);
      if (travels) copy(part, sent, wanted, shards, converted);
      else out_.put({OpKind::cast, Phase::backward, wanted, CastAttributes{.to = wanted}}, {shard}, {converted});
      shards = {converted};
    }
    for (TensorId left : shards) {
      if (accumulates_) out_.put({OpKind::accumulate_gradient, Phase::accumulate, wanted, {}, beside, travels}, {left}, {});
      step_.shards.kept_gradients.push_back(left);
    }
  }

  // What stays between gathers is no tensor of the graph; this one stands for it where an operator reads it.
  TensorId shard_of(TensorId parameter, DType type) {
    auto [known, first] = shards_.try_emplace(parameter.value);
    if (first) known->second = graph_.add_tensor({.shape = graph_.tensors[parameter].shape, .dtype = type, .role = Role::gathered, .name = graph_.tensors[parameter].name});
    return known->second;
  }

  // MultiTensorApply over two lists: 64 tensors a launch; shards are too small for its other limit to matter much.
  static std::int64_t foreach_launches(std::int64_t tensors) { return (tensors + 63) / 64; }

  int ranks_, copies_, node_ranks_;
  bool keep_gathered_, on_host_, accumulates_ = false;
  UnitGathers gathers_;
  const ModuleGathers* by_module_;           // null: unit by unit
  std::int64_t live_ = 0;                    // elements that are gathered, or on their way
  std::set<const ShardGroup*> kept_;         // from forward to backward
  ShardGroup bucket_;                        // gradients that wait for more
  struct Widened {
    std::int64_t elements = 0, scales = 0;
    TensorId whole, factors;
  };
  std::map<std::int32_t, Widened> widened_;  // messages of 8 bits, by what arrived
  const PrecisionRecipe& recipe_;
  StepGraph& step_;
  ShardGroups groups_;
  Rewrite out_;
  Graph& graph_;
  std::optional<DType> stored_;
  TensorId arrived_;                         // event of the last gather
  TensorId copied_out_, copied_out_before_;  // events: the last group's parameters are out of their message; the one's before
  TensorId reduced_, message_;               // of the last reduction
  std::map<std::int32_t, TensorId> shards_;
};

}  // namespace

void fully_shard(int ranks, int copies, bool keep_gathered, const Replicas& how, const PrecisionRecipe& recipe, StepGraph& step) {
  FullySharded(ranks, copies, keep_gathered, how, recipe, step).run();
}

}  // namespace precog
