// The cost of each kind of kernel. Formulae and coefficients: docs/model_notes; fitted by tools/fit.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/ensure.h"
#include "cost/conv_cost.h"
#include "cost/conv_ways.h"
#include "cost/cost.h"
#include "cost/emulated_cost.h"
#include "cost/fallback_kernels.h"
#include "cost/gemm_cost.h"
#include "cost/profile.h"
#include "kernel/library_rules.h"

namespace precog {
namespace {

constexpr double kWarp = 32;              // threads
constexpr double kAlignment = 16;        // bytes: the widest load; rows off it fall back to narrow ones
constexpr double kNarrowest = 4;         // bytes: below this an asynchronous copy to shared memory does not exist
constexpr double kAttentionBlock = 128;  // query rows that one thread block owns
constexpr double kForwardFlops = 4;      // per query, key and dimension: two products
constexpr double kBackwardFlops = 10;    // five products
constexpr double kNormColumns = 32;       // columns of a layer norm whose parameter gradients one block sums
constexpr std::int64_t kNormSplitRows = 65536;
// Sums down columns are bound by how long a thread waits for its values, one after the other, and the last of the blocks that share a result
// by their number: read off 9,000 timings on an H200 (data/measured, families rows, reduce and reduce_strided), half of them within 10%.
constexpr Seconds kColumnFloor{2.2e-6};
constexpr double kColumnValue = 253, kColumnMeeting = 4000, kColumnSharing = 475;  // clocks: a value, a meeting, each block over the height of one
constexpr double kRowValue = 200, kPlaced = 2.2;  // clocks; values per SM and clock
// PyTorch's kernel for operands that do not lie alike works out each one's place, axis by axis: SM clocks per element, from 90 timings of products
// and sums of 20 M elements and more whose operands are repeated (data/measured/2026-11-16-h200-operands: 2.1 to 3.5 ps for 2 to 5 axes).
constexpr double kPlacedElement = 0.5, kPlacedAxis = 0.065;
// Clocks of a block per element of a multi-tensor product: 0.2 from the cache (800 calls, 2026-11-16-h200-odd), and 1.75 to 2.4 times that where the states of a whole
// optimizer do not fit in it (family "optimizer" of the other sets).
constexpr double kListedElement = 0.42, kListedChunk = 65536;
constexpr double kThreadsOfSm = 2048;
constexpr double kMeasuredBoost = 1.98e9;
constexpr double kResident = 128 * 1024; // bytes of one channel that a batch norm keeps near its SM between passes

double bytes_of(DType dtype) { return static_cast<double>(bits_of(dtype)) / 8; }
double moved(const Kernel& kernel) { return static_cast<double>(kernel.read.value + kernel.written.value); }

struct Unit {  // what runs a kernel's arithmetic
  DType math;
  FlopsPerSecond peak;
  bool matrix;
};

Unit unit_of(const Kernel& kernel, const GpuSpec& gpu) {
  if (gpu.matrix.has(kernel.math)) return {kernel.math, gpu.matrix[kernel.math], true};
  if (gpu.vector.has(kernel.math)) return {kernel.math, gpu.vector[kernel.math], false};
  return {DType::fp32, gpu.vector[DType::fp32], false};
}

KernelCost finish(Seconds compute, Seconds memory, Seconds launch, Seconds total, CostSource source, double launches = 1) {
  KernelCost cost{compute * launches, memory * launches, launch * launches, total * launches, Bound::memory, source};
  if (launch >= compute && launch >= memory) cost.bound = Bound::launch;
  else cost.bound = compute > memory ? Bound::compute : Bound::memory;
  return cost;
}

// Whether the rows of all operands are multiples of so many bytes.
bool aligned(const GemmShape& shape, double element_bytes, double bytes) {
  const auto fits = [&](std::int64_t length) { return std::fmod(static_cast<double>(length) * element_bytes, bytes) == 0; };
  // Rows of the output and of b end in n; those of a in k, or in m when it is stored transposed.
  return fits(shape.n) && fits(shape.transposed_a ? shape.m : shape.k);
}

// What large products reach where power does not hold them back: the fits on A100, V100, P100 and H200 lie at 0.82 to 0.87.
constexpr double kUnlimitedEfficiency = 0.84;

// The same of products, and of convolutions on tensor cores (whose fp32 ones were not looked at), on cards for players. Their tensor cores add up in fp32 at half their rate, 512 operations per SM and clock in 16 bits, and nothing else is
// as slow; and they run above the clock that their rates are printed at: torch.matmul of 8192 reaches 1.07 (RTX 3090), 0.97 to 1.05 (4090)
// and 1.13 (5090) of them in bf16. In fp32 SMs with 128 lanes reach 0.61 to 0.69 (those three, RTX A6000, RTX PRO 6000). Source: the submissions
// of github.com/zzc0721/torch-performance-test-data.
constexpr double kHalvedEfficiency = 1.05, kWideVectorEfficiency = 0.66, kHalvedRate = 512;

// Operations per SM and clock that products in four bits were seen to reach at most, whatever the tensor cores could: Transformer Engine's
// documentation (docs/examples/gemm_profiling) has 5.1 PFLOP/s on a B300, whose peak is half as high again as B200's, where that reaches 4.4 to 4.9.
constexpr double kFourBitRate = 17000;

double unlimited_efficiency(const GpuSpec& gpu, DType math) {
  if (math == DType::fp32) return gpu.capability() >= 86 ? kWideVectorEfficiency : kUnlimitedEfficiency;
  const double clocks = gpu.sms * gpu.boost_clock.value;
  const bool halved = gpu.matrix.has(DType::fp16) && clocks > 0 && gpu.matrix[DType::fp16].value < 1.2 * kHalvedRate * clocks && gpu.capability() >= 75;
  return halved ? kHalvedEfficiency : kUnlimitedEfficiency;
}

// L40S and T4 have about one watt per TFLOP/s and throttle; a sibling with more watts per FLOP/s (the consumer cards have
// three to five times as many) throttles less, one with fewer (L4) more. Proportional until power is no longer the limit.
double sustained_efficiency(const MathCoefficients& math, double most, const GpuSpec& gpu, FlopsPerSecond peak) {
  if (math.watts_per_tflops <= 0) return math.efficiency;
  const double own = gpu.power.value / (peak.value * 1e-12);
  return std::min(most < kUnlimitedEfficiency ? most : std::max(most, math.efficiency), math.efficiency * own / math.watts_per_tflops);
}

// Weight gradients of depthwise filters over 5x5 have no kernel of their own in cuDNN 9's NHWC fp32 and fall to its direct one for
// any groups: six shapes of 7x7 on an H200 run at 0.21 to 0.52 TFLOP/s (geometric mean 0.31) where 3x3 and 5x5 reach 8.7.
constexpr double kWideFilter = 25, kWideFilterSlowdown = 28;

// Of groups that are turned, called and turned back: bytes per clock of an SM (150 GB/s on H200: cudnn::engines_precompiled::genericTranspose_kernel takes two thirds of such
// a call), the arithmetic's share of the vector peak, seconds of the three launches. From 117 calls in TF32 (data/measured, family grouped): half of them within 8%, nine tenths within 35%.
constexpr double kTurnedBytes = 0.574, kTurnedPace = 0.284, kTileChannels = 32;
constexpr Seconds kTurnedLaunches{5e-6};

// What plain streams reach of the memory bandwidth.
constexpr double kStreamed = 0.88;

// Power is short when all SMs are busy; a kernel that leaves some idle keeps its clock. Blocks: per SM.
double unthrottled(double sustained, double blocks) {
  const double throttled = std::min(1.0, sustained / kUnlimitedEfficiency);
  return std::min(1 / throttled, std::max(1.0, 1 / blocks));
}

struct Costing {
  const Kernel& kernel;
  const GpuSpec& gpu;
  const ArchitectureProfile& profile;

