#include "training/made_again.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "graph/operator.h"

namespace precog {
namespace {

template <std::size_t N>
bool has_part(std::string_view path, const std::array<std::string_view, N>& names) {
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('.'), path.size());
    if (std::find(names.begin(), names.end(), path.substr(0, end)) != names.end()) return true;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return false;
}

// Names that public models give these modules. BERT's "intermediate" and "output" are its MLP.
constexpr std::array<std::string_view, 9> kMlp = {"mlp", "feed_forward", "ffn", "block_sparse_moe", "experts", "shared_experts", "intermediate", "ff", "DenseReluDense"};
constexpr std::array<std::string_view, 6> kAttention = {"self_attn", "attn", "attention", "self_attention", "SelfAttention", "EncDecAttention"};

bool is_product(OpKind kind) {
  return kind == OpKind::linear || kind == OpKind::scaled_mm || kind == OpKind::grouped_linear || kind == OpKind::mm || kind == OpKind::grouped_mm || kind == OpKind::conv2d;
}
bool is_norm(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::layer_norm || op.kind == OpKind::rms_norm) return true;
  const std::string_view path = graph.name(op.module), last = path.substr(path.rfind('.') + 1);
  return last.find("norm") != std::string_view::npos || last.starts_with("ln_") || last == "LayerNorm";
}
// Moves tokens between ranks, or says where they go: kept, as frameworks do (results differ between two runs, or cost a message).
bool is_routing(const Op& op) {
  const Family family = definition(op.kind).family;
  return family == Family::collective || family == Family::index || family == Family::host || op.kind == OpKind::topk || op.kind == OpKind::sort;
}

class Choice {
 public:
  Choice(const Graph& graph, const Checkpoints& checkpoints, const std::vector<char>& checkpointed)
      : graph_(graph), checkpoints_(checkpoints), parts_(checkpoints.parts), checkpointed_(checkpointed), chosen_(graph.ops.size(), 0), opened_(graph.ops.size(), 0), between_(graph.ops.size(), 0), by_(graph.tensors.size(), -1) {}

  std::vector<char> run() {
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const Op& op = graph_.ops[graph_.ops.id_at(i)];
      follow_core(op, i);
      chosen_[i] = op.phase == Phase::forward && chooses(op, between_[i]) ? 1 : 0;
      for (TensorId id : graph_.outputs(op)) by_[id.index()] = static_cast<std::int32_t>(i);
    }
    return std::move(chosen_);
  }

 private:
  // Of an attention that is written out, what stands between its two products belongs to it: scale, mask, softmax, dropout. The first
  // product begins it, the second, which reads what came of the first, ends it.
  static bool is_core(OpKind kind) {
    return kind == OpKind::scaled_dot_product_attention || kind == OpKind::softmax || kind == OpKind::matmul || kind == OpKind::bmm;
  }
  void follow_core(const Op& op, std::size_t i) {
    bool inside = false;
    for (TensorId id : graph_.inputs(op)) inside = inside || (by_[id.index()] >= 0 && opened_[static_cast<std::size_t>(by_[id.index()])]);
    // Of two activations that gradients go to: not the angles of rotary positions.
    const auto trained = [&](std::size_t operand) { return op.input_count > operand && graph_.tensors[graph_.input(op, operand)].requires_grad && graph_.tensors[graph_.input(op, operand)].role == Role::activation; };
    const bool product = (op.kind == OpKind::matmul || op.kind == OpKind::bmm) && trained(0) && trained(1);
    between_[i] = inside && !is_product(op.kind);
    opened_[i] = product ? !inside : between_[i];
  }
  bool from_chosen(const Op& op) const {
    if (op.input_count == 0) return false;
    const std::int32_t maker = by_[graph_.input(op, 0).index()];
    return maker >= 0 && chosen_[static_cast<std::size_t>(maker)];
  }
  bool of_weight(const Op& op) const { return op.input_count > 0 && graph_.tensors[graph_.tensors[graph_.input(op, 0)].storage].role == Role::parameter; }

  bool chooses(const Op& op, bool between) const {
    // A conversion is kept or not as what it converts is.
    const bool converts = op.kind == OpKind::quantize || op.kind == OpKind::cast || (op.kind == OpKind::reduction && graph_.name(op.label) == "amax");
    if (op.kind == OpKind::quantize && of_weight(op)) return checkpoints_.converts_weights_again;
    if (op.block < 0 || !checkpointed_[static_cast<std::size_t>(op.block)] || !parts_.any() || is_routing(op)) return false;
    if (op.kind == OpKind::view || op.kind == OpKind::split) return from_chosen(op);
    if (converts && !is_norm(graph_, op)) return from_chosen(op);
    if (is_norm(graph_, op)) return parts_.norms;
    const std::string_view path = graph_.name(op.module);
    if (has_part(path, kAttention)) return chooses_of_attention(op, path, between);
    if (!has_part(path, kMlp) && !path.ends_with("output.dense")) return false;
    return parts_.mlp || (parts_.activation && !is_product(op.kind));
  }
  bool chooses_of_attention(const Op& op, std::string_view path, bool between) const {
    const bool core = is_core(op.kind) || between;
    if (parts_.attention) return true;
    if (parts_.up_projections && (path.ends_with("q_b_proj") || path.ends_with("kv_b_proj"))) return true;
    return core ? parts_.core : parts_.qkv;
  }

  const Graph& graph_;
  const Checkpoints& checkpoints_;
  const RecomputedParts& parts_;
  const std::vector<char>& checkpointed_;
  std::vector<char> chosen_;
  std::vector<char> opened_, between_;  // a product of two activations has begun an attention that is not ended; the operator is inside one
  std::vector<std::int32_t> by_;  // tensor -> the operator that makes it
};

}  // namespace

std::vector<char> made_again(const Graph& forward, const Checkpoints& checkpoints, const std::vector<char>& checkpointed) {
  return Choice(forward, checkpoints, checkpointed).run();
}

}  // namespace precog
