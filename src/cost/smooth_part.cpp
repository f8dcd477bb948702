#include "cost/smooth_part.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "base/ensure.h"

namespace precog {
namespace {

struct Coordinate {
  std::string_view feature;
  double scale;  // octaves count as they are where shapes are products' extents; a share from 0 to 1 counts as four octaves
};
constexpr Coordinate kGemm[] = {{"log m", 1}, {"log n", 1}, {"log k", 1}, {"log batch", 1}, {"compute share", 4}, {"memory share", 4}, {"launch share", 4},
                                {"a stored [k,m]", 2}, {"b stored [n,k]", 2}, {"bias", 1}, {"alignment a", 0.5}, {"alignment b", 0.5}, {"warm", 4}};
constexpr Coordinate kConvolution[] = {{"log m", 1}, {"log n", 1}, {"log k", 1}, {"log batch", 1}, {"compute share", 4}, {"memory share", 4}, {"launch share", 4},
                                       {"channels last", 4}, {"filter", 0.3}, {"filter width", 0.5}, {"stride", 1}, {"dilation", 2}, {"native", 4}, {"log groups", 0.5},
                                       {"log row", 0.5}, {"log in channels", 0.5}, {"log out channels", 0.5}, {"log images", 0.5}, {"alignment channels", 0.5}, {"warm", 4}};
constexpr Coordinate kAttention[] = {{"log queries", 1}, {"log keys", 1}, {"log heads", 1}, {"head dim", 1.0 / 32}, {"causal", 2}, {"mask", 2}, {"dropout", 2},
                                     {"backend", 4}, {"compute share", 4}, {"launch share", 4}, {"warm", 2}};
constexpr Coordinate kMemory[] = {{"log rows", 0.5}, {"log row length", 0.5}, {"log bytes", 0.5}, {"memory share", 4}, {"launch share", 4}, {"read share", 2},
                                  {"channels last", 2}, {"bytes / element", 0.3}, {"warm", 2}};
constexpr std::array<std::span<const Coordinate>, 4> kCoordinates = {kGemm, kConvolution, kAttention, kMemory};  // by FeatureKind

std::size_t place(FeatureKind kind, std::string_view feature) {
  const auto names = feature_names(kind);
  const auto found = std::find_if(names.begin(), names.end(), [&](const FeatureName& f) { return f.name == feature; });
  ensure(found != names.end(), "coordinates are features");
  return static_cast<std::size_t>(found - names.begin());
}

// Where in a kernel's features the coordinates are, looked up once; then "warm" and "memory share".
const std::vector<std::size_t>& places(FeatureKind kind) {
  static const auto all = [] {
    std::array<std::vector<std::size_t>, kCoordinates.size()> out;
    for (std::size_t i = 0; i < out.size(); ++i) {
      for (const Coordinate& c : kCoordinates[i]) out[i].push_back(place(static_cast<FeatureKind>(i), c.feature));
      for (std::string_view name : {"warm", "memory share"}) out[i].push_back(place(static_cast<FeatureKind>(i), name));
    }
    return out;
  }();
  return all[static_cast<std::size_t>(kind)];
}

constexpr double kOtherKernel = 0.5;  // how much of what near ones have in common a kernel of another name shares

}  // namespace

SmoothPoint smooth_point(FeatureKind kind, std::string dtype, std::string name, const std::vector<double>& features) {
  const auto coordinates = kCoordinates[static_cast<std::size_t>(kind)];
  const std::vector<std::size_t>& where = places(kind);
  SmoothPoint out{std::move(dtype), std::move(name), features[where[coordinates.size()]] > 0.5, features[where.back()], {}};
  for (std::size_t i = 0; i < coordinates.size(); ++i) out.at.push_back(coordinates[i].scale * features[where[i]]);
  return out;
}

double alike(const Likeness& l, const SmoothPoint& a, const SmoothPoint& b) {
  const bool type = a.dtype == b.dtype, kernel = a.name == b.name;
  double apart = 0;
  for (std::size_t i = 0; i < a.at.size(); ++i) apart += (a.at[i] - b.at[i]) * (a.at[i] - b.at[i]);
  const double r = std::sqrt(3 * apart) / l.length;
  // Matern 3/2: smooth, but with kinks at every scale, as times over shapes are.
  double sum = l.constant * l.constant + l.spread * l.spread * (1 + r) * std::exp(-r) * (type ? 1 : l.across_types) * (kernel ? 1 : kOtherKernel);
  if (type) sum += l.by_type * l.by_type;
  if (type && kernel) sum += l.by_kernel * l.by_kernel;
  if (a.warm && b.warm) sum += l.warm * l.warm * (1 + a.memory_share * b.memory_share);
  return sum;
}

double SmoothPart::operator()(const SmoothPoint& kernel) const {
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) sum += weights[i] * alike(likeness, kernel, points[i]);
  return std::clamp(sum, least, most);
}

