#include "cost/residual.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "cost/own_constant.h"

namespace precog {
namespace {

constexpr double kFadeOctaves = 2;  // so far outside what was seen nothing of the correction is left
constexpr std::array<std::string_view, 4> kKinds = {"gemm", "convolution", "attention", "memory"};  // by FeatureKind

// How much of a correction to believe: all of it inside the sizes seen, less with every octave outside. Not so where kernels that
// only move memory are larger than any seen: their pace is then that of the largest, the physics' alone would be the datasheet's.
double fade(const FamilyResidual& family, const std::vector<double>& features) {
  const auto names = feature_names(family.kind);
  const bool moves = family.kind == FeatureKind::memory;
  double outside = 0;
  for (std::size_t i = 0; i < names.size() && i < family.seen.size(); ++i)
    if (names[i].octaves) outside = std::max({outside, family.seen[i].least - features[i], moves ? 0 : features[i] - family.seen[i].most});
  return std::clamp(1 - outside / kFadeOctaves, 0.0, 1.0);
}

// --- reading ---

class Reading {
 public:
  Reading(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  Result<FittedProfile> run() {
    JsonReader file(json_, where_, problems_);
    FittedProfile profile;
    file.required_integer("schema", 1, 1);
    if (file.required_text("kind") != "fitted") file.problem("kind", "must be \"fitted\": the form that precog calibrate writes");
    profile.gpu = file.required_text("gpu");
    profile.architecture = file.required_text("architecture");
    file.text("note");
    profile.method = file.text("method").value_or("");
    read_sources(file, profile);
    read_features(file);
    JsonReader families = file.required_object("families");
    for (const std::string& name : families.keys()) {
      JsonReader family = families.required_object(name);
      profile.families.emplace(name, read_family(family));
    }
    file.reject_unknown_keys();
    if (!problems_.empty()) return fail(std::move(problems_));
    return profile;
  }

 private:
  void read_sources(JsonReader& file, FittedProfile& profile) {
    const Json* list = file.raw("sources");
    if (!list || !list->is_array()) return file.problem("sources", "must list the measurement files it was fitted to");
    for (const Json& one : *list) {
      JsonReader reader(one, where_ + ": sources", problems_);
      profile.sources.push_back({reader.required_text("file"), reader.text("date").value_or(""), reader.text("software").value_or(""),
                                 reader.required_integer("rows", 0, 1'000'000'000)});
      reader.reject_unknown_keys();
    }
  }

  // The file's features, by place, as ours.
  void read_features(JsonReader& file) {
    JsonReader lists = file.required_object("features");
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
      for (const std::string& name : lists.texts(kKinds[kind])) {
        const auto known = feature_names(static_cast<FeatureKind>(kind));
        const auto at = std::find_if(known.begin(), known.end(), [&](const FeatureName& f) { return f.name == name; });
        if (at == known.end()) lists.problem(kKinds[kind], fmt::format("names '{}', which this precog does not compute: run precog calibrate again", name));
        places_[kind].push_back(at == known.end() ? -1 : static_cast<std::int32_t>(at - known.begin()));
      }
    lists.reject_unknown_keys();
  }

  Range range(JsonReader& reader, std::string_view key) {
    const Json* pair = reader.raw(key);
    Range out;
    if (!pair || !to_range(*pair, out)) reader.problem(key, "must be [least, most]");
    return out;
  }
  static bool to_range(const Json& pair, Range& out) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number() || !pair[1].is_number()) return false;
    out = {pair[0].get<double>(), pair[1].get<double>()};
    return out.least <= out.most;
  }

  FamilyResidual read_family(JsonReader& reader) {
    FamilyResidual family;
    const std::string kind = reader.required_text("kind");
    const auto at = std::find(kKinds.begin(), kKinds.end(), kind);
    if (at == kKinds.end()) reader.problem("kind", "must be gemm, convolution, attention or memory");
    else family.kind = static_cast<FeatureKind>(at - kKinds.begin());
    const std::vector<std::int32_t>& places = places_[static_cast<std::size_t>(family.kind)];
    JsonReader constants = reader.required_object("constants");
    for (const std::string& key : constants.keys())
      if (auto value = constants.number(key, -10, 10)) family.constants[key] = *value;
    family.correction = range(reader, "correction");
    family.ratio = range(reader, "ratio");
    family.carried = reader.boolean("carried").value_or(false);
    if (family.ratio.least <= 0) reader.problem("ratio", "must be positive");
    if (std::abs(family.correction.least) > 10 || std::abs(family.correction.most) > 10) reader.problem("correction", "is beyond all reason");
    // Unseen features (new since the fit) have no limits of their own.
    family.seen.assign(feature_names(family.kind).size(), Range{-1e300, 1e300});
    if (const Json* seen = reader.raw("seen"); seen && seen->is_array() && seen->size() == places.size()) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        Range one;
        if (!to_range((*seen)[i], one)) reader.problem("seen", "must be pairs [least, most]");
        else if (places[i] >= 0) family.seen[static_cast<std::size_t>(places[i])] = one;
      }
    } else {
      reader.problem("seen", "must have a pair for each feature");
    }
    read_trees(reader, places, family);
    if (auto smooth = reader.object("smooth")) family.smooth = read_smooth_part(*smooth, family.kind);
    if (auto quality = reader.object("held_out")) {
      FamilyResidual::Quality& q = family.quality;
      q.rows = quality->required_integer("fitted_rows", 0, 1'000'000'000);
      q.shapes = quality->required_integer("fitted_shapes", 0, 1'000'000'000);
      q.held_out = quality->required_integer("rows", 0, 1'000'000'000);
      q.median = quality->number("median", 0, 1e6).value_or(0);
      q.p95 = quality->number("p95", 0, 1e6).value_or(0);
      q.bias = quality->number("bias", -1e6, 1e6).value_or(0);
      q.physics_median = quality->number("physics_median", 0, 1e6).value_or(0);
      quality->reject_unknown_keys();
    }
    reader.reject_unknown_keys();
    return family;
  }

  // As tree_text.h has them; or written out, "feature limit left right" and "-1 value", as profiles of other days are.
  void read_trees(JsonReader& reader, const std::vector<std::int32_t>& places, FamilyResidual& family) {
    const auto packed = reader.text("splits");
    const double unit = reader.number("leaf", 0, 10).value_or(0);
    TreeSplits splits;
    if (packed && !read_splits(*packed, places.size(), splits)) return reader.problem("splits", "must be \"feature how-many limit limit ...\", feature after feature");
    for (auto& [feature, limit] : splits) feature = places[static_cast<std::size_t>(feature)];
    if (std::any_of(splits.begin(), splits.end(), [](const auto& split) { return split.first < 0; })) return;  // reported with the list of features
    const Json* trees = reader.raw("trees");
    if (!trees || !trees->is_array()) return reader.problem("trees", "must be a list, empty perhaps");
    for (const Json& text : *trees) {
      Tree tree;
      std::string_view left = text.is_string() ? std::string_view(text.get_ref<const std::string&>()) : std::string_view();
      if (packed ? !read_tree(left, splits, unit, tree) : !grow(left, places, tree, 0) || !left.empty())
        return reader.problem("trees", packed ? "has one that is no tree: a text of three characters a node" : "has one that is no tree: a text \"feature limit left right\", or \"-1 value\"");
      family.trees.push_back(std::move(tree));
    }
  }

  // Takes a number and the space after it off the front.
  template <class Number>
  static bool take(std::string_view& left, Number& value) {
    const auto [rest, status] = std::from_chars(left.data(), left.data() + left.size(), value);
    if (status != std::errc{}) return false;
    left.remove_prefix(static_cast<std::size_t>(rest - left.data()));
    if (left.starts_with(' ')) left.remove_prefix(1);
    return true;
  }
  static bool grow(std::string_view& left, const std::vector<std::int32_t>& places, Tree& tree, int depth) {
    if (depth > kDeepestTree || tree.size() >= kMostTreeNodes) return false;
    std::int64_t feature = 0;
    double number = 0;
    if (!take(left, feature) || !take(left, number) || !std::isfinite(number)) return false;
    const std::size_t here = tree.size();
    tree.push_back({-1, 0, number});
    if (feature == -1) return true;
    if (feature < 0 || feature >= static_cast<std::int64_t>(places.size())) return false;
    tree[here].feature = places[static_cast<std::size_t>(feature)];
    if (tree[here].feature < 0) return false;  // reported with the list of features
    if (!grow(left, places, tree, depth + 1)) return false;
    tree[here].right = static_cast<std::int32_t>(tree.size());
    return grow(left, places, tree, depth + 1);
  }

  const Json& json_;
  std::string where_;
  std::vector<Problem> problems_;
  std::array<std::vector<std::int32_t>, kKinds.size()> places_;
};

// --- writing: four significant digits, which is more than any measurement has ---

std::string number(double x) { return fmt::format("{:.4g}", x == 0 ? 0.0 : x); }
std::string limits(const Range& r) { return fmt::format("[{},{}]", number(r.least), number(r.most)); }

std::string family_text(const FamilyResidual& f) {
  std::string constants, seen, trees;
  for (const auto& [key, value] : f.constants) constants += fmt::format("{}{}:{}", constants.empty() ? "" : ",", Json(key).dump(), number(value));
  for (const Range& one : f.seen) seen += (seen.empty() ? "" : ",") + limits(one);
  const TreeTexts texts = tree_texts(f.trees);
  for (const std::string& text : texts.trees) trees += fmt::format("{}\"{}\"", trees.empty() ? "" : ",", text);
  const FamilyResidual::Quality& q = f.quality;
  return fmt::format("{{\"kind\":\"{}\",{}\"held_out\":{{\"fitted_rows\":{},\"fitted_shapes\":{},\"rows\":{},\"median\":{},\"p95\":{},\"bias\":{},\"physics_median\":{}}},"
                     "\"ratio\":{},\"correction\":{},\"constants\":{{{}}},\"seen\":[{}],\"splits\":\"{}\",\"leaf\":{},\"trees\":[{}]{}}}",
                     kKinds[static_cast<std::size_t>(f.kind)], f.carried ? "\"carried\":true," : "", q.rows, q.shapes, q.held_out, number(q.median), number(q.p95),
                     number(q.bias), number(q.physics_median), limits(f.ratio), limits(f.correction), constants, seen, texts.splits, texts.unit, trees,
                     f.smooth.empty() ? "" : ",\"smooth\":" + smooth_text(f.smooth, f.kind));
}

}  // namespace

double value_of(const Tree& tree, const std::vector<double>& features) {
  std::size_t at = 0;
  while (tree[at].feature >= 0)
    at = features[static_cast<std::size_t>(tree[at].feature)] <= tree[at].number ? at + 1 : static_cast<std::size_t>(tree[at].right);
  return tree[at].number;
}

namespace {

// Walks down trees, side by side: a step of one waits for memory, and guessing where it goes fails half of the time.
struct Walk {
  const TreeNode *root, *at;
  const double* features;
};
constexpr std::size_t kTogether = 8;

void finish(std::span<Walk> walks) {
  for (bool walking = true; walking;) {
    walking = false;
    for (Walk& walk : walks) {
      const TreeNode node = *walk.at;
      const bool inside = node.feature >= 0;
      const TreeNode* next = walk.features[inside ? node.feature : 0] <= node.number ? walk.at + 1 : walk.root + node.right;
      walk.at = inside ? next : walk.at;
      walking = walking || inside;
    }
  }
}

}  // namespace

std::vector<double> with_own_constant(std::vector<double> features, FeatureKind kind, const std::map<std::string, double, std::less<>>& constants,
                                      std::string_view dtype, std::string_view name) {
  if (kind != FeatureKind::memory || features.empty()) return features;
  const auto own = constants.find(fmt::format("{} {}", dtype, name));
  features.back() = own == constants.end() ? 0 : own->second;
  return features;
}

double FamilyResidual::correct(const Kernel& kernel, const std::vector<double>& features) const {
  CorrectedKernel one{&kernel, features};
  correct(std::span(&one, 1));
  return one.correction;
}

void FamilyResidual::correct(std::span<CorrectedKernel> kernels) const {
  std::vector<std::vector<double>> known;
  for (CorrectedKernel& one : kernels) {
    const auto add = [&](std::string_view key) {
      if (auto it = constants.find(key); it != constants.end()) one.correction += it->second;
    };
    const std::string dtype = residual_dtype(*one.kernel);
    one.correction = 0;
    add("");
    add(dtype);
    add(fmt::format("{} {}", dtype, one.kernel->name));
    known.push_back(with_own_constant(one.features, kind, constants, dtype, one.kernel->name));
  }
  // One tree for all kernels while it is near, or of one kernel several trees at a time; for each kernel in the trees' order.
  std::array<Walk, kTogether> walks;
  const std::size_t trees_at_once = kernels.size() == 1 ? kTogether : 1;
  for (std::size_t first = 0; first < trees.size(); first += trees_at_once)
    for (std::size_t k = 0; k < kernels.size(); k += kTogether) {
      const std::size_t several = std::min(trees_at_once, trees.size() - first), others = several == 1 ? std::min(kTogether, kernels.size() - k) : 1;
      const auto walking = std::span(walks).first(std::max(several, others));
      for (std::size_t i = 0; i < walking.size(); ++i) {
        const TreeNode* root = trees[first + (several > 1 ? i : 0)].data();
        walking[i] = {root, root, known[k + (others > 1 ? i : 0)].data()};
      }
      finish(walking);
      for (std::size_t i = 0; i < walking.size(); ++i) kernels[k + (others > 1 ? i : 0)].correction += walking[i].at->number;
    }
  for (CorrectedKernel& one : kernels) {
    one.correction = std::clamp(one.correction, correction.least, correction.most) * fade(*this, one.features);
    if (!smooth.empty()) one.correction += smooth(smooth_point(kind, residual_dtype(*one.kernel), std::string(one.kernel->name), one.features));
  }
}

const FamilyResidual* FittedProfile::find(std::string_view family) const {
  auto it = families.find(family);
  return it == families.end() ? nullptr : &it->second;
}

Result<FittedProfile> parse_fitted_profile(const Json& json, const std::string& where) { return Reading(json, where).run(); }

std::string to_json_text(const FittedProfile& profile) {
  std::string out = fmt::format("{{\n \"schema\": 1,\n \"kind\": \"fitted\",\n \"gpu\": {},\n \"architecture\": {},\n", Json(profile.gpu).dump(), Json(profile.architecture).dump());
  if (!profile.method.empty()) out += fmt::format(" \"method\": {},\n", Json(profile.method).dump());
  out += " \"note\": \"written by precog calibrate; docs/how_to/calibrate_a_gpu.md says how to make and read one\",\n \"sources\": [";
  for (const MeasurementSource& s : profile.sources)
    out += fmt::format("{}\n  {}", &s == &profile.sources.front() ? "" : ",", Json{{"file", s.file}, {"date", s.date}, {"software", s.software}, {"rows", s.rows}}.dump());
  out += "\n ],\n \"features\": {";
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    Json names = Json::array();
    for (const FeatureName& name : feature_names(static_cast<FeatureKind>(kind))) names.push_back(name.name);
    out += fmt::format("{}\n  \"{}\": {}", kind == 0 ? "" : ",", kKinds[kind], names.dump());
  }
  out += "\n },\n \"families\": {";
  bool first = true;
  for (const auto& [name, family] : profile.families) {
    out += fmt::format("{}\n  {}: {}", first ? "" : ",", Json(name).dump(), family_text(family));
    first = false;
  }
  return out + "\n }\n}\n";
}

}  // namespace precog
