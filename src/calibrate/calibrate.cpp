#include "calibrate/calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "calibrate/learn_family.h"
#include "calibrate/short_measurement.h"
#include "calibrate/sittings.h"
#include "cost/pricing.h"

namespace precog {
namespace {

constexpr std::uint32_t kHeldOutOf = 5;
constexpr double kMostTarget = 1.5;   // of a logarithm: a row further off says that it is no such kernel ...
constexpr double kMostBorrowed = 5;   // ... unless its pattern was another's: then it says how far that was off
constexpr double kMostOfConvolution = 4;  // ... or it is a convolution: that the library took a bad one, as it does again
constexpr std::size_t kShort = 4000;  // rows
constexpr double kMostCleared = 0.7;  // of a call, by fills, for what is left to say something of the others
constexpr double kLeastLeft = 0.25;   // of a kernel's physical time, when what ran beside it seems to have taken all

struct Row {
  const Measurement* measured = nullptr;
  double seconds = 0;                          // measured, less what its sitting adds to every call
  std::vector<KernelCost> physics;
  std::vector<std::string_view> family;        // of each kernel
  std::vector<bool> charged;                   // whether what is off is this kernel's doing
  std::vector<std::vector<double>> features;
  std::string_view label;                      // whose call it is judged as: family of the longest one charged, or a convolution's
  bool held_out = false;