  double launches() const { return std::max(1, kernel.launches); }

  // `most`: the efficiency that power alone keeps it from.
  KernelCost product(GemmProblem problem, double factor, CostSource source, double most, Seconds overhead = {}) const {
    const Unit unit = unit_of(kernel, gpu);
    const MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(unit.math)];
    problem.element_bytes = bytes_of(kernel.input);
    if (problem.bytes == 0) problem.bytes = moved(kernel) / launches();
    problem.peak = unit.peak;
    problem.efficiency = sustained_efficiency(math, most, gpu, unit.peak) * factor;
    if (unit.math == DType::nvfp4 && gpu.boost_clock.value > 0) problem.efficiency = std::min(problem.efficiency, kFourBitRate * gpu.sms * gpu.boost_clock.value / unit.peak.value);
    problem.k_latency_clocks = math.k_latency_clocks;
    const GemmTime time = gemm_time(problem, gpu, profile.gemm);
    return finish(time.compute, time.memory, time.launch + overhead, time.total + overhead, source, launches());
  }

  KernelCost operator()(const GemmShape& shape) const {
    const Unit unit = unit_of(kernel, gpu);
    const MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(unit.math)];
    const double most = unlimited_efficiency(gpu, unit.math);
    double factor = shape.transposed_a ? math.transposed_a_factor : 1;
    if (const double size = bytes_of(kernel.input); gpu.boost_clock.value > 0 && !aligned(shape, size, kAlignment)) {
      const double in_pieces = (aligned(shape, size, kNarrowest) ? math.misaligned_pace : math.odd_pace) * gpu.sms * gpu.boost_clock.value;
      factor *= std::min(1.0, in_pieces / (unit.peak.value * sustained_efficiency(math, most, gpu, unit.peak)));
    }
    const auto real = [](std::int64_t v) { return static_cast<double>(std::max<std::int64_t>(1, v)); };
    GemmProblem problem;
    problem.batch = real(shape.batch), problem.m = real(shape.m), problem.n = real(shape.n), problem.k = real(shape.k);
    return product(problem, factor, math.source, most);
  }

