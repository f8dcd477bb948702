#include "calibrate/physics_fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace precog {
namespace {

constexpr double kScale = 0.08;      // errors well beyond this count by their size, not by its square
constexpr double kRowsPerPull = 100; // a spring weighs as much as so many rows do in hundred
constexpr double kStep = 1e-2;       // of a logarithm, for derivatives
constexpr int kMostSteps = 14;
constexpr int kMostRetries = 5;

MathCoefficients& math_of(Physics& p, DType math) { return p.profile.gemm.math[static_cast<std::size_t>(math)]; }
AttentionCoefficients& attention_of(Physics& p) { return p.profile.attention.flash[0]; }

constexpr Knob kEfficiency = {[](Physics& p, DType math) -> double& { return math_of(p, math).efficiency; }, 0.2};
constexpr Knob kLatency = {[](Physics& p, DType math) -> double& { return math_of(p, math).k_latency_clocks; }, 0.6};
constexpr Knob kLaunch = {[](Physics& p, DType) -> double& { return p.profile.gemm.launch_floor.value; }, 0.3};
constexpr Knob kTile = {[](Physics& p, DType) -> double& { return p.profile.gemm.tile_overhead.value; }, 0.6};
constexpr Knob kFeed = {[](Physics& p, DType) -> double& { return p.profile.gemm.l2_bytes_per_clock; }, 0.5};
constexpr Knob kBandwidth = {[](Physics& p, DType) -> double& { return p.profile.gemm.bandwidth_efficiency; }, 0.15};
constexpr Knob kWaves = {[](Physics& p, DType) -> double& { return p.profile.gemm.wave_quantisation; }, 0.6};
constexpr Knob kNorm = {[](Physics& p, DType) -> double& { return p.profile.gemm.overlap_norm; }, 0.3};
constexpr Knob kGrowth = {[](Physics& p, DType) -> double& { return p.profile.gemm.overlap_growth.value; }, 1.0};
constexpr Knob kSlower = {[](Physics& p, DType) -> double& { return p.timing.slower_later; }, 1.0};
constexpr Knob kLater = {[](Physics& p, DType) -> double& { return p.timing.later.value; }, 1.0};
constexpr Knob kEviction = {[](Physics& p, DType) -> double& { return p.timing.eviction; }, 0.5};
constexpr Knob kResidency = {[](Physics& p, DType) -> double& { return p.timing.residency; }, 0.1};
constexpr Knob kFound = {[](Physics& p, DType) -> double& { return p.timing.l2_bytes_per_clock; }, 0.6};
constexpr Knob kProducts[] = {
    kEfficiency,  // first: left out where power is apart
    kLatency,
    kLaunch,
    kTile,
    {[](Physics& p, DType) -> double& { return p.profile.gemm.split_overhead.value; }, 0.6},
    kFeed,
    kBandwidth,
    kWaves,
    {[](Physics& p, DType) -> double& { return p.profile.gemm.l2_gain; }, 0.5},
    kNorm,
    kGrowth,
    {[](Physics& p, DType) -> double& { return p.profile.gemm.results_per_clock; }, 0.7},
    kSlower,
    kLater,
    kEviction,
    kResidency,
    kFound,
};
constexpr Knob kPassFloor = {[](Physics& p, DType) -> double& { return p.timing.pass_floor.value; }, 0.7};
constexpr Knob kPassBytes = {[](Physics& p, DType) -> double& { return p.timing.pass_bytes; }, 0.7};
constexpr Knob kFurther[] = {kEfficiency, kLatency, kPassFloor, kPassBytes};
template <std::size_t tile>
constexpr Knob kPace = {[](Physics& p, DType) -> double& { return p.scaled.pace[tile]; }, 0.7};
constexpr Knob kScaled[] = {
    kEfficiency, kLatency,   kLaunch, kTile,      kFeed,      kBandwidth, kWaves,   kNorm,    kGrowth,  kSlower,  kLater,   kEviction, kResidency,
    kFound,      kPassFloor, kPassBytes, kPace<0>, kPace<1>, kPace<2>, kPace<3>, kPace<4>, kPace<5>, kPace<6>, kPace<7>, kPace<8>,
    {[](Physics& p, DType) -> double& { return p.scaled.results_per_clock; }, 1.0},
    {[](Physics& p, DType) -> double& { return p.scaled.alone; }, 1.0},
    {[](Physics& p, DType) -> double& { return p.scaled.row.value; }, 1.0},
};
constexpr Knob kAttention[] = {
    {[](Physics& p, DType) -> double& { return attention_of(p).launch_floor.value; }, 0.7},
    {[](Physics& p, DType) -> double& { return attention_of(p).block_overhead.value; }, 0.8},
    {[](Physics& p, DType) -> double& { return attention_of(p).efficiency; }, 0.3},
    {[](Physics& p, DType) -> double& { return attention_of(p).head_dim_exponent; }, 0.7},
    {[](Physics& p, DType) -> double& { return attention_of(p).tail; }, 0.8},
    {[](Physics& p, DType) -> double& { return attention_of(p).bandwidth_efficiency; }, 0.2},
    {[](Physics& p, DType) -> double& { return p.timing.l2_bytes_per_clock; }, 0.6},
    kPassBytes,
};
constexpr Knob kPaged[] = {
    {[](Physics& p, DType) -> double& { return p.paged.launch_floor.value; }, 0.7},
    {[](Physics& p, DType) -> double& { return p.paged.block_overhead.value; }, 0.8},
    {[](Physics& p, DType) -> double& { return p.paged.block_load.value; }, 0.8},
    {[](Physics& p, DType) -> double& { return p.paged.mask_clocks; }, 0.8},
    {[](Physics& p, DType) -> double& { return p.paged.efficiency; }, 0.3},
    {[](Physics& p, DType) -> double& { return p.paged.head_dim_exponent; }, 0.5},
    {[](Physics& p, DType) -> double& { return p.paged.tail; }, 0.8},
    {[](Physics& p, DType) -> double& { return p.paged.first_block.value; }, 0.8},
    {[](Physics& p, DType) -> double& { return p.paged.alone; }, 0.5},
    {[](Physics& p, DType) -> double& { return p.paged.longest_norm; }, 0.5},
    {[](Physics& p, DType) -> double& { return p.paged.overlap_norm; }, 0.5},
    {[](Physics& p, DType) -> double& { return p.paged.bandwidth_efficiency; }, 0.2},
    {[](Physics& p, DType) -> double& { return p.paged.slower_later; }, 1.0},
    {[](Physics& p, DType) -> double& { return p.paged.later.value; }, 1.0},
    {[](Physics& p, DType) -> double& { return p.timing.l2_bytes_per_clock; }, 0.6},
    kPassBytes,
};

struct Traffic {  // bytes that take as long as what is moved, at the memory's speed
  double kernel, pass_share;  // the latter: of a pass beside it, of its bytes
};

// Operands met again in the cache count for less. One is still there when what was touched since does not fill the cache.
Traffic traffic(const ReferenceRow& row, const GpuSpec& gpu, const Physics& p, double efficiency) {
  constexpr double kCallsBefore = 5;  // how many sets of weights go round
  constexpr double kUnquantised = 2;  // bytes of an activation before it is quantised, in every call
  const double all = static_cast<double>(row.kernel.read.value + row.kernel.written.value);
  const double touched = all + (row.scaled ? row.beside * kUnquantised : 0);
  const auto found = [&](double since) {
    const double fill = since / (p.timing.residency * static_cast<double>(gpu.l2.value));
    return 1 / (1 + (row.rotated > 0 && p.timing.eviction != 3 ? std::pow(fill, p.timing.eviction) : fill * fill * fill));
  };
  const double warm = found(touched + (kCallsBefore - 1) * row.rotated) * row.rotated + found(touched) * (all - row.rotated);
  const double gain = p.timing.l2_bytes_per_clock * gpu.sms * gpu.boost_clock.value / (gpu.memory_bandwidth.value * efficiency);
  const double kept = found(touched);
  return {all - warm + warm / gain, 1 - kept + kept / gain};
}

// Slower by what the tensor cores' power takes of the clock, once they have been busy for a while.
double after_a_while(double seconds, const ReferenceRow& row, const GpuSpec& gpu, const Timing& timing) {
  const double peak = gpu.matrix[row.kernel.math].value;
  if (peak <= 0) return seconds;
  const double work = row.kernel.flops.value / peak;
  return seconds * (1 + timing.slower_later * std::min(1.0, work / seconds) * work / (work + timing.later.value));
}

struct Fit {
  std::span<const ReferenceRow> rows;
  std::span<const double> factors;
  const GpuSpec& gpu;
  const Physics& start;
  std::span<const Knob> knobs;
  double stiffness;
  DType math;

