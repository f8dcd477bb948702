// ONNX's messages, read field by field.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "frontend/onnx_graph.h"
#include "frontend/onnx_wire.h"

namespace precog::onnx {
namespace {

constexpr std::size_t kMaxValues = std::size_t{1} << 22;  // the largest tensor whose integers we keep: a mask of 2048 x 2048
constexpr std::size_t kMaxVector = 64;                    // floating vectors kept whole: Resize's scales, never a weight
constexpr int kMaxDepth = 8;                              // graphs within graphs

double half_to_double(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023, sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
}

int element_bytes(ElementType type) {
  switch (type) {
    case ElementType::uint8:
    case ElementType::int8:
    case ElementType::boolean:
      return 1;
    case ElementType::uint16:
    case ElementType::int16:
    case ElementType::float16:
    case ElementType::bfloat16:
      return 2;
    case ElementType::float32:
    case ElementType::int32:
    case ElementType::uint32:
      return 4;
    case ElementType::float64:
    case ElementType::int64:
    case ElementType::uint64:
      return 8;
    default:
      return 0;  // nothing we read values of
  }
}

double raw_value(ElementType type, const char* at) {
  auto as = [&]<class T>(T value) {
    std::memcpy(&value, at, sizeof value);  // the format is little-endian, as are the machines we run on
    return static_cast<double>(value);
  };
  switch (type) {
    case ElementType::uint8:
    case ElementType::boolean:
      return as(std::uint8_t{});
    case ElementType::int8:
      return as(std::int8_t{});
    case ElementType::uint16:
      return as(std::uint16_t{});
    case ElementType::int16:
      return as(std::int16_t{});
    case ElementType::int32:
      return as(std::int32_t{});
    case ElementType::uint32:
      return as(std::uint32_t{});
    case ElementType::int64:
      return as(std::int64_t{});
    case ElementType::uint64:
      return as(std::uint64_t{});
    case ElementType::float32:
      return as(float{});
    case ElementType::float64:
      return as(double{});
    case ElementType::float16:
      return half_to_double(static_cast<std::uint16_t>(as(std::uint16_t{})));
    case ElementType::bfloat16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(as(std::uint16_t{})) << 16);
    default:
      return 0;
  }
}

// 0 where a mask lets through, very negative where it hides. Weights are neither.
bool looks_like_mask(const TensorData& tensor, double first, double second) {
  const std::size_t rank = tensor.dims.size();
  return rank >= 2 && tensor.dims[rank - 1] == tensor.dims[rank - 2] && first == 0 && second <= -1e4;
}

TensorData read_tensor(std::string_view bytes) {
  TensorData out;
  std::string_view raw;
  bool external = false;
  std::vector<WireReader> typed;
  for (WireReader in(bytes); in.next();) switch (in.field()) {
      case 1:
        in.integers([&](std::int64_t dim) { out.dims.push_back(dim); });
        break;
      case 2:
        out.type = static_cast<ElementType>(in.integer());
        break;
      case 8:
        out.name = in.text();
        break;
      case 4:
      case 5:
      case 7:
      case 10:
      case 11:
        typed.push_back(in);
        break;  // the reader keeps its view of the field
      case 9:
        raw = in.bytes();
        break;
      case 13:
        external = true;
        break;
      case 14:
        external = external || in.integer() == 1;
        break;
      default:
        break;
    }
  if (out.dims.size() > 8)
    throw OnnxError(fmt::format("tensor '{}' has {} dimensions; at most 8 are read", out.name, out.dims.size()));
  std::size_t elements = 1;
  for (std::int64_t dim : out.dims) {
    if (dim < 0 || dim > std::int64_t{1} << 40) throw OnnxError(fmt::format("tensor '{}' has an extent of {}", out.name, dim));
    elements = dim != 0 && elements > (std::size_t{1} << 44) / static_cast<std::size_t>(dim)
                   ? std::size_t{1} << 44
                   : elements * static_cast<std::size_t>(dim);
  }
  if (external) return out;
  const auto width = static_cast<std::size_t>(element_bytes(out.type));
  if (width == 0 || elements > kMaxValues) return out;
  const bool floating = is_floating(out.type);
  if (!raw.empty() || typed.empty()) {
    if (raw.size() != elements * width) {
      if (raw.empty() && floating) return out;  // a graph whose weights were left out: its shapes are what we want
      throw OnnxError(fmt::format("tensor '{}' has {} bytes of data; its shape wants {}", out.name, raw.size(), elements * width));
    }
    if (floating && elements > kMaxVector &&
        !looks_like_mask(out, raw_value(out.type, raw.data()), raw_value(out.type, raw.data() + width)))
      return out;
    out.values.reserve(elements);
    for (std::size_t i = 0; i < elements; ++i) out.values.push_back(raw_value(out.type, raw.data() + i * width));
  } else {
    if (floating && elements > kMaxVector) return out;
    auto put = [&](double value) {
      if (out.values.size() < elements) out.values.push_back(value);
    };
    const bool half = out.type == ElementType::float16 || out.type == ElementType::bfloat16;
    for (const WireReader& field : typed) {
      if (field.field() == 4) field.reals(4, put);
      else if (field.field() == 10) field.reals(8, put);
      else
        field.integers([&](std::int64_t value) {
          if (!half) return put(static_cast<double>(field.field() == 5 ? static_cast<std::int32_t>(value) : value));
          const auto bits = static_cast<std::uint16_t>(value);
          put(out.type == ElementType::float16 ? half_to_double(bits)
                                               : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
        });
    }
    if (out.values.size() != elements)
      throw OnnxError(fmt::format("tensor '{}' has {} values; its shape wants {}", out.name, out.values.size(), elements));
  }
  out.has_values = true;
  return out;
}

GraphData read_graph(std::string_view bytes, int depth);

Attribute read_attribute(std::string_view bytes, int depth) {
  Attribute out;
  for (WireReader in(bytes); in.next();) switch (in.field()) {
      case 1:
        out.name = in.text();
        break;
      case 2:
        out.real = in.real();
        break;
      case 3:
        out.integer = in.integer();
        break;
      case 4:
        out.text = in.text();
        break;
      case 5:
        out.tensor = std::make_shared<TensorData>(read_tensor(in.bytes()));
        break;
      case 6:
        out.graph = std::make_shared<GraphData>(read_graph(in.bytes(), depth + 1));
        break;
      case 7:
        in.reals(4, [&](double value) { out.reals.push_back(value); });
        break;
      case 8:
        in.integers([&](std::int64_t value) { out.integers.push_back(value); });
        break;
      default:
        break;
    }
  return out;
}

// torch.export's exporter notes the modules a node came from: "['', 'model', 'model.h.0', 'addmm']"; the last is the node.
std::string module_of_scopes(std::string_view list) {
  std::vector<std::string_view> names;
  for (std::size_t at = 0; (at = list.find('\'', at)) != std::string_view::npos;) {
    const std::size_t end = list.find('\'', at + 1);
    if (end == std::string_view::npos) break;
    names.push_back(list.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return names.size() < 2 ? std::string() : std::string(names[names.size() - 2]);
}

// TorchScript's names a node by its path: "/model/layer1/layer1.0/conv1/Conv", where "layer1.0" is within "layer1".
std::string module_of_path(std::string_view path) {
  if (!path.starts_with('/')) return {};
  std::vector<std::string> parts;
  for (std::size_t at = 1; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    std::string part(path.substr(at, end - at));
    if (!parts.empty() && part.starts_with(parts.back() + ".")) parts.back() = part;
    else parts.push_back(part);
    at = end + 1;
  }
  std::string out;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) out += (out.empty() ? "" : ".") + parts[i];
  return out;
}

Node read_node(std::string_view bytes, int depth) {
  Node out;
  for (WireReader in(bytes); in.next();) switch (in.field()) {
      case 1:
        out.inputs.push_back(in.text());
        break;
      case 2:
        out.outputs.push_back(in.text());
        break;
      case 3:
        out.name = in.text();
        break;
      case 4:
        out.op = in.text();
        break;
      case 5:
        out.attributes.push_back(read_attribute(in.bytes(), depth));
        break;
      case 7:
        out.domain = in.text() == "ai.onnx" ? "" : in.text();
        break;
      case 9: {
        std::string key, value;
        for (WireReader entry(in.bytes()); entry.next();) (entry.field() == 1 ? key : value) = entry.text();
        if (key == "pkg.torch.onnx.name_scopes") out.module = module_of_scopes(value);
        break;
      }
      default:
        break;
    }
  if (out.op.empty()) throw OnnxError(fmt::format("node '{}' has no operator type", out.name));
  if (out.module.empty()) out.module = module_of_path(out.name);
  return out;
}

ValueInfo read_value(std::string_view bytes) {
  ValueInfo out;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == 1) out.name = in.text();
    if (in.field() != 2) continue;
    for (WireReader type(in.bytes()); type.next();) {
      if (type.field() != 1) continue;  // a tensor; sequences and maps have no shape of their own
      for (WireReader tensor(type.bytes()); tensor.next();) {
        if (tensor.field() == 1) out.type = static_cast<ElementType>(tensor.integer());
        if (tensor.field() != 2) continue;
        out.has_shape = true;
        for (WireReader shape(tensor.bytes()); shape.next();) {
          if (shape.field() != 1) continue;
          Dim dim;
          for (WireReader one(shape.bytes()); one.next();) {
            if (one.field() == 1) dim.value = one.integer();
            if (one.field() == 2) dim.symbol = one.text();
          }
          out.dims.push_back(dim);
        }
      }
    }
  }
  return out;
}

GraphData read_graph(std::string_view bytes, int depth) {
  if (depth > kMaxDepth) throw OnnxError("graphs are nested more than eight deep");
  GraphData out;
  std::vector<ValueInfo> inputs;
  for (WireReader in(bytes); in.next();) switch (in.field()) {
      case 1:
        out.nodes.push_back(read_node(in.bytes(), depth));
        break;
      case 2:
        out.name = in.text();
        break;
      case 5:
        out.initializers.push_back(read_tensor(in.bytes()));
        break;
      case 11:
        inputs.push_back(read_value(in.bytes()));
        break;
      case 12:
        out.outputs.push_back(read_value(in.bytes()));
        break;
      case 15:
        throw OnnxError("sparse initializers are not read; export dense ones");
      default:
        break;
    }
  std::set<std::string_view> stored;  // before IR version 4 initializers are inputs too
  for (const TensorData& tensor : out.initializers) stored.insert(tensor.name);
  for (ValueInfo& value : inputs)
    if (!stored.contains(value.name)) out.inputs.push_back(std::move(value));
  return out;
}

}  // namespace

