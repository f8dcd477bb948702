// Captured files, from bytes to a checked Document: the text's structure, names, types, settings and references.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/compression.h"
#include "base/json.h"
#include "base/text.h"
#include "frontend/captured.h"
#include "frontend/captured_document.h"
#include "frontend/traced.h"

namespace precog {
namespace captured {

std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;  // not in the middle of a character
  return std::string(text.substr(0, most));
}

std::string place_of(const Stretch& stretch, std::size_t index) {
  std::string out = stretch.repeated ? fmt::format("entry {}.{}", stretch.number, index) : fmt::format("entry {}", stretch.number + index);
  const Entry& entry = stretch.entries[index];
  const std::string& name = entry.is_tensor ? entry.name : entry.call.name;
  if (!name.empty()) out += fmt::format(" ({}{})", cut(name, 80), entry.module.empty() ? "" : " in '" + cut(entry.module, 120) + "'");
  return out;
}

namespace {

constexpr int kVersion = 1;
constexpr std::size_t kMaxName = 1000;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::array<std::string_view, 3> kSymbolNames = {"batch", "seq", "src_seq"};

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::optional<DType> type_named(std::string_view name) {
  if (name == "float") return DType::model;
  for (std::string_view known : {"fp64", "fp32", "bf16", "fp16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"})
    if (name == known) return dtype_named(name);
  return std::nullopt;
}

std::optional<OpKind> hinted(std::string_view hint) {
  static constexpr std::pair<std::string_view, OpKind> kHints[] = {
      {"pointwise", OpKind::pointwise}, {"reduction", OpKind::reduction}, {"copy", OpKind::copy}, {"gather", OpKind::gather},
      {"scatter", OpKind::scatter},     {"sort", OpKind::sort},           {"fill", OpKind::fill}, {"view", OpKind::view},
      {"random", OpKind::random}};
  for (const auto& [name, kind] : kHints)
    if (hint == name) return kind;
  return std::nullopt;
}

// Which settings an operator may have.
std::vector<std::string_view> settings_of(const Call& call) {
  switch (call.kind) {
    case OpKind::linear:
    case OpKind::matmul:
    case OpKind::mm:
    case OpKind::bmm:
    case OpKind::grouped_linear:
    case OpKind::grouped_mm: return {"gemm", "transposed_a"};
    case OpKind::conv2d: return {"kernel", "stride", "padding", "dilation", "groups", "transposed"};
    case OpKind::max_pool2d:
    case OpKind::max_pool2d_backward:
    case OpKind::pool:
    case OpKind::pool_backward: return {"kernel", "stride", "padding"};
    case OpKind::scaled_dot_product_attention: return {"causal", "dropout", "gqa", "scattered", "mask_scattered", "traced_mask"};
    case OpKind::contiguous: return {"only"};
    case OpKind::fill:
    case OpKind::random:
    case OpKind::allocate: return {"like"};
    case OpKind::layer_norm:
    case OpKind::rms_norm: return {"width"};
    case OpKind::group_norm: return {"groups"};
    case OpKind::batch_norm: return {"training"};
    case OpKind::softmax:
    case OpKind::log_softmax: return {"dim", "type"};
    case OpKind::sum:
    case OpKind::mean:
    case OpKind::reduction:
    case OpKind::scan: return {"dim", "type"};
    case OpKind::dropout: return {"p"};
    case OpKind::cast: return {"to", "like", "class"};
    case OpKind::view: return {"kind"};
    case OpKind::rnn: return {"layers", "hidden", "directions", "batch_first"};
    default: return {};
  }
}

class Parser {
 public:
  Parser(const std::string& where) : document_(std::make_shared<Document>()) { document_->where = where; }

  Result<CapturedModel> run(const Json& json) {
    if (!read(json)) return fail(document_->where, place_.empty() ? problem_ : place_ + ": " + problem_);
    model_.document = document_;
    return std::move(model_);
  }

