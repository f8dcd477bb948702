// The cost of each kind of kernel. Formulae and coefficients: docs/model_notes; fitted by tools/fit.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/ensure.h"
#include "cost/cost.h"
#include "cost/gemm_cost.h"
#include "cost/profile.h"

namespace precog {
namespace {

constexpr double kAlignment = 16;        // bytes: the widest load; rows off it fall back to narrow ones
constexpr double kAttentionBlock = 128;  // query rows that one thread block owns
constexpr double kForwardFlops = 4;      // per query, key and dimension: two products
constexpr double kBackwardFlops = 10;    // five products

double bytes_of(DType dtype) { return static_cast<double>(bits_of(dtype)) / 8; }
double moved(const Kernel& kernel) { return static_cast<double>(kernel.read.value + kernel.written.value); }

struct Unit {  // what runs a kernel's arithmetic
  DType math;
  FlopsPerSecond peak;
  bool matrix;
};

Unit unit_of(const Kernel& kernel, const GpuSpec& gpu) {
  if (!kernel.emulated && gpu.matrix.has(kernel.math)) return {kernel.math, gpu.matrix[kernel.math], true};
  if (!kernel.emulated && gpu.vector.has(kernel.math)) return {kernel.math, gpu.vector[kernel.math], false};
  return {DType::fp32, gpu.vector[DType::fp32], false};
}

KernelCost finish(Seconds compute, Seconds memory, Seconds launch, Seconds total, CostSource source, double launches = 1) {
  KernelCost cost{compute * launches, memory * launches, launch * launches, total * launches, Bound::memory, source};
  if (launch >= compute && launch >= memory) cost.bound = Bound::launch;
  else cost.bound = compute > memory ? Bound::compute : Bound::memory;
  return cost;
}

bool aligned(const GemmShape& shape, double element_bytes) {
  const auto fits = [&](std::int64_t length) { return std::fmod(static_cast<double>(length) * element_bytes, kAlignment) == 0; };
  // Rows of the output and of b end in n; those of a in k, or in m when it is stored transposed.
  return fits(shape.n) && fits(shape.transposed_a ? shape.m : shape.k);
}

struct Costing {
  const Kernel& kernel;
  const GpuSpec& gpu;
  const ArchitectureProfile& profile;

  double launches() const { return std::max(1, kernel.launches); }

  KernelCost product(GemmProblem problem, double factor, CostSource source) const {
    const Unit unit = unit_of(kernel, gpu);
    const MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(unit.math)];
    problem.element_bytes = bytes_of(kernel.input);
    problem.bytes = moved(kernel) / launches();
    problem.peak = unit.peak;
    problem.efficiency = math.efficiency * factor;
    problem.k_latency_clocks = math.k_latency_clocks;
    const GemmTime time = gemm_time(problem, gpu, profile.gemm);
    return finish(time.compute, time.memory, time.launch, time.total, source, launches());
  }

  KernelCost operator()(const GemmShape& shape) const {
    const MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(unit_of(kernel, gpu).math)];
    double factor = shape.transposed_a ? math.transposed_a_factor : 1;
    if (!aligned(shape, bytes_of(kernel.input))) factor *= math.misaligned_factor;
    const auto real = [](std::int64_t v) { return static_cast<double>(std::max<std::int64_t>(1, v)); };
    GemmProblem problem;
    problem.batch = real(shape.batch), problem.m = real(shape.m), problem.n = real(shape.n), problem.k = real(shape.k);
    return product(problem, factor, math.source);
  }

  KernelCost operator()(const ConvShape& s) const {
    const auto direction = static_cast<std::size_t>(s.direction);
    if (s.depthwise()) return depthwise(profile.depthwise[s.channels_last][direction]);
    const ConvCoefficients& conv = profile.convolution;
    const auto real = [](std::int64_t v) { return static_cast<double>(v); };
    const double groups = real(s.groups), in = real(s.in_channels) / groups, out = real(s.out_channels) / groups;
    const double filter = real(s.kernel_h * s.kernel_w), stride = real(s.stride);
    const double x = real(s.batch * s.in_h * s.in_w), y = real(s.batch * s.out_h * s.out_w);
    GemmProblem problem;
    problem.batch = groups;
    switch (s.direction) {
      case ConvDirection::forward: problem.m = y, problem.n = out, problem.k = in * filter; break;
      // A strided gradient has filter positions that meet no output; libraries skip them.
      case ConvDirection::data_gradient: problem.m = x, problem.n = in, problem.k = out * filter / (stride * stride); break;
      case ConvDirection::weight_gradient: problem.m = out, problem.n = in * filter, problem.k = y; break;
    }
    problem.k = std::max(1.0, problem.k);
    double factor = 0;
    if (unit_of(kernel, gpu).matrix) {
      factor = conv.direction[direction].matrix * (s.in_channels <= 4 ? conv.few_channels_factor : 1);
    } else {
      const bool winograd = s.kernel_h == 3 && s.kernel_w == 3 && s.stride == 1;
      factor = conv.direction[direction].vector * (winograd ? conv.winograd_gain : 1);
    }
    return product(problem, factor, conv.source);
  }