  Physics at(const std::vector<double>& x) const {
    Physics p = start;
    for (std::size_t i = 0; i < knobs.size(); ++i) knobs[i].of(p, math) *= std::exp(x[i]);
    return p;
  }
  std::vector<double> errors(const std::vector<double>& x) const {
    const Physics p = at(x);
    std::vector<double> out;
    for (std::size_t i = 0; i < rows.size(); ++i) out.push_back(std::log(seconds_of(rows[i], gpu, p) * (factors.empty() ? 1 : factors[i]) / rows[i].seconds) / kScale);
    return out;
  }
  double pull(std::size_t i) const {
    return stiffness * stiffness * std::max(1.0, static_cast<double>(rows.size()) / kRowsPerPull) / (knobs[i].spread * knobs[i].spread);
  }
  double objective(const std::vector<double>& x, const std::vector<double>& errors) const {
    double sum = 0;
    for (double e : errors) sum += 2 * (std::sqrt(1 + e * e) - 1);
    for (std::size_t i = 0; i < x.size(); ++i) sum += pull(i) * x[i] * x[i];
    return sum;
  }
};

// a x = b, a symmetric and positive: Gaussian elimination with the largest pivot first.
std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (std::size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (std::size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t c = i + 1; c < n; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

std::span<const Knob> product_knobs() { return kProducts; }
std::span<const Knob> further_type_knobs() { return kFurther; }
std::span<const Knob> scaled_product_knobs() { return kScaled; }
std::span<const Knob> attention_knobs() { return kAttention; }
std::span<const Knob> paged_attention_knobs() { return kPaged; }

double seconds_of(const ReferenceRow& row, const GpuSpec& gpu, const Physics& p) {
  const bool attention = std::holds_alternative<AttentionShape>(row.kernel.shape);
  Kernel timed = row.kernel;
  const double bandwidth = row.paged ? p.paged.bandwidth_efficiency : attention ? p.profile.attention.flash[0].bandwidth_efficiency : p.profile.gemm.bandwidth_efficiency;
  const Traffic moved = traffic(row, gpu, p, bandwidth);
  timed.read = {static_cast<std::int64_t>(moved.kernel)};
  timed.written = {0};
  const double pass = row.beside > 0 ? (attention ? 0 : p.timing.pass_floor.value) + p.timing.pass_bytes * row.beside * moved.pass_share / gpu.memory_bandwidth.value : 0;
  if (row.paged)
    return paged_attention_seconds(std::get<AttentionShape>(row.kernel.shape), gpu, gpu.matrix[row.kernel.math], p.paged, moved.kernel / (gpu.memory_bandwidth.value * bandwidth)) + pass;
  if (row.scaled) {
    const auto& shape = std::get<GemmShape>(row.kernel.shape);
    const auto real = [](std::int64_t v) { return static_cast<double>(v); };
    const MathCoefficients& math = p.profile.gemm.math[static_cast<std::size_t>(row.kernel.math)];
    const GemmProblem problem{.batch = real(shape.batch), .m = real(shape.m), .n = real(shape.n), .k = real(shape.k), .element_bytes = 1, .bytes = moved.kernel,
                              .peak = gpu.matrix[row.kernel.math], .efficiency = math.efficiency, .k_latency_clocks = math.k_latency_clocks};
    return after_a_while(scaled_product_seconds(problem, gpu, p.profile.gemm, p.scaled), row, gpu, p.timing) + pass + p.scaled.row.value * problem.m;
  }
  const double seconds = kernel_cost(timed, gpu, p.profile).total.value;
  return (attention ? seconds : after_a_while(seconds, row, gpu, p.timing)) + pass;
}

Physics fit_physics(std::span<const ReferenceRow> rows, std::span<const double> factors, const GpuSpec& gpu, const Physics& start, std::span<const Knob> knobs,
                    double stiffness) {
  if (rows.empty()) return start;
  const Fit fit{rows, factors, gpu, start, knobs, stiffness, rows.front().kernel.math};
  const std::size_t n = knobs.size();
  std::vector<double> x(n, 0), errors = fit.errors(x);
  double now = fit.objective(x, errors), damping = 1e-3;
  for (int step = 0; step < kMostSteps; ++step) {
    std::vector<std::vector<double>> slope(n);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> moved = x;
      moved[i] += kStep;
      slope[i] = fit.errors(moved);
      for (std::size_t r = 0; r < errors.size(); ++r) slope[i][r] = (slope[i][r] - errors[r]) / kStep;
    }
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0));
    std::vector<double> b(n, 0);
    for (std::size_t r = 0; r < errors.size(); ++r) {
      const double weight = 1 / std::sqrt(1 + errors[r] * errors[r]);
      for (std::size_t i = 0; i < n; ++i) {
        b[i] -= weight * slope[i][r] * errors[r];
        for (std::size_t j = 0; j <= i; ++j) a[i][j] += weight * slope[i][r] * slope[j][r];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < i; ++j) a[j][i] = a[i][j];
      a[i][i] += fit.pull(i);
      b[i] -= fit.pull(i) * x[i];
    }
    bool better = false;
    double gained = 0;
    for (int retry = 0; retry < kMostRetries && !better; ++retry) {
      auto damped = a;
      for (std::size_t i = 0; i < n; ++i) damped[i][i] *= 1 + damping;
      const std::vector<double> delta = solved(damped, b);
      std::vector<double> moved = x;
      for (std::size_t i = 0; i < n; ++i) moved[i] += std::clamp(delta[i], -1.0, 1.0);
      const std::vector<double> then = fit.errors(moved);
      const double objective = fit.objective(moved, then);
      better = objective < now;
      damping = better ? damping / 3 : damping * 8;
      if (better) gained = now - objective, x = moved, errors = then, now = objective;
    }
    if (!better || gained < 1e-4 * now) break;
  }
  return fit.at(x);
}

}  // namespace precog