 private:
  bool wrong(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // --- pieces
  static bool only_keys(const Json& object, std::initializer_list<std::string_view> known, std::string& unknown) {
    for (auto it = object.begin(); it != object.end(); ++it)
      if (std::find(known.begin(), known.end(), it.key()) == known.end()) {
        unknown = cut(it.key(), 80);
        return false;
      }
    return true;
  }
  bool keys(const Json& object, std::initializer_list<std::string_view> known) {
    std::string unknown;
    if (only_keys(object, known, unknown)) return true;
    return wrong(fmt::format("unknown field '{}'; known: {}", unknown, fmt::join(known, ", ")));
  }
  bool text(const Json& object, const char* key, std::string& out, bool required = false) {
    const auto it = object.find(key);
    if (it == object.end()) return !required || wrong(fmt::format("'{}' is missing", key));
    if (!it->is_string()) return wrong(fmt::format("'{}' wants a text, not {}", key, shown(*it)));
    out = it->get<std::string>();
    return out.size() <= kMaxName || wrong(fmt::format("'{}' is longer than {} characters", key, kMaxName));
  }
  bool flag(const Json& object, const char* key, bool& out) {
    const auto it = object.find(key);
    if (it == object.end()) return true;
    if (!it->is_boolean()) return wrong(fmt::format("'{}' wants true or false, not {}", key, shown(*it)));
    out = it->get<bool>();
    return true;
  }
  // Whole numbers as JSON has them: no fractions, nothing beyond 64 bits.
  static std::optional<std::int64_t> whole(const Json& value) {
    if (value.is_number_unsigned()) {
      const auto number = value.get<std::uint64_t>();
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(number);
    }
    if (value.is_number_integer()) return value.get<std::int64_t>();
    return std::nullopt;
  }
  bool integer(const Json& object, const char* key, std::int64_t least, std::int64_t most, std::int64_t& out) {
    const auto it = object.find(key);
    if (it == object.end()) return true;
    const auto value = whole(*it);
    if (!value || *value < least || *value > most)
      return wrong(fmt::format("'{}' is {}; it must be a whole number from {} to {}", key, shown(*it), least, most));
    out = *value;
    return true;
  }
  bool number(const Json& object, const char* key, double least, double most, double& out) {
    const auto it = object.find(key);
    if (it == object.end()) return true;
    if (!it->is_number() || !(it->get<double>() >= least && it->get<double>() <= most))
      return wrong(fmt::format("'{}' is {}; it must be a number from {} to {}", key, shown(*it), least, most));
    out = it->get<double>();
    return true;
  }
  bool extent(const Json& value, Extent& out) {
    if (const auto number = whole(value)) {
      if (*number < 0 || *number > CapturedLimits::kElements) return wrong(fmt::format("a size is {}; it must be from 0 to 2^50", *number));
      out.terms = {{*number, 0, 0, 0}};
      return true;
    }
    if (value.is_string()) {
      std::array<bool, 3> used{};
      if (auto parsed = parse_extent(value.get_ref<const std::string&>(), used)) {
        const bool known[] = {model_.has_batch, model_.has_seq, model_.has_src_seq};
        for (std::size_t i = 0; i < 3; ++i)
          if (used[i] && !known[i]) return wrong(fmt::format("a size is {}, but 'symbols' has no {}", shown(value), kSymbolNames[i]));
        out = std::move(*parsed);
        return true;
      }
    }
    return wrong(fmt::format("a size is {}; it must be a whole number or a sum of products of numbers and symbols, like \"2*seq+1\"", shown(value)));
  }
  bool extents(const Json& value, std::vector<Extent>& out, std::size_t most, const char* what) {
    if (!value.is_array()) return wrong(fmt::format("{} wants a list of sizes, not {}", what, shown(value)));
    if (value.size() > most) return wrong(fmt::format("{} has {} sizes; at most {} are read", what, value.size(), most));
    for (const Json& item : value)
      if (!extent(item, out.emplace_back())) return false;
    return true;
  }
  bool type(const Json& value, DType& out) {
    const auto known = value.is_string() ? type_named(value.get_ref<const std::string&>()) : std::nullopt;
    if (!known)
      return wrong(fmt::format("the type {} is unknown; known: float, fp64, fp32, bf16, fp16, int64, int32, int16, int8, uint8, bool, complex64",
                               shown(value)));
    out = *known;
    return true;
  }

  // --- the file
  bool read(const Json& json) {
    if (!json.is_object()) return wrong("is no captured graph: it wants one JSON object");
    const auto version = json.find("precog_graph");
    if (version == json.end()) return wrong("is no captured graph: 'precog_graph' (the format's version) is missing");
    const auto format = whole(*version);
    if (!format || *format < 1) return wrong(fmt::format("'precog_graph' is {}; it must be {}", shown(*version), kVersion));
    if (*format > kVersion) return wrong(fmt::format("was written by a newer precog: format {}, this program reads {}", *format, kVersion));
    if (!keys(json, {"precog_graph", "name", "made_by", "symbols", "fixed", "captured", "memory_format", "tokens_per_sample", "scores", "notes", "stream", "loss"}))
      return false;
    if (!text(json, "name", model_.name) || !read_sizes(json)) return false;
    std::string layout = "contiguous";
    if (!text(json, "memory_format", layout)) return false;
    if (layout != "contiguous" && layout != "channels_last") return wrong("'memory_format' must be contiguous or channels_last");
    model_.memory_format = layout == "channels_last" ? MemoryFormat::channels_last : MemoryFormat::contiguous;
    std::string scores = "returned";
    if (!text(json, "scores", scores)) return false;
    if (scores != "returned" && scores != "apart" && scores != "inside") return wrong("'scores' must be returned, apart or inside");
    model_.scores = scores == "apart" ? Scores::apart : scores == "inside" ? Scores::inside : Scores::returned;
    document_->tokens_per_sample.terms = {{0, 0, 0, 0}};
    if (const auto tokens = json.find("tokens_per_sample"); tokens != json.end() && !extent(*tokens, document_->tokens_per_sample)) return false;
    if (const auto notes = json.find("notes"); notes != json.end()) {
      if (!notes->is_array() || notes->size() > 100) return wrong("'notes' wants a list of at most 100 texts");
      for (const Json& note : *notes) {
        if (!note.is_string()) return wrong("'notes' wants texts");
        model_.notes.push_back(cut(note.get_ref<const std::string&>(), kMaxName));
      }
    }
    if (const auto fixed = json.find("fixed"); fixed != json.end()) {
      if (!fixed->is_object() || !keys(*fixed, {"batch", "seq", "src_seq"})) return wrong("'fixed' wants the reasons why batch, seq or src_seq are");
      for (auto it = fixed->begin(); it != fixed->end(); ++it) {
        if (!it->is_string()) return wrong("'fixed' wants texts");
        model_.fixed_because[it.key()] = cut(it->get_ref<const std::string&>(), 400);
      }
    }
    const auto stream = json.find("stream");
    if (stream == json.end() || !stream->is_array()) return wrong("'stream' is missing or no list");
    if (!read_stream(*stream)) return false;
    // The file says what most convolutions met. Where no weight and no input lies so, these are tokens looked at as images, which
    // views tell one by one.
    if (!images_last_) model_.memory_format = MemoryFormat::contiguous;
    place_.clear();
    document_->tensors = defined_;
    const auto loss = json.find("loss");
    if (loss == json.end()) return wrong("'loss' is missing: a reference to the tensor whose gradient is taken");
    return reference(*loss, document_->loss, "'loss'");
  }

  bool read_sizes(const Json& json) {
    bool* symbolic[] = {&model_.has_batch, &model_.has_seq, &model_.has_src_seq};
    std::int64_t* values[] = {&model_.captured_batch, &model_.captured_seq, &model_.captured_src_seq};
    for (const char* key : {"symbols", "captured"}) {
      const auto sizes = json.find(key);
      if (sizes == json.end()) continue;
      if (!sizes->is_object()) return wrong(fmt::format("'{}' wants an object of sizes", key));
      if (!keys(*sizes, {"batch", "seq", "src_seq"})) return false;
      for (std::size_t i = 0; i < 3; ++i) {
        const auto it = sizes->find(kSymbolNames[i]);
        if (it == sizes->end()) continue;
        if (!integer(*sizes, kSymbolNames[i].data(), 1, std::int64_t{1} << 32, *values[i])) return false;
        if (std::string_view(key) == "symbols") *symbolic[i] = true;
      }
    }
    return true;
  }

  bool read_stream(const Json& stream) {
    std::size_t number = 0;
    for (const Json& item : stream) {
      place_ = fmt::format("entry {}", number);
      if (!item.is_object()) return wrong(fmt::format("wants an object, not {}", shown(item)));
      const bool repeated = item.contains("repeat");
      if (repeated || document_->stretches.empty() || document_->stretches.back().repeated)
        document_->stretches.push_back({.number = number, .repeated = repeated});
      Stretch& stretch = document_->stretches.back();
      if (repeated) {
        if (!read_repeat(item, stretch)) return false;
      } else {
        if (!read_entry(item, stretch)) return false;
      }
      ++number;
    }
    return true;
  }

  bool read_repeat(const Json& item, Stretch& stretch) {
    if (!keys(item, {"repeat", "first", "stream"})) return false;
    if (!integer(item, "repeat", 1, CapturedLimits::kRepeat, stretch.repeat)) return false;
    if (!integer(item, "first", 0, std::numeric_limits<std::int32_t>::max(), stretch.first)) return false;
    const auto stream = item.find("stream");
    if (stream == item.end() || !stream->is_array()) return wrong("'stream' of a repeat is missing or no list");
    const std::int64_t before = defined_, entries_before = entries_, operands_before = operands_;
    for (const Json& inner : *stream) {
      place_ = fmt::format("entry {}.{}", stretch.number, stretch.entries.size());
      if (!inner.is_object()) return wrong(fmt::format("wants an object, not {}", shown(inner)));
      if (inner.contains("repeat")) return wrong("repeats do not nest");
      if (!read_entry(inner, stretch)) return false;
    }
    // The later rounds count as the first did; each count is bounded, so that the products fit.
    defined_ = before + (defined_ - before) * stretch.repeat;
    entries_ = entries_before + (entries_ - entries_before) * stretch.repeat;
    operands_ = operands_before + (operands_ - operands_before) * stretch.repeat;
    return within_limits();
  }

  bool within_limits() {
    if (entries_ > CapturedLimits::kEntries)
      return wrong(fmt::format("the file has more than {} entries, repeats and gradients counted", CapturedLimits::kEntries));
    if (operands_ > CapturedLimits::kOperands)
      return wrong(fmt::format("the file's operators have more than {} operands and results", CapturedLimits::kOperands));
    return true;
  }

  bool read_entry(const Json& item, Stretch& stretch) {
    Entry& entry = stretch.entries.emplace_back();
    if (item.contains("op") == item.contains("tensor")) return wrong("wants either 'op' or 'tensor' or 'repeat'");
    ++entries_;
    const bool good = item.contains("tensor") ? read_tensor(item, entry) : read_operator(item, entry, stretch);
    if (!good) {
      place_ = place_of(stretch, stretch.entries.size() - 1);
      return false;
    }
    defined_ += static_cast<std::int64_t>(entry.defines());
    operands_ += static_cast<std::int64_t>(entry.defines());
    return within_limits();
  }

  bool read_tensor(const Json& item, Entry& entry) {
    entry.is_tensor = true;
    std::string role, layout;
    if (!text(item, "name", entry.name) || !keys(item, {"tensor", "name", "shape", "type", "frozen", "layout"})) return false;
    if (!text(item, "tensor", role, true) || !flag(item, "frozen", entry.frozen) || !text(item, "layout", layout)) return false;
    if (!layout.empty() && layout != "channels_last" && layout != "contiguous") return wrong("'layout' must be contiguous or channels_last");
    images_last_ = images_last_ || layout == "channels_last";
    if (role == "parameter") entry.role = Role::parameter;
    else if (role == "input") entry.role = Role::input;
    else if (role == "buffer" || role == "constant") entry.role = Role::buffer;
    else return wrong(fmt::format("'tensor' is '{}'; it must be parameter, buffer, input or constant", cut(role, 40)));
    if (const auto named = item.find("type"); named != item.end() && !type(*named, entry.tensor.type)) return false;
    const auto shape = item.find("shape");
    if (shape == item.end()) return wrong("'shape' is missing");
    return extents(*shape, entry.tensor.shape, Shape::kMaxRank, "'shape'");
  }

  bool reference(const Json& value, std::int64_t& out, const char* what) {
    const auto number = whole(value);
    if (!number) return wrong(fmt::format("{} wants references (whole numbers), not {}", what, shown(value)));
    if (*number >= defined_ || *number < -defined_)
      return wrong(fmt::format("{} refers to tensor {}, but {} are defined so far", what, *number, defined_));
    out = *number;
    return true;
  }

  bool read_operator(const Json& item, Entry& entry, const Stretch& stretch) {
    if (!text(item, "op", entry.call.name, true) || !text(item, "module", entry.module)) return false;
    if (!keys(item, {"op", "in", "out", "attrs", "module", "block", "autocast", "strided", "kind", "back", "back16"})) return false;
    std::string autocast;
    if (!text(item, "autocast", autocast)) return false;
    if (!autocast.empty() && autocast != "off") return wrong("'autocast' can only be \"off\"");
    entry.autocast_off = !autocast.empty();
    std::int64_t block = -1;
    if (!integer(item, "block", 0, 20'000, block)) return false;
    if (block + stretch.repeat > std::numeric_limits<std::int16_t>::max()) return wrong("has more blocks than are read");
    entry.block = static_cast<std::int32_t>(block);
    const auto in = item.find("in");
    if (in == item.end() || !in->is_array()) return wrong("'in' is missing or no list");
    if (in->size() > std::numeric_limits<std::uint16_t>::max()) return wrong("'in' has more than 65535 operands");
    operands_ += static_cast<std::int64_t>(in->size());
    for (const Json& operand : *in) {
      auto& reference_to = entry.in.emplace_back();
      std::int64_t number = 0;
      if (operand.is_null()) continue;
      if (!reference(operand, number, "'in'")) return false;
      reference_to = number;
    }
    std::size_t present = 0;
    for (const auto& operand : entry.in) present += operand.has_value() ? 1 : 0;
    if (!read_call(item, entry.call, entry.in.size(), present, false)) return false;
    const auto back = item.find("back"), half = item.find("back16");
    if (half != item.end() && (entry.call.kind != OpKind::view || back == item.end())) return wrong("only a view that has a 'back' may have a 'back16'");
    if (back != item.end() && !read_back(*back, entry, entry.back.emplace())) return false;
    return half == item.end() || read_back(*half, entry, entry.back16.emplace());
  }

  // What a forward operator and one of a recorded gradient have in common.
  bool read_call(const Json& item, Call& call, std::size_t operands, std::size_t present, bool recorded) {
    if (call.name.empty()) return wrong("'op' is empty");
    if (!flag(item, "strided", call.strided)) return false;
    std::string hint;
    if (!text(item, "kind", hint)) return false;
    const auto kind = hinted(hint);
    if (!hint.empty() && !kind)
      return wrong(fmt::format("'kind' is '{}'; it must be pointwise, reduction, copy, gather, scatter, sort, fill, view or random", cut(hint, 40)));
    identify(call, kind, present, recorded);
    const auto out = item.find("out");
    if (out == item.end() || !out->is_array()) return wrong("'out' is missing or no list");
    if (out->size() > std::numeric_limits<std::uint16_t>::max() - 4) return wrong("'out' has more than 65531 results");
    for (const Json& made : *out)
      if (!read_result(made, call.out.emplace_back(), operands)) return false;
    const auto attrs = item.find("attrs");
    return attrs == item.end() || read_settings(*attrs, call, recorded);
  }

  void identify(Call& call, std::optional<OpKind> hint, std::size_t present, bool recorded) {
    std::string_view plain = call.name;
    if (const auto colons = plain.rfind("::"); colons != std::string_view::npos) plain.remove_prefix(colons + 2);
    call.known = framework_name(plain);
    call.kind = call.known ? call.known->kind : OpKind::unknown;
    if (plain == "autocast") call.kind = OpKind::cast;
    if (call.kind == OpKind::unknown && hint) call.kind = *hint == OpKind::view && present == 0 ? OpKind::allocate : *hint;
    // Its own operators with settings are no part of a recorded gradient; there they are what nobody knows.
    if (recorded)
      switch (call.kind) {
        case OpKind::linear:
        case OpKind::matmul: call.kind = OpKind::mm; break;
        case OpKind::conv2d:
        case OpKind::scaled_dot_product_attention:
        case OpKind::rnn:
        case OpKind::batch_norm:
        case OpKind::grouped_linear: call.kind = OpKind::unknown; break;
        default: break;
      }
    if (present < 2) {  // with a number instead of a second tensor
      if (call.kind == OpKind::add || call.kind == OpKind::sub) call.kind = OpKind::add_scalar;
      else if (call.kind == OpKind::mul || call.kind == OpKind::div) call.kind = OpKind::mul_scalar;
    }
    if (call.kind == OpKind::view && present == 0) call.kind = OpKind::allocate;
  }

  bool read_result(const Json& item, Made& made, std::size_t operands) {
    if (!item.is_array() || item.empty() || item.size() > 3) return wrong("a result wants [shape], [shape, type] or [shape, type, flags]");
    if (!extents(item[0], made.shape, Shape::kMaxRank, "a result's shape")) return false;
    if (item.size() > 1 && !type(item[1], made.type)) return false;
    if (item.size() < 3) return true;
    const Json& flags = item[2];
    if (!flags.is_object()) return wrong("a result's flags want an object");
    if (!keys(flags, {"grad", "of", "hidden"})) return false;
    bool grad = false;
    std::int64_t of = -1;
    if (!flag(flags, "grad", grad) || !flag(flags, "hidden", made.hidden)) return false;
    if (flags.contains("grad")) made.grad = grad;
    if (!integer(flags, "of", 0, static_cast<std::int64_t>(operands) - 1, of)) return false;
    made.of = static_cast<std::int32_t>(of);
    return true;
  }

  bool read_settings(const Json& attrs, Call& call, bool recorded) {
    if (!attrs.is_object()) return wrong("'attrs' wants an object");
    const auto known = settings_of(call);
    for (auto it = attrs.begin(); it != attrs.end(); ++it)
      if (std::find(known.begin(), known.end(), it.key()) == known.end() && call.kind != OpKind::unknown)
        return wrong(known.empty() ? fmt::format("has the setting '{}', but '{}' has none", cut(it.key(), 80), cut(call.name, 80))
                                   : fmt::format("has the unknown setting '{}'; known: {}", cut(it.key(), 80), fmt::join(known, ", ")));
    if (call.kind == OpKind::unknown) return true;
    Settings& s = call.settings;
    const std::pair<const char*, std::vector<Extent> Settings::*> lists[] = {{"gemm", &Settings::gemm}, {"kernel", &Settings::kernel},
        {"stride", &Settings::stride}, {"padding", &Settings::padding}, {"dilation", &Settings::dilation}};
    for (const auto& [key, member] : lists)
      if (const auto it = attrs.find(key); it != attrs.end() && !extents(*it, s.*member, 4, key)) return false;
    const std::pair<const char*, std::optional<Extent> Settings::*> sizes[] = {{"groups", &Settings::groups}, {"width", &Settings::width}};
    for (const auto& [key, member] : sizes)
      if (const auto it = attrs.find(key); it != attrs.end() && !extent(*it, (s.*member).emplace())) return false;
    const std::pair<const char*, bool Settings::*> flags[] = {{"transposed_a", &Settings::transposed_a}, {"transposed", &Settings::transposed},
        {"causal", &Settings::causal}, {"training", &Settings::training}, {"batch_first", &Settings::batch_first}};
    for (const auto& [key, member] : flags)
      if (!flag(attrs, key, s.*member)) return false;
    std::int64_t axis = 0;
    if (!flag(attrs, "gqa", s.gqa) || !number(attrs, "p", 0, 1, s.probability) || !number(attrs, "dropout", 0, 1, s.probability)) return false;
    if (!integer(attrs, "layers", 1, kMaxLayers, s.layers) || !integer(attrs, "directions", 1, 2, s.directions)) return false;
    if (!integer(attrs, "hidden", 1, std::int64_t{1} << 24, s.hidden)) return false;
    if (attrs.contains("dim") && attrs.at("dim").is_number() && !integer(attrs, "dim", -Shape::kMaxRank, Shape::kMaxRank, axis)) return false;
    for (const auto& [key, member] : {std::pair{"type", &Settings::type}, {"to", &Settings::to}})
      if (const auto it = attrs.find(key); it != attrs.end() && !type(*it, (s.*member).emplace())) return false;
    if (call.kind == OpKind::view && !read_view_kind(attrs, s)) return false;
    if (const auto like = attrs.find("like"); like != attrs.end()) {
      if (like->is_string() && *like == "float") s.to = DType::model;
      else if (recorded) return wrong("a cast of a recorded gradient has no 'like' but \"float\"");
      else if (!reference(*like, s.like.emplace(), "'like'")) return false;
    }
    if (const auto it = attrs.find("scattered"); it != attrs.end()) {
      if (!it->is_array() || it->size() != 3) return wrong("'scattered' wants three of true or false");
      for (std::size_t i = 0; i < 3; ++i) {
        if (!(*it)[i].is_boolean()) return wrong("'scattered' wants three of true or false");
        s.scattered[i] = (*it)[i].get<bool>();
      }
    }
    if (!flag(attrs, "mask_scattered", s.mask_scattered)) return false;
    if (!text(attrs, "traced_mask", s.traced_mask)) return false;
    if (!s.traced_mask.empty() && s.traced_mask != kDenseMask && s.traced_mask != kExpandedMask) return wrong("'traced_mask' must be dense or expanded");
    std::string only;
    if (!text(attrs, "only", only)) return false;
    if (only == "fp32") s.only = OnlyFor::fp32;
    else if (only == "16-bit") s.only = OnlyFor::half;
    else if (!only.empty()) return wrong("'only' must be fp32 or 16-bit");
    std::string door;
    if (!text(attrs, "class", door)) return false;
    if (door == "fp32") s.door = Autocast::fp32;
    else if (door == "lower") s.door = Autocast::lower;
    else if (!door.empty()) return wrong("'class' must be fp32 or lower");
    return true;
  }

  bool read_view_kind(const Json& attrs, Settings& s) {
    std::string kind;
    if (!text(attrs, "kind", kind)) return false;
    for (const auto& [name, value] : {std::pair{"reshape", ViewKind::reshape}, {"transpose", ViewKind::transpose}, {"slice", ViewKind::slice},
                                      {"expand", ViewKind::expand}})
      if (kind == name) s.view = value;
    return s.view || kind.empty() || wrong(fmt::format("'kind' of a view is '{}'; it must be reshape, transpose, slice or expand", cut(kind, 40)));
  }

  // --- recorded gradients
  bool operand(const Json& value, const Entry& entry, std::size_t made, RecipeOperand& out) {
    const std::string* text = value.is_string() ? &value.get_ref<const std::string&>() : nullptr;
    std::uint32_t index = 0;
    bool good = text && text->size() >= 2 && text->size() <= 6;
    for (std::size_t i = 1; good && i < text->size(); ++i) {
      good = (*text)[i] >= '0' && (*text)[i] <= '9';
      index = index * 10 + static_cast<std::uint32_t>((*text)[i] - '0');
    }
    if (!good) return wrong(fmt::format("'back' refers to {}; it must be g0 (a result's gradient), i0 (an operand), o0 (a result) or t0 (made before)", shown(value)));
    std::size_t count = 0;
    switch ((*text)[0]) {
      case 'g': out.from = RecipeOperand::From::gradient, count = entry.call.out.size(); break;
      case 'i': out.from = RecipeOperand::From::input, count = entry.in.size(); break;
      case 'o': out.from = RecipeOperand::From::output, count = entry.call.out.size(); break;
      case 't': out.from = RecipeOperand::From::made, count = made; break;
      default: return wrong(fmt::format("'back' refers to {}; it must begin with g, i, o or t", shown(value)));
    }
    if (index >= count) return wrong(fmt::format("'back' refers to {}, of which there are {}", shown(value), count));
    if (out.from == RecipeOperand::From::input && !entry.in[index]) return wrong(fmt::format("'back' refers to {}, an absent operand", shown(value)));
    out.index = index;
    return true;
  }

  bool read_back(const Json& item, Entry& entry, Back& back) {
    if (!item.is_object()) return wrong("'back' wants an object");
    if (!keys(item, {"ops", "give"})) return false;
    std::size_t made = 0;
    if (const auto ops = item.find("ops"); ops != item.end()) {
      if (!ops->is_array()) return wrong("'back.ops' wants a list");
      for (const Json& one : *ops) {
        if (!one.is_object()) return wrong("'back.ops' wants objects");
        if (!keys(one, {"op", "in", "out", "attrs", "strided", "kind"})) return false;
        BackCall& call = back.ops.emplace_back();
        if (!text(one, "op", call.name, true)) return false;
        const auto in = one.find("in");
        if (in == one.end() || !in->is_array()) return wrong(fmt::format("'back': {} has no list 'in'", cut(call.name, 80)));
        if (in->size() > std::numeric_limits<std::uint16_t>::max()) return wrong("'back' has an operator of more than 65535 operands");
        for (const Json& text : *in)
          if (!text.is_null() && !operand(text, entry, made, call.in.emplace_back())) return false;
        if (!read_call(one, call, call.in.size(), call.in.size(), true)) return false;
        made += call.out.size();
        ++entries_;
        operands_ += static_cast<std::int64_t>(in->size() + call.out.size());
      }
    }
    const auto gifts = item.find("give");
    if (gifts == item.end() || !gifts->is_array()) return wrong("'back.give' is missing or no list");
    operands_ += static_cast<std::int64_t>(gifts->size());
    for (const Json& gift : *gifts) {
      if (!gift.is_array() || gift.size() != 2) return wrong("'back.give' wants pairs of an operand's number and a tensor");
      const auto to = whole(gift[0]);
      if (!to || *to < 0 || *to >= static_cast<std::int64_t>(entry.in.size()) || !entry.in[static_cast<std::size_t>(*to)])
        return wrong(fmt::format("'back.give' names operand {}, which is not there", shown(gift[0])));
      RecipeGift& given = back.gifts.emplace_back();
      given.input = static_cast<std::uint32_t>(*to);
      if (!operand(gift[1], entry, made, given.gradient)) return false;
    }
    return true;
  }

  std::shared_ptr<Document> document_;
  bool images_last_ = false;  // of weights or inputs
  CapturedModel model_;
  std::string problem_, place_;
  std::int64_t defined_ = 0, entries_ = 0, operands_ = 0;  // so far, repeats counted
};

}  // namespace
}  // namespace captured

Result<CapturedModel> parse_captured(std::string_view bytes, const std::string& where) {
  if (bytes.size() > CapturedLimits::kFileBytes && is_zstd(bytes))
    return fail(where, fmt::format("is {} MB; the largest accepted is {} MB", bytes.size() >> 20, CapturedLimits::kFileBytes >> 20));
  std::string opened;
  if (is_zstd(bytes)) {
    PRECOG_TRY(text, decompress(bytes, CapturedLimits::kTextBytes, where));
    opened = std::move(text);
    bytes = opened;
  }
  if (bytes.size() > CapturedLimits::kTextBytes)
    return fail(where, fmt::format("is {} MB; the largest accepted is {} MB", bytes.size() >> 20, CapturedLimits::kTextBytes >> 20));
  if (bytes.empty()) return fail(where, "is empty; a captured graph was expected");
  if (where.ends_with(".zst") && opened.empty() && bytes.find_first_not_of(" \t\r\n") != bytes.find('{'))
    return fail(where, "is not compressed with Zstandard, as its name says, and no JSON either: is it a captured graph, whole?");
  PRECOG_TRY(json, parse_json(bytes, where));
  return captured::Parser(where).run(json);
}

Result<CapturedModel> read_captured(const std::filesystem::path& path) {
  PRECOG_TRY(bytes, read_text_file(path, CapturedLimits::kTextBytes));
  return parse_captured(bytes, path.string());
}

}  // namespace precog
