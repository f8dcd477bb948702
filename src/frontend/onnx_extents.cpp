#include "frontend/onnx_extents.h"

#include <algorithm>
#include <cctype>
#include <set>

#include <fmt/format.h>

#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}
bool has(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return text.find(word) != std::string::npos; });
}

bool is_batch(const std::string& symbol) { return symbol == "n" || symbol == "b" || symbol == "bs" || has(symbol, {"batch"}); }
bool is_length(const std::string& symbol) {
  return symbol == "s" || symbol == "t" || symbol == "l" || has(symbol, {"seq", "len", "time", "frame", "token"});
}
bool is_source(const std::string& symbol) { return has(symbol, {"src", "source", "encoder", "enc_"}) && !has(symbol, {"decoder"}); }
bool is_target(const std::string& text) { return has(text, {"decoder", "tgt", "target", "label"}); }

}  // namespace

void bind_extents(ParsedModel& file, OnnxModel& model) {
  bool decoder = false, encoder = false;  // an encoder-decoder has inputs for both sides
  for (const ValueInfo& input : file.graph.inputs) {
    const bool tokens = !is_floating(input.type);
    decoder = decoder || (tokens && is_target(lower(input.name)));
    encoder = encoder || (tokens && !is_target(lower(input.name)));
  }
  const bool both = decoder && encoder;
  for (ValueInfo& input : file.graph.inputs) {
    if (!input.has_shape)
      throw OnnxError(fmt::format("input '{}' has no shape; export it with one (symbolic extents are fine)", input.name));
    if (input.dims.size() > 8)
      throw OnnxError(fmt::format("input '{}' has {} dimensions; at most 8 are read", input.name, input.dims.size()));
    const bool source = both && !is_target(lower(input.name));
    bool placed = false;
    for (std::size_t i = 0; i < input.dims.size(); ++i) {
      Dim& dim = input.dims[i];
      const std::string symbol = lower(dim.symbol);
      const bool language = !is_floating(input.type) && input.dims.size() == 2 && i == 1;
      if (dim.value >= 1) {  // a number
        if (i == 0 && input.dims.size() > 1 && model.captured_batch == 0) model.captured_batch = dim.value;
        if (language) (source ? model.captured_src_seq : model.captured_seq) = dim.value;
        continue;
      }
      if (dim.value == 0 && symbol.empty()) throw OnnxError(fmt::format("input '{}' has an extent of 0", input.name));
      if (has(symbol, {"past"}) && !has(symbol, {"+"}))
        throw OnnxError(fmt::format(
            "input '{}' is a cache of past keys (extent '{}'), which training does not have; export with use_cache=False",
            input.name, dim.symbol));
      if (is_batch(symbol) || (i == 0 && !is_length(symbol))) dim.extent = Extent::batch;
      else if (is_length(symbol) || (i == 1 && !placed && (!is_floating(input.type) || input.dims.size() == 3)))
        dim.extent = source || is_source(symbol) ? (both || is_source(symbol) ? Extent::src_seq : Extent::seq) : Extent::seq;
      else
        throw OnnxError(
            fmt::format("input '{}' has an extent '{}' that is neither a batch nor a sequence; export it with a fixed one",
                        input.name, dim.symbol.empty() ? "?" : dim.symbol));
      placed = placed || dim.extent != Extent::batch;
      model.has_batch = model.has_batch || dim.extent == Extent::batch;
      model.has_seq = model.has_seq || dim.extent == Extent::seq;
      model.has_src_seq = model.has_src_seq || dim.extent == Extent::src_seq;
    }
  }
  if (model.has_src_seq && !model.has_seq && model.captured_seq == 0) {  // one length only: it is the sequence
    for (ValueInfo& input : file.graph.inputs)
      for (Dim& dim : input.dims)
        if (dim.extent == Extent::src_seq) dim.extent = Extent::seq;
    model.has_seq = true;
    model.has_src_seq = false;
  }
  if (model.has_batch) model.captured_batch = 0;
  if (model.has_seq) model.captured_seq = 0;
  if (model.has_src_seq) model.captured_src_seq = 0;
  if (!model.has_batch && model.captured_batch == 0) model.captured_batch = 1;
}

}  // namespace precog::onnx
