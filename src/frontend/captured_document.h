// A captured file after reading: everything checked that can be checked without sizes. For captured*.cpp only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/framework_names.h"
#include "graph/graph.h"

namespace precog::captured {

struct Symbols {
  std::int64_t batch = 1, seq = 1, src_seq = 1;
};

// A sum of products of integers and symbols.
struct Extent {
  struct Term {
    std::int64_t factor = 0;
    std::uint8_t batch = 0, seq = 0, src_seq = 0;  // powers
  };
  std::vector<Term> terms;
};

// "2*seq+1"; nothing where the text is no extent. `symbols` is set for every symbol that occurs.
std::optional<Extent> parse_extent(std::string_view text, std::array<bool, 3>& symbols);
// Nothing where it is negative or above `most`.
std::optional<std::int64_t> evaluate(const Extent& extent, const Symbols& symbols, std::int64_t most);

struct Made {  // one result of an operator
  std::vector<Extent> shape;
  DType type = DType::model;
  std::optional<bool> grad;
  std::int32_t of = -1;
  bool hidden = false;
};

struct Settings {  // all that "attrs" may hold; what an operator has no use for stays empty
  std::vector<Extent> gemm, kernel, stride, padding, dilation;
  bool transposed_a = false, transposed = false, causal = false, training = true, batch_first = false;
  double probability = 0;
  std::optional<Extent> groups, width;
  std::optional<DType> type;       // of softmax and sums
  std::optional<ViewKind> view;
  std::optional<DType> to;         // cast
  std::optional<std::int64_t> like;
  Autocast door = Autocast::none;
  std::array<bool, 3> scattered{};
  bool mask_scattered = false, gqa = false;
  std::string traced_mask;         // that the code leaves out here: dense, expanded, or none
  OnlyFor only = OnlyFor::any;
  std::int64_t layers = 1, hidden = 0, directions = 1;
};

struct Call {
  std::string name;
  OpKind kind{};
  const FrameworkName* known = nullptr;
  bool strided = false;
  std::vector<Made> out;
  Settings settings;
};

struct BackCall : Call {
  std::vector<RecipeOperand> in;
};
struct Back {
  std::vector<BackCall> ops;
  std::vector<RecipeGift> gifts;  // operands by their place in the file's "in"
};

struct Entry {
  bool is_tensor = false;
  // a tensor
  Role role = Role::input;
  std::string name;
  bool frozen = false;
  Made tensor;
  // an operator
  Call call;
  std::vector<std::optional<std::int64_t>> in;  // references; nothing for an absent operand
  std::string module;
  std::int32_t block = -1;
  bool autocast_off = false;
  std::optional<Back> back, back16;

  std::size_t defines() const { return is_tensor ? 1 : call.out.size(); }
};

struct Stretch {
  std::int64_t repeat = 1, first = 0;
  std::size_t number = 0;  // of its first entry in the file's stream, for messages
  bool repeated = false;
  std::vector<Entry> entries;
};

struct Document {
  std::string where;
  std::vector<Stretch> stretches;
  std::int64_t loss = -1;
  std::int64_t tensors = 0;  // defined in all, repeats counted
  Extent tokens_per_sample;
};

// At most so many bytes of a text of the file's, whole characters, for messages.
std::string cut(std::string_view text, std::size_t most);

// "entry 12 (linear in 'encoder.0')"
std::string place_of(const Stretch& stretch, std::size_t index);

}  // namespace precog::captured
