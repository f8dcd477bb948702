#include "calibrate/carry_over.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/ensure.h"
#include "calibrate/boosting.h"
#include "calibrate/smooth_residual.h"
#include "cost/features.h"

namespace precog {
namespace {

struct Known {
  std::string_view gpu, file;
  std::string_view generation;  // of the tensor cores' instructions: the same kernels up to their tuning
};
constexpr std::array<Known, 6> kKnown = {{{"a100-sxm-80gb", "a100_sxm", "mma.sync"},
                                          {"l40s", "l40s", "mma.sync"},
                                          {"h100-sxm", "h100_sxm", "wgmma"},
                                          {"h200-sxm", "h200_sxm", "wgmma"},
                                          {"b200-sxm", "b200_sxm", "tcgen05"},
                                          {"gb200", "gb200", "tcgen05"}}};
constexpr std::array<std::string_view, 4> kTypes = {"bfloat16", "fp8", "fp8_block", "nvfp4"};
constexpr std::size_t kThirty = 30, kCandidates = 300;  // timings shown; shapes they are chosen from
constexpr double kRelativeWeight = 5;  // of a relative's rows among all that the trees learn from
constexpr double kMostCarried = 0.7;
constexpr double kOwnStiffness = 2.5;      // after thirty timings: how much firmer a relative of the same architecture holds ...
constexpr double kForeignStiffness = 1.0;  // ... than one of another

// Efficiencies fitted on this GPU are what its power allows.
void set_watts(Physics& p, const GpuSpec& gpu) {
  for (std::size_t type = 0; type < kDTypeCount; ++type) {
    const FlopsPerSecond peak = gpu.matrix[static_cast<DType>(type)];
    p.profile.gemm.math[type].watts_per_tflops = peak.value > 0 ? gpu.power.value / (peak.value * 1e-12) : 0;
  }
}

// Where every fit starts: no GPU's own.
Physics generic(const ArchitectureProfile& any, const GpuSpec& gpu, bool largest_tile) {
  Physics p{any, {}};
  GemmCoefficients& g = p.profile.gemm;
  g.launch_floor = {1.8e-6}, g.tile_overhead = {0.8e-6}, g.split_overhead = {1.8e-6};
  g.l2_bytes_per_clock = 100, g.bandwidth_efficiency = 0.84, g.wave_quantisation = 0.5, g.l2_gain = 1.2, g.overlap_norm = 2.4;
  g.results_per_clock = 4;
  for (MathCoefficients& math : g.math) math.efficiency = 0.8, math.k_latency_clocks = 3;
  if (largest_tile) {  // few tiles whose waves show, and at first the same share of the peak everywhere: what power takes comes later
    g.largest_tile = true, g.tile_overhead = {1.4e-6}, g.wave_quantisation = 0.8, g.overlap_growth = {2e-4}, p.timing.slower_later = 0.3;
    for (MathCoefficients& math : g.math) math.efficiency = 0.95;
  }
  set_watts(p, gpu);
  AttentionCoefficients& a = p.profile.attention.flash[0];
  a.launch_floor = {7e-6}, a.block_overhead = {2e-6}, a.efficiency = 0.6, a.head_dim_exponent = 0.4, a.tail = 0.4, a.bandwidth_efficiency = 0.8;
  p.timing.pass_bytes = 5, p.timing.eviction = 6;
  return p;
}

// As attention meets it, whose formula knows no time before the clock falls.
Physics sustained(Physics p) {
  p.profile.gemm.math[static_cast<std::size_t>(DType::bf16)].efficiency /= 1 + p.timing.slower_later;
  p.timing.slower_later = 0;
  return p;
}

struct Data {  // one GPU's
  const Known* known = nullptr;
  const GpuSpec* gpu = nullptr;
  std::map<std::string, std::vector<ReferenceRow>> rows;  // by "gemm bfloat16", ..., "attention_forward bfloat16"
  std::map<std::string, std::vector<ReferenceRow>> many;  // more of them, for what is said of a known GPU
  std::map<std::string, Physics> own;                     // fitted to all of them
};

void keep(Data& d, const std::string& group, std::vector<ReferenceRow> rows, std::size_t most) {
  constexpr std::size_t kMore = 4;
  d.rows[group].assign(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(std::min(most, rows.size())));
  if (rows.size() > kMore * most) rows.resize(kMore * most);
  d.many[group] = std::move(rows);
}

bool is_attention(const std::string& group) { return group.starts_with("attention"); }

bool scaled_products(std::span<const ReferenceRow> rows) { return !rows.empty() && rows.front().scaled; }

std::span<const Knob> knobs_of(std::span<const ReferenceRow> rows, bool further, const Physics& p) {
  if (scaled_products(rows)) return scaled_product_knobs();
  if (!rows.empty() && std::holds_alternative<AttentionShape>(rows.front().kernel.shape)) return rows.front().paged ? paged_attention_knobs() : attention_knobs();
  if (further) return further_type_knobs();
  return p.profile.gemm.largest_tile ? product_knobs().subspan(1) : product_knobs();  // its efficiency is no coefficient
}

// Products in fp8 by kernels of the same kind as bf16's: what those reach of their peak, and how long they wait.
Physics as_fp8(Physics p) {
  MathCoefficients& fp8 = p.profile.gemm.math[static_cast<std::size_t>(DType::fp8)];
  const double watts = fp8.watts_per_tflops;
  fp8 = p.profile.gemm.math[static_cast<std::size_t>(DType::bf16)];
  fp8.watts_per_tflops = watts;
  return p;
}

// All of one GPU's: products in bf16 first, the other types on top, attention apart.
void fit_own(Data& d, const Physics& start) {
  std::vector<std::string> order;
  for (const auto& [group, rows] : d.rows) order.push_back(group);
  std::stable_sort(order.begin(), order.end(), [](const std::string& a, const std::string& b) { return (a == "gemm bfloat16") > (b == "gemm bfloat16"); });
  for (const std::string& group : order) {
    const auto bf16 = d.own.find("gemm bfloat16");
    const bool further = group.starts_with("gemm") && bf16 != d.own.end();
    const std::size_t most = 1200;  // enough for a dozen coefficients
    const std::span<const ReferenceRow> rows(d.rows[group].data(), std::min(most, d.rows[group].size()));
    const Physics from = bf16 == d.own.end() ? start : further ? bf16->second : sustained(bf16->second);  // attention's power is the products'
    d.own[group] = fit_physics(rows, {}, *d.gpu, further && scaled_products(rows) ? as_fp8(from) : from, knobs_of(rows, further, from));
  }
}

const Data* relative_of(const Data& left, const std::vector<Data>& all, const std::string& group) {
  const Data* best = nullptr;
  int closest = 0;
  for (const Data& other : all) {
    if (&other == &left || !other.own.contains(group)) continue;
    // An architecture's own, else the same instructions, else the nearest generation.
    const int distance = other.gpu->architecture == left.gpu->architecture  ? 0
                         : other.known->generation == left.known->generation ? 1000
                                                                              : 2000 + std::abs(other.gpu->capability() - left.gpu->capability());
    if (!best || distance < closest) best = &other, closest = distance;
  }
  return best;
}

constexpr double kUnlimited = 0.84;  // efficiency of products where power is no limit (kernel_cost.cpp)

// What fused attention reaches of another GPU's tensor cores: beside the products each key costs exponentials and sums on the
// ordinary units, whose pace per SM and clock is the same everywhere, so that tensor cores of half the width wait half as long.
double attention_efficiency(double efficiency, double throttled, const GpuSpec& from, const GpuSpec& to) {
  const auto width = [](const GpuSpec& gpu) { return gpu.matrix[DType::bf16].value / (gpu.sms * gpu.boost_clock.value); };
  const double unthrottled = std::min(0.95, efficiency / throttled);
  return throttled / (1 + (1 / unthrottled - 1) * width(to) / width(from));
}

constexpr double kLeastSlower = 0.05;  // of a product that lasts, however many watts there are

// A relative's coefficients on another GPU: launching takes so many clocks, what waits for memory or the cache (a block's first operands, a
// split sum's second pass) does not; where the architecture differs, power that is short there is short here in proportion to the watts per FLOP/s.
Physics scaled(Physics p, double bf16_efficiency, const GpuSpec& from, const GpuSpec& to) {
  const double clocks = from.boost_clock.value / to.boost_clock.value;
  GemmCoefficients& g = p.profile.gemm;
  g.launch_floor = g.launch_floor * clocks;
  AttentionCoefficients& a = p.profile.attention.flash[0];
  p.paged.launch_floor = p.paged.launch_floor * clocks, p.paged.first_block = p.paged.first_block * clocks;
  a.launch_floor = a.launch_floor * clocks;  // but a block of attention waits for memory first, which has no clock of the SMs
  set_watts(p, to);  // as efficient as its twin, or before power is short
  if (from.architecture == to.architecture) return p;
  const double throttled = std::min(1.0, bf16_efficiency / kUnlimited);
  a.efficiency = attention_efficiency(a.efficiency, throttled, from, to);
  p.paged.efficiency = attention_efficiency(p.paged.efficiency, throttled, from, to);
  const auto watts = [](const GpuSpec& gpu) { return gpu.power.value / gpu.matrix[DType::bf16].value; };
  p.timing.slower_later = std::max(kLeastSlower, (1 + p.timing.slower_later) * watts(from) / watts(to) - 1);
  p.paged.power = std::min(std::max(kUnlimited, bf16_efficiency), bf16_efficiency * watts(to) / watts(from)) / bf16_efficiency;
  return p;
}

std::size_t features_before(std::string_view product) {
  const auto names = feature_names(FeatureKind::gemm);
  return static_cast<std::size_t>(std::find_if(names.begin(), names.end(), [&](const FeatureName& f) { return f.name == product; }) - names.begin());
}

// Without the smooth roofline: few rows learn worse with it.
std::vector<double> features(const ReferenceRow& row, const GpuSpec& gpu, const Physics& p) {
  std::vector<double> all = features_of(row.kernel, kernel_cost(row.kernel, gpu, p.profile), gpu);
  if (std::holds_alternative<GemmShape>(row.kernel.shape)) all.resize(features_before("roofline"));
  return all;
}

// What a share of the values lies below; sorts them.
double at(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

struct Judged {
  std::vector<double> errors;
  CarriedError result() {
    CarriedError out;
    if (errors.empty()) return out;
    out.bias = at(errors, 0.5);
    for (double& e : errors) e = std::abs(e);
    out.median = at(errors, 0.5), out.p95 = at(errors, 0.95);
    return out;
  }
};

double corrected_by(const std::vector<Tree>& trees, const std::vector<double>& features) {
  double sum = 0;
  for (const Tree& tree : trees) sum += value_of(tree, features);
  return std::exp(std::clamp(sum, -kMostCarried, kMostCarried));
}

void add_samples(std::vector<Sample>& out, const Data& d, const std::string& group, const std::vector<ReferenceRow>& rows, double weight, bool all_shapes) {
  const Physics& p = d.own.at(group);
  for (const ReferenceRow& row : rows) {
    if (!all_shapes && row.shape / 7 % 5 == 0) continue;
    Sample s;
    s.features = features(row, *d.gpu, p);
    s.target = std::clamp(std::log(row.seconds / seconds_of(row, *d.gpu, p)), -kMostCarried, kMostCarried);
    s.weight = weight;
    out.push_back(std::move(s));
  }
}

BoostingOptions boosting(const CarryOverOptions& options, double scale) {
  BoostingOptions b;
  b.trees = options.trees, b.depth = 6, b.shrinkage = 0.08, b.least_leaf = 10 * scale, b.prior = 4 * scale, b.bins = 48;
  return b;
}

// A shape as a point whose distances mean something: binary logarithms of its extents.
Point point_of(const ReferenceRow& row) {
  auto logs = [](std::initializer_list<std::int64_t> extents) {
    Point out;
    for (std::int64_t extent : extents) out.push_back(std::log2(static_cast<double>(std::max<std::int64_t>(1, extent))));
    return out;
  };
  if (const auto* a = std::get_if<AttentionShape>(&row.kernel.shape)) return logs({a->batch, a->heads, a->heads / std::max<std::int64_t>(1, a->kv_heads), a->q_len, a->head_dim});
  const auto& g = std::get<GemmShape>(row.kernel.shape);
  return logs({g.batch, g.m, g.n, g.k});
}

// And what the physics say of it: how long it takes, and whether it computes or moves.
Point described(Point shape, const ReferenceRow& row, const GpuSpec& gpu, const Physics& p) {
  constexpr double kLeast = 1e-9;
  shape.push_back(std::log2(std::max(kLeast, seconds_of(row, gpu, p))));
  if (row.scaled) return shape;  // another kernel than the one asked below
  const KernelCost cost = kernel_cost(row.kernel, gpu, p.profile);
  shape.push_back(std::log2(std::max(kLeast, cost.compute.value) / std::max(kLeast, cost.memory.value)));
  return shape;
}

// How much of what the others' trees say its own timings bear out: all of it, half or none, whichever leaves them nearest to one
// another. A level that they share is not the trees' matter: coefficients follow it.
double borne_out(const std::vector<ReferenceRow>& shown, const std::vector<double>& factors, const GpuSpec& gpu, const Physics& start) {
  double best = 1, least = 0;
  for (double share : {1.0, 0.5, 0.0}) {
    std::vector<double> left;
    for (std::size_t i = 0; i < shown.size(); ++i) left.push_back(std::log(shown[i].seconds / seconds_of(shown[i], gpu, start)) - share * std::log(factors[i]));
    const double level = at(left, 0.5);
    double spread = 0;
    for (double value : left) spread += std::abs(value - level);
    if (share == 1 || spread < least) best = share, least = spread;
  }
  return best;
}

// A timing that lies far off the others was disturbed (one in 25 of a B200's in fp8 takes twice its time, at any shape): it counts as the farthest believable.
void temper(std::vector<double>& left) {
  constexpr double kBelievable = 3;  // median distances from the median
  std::vector<double> sorted = left;
  const double level = at(sorted, 0.5);
  for (double& value : sorted) value = std::abs(value - level);
  const double farthest = kBelievable * at(sorted, 0.5);
  for (double& value : left) value = std::clamp(value, level - farthest, level + farthest);
}

struct AfterThirty {
  CarriedError middle;
  double least = 0, most = 0;
};

AfterThirty after_thirty(const std::vector<ReferenceRow>& rows, const std::vector<double>& corrections, const GpuSpec& gpu, const Physics& start, bool further, double stiffness,
                         int draws) {
  std::vector<CarriedError> results;
  std::vector<Point> points;
  for (const ReferenceRow& row : rows) points.push_back(point_of(row));
  for (int d = 0; d < draws; ++d) {
    std::vector<ReferenceRow> shown;
    std::vector<double> factors;
    const std::vector<std::size_t> chosen = spread_out(points, kThirty, static_cast<std::size_t>(d), std::max<std::size_t>(1, rows.size() / kCandidates));
    for (std::size_t i : chosen) shown.push_back(rows[i]), factors.push_back(corrections[i]);
    const double share = borne_out(shown, factors, gpu, start);
    for (double& factor : factors) factor = std::pow(factor, share);
    const Physics p = fit_physics(shown, factors, gpu, start, knobs_of(shown, further, start), stiffness);
    const auto predicted = [&](std::size_t i) { return seconds_of(rows[i], gpu, p) * std::pow(corrections[i], share); };
    std::vector<Point> at;
    std::vector<double> left;
    for (std::size_t i : chosen) at.push_back(described(points[i], rows[i], gpu, start)), left.push_back(std::log(rows[i].seconds / predicted(i)));
    temper(left);
    const SmoothResidual smooth = SmoothResidual::fit(std::move(at), left);
    Judged judged;
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (std::find(chosen.begin(), chosen.end(), i) == chosen.end())
        judged.errors.push_back(predicted(i) * std::exp(smooth(described(points[i], rows[i], gpu, start))) / rows[i].seconds - 1);
    results.push_back(judged.result());
  }
  std::sort(results.begin(), results.end(), [](const CarriedError& a, const CarriedError& b) { return a.median < b.median; });
  return results.empty() ? AfterThirty{} : AfterThirty{results[results.size() / 2], results.front().median, results.back().median};
}

// Along k (products) or the batch (attention), the distance of each timing from the line between its neighbours, on logarithms
// of the time per work, of large shapes; of independent errors this is sqrt(3/2) of one.
double roughness(const std::vector<ReferenceRow>& rows) {
  std::map<std::array<std::int64_t, 5>, std::vector<std::pair<double, double>>> lines;
  for (const ReferenceRow& row : rows) {
    if (row.kernel.flops.value < 1e11) continue;
    std::array<std::int64_t, 5> line{};
    double along = 0;
    if (const auto* g = std::get_if<GemmShape>(&row.kernel.shape)) line = {g->m, g->n, 0, 0, 0}, along = static_cast<double>(g->k);
    else if (const auto* a = std::get_if<AttentionShape>(&row.kernel.shape)) line = {a->heads, a->kv_heads, a->q_len, a->head_dim, 1}, along = static_cast<double>(a->batch);
    lines[line].emplace_back(along, std::log(row.seconds / row.kernel.flops.value));
  }
  std::vector<double> found;
  for (auto& [line, points] : lines) {
    std::sort(points.begin(), points.end());
    for (std::size_t i = 1; i + 1 < points.size(); ++i) {
      const double x = std::log(points[i].first / points[i - 1].first) / std::log(points[i + 1].first / points[i - 1].first);
      found.push_back(std::abs(points[i].second - points[i - 1].second - x * (points[i + 1].second - points[i - 1].second)) / std::sqrt(1.5));
    }
  }
  if (found.size() < 20) return 0;
  std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(found.size() / 2), found.end());
  return found[found.size() / 2];
}

CarriedGroup left_out(const Data& left, const std::vector<Data>& all, const std::string& group, const CarryOverOptions& options) {
  CarriedGroup out;
  const bool attention = is_attention(group);
  out.gpu = left.gpu->name, out.family = group.substr(0, group.find(' ')), out.dtype = group.substr(group.find(' ') + 1);
  const std::vector<ReferenceRow>& rows = left.rows.at(group);
  out.rows = rows.size();
  const bool scaled_ones = scaled_products(rows);  // nobody else runs these kernels: their relative is one in bf16
  const std::string known_as = scaled_ones ? "gemm bfloat16" : group;
  if (const Data* relative = relative_of(left, all, known_as)) {
    out.relative = relative->gpu->name;
    const bool same = relative->gpu->architecture == left.gpu->architecture;
    const double efficiency = sustained(relative->own.at("gemm bfloat16")).profile.gemm.math[static_cast<std::size_t>(DType::bf16)].efficiency;
    const Physics from = scaled(relative->own.at(known_as), efficiency, *relative->gpu, *left.gpu);
    const Physics start = scaled_ones ? as_fp8(from) : from;
    std::vector<Sample> samples;
    for (const Data& other : all)
      // Attention is another library's on each architecture: what its formula leaves says nothing about the next one's. Nor do a library's
      // choices between the tiles of products, without a twin's among them, or where it chooses in another way.
      if (&other != &left && other.own.contains(group) &&
          (attention ? other.gpu->architecture == left.gpu->architecture : same && other.own.at(group).profile.gemm.largest_tile == start.profile.gemm.largest_tile))
        add_samples(samples, other, group, other.rows.at(group), &other == relative ? kRelativeWeight : 1, true);
    const std::vector<Tree> trees = boost(samples, boosting(options, 1));
    Judged datasheet, carried;
    std::vector<double> corrections;
    for (const ReferenceRow& row : rows) {
      const double physical = seconds_of(row, *left.gpu, start);
      corrections.push_back(corrected_by(trees, features(row, *left.gpu, start)));
      datasheet.errors.push_back(physical / row.seconds - 1);
      carried.errors.push_back(physical * corrections.back() / row.seconds - 1);
    }
    out.datasheet = datasheet.result(), out.carried = carried.result();
    const AfterThirty thirty = after_thirty(rows, corrections, *left.gpu, start, group != "gemm bfloat16" && !attention, same ? kOwnStiffness : kForeignStiffness, options.draws);
    out.thirty = thirty.middle, out.thirty_least = thirty.least, out.thirty_most = thirty.most;
  }
  std::vector<Sample> samples;
  add_samples(samples, left, group, left.many.at(group), 1, false);
  CarryOverOptions known = options;
  known.trees *= 2;
  const std::vector<Tree> trees = boost(samples, boosting(known, 0.5));
  Judged held;
  for (const ReferenceRow& row : left.many.at(group))
    if (row.shape / 7 % 5 == 0) held.errors.push_back(seconds_of(row, *left.gpu, left.own.at(group)) * corrected_by(trees, features(row, *left.gpu, left.own.at(group))) / row.seconds - 1);
  out.held_out = held.result();
  return out;
}

}  // namespace

Result<std::vector<CarriedGroup>> carry_over(const std::filesystem::path& folder, const std::vector<GpuSpec>& gpus, const CostProfile& profile, const CarryOverOptions& options) {
  std::vector<Data> all;
  std::map<std::string, std::map<std::string, double>> rough;
  constexpr std::size_t kEverything = 1000000;
  for (const Known& known : kKnown) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const GpuSpec& one) { return one.name == known.gpu; });
    if (gpu == gpus.end()) return fail(std::string(known.gpu), "is missing from data/gpus");
    Data d{&known, &*gpu, {}, {}, {}};
    for (std::string_view type : kTypes) {
      const bool kin = type == "fp8" && known.generation == "mma.sync";  // kernels of bf16's kind, by other hands
      if (options.bf16_and_its_kin && type != "bfloat16" && !kin) continue;
      PRECOG_TRY(rows, read_reference_products(folder / fmt::format("gemm_{}.csv.gz", known.file), std::string(type), kEverything));
      const std::string group = fmt::format("gemm {}", type);
      rough[d.gpu->name][group] = roughness(rows);
      for (ReferenceRow& row : rows) row.scaled = kin;
      if (rows.size() >= 2 * kThirty) keep(d, group, std::move(rows), options.rows);
    }
    PRECOG_TRY(rows, read_reference_attention(folder / fmt::format("attention_forward_{}.csv.gz", known.file), kEverything));
    rough[d.gpu->name]["attention_forward bfloat16"] = roughness(rows);
    keep(d, "attention_forward bfloat16", std::move(rows), options.rows);
    const ArchitectureProfile* any = profile.find(gpu->architecture);
    ensure(any, "every architecture of data/gpus has coefficients");
    fit_own(d, generic(*any, *gpu, known.generation == "mma.sync"));
    all.push_back(std::move(d));
  }
  std::vector<CarriedGroup> out;
  for (const Data& left : all)
    for (const auto& [group, rows] : left.rows) {
      out.push_back(left_out(left, all, group, options));
      out.back().roughness = rough[left.gpu->name][group];
    }
  return out;
}

}  // namespace precog