  KernelCost operator()(const ConvShape& s) const {
    if (s.depthwise())
      return depthwise(s, profile.depthwise[static_cast<std::size_t>(depthwise_kernel(s))][static_cast<std::size_t>(s.direction)]);
    const Unit unit = unit_of(kernel, gpu);
    if (s.by_fourier) return by_fourier(s);
    if (s.turned_groups) return turned_group(s);
    const double most = unit.matrix ? unlimited_efficiency(gpu, unit.math) : kUnlimitedEfficiency;
    const double pace = unit.peak.value * sustained_efficiency(profile.gemm.math[static_cast<std::size_t>(unit.math)], most, gpu, unit.peak);
    ConvProblem problem = conv_problem(s, unit.math, unit.matrix, gpu.vector[DType::fp32].value / pace, profile.convolution);
    if (gpu.capability() < 80) problem.product.may_split = true;  // the kernels that do not are sm80's
    const KernelCost direct = product(problem.product, problem.factor, profile.convolution.source, most, problem.overhead);
    if (unit.matrix || profile.convolution.unfused_factor <= 0 || !can_transform(s)) return direct;
    const KernelCost apart = transformed(s);
    return apart.total < direct.total ? apart : direct;
  }

  // A few groups in TF32's stead, one by one (ConvHelpers::turns): image and result through a generic transposition each, and fp32 kernels whose tiles have 32 channels.
  KernelCost turned_group(const ConvShape& s) const {
    const auto real = [](std::int64_t v) { return static_cast<double>(v); };
    const double made = real(s.direction == ConvDirection::data_gradient ? s.in_channels : s.out_channels), filled = std::ceil(made / kTileChannels) * kTileChannels / std::max(1.0, made);
    const double values = real(s.batch) * (real(s.in_channels * s.in_h * s.in_w) + real(s.out_channels * s.out_h * s.out_w));
    const Seconds turned{2 * values * bytes_of(kernel.input) / (gpu.sms * gpu.boost_clock.value * kTurnedBytes)};
    const Seconds compute = turned + Seconds{kernel.flops.value / launches() * filled / (gpu.vector[DType::fp32].value * kTurnedPace)};
    return finish(compute, {moved(kernel) / launches() / (gpu.memory_bandwidth.value * kStreamed)}, kTurnedLaunches, kTurnedLaunches + compute, profile.convolution.source, launches());
  }

  KernelCost by_fourier(const ConvShape& s) const {
    const ConvWays ways(s, DType::fp32, bytes_of(kernel.input), moved(kernel) / launches(), kernel.flops.value / launches(), gpu);
    const Seconds all{ways.fourier() * 1e-6}, memory{moved(kernel) / launches() / (gpu.memory_bandwidth.value * kStreamed)};
    return finish(all, memory, {}, all, profile.convolution.source, launches());
  }

  // As libraries do with many channels: tiles and filters are transformed by passes over memory, between them products.
  KernelCost transformed(const ConvShape& s) const {
    const TransformedConv conv = transformed_conv(s, bytes_of(kernel.input));
    const Seconds passes{static_cast<double>(conv.passes.value) / (gpu.memory_bandwidth.value * kStreamed) * launches()};
    KernelCost cost = product(conv.product, profile.convolution.unfused_factor, profile.convolution.source, kUnlimitedEfficiency, profile.convolution.indexing_overhead * 2);
    cost.memory = cost.memory + passes, cost.total = cost.total + passes;
    return cost;
  }