  double physical(std::size_t i) const { return physics[i].total.value; }
};

// What a row says about which kernels: those whose pattern is borrowed where they take most of it, else all of the family that does.
Row make_row(const Measurement& m, double offset, const GpuSpec& gpu, const ArchitectureProfile& physics) {
  constexpr double kLeastKept = 0.7;  // of what was measured
  Row row;
  row.measured = &m;
  row.seconds = std::max(kLeastKept * m.seconds, m.seconds - offset * launches_of(m));
  row.held_out = is_held_out(m.shape);
  std::map<std::string_view, double> time;
  double all = 0, borrowed = 0, fills = 0;
  for (const Kernel& kernel : m.kernels) {
    row.physics.push_back(kernel_cost(kernel, gpu, physics));
    row.family.push_back(residual_family(kernel));
    row.features.push_back(features_of(kernel, row.physics.back(), gpu, m.warm));
    time[row.family.back()] += row.physics.back().total.value;
    all += row.physics.back().total.value;
    if (kernel.estimated) borrowed += row.physics.back().total.value;
    else if (row.family.back() == "fill") fills += row.physics.back().total.value;  // known by itself
  }
  // A fill is known by itself, from calls that do nothing else: beside others it is theirs to explain the call, or, where they are little of it, nobody's.
  const bool cleared = fills > 0 && time.size() > 1, nobody = cleared && fills > kMostCleared * all;
  std::string_view most = row.family.front();
  for (const auto& [family, spent] : time)
    if ((!cleared || family != "fill") && (spent > time[most] || (cleared && most == "fill"))) most = family;
  std::ptrdiff_t convolution = -1;  // it answers for all of its call that is not known by itself: its layout copies are
  for (std::size_t i = 0; i < m.kernels.size(); ++i)
    if (std::holds_alternative<ConvShape>(m.kernels[i].shape)) convolution = static_cast<std::ptrdiff_t>(i);
  double longest = -1;
  for (std::size_t i = 0; i < m.kernels.size(); ++i) {
    row.charged.push_back(nobody ? false : convolution >= 0 ? static_cast<std::ptrdiff_t>(i) == convolution : borrowed > (all - fills) / 2 ? m.kernels[i].estimated : row.family[i] == most);
    if (row.charged[i] && row.physical(i) > longest) longest = row.physical(i), row.label = row.family[i];
  }
  if (nobody) row.label = "fill";
  for (std::size_t i = 0; i < m.kernels.size(); ++i)  // its layout copies are part of a convolution's call, however long
    if (std::holds_alternative<ConvShape>(m.kernels[i].shape)) row.label = row.family[i];
  return row;
}

bool only_moves_memory(const Row& row) {
  return std::all_of(row.measured->kernels.begin(), row.measured->kernels.end(), [](const Kernel& kernel) { return std::holds_alternative<MemoryShape>(kernel.shape); });
}

double corrected(const Row& row, std::size_t i, const FittedProfile& profile) {
  const FamilyResidual* family = profile.find(row.family[i]);
  return row.physical(i) * (family ? std::exp(family->correct(row.measured->kernels[i], row.features[i])) : 1);
}

double predicted(const Row& row, const FittedProfile& profile) {
  double sum = 0;
  for (std::size_t i = 0; i < row.physics.size(); ++i) sum += corrected(row, i, profile);
  return sum;
}

// Samples of one family from the rows that are charged to it: what is left of a row's time after what ran beside, over what the
// physics (and the base) say that its own kernels take.
std::vector<KernelSample> samples_of(std::string_view family, FeatureKind kind, const std::vector<Row>& rows, const FittedProfile& now, const FittedProfile& base,
                                     bool every_row) {
  std::vector<KernelSample> out;
  const bool convolution = kind == FeatureKind::convolution;
  for (const Row& row : rows) {
    if (row.held_out && !every_row) continue;
    bool any = false;
    for (std::size_t i = 0; i < row.physics.size(); ++i) any = any || (row.charged[i] && row.family[i] == family);
    if (!any) continue;  // before its kernels are corrected, which takes as long as all the rest
    double own = 0, beside = 0;
    for (std::size_t i = 0; i < row.physics.size(); ++i) (row.charged[i] ? own : beside) += corrected(row, i, row.charged[i] ? base : now);
    if (own <= 0) continue;
    const double left = std::max(row.seconds - beside, kLeastLeft * own);
    for (std::size_t i = 0; i < row.physics.size(); ++i) {
      if (!row.charged[i] || row.family[i] != family) continue;
      KernelSample sample;
      sample.features = row.features[i];
      const double most = row.measured->kernels[i].estimated ? kMostBorrowed : convolution ? kMostOfConvolution : kMostTarget;
      sample.target = std::clamp(std::log(left / own), -most, most);
      sample.weight = corrected(row, i, base) / own;
      sample.dtype = residual_dtype(row.measured->kernels[i]);
      sample.name = row.measured->kernels[i].name;
      sample.shape = row.measured->shape;
      sample.warm = row.measured->warm;
      out.push_back(std::move(sample));
    }
  }
  return out;
}

// What was learned on top of another profile's correction.
FamilyResidual on_top(const FamilyResidual& base, FamilyResidual learned) {
  for (const auto& [key, value] : base.constants) learned.constants[key] += value;
  learned.trees.insert(learned.trees.begin(), base.trees.begin(), base.trees.end());
  learned.correction = {learned.correction.least + base.correction.least, learned.correction.most + base.correction.most};
  for (std::size_t f = 0; f < learned.seen.size(); ++f)
    learned.seen[f] = {std::min(learned.seen[f].least, base.seen[f].least), std::max(learned.seen[f].most, base.seen[f].most)};
  return learned;
}

// A relative's correction gives way only to what serves shapes that were left out better.
FamilyResidual learned(const std::vector<KernelSample>& samples, FeatureKind kind, const FamilyResidual* below) {
  LearnedFamily out = learn_family(samples, kind);
  if (!below) return std::move(out.correction);
  if (out.helps) return on_top(*below, std::move(out.correction));
  FamilyResidual kept = *below;
  kept.carried = false;
  kept.quality = {.shapes = out.correction.quality.shapes};
  return kept;
}

double share_of(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

struct HeldOutRow {
  const Row* row = nullptr;
  double predicted = 0;
};

CalibrationRow judged(const std::vector<HeldOutRow>& rows, const FittedProfile& profile) {
  CalibrationRow out;
  std::vector<double> errors, signs, physics, physics_signs;
  for (const auto& [row, now] : rows) {
    double uncorrected = 0;
    for (std::size_t i = 0; i < row->physics.size(); ++i) uncorrected += row->physical(i);
    const double measured = row->seconds;
    signs.push_back(now / measured - 1);
    errors.push_back(std::abs(signs.back()));
    physics_signs.push_back(uncorrected / measured - 1);
    physics.push_back(std::abs(physics_signs.back()));
    const FamilyResidual* family = profile.find(row->label);
    if (family && measured >= now * family->ratio.least && measured <= now * family->ratio.most) out.covered += 1;
  }
  out.rows = rows.size();
  out.median = share_of(errors, 0.5), out.p95 = share_of(errors, 0.95), out.bias = share_of(signs, 0.5);
  out.physics_median = share_of(physics, 0.5), out.physics_p95 = share_of(physics, 0.95), out.physics_bias = share_of(physics_signs, 0.5);
  if (!rows.empty()) out.covered /= static_cast<double>(rows.size());
  return out;
}

std::string group_of(const Row& row) {
  const std::size_t at = static_cast<std::size_t>(std::find(row.family.begin(), row.family.end(), row.label) - row.family.begin());
  const Kernel& kernel = row.measured->kernels[at];
  if (kernel.estimated) return "borrowed patterns";
  if (std::holds_alternative<GemmShape>(kernel.shape)) return "matrix products";
  if (std::holds_alternative<AttentionShape>(kernel.shape)) return "attention";
  if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) return conv->depthwise() ? "depthwise convolution" : "convolution";
  return "memory-bound";
}

void judge(const std::vector<Row>& rows, Calibration& out) {
  std::map<std::string, std::vector<HeldOutRow>> groups;
  std::map<std::pair<std::string, std::string>, std::vector<HeldOutRow>> families;
  for (const Row& row : rows) {
    if (!row.held_out || row.label.empty()) continue;
    if (row.measured->warm && only_moves_memory(row)) continue;  // no step would see it
    ++out.held_out;
    const HeldOutRow one{&row, predicted(row, out.profile)};
    groups[group_of(row)].push_back(one);
    families[{std::string(row.label), "all"}].push_back(one);
    families[{std::string(row.label), row.measured->dtype}].push_back(one);
  }
  const auto add = [&](std::vector<CalibrationRow>& to, const std::string& family, const std::string& dtype, const std::vector<HeldOutRow>& of) {
    to.push_back(judged(of, out.profile));
    to.back().family = family;
    to.back().dtype = dtype;
  };
  for (const auto& [name, of] : groups) add(out.groups, name, "all", of);
  for (const auto& [name, of] : families) {
    add(out.families, name.first, name.second, of);
    auto family = out.profile.families.find(name.first);
    if (name.second != "all" || family == out.profile.families.end()) continue;
    const CalibrationRow& row = out.families.back();
    FamilyResidual::Quality& quality = family->second.quality;
    quality.held_out = static_cast<std::int64_t>(row.rows);
    quality.median = row.median, quality.p95 = row.p95, quality.bias = row.bias, quality.physics_median = row.physics_median;
  }
}

}  // namespace

bool is_held_out(std::uint32_t shape) { return shape / 7 % kHeldOutOf == 0; }  // the remainder of the shape itself chooses folds

bool is_short(const Measurements& measurements) { return measurements.rows.size() < kShort; }

Calibration calibrate(const Measurements& measurements, const GpuSpec& gpu, const ArchitectureProfile& physics, const CalibrateOptions& options) {
  Calibration out;
  out.profile.gpu = gpu.name;
  out.profile.architecture = gpu.architecture;
  out.profile.sources = measurements.files;
  out.from_few = options.from_few.value_or(is_short(measurements));
  const FittedProfile nothing;
  const FittedProfile& base = options.base ? *options.base : nothing;
  std::vector<Row> rows;
  std::map<std::string_view, FeatureKind> families;
  const std::vector<double> offsets = sitting_offsets(measurements);
  for (const Measurement& m : measurements.rows) {
    rows.push_back(make_row(m, offsets[m.file], gpu, physics));
    if (m.chilled && only_moves_memory(rows.back())) {
      ++out.chilled;
      rows.pop_back();
      continue;
    }
    if (m.warm) ++out.warm;
    for (std::size_t i = 0; i < rows.back().family.size(); ++i)
      if (rows.back().charged[i] && !rows.back().family[i].empty()) families[rows.back().family[i]] = feature_kind(m.kernels[i]);
    if (!rows.back().held_out) ++out.fitted;
  }
  // Kernels that only move memory first, of these fills: they run beside the others, which are judged by what is left of a row's time.
  std::vector<std::pair<FeatureKind, std::string_view>> order;
  for (const auto& [name, kind] : families) order.emplace_back(kind, name);
  const auto beside = [](std::string_view family) { return family == "fill"; };
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : beside(a.second) > beside(b.second); });
  std::size_t done = 0;
  const auto fit = [&](bool every_row) {
    FittedProfile& profile = out.profile;
    profile.families = base.families;
    for (auto& [name, family] : profile.families) family.carried = true;
    for (const auto& [kind, name] : order) {
      const std::vector<KernelSample> samples = samples_of(name, kind, rows, profile, base, every_row);
      if (!samples.empty()) {
        const FamilyResidual* below = base.find(name);
        if (below && below->kind != kind) below = nullptr;
        const bool few = samples.size() <= (below && kind == FeatureKind::memory ? kShortOnTop : kShortFamily);
        FamilyResidual family = out.from_few && few ? learn_short(samples, kind, below) : learned(samples, kind, below);
        family.quality.rows = static_cast<std::int64_t>(samples.size());
        profile.families[std::string(name)] = std::move(family);
      }
      if (options.progress) options.progress(++done, order.size() * (out.from_few ? 2 : 1));
    }
  };
  fit(false);
  judge(rows, out);
  if (!out.from_few) return out;
  const FittedProfile judged = out.profile;
  fit(true);
  for (auto& [name, family] : out.profile.families)
    if (const FamilyResidual* before = judged.find(name)) {  // what the held-out rows said
      const std::int64_t used = family.quality.rows, shapes = family.quality.shapes;
      family.quality = before->quality;
      family.quality.rows = used, family.quality.shapes = shapes;
    }
  out.profile.method = fmt::format("short measurement ({} rows): {}, corrected by smooth functions of the kernel (Gaussian processes); families not measured are {}",
                                   rows.size(), options.base ? fmt::format("the corrections of {}", base.gpu) : std::string("physics with the datasheet's figures"),
                                   options.base ? "carried as they are" : "physics alone");
  return out;
}

}  // namespace precog