  // One filter per channel: too little work per byte for tensor cores, whatever the arithmetic.
  KernelCost depthwise(const DepthwiseCoefficients& c) const {
    const Seconds compute{kernel.flops.value / (gpu.vector[DType::fp32].value * c.vector_efficiency)};
    const Seconds memory{moved(kernel) / (gpu.memory_bandwidth.value * c.efficiency)};
    const Seconds launch = c.launch_floor * launches();
    return finish(compute, memory, launch, launch + std::max(compute, memory), c.source);
  }

  KernelCost operator()(const AttentionShape& s) const {
    // In fp32 and tf32 the fused kernels run at vector speed; only 16-bit reaches the tensor cores as they should be used.
    const bool wide = kernel.emulated || !is_16bit(kernel.math);
    const FlopsPerSecond peak = wide ? gpu.vector[DType::fp32] : unit_of(kernel, gpu).peak;
    const AttentionCoefficients& c = profile.attention[wide][s.backward];
    const auto real = [](std::int64_t v) { return static_cast<double>(v); };
    const double sms = gpu.sms, kv = real(s.kv_len), dim = real(s.head_dim + s.value_dim) / 2;
    const double blocks = real(s.batch * s.heads) * std::ceil(real(s.q_len) / kAttentionBlock) / sms;
    const double keys = s.causal ? std::min(kv, (kv + kAttentionBlock) / 2) : kv;
    const double rate = peak.value / sms * c.efficiency * std::pow(std::min(1.0, dim / 128), c.head_dim_exponent);
    const double work = (s.backward ? kBackwardFlops : kForwardFlops) * kAttentionBlock * dim / rate;
    const double compute = std::max(blocks, 1.0) * (c.block_overhead.value + work * keys) +
                           c.tail * (c.block_overhead.value + work * kv);
    const double memory = moved(kernel) / launches() / (gpu.memory_bandwidth.value * c.bandwidth_efficiency);
    const Seconds total{c.launch_floor.value + joined(compute, memory, 3)};
    return finish({compute}, {memory}, c.launch_floor, total, c.source, launches());
  }

  KernelCost operator()(const MemoryShape& s) const {
    const bool widens = s.pattern == MemoryPattern::cast && bits_of(kernel.output) > bits_of(kernel.input);
    const MemoryCoefficients& c = widens ? profile.cast_widen : profile.memory[static_cast<std::size_t>(s.pattern)];
    const bool per_channel = s.pattern == MemoryPattern::batch_norm_forward || s.pattern == MemoryPattern::batch_norm_backward;
    // A block per channel: with fewer channels than SMs the rest stand idle.
    const double sms = per_channel ? std::min<double>(gpu.sms, static_cast<double>(std::max<std::int64_t>(1, s.rows))) : gpu.sms;
    const double accesses = static_cast<double>(kernel.read.value) / bytes_of(kernel.input) +
                            static_cast<double>(kernel.written.value) / bytes_of(kernel.output);
    const Seconds compute{accesses / (sms * gpu.boost_clock.value * c.accesses_per_clock)};
    const Seconds memory{moved(kernel) / (gpu.memory_bandwidth.value * c.efficiency)};
    const Seconds launch = c.launch_floor * launches();
    KernelCost cost = finish(compute, memory, launch, launch + std::max(compute, memory), c.source);
    if (cost.bound == Bound::compute) cost.bound = Bound::memory;  // issuing loads and stores is not arithmetic
    return cost;
  }

  KernelCost operator()(const CollectiveShape&) const {
    ensure(false, "collectives are costed by collective_cost, which knows the cluster");
    return {};
  }
};

}  // namespace

KernelCost kernel_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& profile) {
  return std::visit(Costing{kernel, gpu, profile}, kernel.shape);
}

std::string_view to_text(Bound bound) {
  static constexpr std::array<std::string_view, 4> kNames = {"compute", "memory", "launch", "network"};
  return kNames[static_cast<std::size_t>(bound)];
}

std::string_view to_text(CostSource source) {
  static constexpr std::array<std::string_view, 5> kNames = {"measured", "fitted", "scaled", "datasheet", "estimate"};
  return kNames[static_cast<std::size_t>(source)];
}

}  // namespace precog