  DepthwiseKernel depthwise_kernel(const ConvShape& s) const {
    if (s.channels_last) {
      if (kernel.input == DType::fp16) return DepthwiseKernel::cudnn_nhwc_fp16;
      return kernel.input == DType::bf16 ? DepthwiseKernel::cudnn_nhwc_bf16 : DepthwiseKernel::cudnn_nhwc_fp32;
    }
    // cuDNN's data gradient of a strided one was measured to be no faster than PyTorch's.
    const bool strided = s.direction == ConvDirection::data_gradient && s.strides() > 1;
    return s.native || strided ? DepthwiseKernel::native : DepthwiseKernel::cudnn_fp16;
  }

  // One filter per channel: too little work per byte for tensor cores, whatever the arithmetic.
  KernelCost depthwise(const ConvShape& s, const DepthwiseCoefficients& c) const {
    // A strided data gradient tries every tap at every input, those that meet no output too.
    const double tried = s.direction == ConvDirection::data_gradient ? static_cast<double>(s.strides()) : 1;
    const double taps = static_cast<double>(s.kernel_h * s.kernel_w);
    const bool slow = s.channels_last && s.direction == ConvDirection::weight_gradient && !is_16bit(kernel.input) && taps > kWideFilter;
    const Seconds compute{kernel.flops.value * tried * (taps + c.tap_overhead) / taps / (gpu.sms * gpu.boost_clock.value * c.flops_per_clock) *
                          (slow ? kWideFilterSlowdown : 1)};
    const Seconds memory{moved(kernel) / (gpu.memory_bandwidth.value * c.efficiency)};
    const Seconds launch = c.launch_floor * launches();
    return finish(compute, memory, launch, launch + std::max(compute, memory), c.source);
  }

  // Row sums before a backward kernel and the conversion of its query gradient after it are kernels of their own.
  const AttentionCoefficients& attention(const AttentionShape& s, bool wide) const {
    const ArchitectureProfile::Attention& all = profile.attention;
    if (wide) return all.memory_efficient[s.backward];
    if (s.backend == AttentionBackend::cudnn) return all.cudnn[s.backward];
    return (s.backend == AttentionBackend::memory_efficient ? all.memory_efficient_16bit : all.flash)[s.backward];
  }

  // Query rows that one block owns. The flash kernels take smaller blocks where shared memory is 100 KB an SM, not 160 or more
  // (compute capability 8.6 and 8.9; flash_fwd_launch_template.h of flash-attention 2).
  double attention_rows(const AttentionShape& s) const {
    const bool small = gpu.capability() == 86 || gpu.capability() == 89;
    return small && s.backend == AttentionBackend::flash && !s.backward && s.causal && s.head_dim > 64 ? kAttentionBlock / 2 : kAttentionBlock;
  }

  KernelCost operator()(const AttentionShape& s) const {
    // In fp32 and tf32 the fused kernels run at vector speed; only 16-bit reaches the tensor cores as they should be used.
    const bool wide = !is_16bit(kernel.math);
    const FlopsPerSecond peak = wide ? gpu.vector[DType::fp32] : unit_of(kernel, gpu).peak;
    const AttentionCoefficients& c = attention(s, wide);
    const auto real = [](std::int64_t v) { return static_cast<double>(v); };
    const double sms = gpu.sms, kv = real(s.kv_len), dim = real(s.head_dim + s.value_dim) / 2;
    const double rows = attention_rows(s);
    const double blocks = real(s.batch * s.heads) * std::ceil(real(s.q_len) / rows) / sms;
    const double keys = s.causal ? std::min(kv, (kv + rows) / 2) : kv;
    const DType type = wide ? DType::fp32 : kernel.math;
    const MathCoefficients& math = profile.gemm.math[static_cast<std::size_t>(type)];
    const double sustained = sustained_efficiency(math, unlimited_efficiency(gpu, type), gpu, peak);
    const double power = math.efficiency > 0 ? sustained / math.efficiency : 1;
    const double idle = math.watts_per_tflops > 0 ? unthrottled(sustained, blocks) : 1;
    const double rate = peak.value / sms * std::min(std::max(0.95, c.efficiency), c.efficiency * power * idle) * std::pow(std::min(1.0, dim / 128), c.head_dim_exponent);
    const double work = (s.backward ? kBackwardFlops : kForwardFlops) * rows * dim / rate;
    const double compute = std::max(blocks, 1.0) * (c.block_overhead.value + work * keys) +
                           c.tail * (c.block_overhead.value + work * kv);
    const double memory = moved(kernel) / launches() / (gpu.memory_bandwidth.value * c.bandwidth_efficiency);
    const Seconds total{c.launch_floor.value + joined(compute, memory, 3)};
    return finish({compute}, {memory}, c.launch_floor, total, c.source, launches());
  }

