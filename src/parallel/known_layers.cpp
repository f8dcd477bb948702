// The names that public implementations give to the layers which tensor parallelism splits by columns.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "parallel/tensor_parallel.h"

namespace precog {
namespace {

bool ends_like(std::string_view module, std::string_view name) {
  return module == name || (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

// Llama and its kin; BERT, ViT; GPT-2; GPT-NeoX, BLOOM, Falcon; MPT; DistilBERT; T5; DeepSeek; Megatron; torchtitan.
constexpr std::array<std::string_view, 47> kColumns = {
    "q_proj", "k_proj", "v_proj", "qkv_proj", "query", "key", "value", "c_attn", "Wqkv", "qkv", "query_key_value", "in_proj", "to_q", "to_k", "to_v",
    "q_lin", "k_lin", "v_lin", "SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "EncDecAttention.q", "EncDecAttention.k", "EncDecAttention.v",
    "q_b_proj", "kv_b_proj", "linear_qkv", "wq", "wk", "wv",
    "gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "intermediate.dense", "dense_h_to_4h", "fc_in", "lin1", "wi", "wi_0", "wi_1", "w1", "w3",
    "linear_fc1", "linear1", "mlp.0"};
constexpr std::array<std::string_view, 9> kTables = {"embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "shared", "word_embedding", "token_embedding", "embeddings.word_embeddings"};

}  // namespace

TensorSplit known_split(std::string_view module) {
  const bool column = std::any_of(kColumns.begin(), kColumns.end(), [&](std::string_view name) { return ends_like(module, name); });
  return column ? TensorSplit::column : TensorSplit::whole;
}

bool is_token_table(std::string_view module) {
  return std::any_of(kTables.begin(), kTables.end(), [&](std::string_view name) { return ends_like(module, name); });
}

}  // namespace precog