bool is_floating(ElementType type) {
  return type == ElementType::float32 || type == ElementType::float16 || type == ElementType::float64 ||
         type == ElementType::bfloat16 || (type >= ElementType::float8_first && type <= ElementType::float8_last) ||
         type == ElementType::float4;
}
DType dtype_of(ElementType type) {
  if (is_floating(type)) return DType::model;
  switch (type) {
    case ElementType::boolean:
      return DType::boolean;
    case ElementType::uint8:
    case ElementType::int8:
    case ElementType::uint4:
    case ElementType::int4:
      return DType::uint8;
    case ElementType::int32:
    case ElementType::uint32:
    case ElementType::int16:
    case ElementType::uint16:
      return DType::int32;
    default:
      return DType::int64;
  }
}

const Attribute* Node::find(std::string_view key) const {
  for (const Attribute& attribute : attributes)
    if (attribute.name == key) return &attribute;
  return nullptr;
}
std::int64_t Node::integer(std::string_view key, std::int64_t otherwise) const {
  const Attribute* found = find(key);
  return found ? found->integer : otherwise;
}
double Node::real(std::string_view key, double otherwise) const {
  const Attribute* found = find(key);
  return found ? found->real : otherwise;
}
std::string Node::text(std::string_view key, std::string otherwise) const {
  const Attribute* found = find(key);
  return found ? found->text : otherwise;
}
std::vector<std::int64_t> Node::integers(std::string_view key) const {
  const Attribute* found = find(key);
  return found ? found->integers : std::vector<std::int64_t>{};
}
const std::string& Node::input(std::size_t i) const {
  static const std::string kNone;
  return i < inputs.size() ? inputs[i] : kNone;
}
std::string Node::label() const {
  const std::string& called = !name.empty() ? name : !outputs.empty() ? outputs.front() : name;
  return fmt::format("{}{}{} '{}'", domain, domain.empty() ? "" : ".", op.substr(0, 60), called.substr(0, 120));
}

ParsedModel parse_model(std::string_view bytes) {
  ParsedModel out;
  bool found = false;
  for (WireReader in(bytes); in.next();) switch (in.field()) {
      case 2:
        out.producer = in.text();
        break;
      case 7:
        out.graph = read_graph(in.bytes(), 0);
        found = true;
        break;
      case 8: {
        std::string domain;
        std::int64_t version = 0;
        for (WireReader entry(in.bytes()); entry.next();) {
          if (entry.field() == 1) domain = entry.text();
          if (entry.field() == 2) version = entry.integer();
        }
        out.opsets[domain == "ai.onnx" ? "" : domain] = version;
        break;
      }
      case 25:
        throw OnnxError("functions defined in the file are not read; export with optimize=True, or inline them (onnx.inliner)");
      default:
        break;
    }
  if (!found) throw OnnxError("holds no graph: it is no ONNX model");
  return out;
}

}  // namespace precog::onnx