  const MemoryCoefficients& streaming(const MemoryShape& s) const {
    if (is_batch_norm(s.pattern)) return batch_norm(s).stream;
    const bool mixed = s.pattern == MemoryPattern::pointwise && kernel.input != kernel.output;
    if (mixed && is_floating(kernel.input) && is_floating(kernel.output)) return profile.pointwise_mixed;
    const bool widens = s.pattern == MemoryPattern::cast && bits_of(kernel.output) > bits_of(kernel.input);
    return widens ? profile.cast_widen : profile.memory[static_cast<std::size_t>(s.pattern)];
  }
  const BatchNormCoefficients& batch_norm(const MemoryShape& s) const {
    return profile.batch_norm[is_native_batch_norm(s.pattern)][is_batch_norm_backward(s.pattern)][s.channels_last];
  }

  // A layer norm's parameter gradients are summed by one block per 32 columns over all rows: narrow models leave SMs idle.
  // From 65,536 rows on PyTorch splits the rows as well (cuda/layer_norm_kernel.cu).
  double busy_sms(const MemoryShape& s) const {
    if (s.pattern != MemoryPattern::norm_parameters) return gpu.sms;
    const double blocks = std::ceil(static_cast<double>(s.rows) / kNormColumns);
    return s.row_length > kNormSplitRows && blocks < gpu.sms / 2.0 ? gpu.sms : std::min<double>(gpu.sms, blocks);
  }

  Seconds column_sum(const MemoryShape& s) const {
    const ReductionGrid grid = reduction_grid(s.rows, s.row_length, true, gpu.sms);
    const double threads = static_cast<double>(grid.width * grid.height), room = gpu.sms * std::max(1.0, std::floor(kThreadsOfSm / threads));
    const double waves = std::ceil(static_cast<double>(grid.blocks) / room);
    const double meeting = grid.sharing > 1 ? kColumnMeeting + kColumnSharing * static_cast<double>(grid.sharing) / static_cast<double>(grid.height) : 0;
    return {(waves * static_cast<double>(grid.values) * kColumnValue + meeting) / gpu.boost_clock.value};
  }
  // Others wait for the values of a row, too, and work out the place of each where the axes that are summed do not form one.
  Seconds row_sum(const MemoryShape& s, Seconds access) const {
    const ReductionGrid grid = reduction_grid(s.rows, s.row_length, s.channels_last, gpu.sms);
    const double meeting = grid.sharing > 1 && s.rows > 1 ? kColumnMeeting : 0, all = static_cast<double>(s.rows * s.row_length);
    const double waited = static_cast<double>(grid.values) * (s.channels_last ? kColumnValue : kRowValue) + meeting, placed = s.axes >= 3 ? all / (kPlaced * gpu.sms) : 0;
    return std::max(access, Seconds{std::max(waited, placed) / gpu.boost_clock.value});
  }
  // A launch over many tensors lasts as long as the block that has the longest chunk of them, however few blocks there are.
  Seconds longest_chunk(const MemoryShape& s) const {
    return {launches() * static_cast<double>(s.part) * kListedElement / gpu.boost_clock.value};
  }
  // The floor was fitted to launches whose blocks walk whole chunks; of lists of small tensors a launch is as short as any.
  Seconds listed_floor(const MemoryShape& s, const MemoryCoefficients& c) const {
    const Seconds least = profile.memory[static_cast<std::size_t>(MemoryPattern::pointwise)].launch_floor;
    return least + std::max(Seconds{}, c.launch_floor - least) * std::min(1.0, static_cast<double>(s.part) / kListedChunk);
  }
  Seconds place(const MemoryShape& s) const {
    return {static_cast<double>(s.rows * s.row_length) * (kPlacedElement + kPlacedAxis * s.axes) / (gpu.sms * gpu.boost_clock.value)};
  }
  // Time of the SMs to issue the reads and writes.
  Seconds access(const MemoryShape& s, const MemoryCoefficients& c) const {
    const double accesses = static_cast<double>(kernel.read.value) / bytes_of(kernel.input) +
                            static_cast<double>(kernel.written.value) / bytes_of(kernel.output);
    if (!is_batch_norm(s.pattern) || s.channels_last) {
      // A warp's work per row; where a reduction keeps the innermost axis each of its threads has a result of its own.
      const bool thread_each = s.pattern == MemoryPattern::reduction && s.channels_last;
      const double rows = static_cast<double>(s.rows) / (thread_each ? kWarp : 1);
      return {(accesses / c.accesses_per_clock + moved(kernel) / c.bytes_per_clock + rows * c.row_clocks) / (busy_sms(s) * gpu.boost_clock.value)};
    }
    // A block per channel: one block cannot use a whole SM, and with fewer channels than SMs the rest stand idle.
    const BatchNormCoefficients& norm = batch_norm(s);
    const double channels = static_cast<double>(std::max<std::int64_t>(1, s.rows)), busy = std::max(1.0, channels / gpu.sms);
    const bool resident = static_cast<double>(s.row_length) * bytes_of(kernel.input) <= kResident;
    const double clock = gpu.boost_clock.value * (resident ? norm.resident_gain : 1), one = accesses / channels / clock;
    return {busy * norm.block_overhead.value + joined(one / norm.block_accesses_per_clock, busy * one / c.accesses_per_clock, 2)};
  }