SmoothPart read_smooth_part(JsonReader& reader, FeatureKind kind) {
  SmoothPart part;
  std::vector<std::string> expected;
  for (const Coordinate& c : kCoordinates[static_cast<std::size_t>(kind)]) expected.emplace_back(c.feature);
  if (reader.texts("coordinates") != expected) reader.problem("coordinates", "are not those that this precog computes: run precog calibrate again");
  const auto number = [&](std::string_view key, double least, double most, double& to) {
    if (auto value = reader.number(key, least, most)) to = *value;
    else if (!reader.has(key)) reader.problem(key, "is missing");
  };
  number("constant", 0, 10, part.likeness.constant), number("by_type", 0, 10, part.likeness.by_type), number("by_kernel", 0, 10, part.likeness.by_kernel);
  number("warm", 0, 10, part.likeness.warm), number("spread", 0, 10, part.likeness.spread), number("length", 1e-3, 1e6, part.likeness.length);
  number("across_types", 0, 1, part.likeness.across_types), number("least", -10, 0, part.least), number("most", 0, 10, part.most);
  const Json* points = reader.raw("points");
  const auto wrong = [&] { reader.problem("points", "must be a list of [type, kernel, in the cache, memory's share, weight, coordinates...]"); };
  if (!points || !points->is_array()) return wrong(), part;
  for (const Json& one : *points) {
    const bool shaped = one.is_array() && one.size() == 5 + expected.size() && one[0].is_string() && one[1].is_string() &&
                        std::all_of(one.begin() + 2, one.end(), [](const Json& x) { return x.is_number() && std::isfinite(x.get<double>()); });
    if (!shaped) return wrong(), part;
    SmoothPoint point{one[0].get<std::string>(), one[1].get<std::string>(), one[2].get<double>() > 0.5, one[3].get<double>(), {}};
    for (std::size_t i = 5; i < one.size(); ++i) point.at.push_back(one[i].get<double>());
    part.points.push_back(std::move(point));
    part.weights.push_back(one[4].get<double>());
  }
  reader.reject_unknown_keys();
  return part;
}

std::string smooth_text(const SmoothPart& part, FeatureKind kind) {
  Json names = Json::array();
  for (const Coordinate& c : kCoordinates[static_cast<std::size_t>(kind)]) names.push_back(c.feature);
  const Likeness& l = part.likeness;
  std::string out = fmt::format("{{\"constant\":{},\"by_type\":{},\"by_kernel\":{},\"warm\":{},\"spread\":{},\"length\":{},\"across_types\":{},\"least\":{:.4g},\"most\":{:.4g},"
                                "\"coordinates\":{},\"points\":[",
                                l.constant, l.by_type, l.by_kernel, l.warm, l.spread, l.length, l.across_types, part.least, part.most, names.dump());
  for (std::size_t i = 0; i < part.points.size(); ++i) {
    const SmoothPoint& p = part.points[i];
    out += fmt::format("{}[{},{},{},{:.4g},{:.6g}", i == 0 ? "" : ",", Json(p.dtype).dump(), Json(p.name).dump(), p.warm ? 1 : 0, p.memory_share, part.weights[i]);
    for (double x : p.at) out += fmt::format(",{:.5g}", x);
    out += "]";
  }
  return out + "]}";
}

}  // namespace precog