  KernelCost operator()(const MemoryShape& s) const {
    const MemoryCoefficients& c = streaming(s);
    const bool columns = s.pattern == MemoryPattern::bias_gradient && s.rows > 1;
    const bool rows = s.pattern == MemoryPattern::reduction && !kernel.estimated && !kernel.fused && launches() == 1;  // PyTorch's reduce_kernel
    const bool placed = s.pattern == MemoryPattern::broadcast && s.axes >= 2 && !kernel.estimated && !kernel.fused;
    const bool listed = s.pattern == MemoryPattern::multi_tensor && s.part > 0;
    const Seconds compute = columns ? column_sum(s) * launches() : rows ? row_sum(s, access(s, c)) : placed ? std::max(access(s, c), place(s)) :
                            listed  ? std::max(access(s, c), longest_chunk(s)) : access(s, c);
    const Seconds memory{moved(kernel) / (gpu.memory_bandwidth.value * c.efficiency)};
    const bool to_one = s.pattern == MemoryPattern::reduction && s.rows == 1;  // the blocks' sums are then summed by the last to finish
    const Seconds floor = columns ? kColumnFloor * (kMeasuredBoost / gpu.boost_clock.value) : listed ? listed_floor(s, c) : c.launch_floor;
    const Seconds launch = floor * (launches() + (to_one ? 1 : 0));
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

// Allowing TF32 lets the library choose, it does not oblige it: where the tensor cores have little more to offer than the
// ordinary ones (consumer cards: 1 to 2 times), the fp32 kernel is taken when it is faster. An assumption, not a measurement;
// data-centre parts (8 times and more) never come near it.
constexpr double kTf32Advantage = 4;

KernelCost kernel_cost(const Kernel& kernel, const GpuSpec& gpu, const ArchitectureProfile& profile) {
  if (kernel.emulated) return emulated_cost(kernel, gpu, profile);
  KernelCost cost = std::visit(Costing{kernel, gpu, profile}, kernel.shape);
  if (kernel.unknown || kernel.estimated) cost.source = CostSource::estimate;
  if (kernel.math == DType::tf32 && gpu.matrix[DType::tf32] < gpu.vector[DType::fp32] * kTf32Advantage) {
    Kernel plain = kernel;
    plain.math = DType::fp32;
    const KernelCost alternative = std::visit(Costing{plain, gpu, profile}, plain.shape);
    if (alternative.total < cost.total) cost = alternative;
  }
  return with_fallbacks(kernel, gpu.boost_clock, cost);
}

Seconds kernel_gap(const ArchitectureProfile& profile) { return profile.kernel_gap; }

std::string_view to_text(Bound bound) {
  static constexpr std::array<std::string_view, 4> kNames = {"compute", "memory", "launch", "network"};
  return kNames[static_cast<std::size_t>(bound)];
}

std::string_view to_text(CostSource source) {
  static constexpr std::array<std::string_view, 5> kNames = {"measured", "fitted", "scaled", "datasheet", "estimate"};
  return kNames[static_cast<std::size_t>(source)];
}

}  // namespace precog
