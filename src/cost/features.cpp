#include "cost/features.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "base/real.h"
#include "cost/conv_cost.h"
#include "cost/conv_ways.h"
#include "kernel/library_rules.h"

namespace precog {
namespace {

double octaves(double x) { return std::log2(std::max(x, 1e-12)); }
double share(Seconds part, Seconds whole) { return whole.value > 0 ? part / whole : 0; }

// The largest power of two in a length, up to 2^7: what loads and tiles are cut by.
double alignment(double length) {
  double power = 0;
  for (double x = length; power < 7 && x >= 2 && std::fmod(x, 2) == 0; x /= 2) ++power;
  return power;
}

struct Situation {  // a kernel with what several features are made of
  const Kernel& kernel;
  const KernelCost& physics;
  const GpuSpec& gpu;
  bool warm = false;
  double batch = 1, m = 1, n = 1, k = 1;  // of what is a product
  const ConvShape* conv = nullptr;
  const ConvWays* ways = nullptr;
  double rows = 1, columns = 1, taps = 1, depth = 1;  // of a convolution's product, each group its own; its sum: so many taps of so many channels (or pixels)
  double depth_step = 1;                              // of the sum, that a block takes at once: a ragged rest costs as much
  const AttentionShape* attention = nullptr;
  const MemoryShape* memory = nullptr;
  double launches = 1;

  double bytes() const { return real(kernel.read.value + kernel.written.value) / launches; }
  double element_bytes() const { return real(bits_of(kernel.input)) / 8; }
  double tiles(double tm, double tn) const { return batch * std::ceil(m / tm) * std::ceil(n / tn); }
  double waves(double tm, double tn) const { return tiles(tm, tn) / gpu.sms; }
  // How full the last wave is, all before it counted: 1 when nothing is lost to quantisation.
  double wave_efficiency(double tm, double tn) const { return waves(tm, tn) / std::ceil(waves(tm, tn)); }
  double tile_efficiency(double tm, double tn) const { return batch * m * n / (tiles(tm, tn) * tm * tn); }

  // How long a convolution takes if each tile's sum is one block's work, against the physics, which may split it: only the ratio
  // between two shapes means something. Libraries do not always split (cuDNN's fp32 gradients of volumes: two blocks, 26 ms).
  double steps() const { return taps * std::ceil(depth / depth_step); }
  double group_tiles(double tm, double tn) const { return std::ceil(rows / tm) * std::ceil(columns / tn); }
  double against_physics(double work) const { return octaves(work / (physics.total.value / launches * 1e6)); }
  double unsplit(double tm, double tn) const {
    return against_physics(std::max(1.0, std::ceil(real(conv->groups) * group_tiles(tm, tn) / gpu.sms)) * steps() * tm * tn * depth_step * 1e-6);
  }
  // A product by one size of tile: each tile's sum one block's work, against the physics; and the sum split between the blocks
  // that would stand idle, against SMs that are never idle.
  double alone(double tm, double tn) const { return against_physics(std::ceil(waves(tm, tn)) * k * tm * tn * 1e-6); }
  double split(double tm, double tn) const {
    constexpr double kLeast = 128, kStep = 32;  // of the sum
    const double parts = std::max(1.0, std::min(std::floor(gpu.sms / tiles(tm, tn)), std::floor(k / kLeast)));
    return octaves(std::ceil(waves(tm, tn) * parts) * tm * tn * std::ceil(k / parts / kStep) * kStep / (batch * m * n * k / gpu.sms));
  }
  double of_small_tiles(double together, double times) const {  // several blocks share an SM; `times`: calls, one after the other
    return against_physics(times * std::max(1.0, together * group_tiles(32, 32) / gpu.sms / 3.5) * taps * std::ceil(depth / 8));
  }
  // What arithmetic and memory take where nothing is cut into tiles: smooth where the physics have steps, which a library may not have.
  double roofline() const {
    constexpr double kFloor = 3e-6;  // seconds
    const double peak = std::max(gpu.matrix[kernel.math].value, gpu.vector[kernel.math].value);
    return way((kFloor + std::hypot(peak > 0 ? kernel.flops.value / launches / peak : 0, bytes() / gpu.memory_bandwidth.value)) * 1e6);
  }
  double way(double microseconds) const { return against_physics(microseconds); }
  double image_bytes() const { return real(conv->batch * conv->in_channels * conv->in_h * conv->in_w) * element_bytes(); }
  double result_bytes() const { return real(conv->batch * conv->out_channels * conv->out_h * conv->out_w) * element_bytes(); }
  double filter_bytes() const { return real(conv->out_channels) * in_each() * taps_all() * element_bytes(); }
  double operand_bytes() const { return image_bytes() + result_bytes() + filter_bytes(); }
  double taps_all() const { return real(conv->kernel_h * conv->kernel_w); }
  double in_each() const { return real(conv->in_channels) / real(conv->groups); }
  // PyTorch's own weight gradient of depthwise filters: a block for each tap of each channel, a warp for every eighth image, a lane for every
  // 32nd pixel of the result (aten/native/cuda/DepthwiseConv2d.cu).
  double blocks_by_taps() const { return real(conv->out_channels) * taps_all(); }
  double warps_by_taps() const { return std::min(8.0, std::max(1.0, real(conv->batch))); }
  double loops_by_taps() const { return std::ceil(real(conv->batch) / warps_by_taps()) * std::ceil(real(conv->out_h * conv->out_w) / 32); }
  double out_each() const { return real(conv->out_channels) / real(conv->groups); }
};

// What is used of a length that is cut into pieces.
double used(double length, double piece) { return length / (std::ceil(length / piece) * piece); }

struct Feature {
  FeatureName about;
  double (*value)(const Situation&);
};
using S = Situation;

// Of every kernel: which of the physics' terms matter, and how large it is against the GPU.
#define PRECOG_COMMON_FEATURES                                                                                      \
  {{"log bytes", true}, [](const S& s) { return octaves(s.bytes()); }},                                             \
  {{"log bytes / l2", true}, [](const S& s) { return octaves(s.bytes() / real(s.gpu.l2.value)); }},                 \
  {{"log microseconds", true}, [](const S& s) { return octaves(s.physics.total.value / s.launches * 1e6); }},      \
  {{"compute share", false}, [](const S& s) { return share(s.physics.compute, s.physics.total); }},                 \
  {{"memory share", false}, [](const S& s) { return share(s.physics.memory, s.physics.total); }},                   \
  {{"launch share", false}, [](const S& s) { return share(s.physics.launch, s.physics.total); }},                   \
  {{"input bits", true}, [](const S& s) { return real(bits_of(s.kernel.input)); }},                                 \
  {{"output bits", false}, [](const S& s) { return real(bits_of(s.kernel.output)); }},                              \
  {{"math", false}, [](const S& s) { return real(static_cast<std::int64_t>(s.kernel.math)); }},                     \
  {{"warm", false}, [](const S& s) { return s.warm ? 1.0 : 0.0; }}

#define PRECOG_PRODUCT_FEATURES                                                                                     \
  {{"log m", true}, [](const S& s) { return octaves(s.m); }},                                                       \
  {{"log n", true}, [](const S& s) { return octaves(s.n); }},                                                       \
  {{"log k", true}, [](const S& s) { return octaves(s.k); }},                                                       \
  {{"log batch", true}, [](const S& s) { return octaves(s.batch); }},                                               \
  {{"log n / m", false}, [](const S& s) { return octaves(s.n / s.m); }},                                            \
  {{"log intensity", false}, [](const S& s) { return octaves(s.kernel.flops.value / std::max(1.0, s.bytes() * s.launches)); }}, \
  {{"log waves 128x128", true}, [](const S& s) { return octaves(s.waves(128, 128)); }},                             \
  {{"wave efficiency 256x128", false}, [](const S& s) { return s.wave_efficiency(256, 128); }},                     \
  {{"wave efficiency 128x256", false}, [](const S& s) { return s.wave_efficiency(128, 256); }},                     \
  {{"wave efficiency 128x128", false}, [](const S& s) { return s.wave_efficiency(128, 128); }},                     \
  {{"wave efficiency 64x64", false}, [](const S& s) { return s.wave_efficiency(64, 64); }},                         \
  {{"tile efficiency 128x128", false}, [](const S& s) { return s.tile_efficiency(128, 128); }},                     \
  {{"tile efficiency 64x64", false}, [](const S& s) { return s.tile_efficiency(64, 64); }},                         \
  {{"alignment m", false}, [](const S& s) { return alignment(s.m); }},                                              \
  {{"alignment n", false}, [](const S& s) { return alignment(s.n); }},                                              \
  {{"alignment k", false}, [](const S& s) { return alignment(s.k); }}

// Tiles that Hopper's libraries take beside those above, and how a split of the sum fills the GPU.
#define PRECOG_MORE_TILES                                                                                           \
  {{"wave efficiency 256x256", false}, [](const S& s) { return s.wave_efficiency(256, 256); }},                     \
  {{"wave efficiency 192x128", false}, [](const S& s) { return s.wave_efficiency(192, 128); }},                     \
  {{"wave efficiency 128x192", false}, [](const S& s) { return s.wave_efficiency(128, 192); }},                     \
  {{"wave efficiency 128x64", false}, [](const S& s) { return s.wave_efficiency(128, 64); }},                       \
  {{"wave efficiency 64x128", false}, [](const S& s) { return s.wave_efficiency(64, 128); }},                       \
  {{"log waves 64x64", true}, [](const S& s) { return octaves(s.waves(64, 64)); }},                                 \
  {{"log tile's work", true}, [](const S& s) { return octaves(s.kernel.flops.value / s.launches / s.tiles(128, 128)); }}, \
  {{"log operand bytes", true}, [](const S& s) { return octaves(s.batch * s.k * (s.m + s.n) * s.element_bytes()); }}, \
  {{"log result bytes", true}, [](const S& s) { return octaves(real(s.kernel.written.value) / s.launches); }}

constexpr Feature kGemm[] = {
    PRECOG_COMMON_FEATURES, PRECOG_PRODUCT_FEATURES,
    {{"a stored [k,m]", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).transposed_a ? 1.0 : 0.0; }},
    {{"alignment a", false}, [](const S& s) { return alignment(s.element_bytes() * (std::get<GemmShape>(s.kernel.shape).transposed_a ? s.m : s.k)); }},
    {{"alignment b", false}, [](const S& s) { return alignment(s.element_bytes() * (s.kernel.name == "linear" ? s.k : s.n)); }},
    {{"alignment c", false}, [](const S& s) { return alignment(s.element_bytes() * s.n); }},
    {{"log smaller of m and n", true}, [](const S& s) { return octaves(std::min(s.m, s.n)); }},
    // A linear layer's weight is [n,k]; the operands of other products lie as they are multiplied, but for a's transpose.
    {{"b stored [n,k]", false}, [](const S& s) { return s.kernel.name == "linear" ? 1.0 : 0.0; }},
    {{"a turned", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).a_turned ? 1.0 : 0.0; }},
    {{"b turned", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).b_turned ? 1.0 : 0.0; }},
    {{"bias", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).bias ? 1.0 : 0.0; }},
    {{"row scales", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).row_scales ? 1.0 : 0.0; }},
    {{"careful sums", false}, [](const S& s) { return std::get<GemmShape>(s.kernel.shape).careful_sums ? 1.0 : 0.0; }},
    PRECOG_MORE_TILES,
    {{"alone 256x128", false}, [](const S& s) { return s.alone(256, 128); }},
    {{"alone 128x256", false}, [](const S& s) { return s.alone(128, 256); }},
    {{"alone 256x256", false}, [](const S& s) { return s.alone(256, 256); }},
    {{"alone 192x128", false}, [](const S& s) { return s.alone(192, 128); }},
    {{"alone 128x192", false}, [](const S& s) { return s.alone(128, 192); }},
    {{"alone 128x128", false}, [](const S& s) { return s.alone(128, 128); }},
    {{"alone 256x64", false}, [](const S& s) { return s.alone(256, 64); }},
    {{"alone 64x256", false}, [](const S& s) { return s.alone(64, 256); }},
    {{"alone 128x64", false}, [](const S& s) { return s.alone(128, 64); }},
    {{"alone 64x128", false}, [](const S& s) { return s.alone(64, 128); }},
    {{"alone 64x64", false}, [](const S& s) { return s.alone(64, 64); }},
    {{"alone 128x32", false}, [](const S& s) { return s.alone(128, 32); }},
    {{"alone 32x128", false}, [](const S& s) { return s.alone(32, 128); }},
    {{"alone 64x32", false}, [](const S& s) { return s.alone(64, 32); }},
    {{"alone 32x64", false}, [](const S& s) { return s.alone(32, 64); }},
    {{"alone 32x32", false}, [](const S& s) { return s.alone(32, 32); }},
    {{"split 128x128", false}, [](const S& s) { return s.split(128, 128); }},
    {{"split 256x128", false}, [](const S& s) { return s.split(256, 128); }},
    {{"split 128x256", false}, [](const S& s) { return s.split(128, 256); }},
    {{"split 64x64", false}, [](const S& s) { return s.split(64, 64); }},
    {{"split 64x128", false}, [](const S& s) { return s.split(64, 128); }},
    {{"split 128x64", false}, [](const S& s) { return s.split(128, 64); }},
    {{"roofline", false}, [](const S& s) { return s.roofline(); }},
};

constexpr Feature kConvolution[] = {
    PRECOG_COMMON_FEATURES, PRECOG_PRODUCT_FEATURES,
    {{"channels last", false}, [](const S& s) { return s.conv->channels_last ? 1.0 : 0.0; }},
    {{"filter", false}, [](const S& s) { return real(s.conv->kernel_h * s.conv->kernel_w); }},
    {{"stride", false}, [](const S& s) { return real(s.conv->stride); }},
    {{"log groups", true}, [](const S& s) { return octaves(real(s.conv->groups)); }},
    {{"log images", true}, [](const S& s) { return octaves(real(s.conv->batch)); }},
    {{"log pixels", true}, [](const S& s) { return octaves(real(s.conv->out_h * s.conv->out_w)); }},
    {{"log in channels", true}, [](const S& s) { return octaves(real(s.conv->in_channels) / real(s.conv->groups)); }},
    {{"log out channels", true}, [](const S& s) { return octaves(real(s.conv->out_channels) / real(s.conv->groups)); }},
    {{"alignment channels", false}, [](const S& s) { return alignment(real(std::min(s.conv->in_channels, s.conv->out_channels))); }},
    {{"alignment pixels", false}, [](const S& s) { return alignment(real(s.conv->out_h * s.conv->out_w)); }},
    {{"native", false}, [](const S& s) { return s.conv->native ? 1.0 : 0.0; }},
    PRECOG_MORE_TILES,
    {{"filter width", false}, [](const S& s) { return real(s.conv->kernel_w); }},
    {{"dilation", false}, [](const S& s) { return real(s.conv->dilation); }},
    {{"log row", true}, [](const S& s) { return octaves(real(s.conv->in_w)); }},
    {{"log rows", true}, [](const S& s) { return octaves(real(s.conv->in_h)); }},
    {{"log result row", true}, [](const S& s) { return octaves(real(s.conv->out_w)); }},
    {{"alignment in channels", false}, [](const S& s) { return alignment(real(s.conv->in_channels) / real(s.conv->groups)); }},
    {{"alignment out channels", false}, [](const S& s) { return alignment(real(s.conv->out_channels) / real(s.conv->groups)); }},
    {{"alignment row", false}, [](const S& s) { return alignment(real(s.conv->in_w)); }},
    {{"axes", false}, [](const S& s) { return real(s.conv->axes); }},
    {{"filter depth", false}, [](const S& s) { return real(s.conv->kernel_d); }},
    {{"filter height", false}, [](const S& s) { return real(s.conv->kernel_h / std::max<std::int64_t>(1, s.conv->kernel_d)); }},
    {{"planes", false}, [](const S& s) { return real(s.conv->in_d); }},
    {{"strides", false}, [](const S& s) { return real(s.conv->strides()); }},
    {{"as large", false}, [](const S& s) { return s.conv->in_w == s.conv->out_w ? 1.0 : 0.0; }},
    {{"pointwise", false}, [](const S& s) { return s.taps_all() == 1 && s.conv->strides() == 1 ? 1.0 : 0.0; }},
    {{"log image bytes", true}, [](const S& s) { return octaves(s.image_bytes()); }},
    {{"log image of results bytes", true}, [](const S& s) { return octaves(s.result_bytes()); }},
    {{"log filter bytes", true}, [](const S& s) { return octaves(s.filter_bytes()); }},
    {{"filter's share", false}, [](const S& s) { return s.filter_bytes() / s.operand_bytes(); }},
    {{"image's share", false}, [](const S& s) { return s.image_bytes() / s.operand_bytes(); }},
    {{"log in x filter", true}, [](const S& s) { return octaves(s.in_each() * s.taps_all()); }},
    {{"log out x filter", true}, [](const S& s) { return octaves(s.out_each() * s.taps_all()); }},
    {{"log filter", true}, [](const S& s) { return octaves(s.taps_all()); }},
    {{"log in / out", false}, [](const S& s) { return octaves(s.in_each() / s.out_each()); }},
    {{"log operations", true}, [](const S& s) { return octaves(s.kernel.flops.value / s.launches); }},
    {{"in channels", false}, [](const S& s) { return s.in_each(); }},
    {{"out channels", false}, [](const S& s) { return s.out_each(); }},
    {{"row", false}, [](const S& s) { return real(s.conv->in_w); }},
    {{"result row", false}, [](const S& s) { return real(s.conv->out_w); }},
    {{"result rows", false}, [](const S& s) { return real(s.conv->out_h); }},
    {{"result row used of 4", false}, [](const S& s) { return used(real(s.conv->out_w), 4); }},
    {{"result row used of 8", false}, [](const S& s) { return used(real(s.conv->out_w), 8); }},
    {{"log images x groups", true}, [](const S& s) { return octaves(real(s.conv->batch * s.conv->groups)); }},
    {{"log rows x columns", true}, [](const S& s) { return octaves(s.rows * s.columns); }},
    {{"columns used of 32", false}, [](const S& s) { return used(s.columns, 32); }},
    {{"columns used of 64", false}, [](const S& s) { return used(s.columns, 64); }},
    {{"columns used of 128", false}, [](const S& s) { return used(s.columns, 128); }},
    {{"rows used of 64", false}, [](const S& s) { return used(s.rows, 64); }},
    {{"in channels used of 32", false}, [](const S& s) { return used(s.in_each(), 32); }},
    {{"in channels used of 64", false}, [](const S& s) { return used(s.in_each(), 64); }},
    {{"out channels used of 64", false}, [](const S& s) { return used(s.out_each(), 64); }},
    {{"depth used", false}, [](const S& s) { return used(s.depth, s.depth_step); }},
    {{"log steps", true}, [](const S& s) { return octaves(s.steps()); }},
    {{"log waves 32x32", true}, [](const S& s) { return octaves(real(s.conv->groups) * s.group_tiles(32, 32) / s.gpu.sms); }},
    {{"unsplit 32x32", false}, [](const S& s) { return s.of_small_tiles(real(s.conv->groups), 1); }},
    {{"unsplit 32x32 by groups", false}, [](const S& s) { return s.of_small_tiles(1, real(s.conv->groups)); }},
    {{"unsplit 64x64", false}, [](const S& s) { return s.unsplit(64, 64); }},
    {{"unsplit 128x32", false}, [](const S& s) { return s.unsplit(128, 32); }},
    {{"unsplit 128x64", false}, [](const S& s) { return s.unsplit(128, 64); }},
    {{"unsplit 64x128", false}, [](const S& s) { return s.unsplit(64, 128); }},
    {{"unsplit 128x128", false}, [](const S& s) { return s.unsplit(128, 128); }},
    {{"unsplit 256x64", false}, [](const S& s) { return s.unsplit(256, 64); }},
    {{"unsplit 256x128", false}, [](const S& s) { return s.unsplit(256, 128); }},
    // Ways to run it, against the physics (conv_ways.h).
    {{"in tiles 256x128", false}, [](const S& s) { return s.way(s.ways->tiles(256, 128)); }},
    {{"in tiles 128x256", false}, [](const S& s) { return s.way(s.ways->tiles(128, 256)); }},
    {{"in tiles 128x128", false}, [](const S& s) { return s.way(s.ways->tiles(128, 128)); }},
    {{"in tiles 256x64", false}, [](const S& s) { return s.way(s.ways->tiles(256, 64)); }},
    {{"in tiles 128x64", false}, [](const S& s) { return s.way(s.ways->tiles(128, 64)); }},
    {{"in tiles 64x128", false}, [](const S& s) { return s.way(s.ways->tiles(64, 128)); }},
    {{"in tiles 64x64", false}, [](const S& s) { return s.way(s.ways->tiles(64, 64)); }},
    {{"in tiles 128x32", false}, [](const S& s) { return s.way(s.ways->tiles(128, 32)); }},
    {{"in tiles 64x32", false}, [](const S& s) { return s.way(s.ways->tiles(64, 32)); }},
    {{"in tiles 32x32", false}, [](const S& s) { return s.way(s.ways->tiles(32, 32)); }},
    {{"in tiles 64x64, two", false}, [](const S& s) { return s.way(s.ways->small_tiles(64, 64, 1.5)); }},
    {{"in tiles 64x64, four", false}, [](const S& s) { return s.way(s.ways->small_tiles(64, 64, 3.5)); }},
    {{"in tiles 32x32, two", false}, [](const S& s) { return s.way(s.ways->small_tiles(32, 32, 1.5)); }},
    {{"in tiles 32x32, four", false}, [](const S& s) { return s.way(s.ways->small_tiles(32, 32, 3.5)); }},
    {{"split 256x128", false}, [](const S& s) { return s.way(s.ways->split(256, 128)); }},
    {{"split 128x128", false}, [](const S& s) { return s.way(s.ways->split(128, 128)); }},
    {{"split 128x64", false}, [](const S& s) { return s.way(s.ways->split(128, 64)); }},
    {{"split 64x64", false}, [](const S& s) { return s.way(s.ways->split(64, 64)); }},
    {{"all busy", false}, [](const S& s) { return s.way(s.ways->work(true)); }},
    {{"all busy, every tap", false}, [](const S& s) { return s.way(s.ways->work(false)); }},
    {{"vector units busy", false}, [](const S& s) { return s.way(s.ways->vector_work()); }},
    {{"moving", false}, [](const S& s) { return s.way(s.ways->moving()); }},
    {{"by Fourier transforms", false}, [](const S& s) { return s.ways->fourier() > 0 ? s.way(s.ways->fourier()) : 0; }},
    {{"of its square", false}, [](const S& s) { return s.ways->square(); }},
    {{"busiest SM's loops by taps", false}, [](const S& s) { return s.way(s.loops_by_taps() * std::ceil(s.blocks_by_taps() / (s.gpu.sms * std::min(32.0, 64 / s.warps_by_taps()))) * 0.1); }},
    {{"loops by taps", false}, [](const S& s) { return s.way(s.loops_by_taps() * std::max(1.0, s.blocks_by_taps() * s.warps_by_taps() / (s.gpu.sms * 16)) * 0.05); }},
};

double attention_blocks(const S& s, std::int64_t length, double rows) {
  return std::max(1.0, real(s.attention->batch * s.attention->heads) * std::ceil(real(length) / rows));
}
double filled(double waves) { return waves / std::ceil(waves); }

// How wide a head is to the kernels, which are compiled for a few widths.
double padded_dim(const S& s) {
  for (double width : {16, 32, 64, 96, 128, 192}) if (real(s.attention->head_dim) <= width) return width;
  return std::max(256.0, real(s.attention->head_dim));
}
// How long the busiest SM works on its blocks of queries (or of keys), `together` at once, against the physics.
double busiest(const S& s, std::int64_t mine, std::int64_t others, double rows, double together) {
  const double rounds = std::ceil(attention_blocks(s, mine, rows) / (s.gpu.sms * together)) * together;
  return s.against_physics(rounds * rows * std::ceil(real(others) / 64) * 64 * padded_dim(s) * 1e-6);
}
double steps_of(const S& s, std::int64_t mine, std::int64_t others) {
  return octaves(std::ceil(attention_blocks(s, mine, 128) / s.gpu.sms) * std::ceil(real(others) / 64));
}

constexpr Feature kAttention[] = {
    PRECOG_COMMON_FEATURES,
    {{"log queries", true}, [](const S& s) { return octaves(real(s.attention->q_len)); }},
    {{"log keys", true}, [](const S& s) { return octaves(real(s.attention->kv_len)); }},
    {{"log heads", true}, [](const S& s) { return octaves(real(s.attention->batch * s.attention->heads)); }},
    {{"head dim", false}, [](const S& s) { return real(s.attention->head_dim); }},
    {{"queries per key head", false}, [](const S& s) { return real(s.attention->heads) / real(std::max<std::int64_t>(1, s.attention->kv_heads)); }},
    {{"causal", false}, [](const S& s) { return s.attention->causal ? 1.0 : 0.0; }},
    {{"dropout", false}, [](const S& s) { return s.attention->dropout ? 1.0 : 0.0; }},
    {{"mask", false}, [](const S& s) { return s.attention->mask ? 1.0 : 0.0; }},
    {{"backend", false}, [](const S& s) { return real(static_cast<std::int64_t>(s.attention->backend)); }},
    {{"log waves 128", true}, [](const S& s) { return octaves(s.m / s.gpu.sms); }},
    {{"wave efficiency 128", false}, [](const S& s) { return s.m / s.gpu.sms / std::ceil(s.m / s.gpu.sms); }},
    {{"tile efficiency 128", false}, [](const S& s) { return real(s.attention->q_len) / (std::ceil(real(s.attention->q_len) / 128) * 128); }},
    {{"alignment queries", false}, [](const S& s) { return alignment(real(s.attention->q_len)); }},
    {{"tile efficiency keys 128", false}, [](const S& s) { return real(s.attention->kv_len) / (std::ceil(real(s.attention->kv_len) / 128) * 128); }},
    {{"tile efficiency 64", false}, [](const S& s) { return real(s.attention->q_len) / (std::ceil(real(s.attention->q_len) / 64) * 64); }},
    {{"wave efficiency keys 128", false},
     [](const S& s) {
       const double waves = std::max(1.0, real(s.attention->batch * s.attention->heads) * std::ceil(real(s.attention->kv_len) / 128)) / s.gpu.sms;
       return waves / std::ceil(waves);
     }},
    {{"wave efficiency heads", false},
     [](const S& s) {
       const double waves = std::max(1.0, real(s.attention->batch * s.attention->heads)) / s.gpu.sms;
       return waves / std::ceil(waves);
     }},
    {{"alignment keys", false}, [](const S& s) { return alignment(real(s.attention->kv_len)); }},
    {{"alignment head dim", false}, [](const S& s) { return alignment(real(s.attention->head_dim)); }},
    {{"log work", true}, [](const S& s) { return octaves(s.kernel.flops.value / s.launches); }},
    {{"log keys / queries", false}, [](const S& s) { return octaves(real(s.attention->kv_len) / real(std::max<std::int64_t>(1, s.attention->q_len))); }},
    // Blocks of keys that the busiest SM goes through; blocks of 64 queries or keys, one or two to an SM.
    {{"log steps", true}, [](const S& s) { return octaves(std::ceil(s.m / s.gpu.sms) * std::ceil(real(s.attention->kv_len) / 128)); }},
    {{"wave efficiency 64", false}, [](const S& s) { return filled(attention_blocks(s, s.attention->q_len, 64) / s.gpu.sms); }},
    {{"wave efficiency 64, two", false}, [](const S& s) { return filled(attention_blocks(s, s.attention->q_len, 64) / s.gpu.sms / 2); }},
    {{"wave efficiency 128, two", false}, [](const S& s) { return filled(attention_blocks(s, s.attention->q_len, 128) / s.gpu.sms / 2); }},
    {{"wave efficiency keys 64", false}, [](const S& s) { return filled(attention_blocks(s, s.attention->kv_len, 64) / s.gpu.sms); }},
    {{"head dim / 64", false}, [](const S& s) { return std::ceil(real(s.attention->head_dim) / 64) * 64 / real(std::max<std::int64_t>(1, s.attention->head_dim)); }},
    {{"queries by 64", false}, [](const S& s) { return busiest(s, s.attention->q_len, s.attention->kv_len, 64, 1); }},
    {{"keys by 64", false}, [](const S& s) { return busiest(s, s.attention->kv_len, s.attention->q_len, 64, 1); }},
    {{"queries by 64, two", false}, [](const S& s) { return busiest(s, s.attention->q_len, s.attention->kv_len, 64, 2); }},
    {{"keys by 64, two", false}, [](const S& s) { return busiest(s, s.attention->kv_len, s.attention->q_len, 64, 2); }},
    {{"queries by 128", false}, [](const S& s) { return busiest(s, s.attention->q_len, s.attention->kv_len, 128, 1); }},
    {{"keys by 128", false}, [](const S& s) { return busiest(s, s.attention->kv_len, s.attention->q_len, 128, 1); }},
    {{"queries by 128, two", false}, [](const S& s) { return busiest(s, s.attention->q_len, s.attention->kv_len, 128, 2); }},
    {{"keys by 128, two", false}, [](const S& s) { return busiest(s, s.attention->kv_len, s.attention->q_len, 128, 2); }},
    {{"log bytes / microsecond", false}, [](const S& s) { return s.against_physics(s.bytes()); }},
    {{"log steps of queries", true}, [](const S& s) { return steps_of(s, s.attention->q_len, s.attention->kv_len); }},
    {{"log steps of keys", true}, [](const S& s) { return steps_of(s, s.attention->kv_len, s.attention->q_len); }},
    {{"ragged keys", false}, [](const S& s) { return std::fmod(real(s.attention->kv_len), 64) / 64; }},
    {{"ragged queries", false}, [](const S& s) { return std::fmod(real(s.attention->q_len), 64) / 64; }},
    {{"padded head dim", false}, padded_dim},
    {{"kernels", false}, [](const S& s) { return real(static_cast<std::int64_t>(s.attention->backend)) + (bits_of(s.kernel.input) > 16 ? 1 : 0); }},
    {{"log scores", true}, [](const S& s) { return octaves(real(s.attention->batch * s.attention->heads) * real(s.attention->q_len) * real(s.attention->kv_len)); }},
};

constexpr Feature kMemory[] = {
    PRECOG_COMMON_FEATURES,
    {{"log rows", true}, [](const S& s) { return octaves(real(s.memory->rows)); }},
    {{"log row length", true}, [](const S& s) { return octaves(real(s.memory->row_length)); }},
    {{"log row length / rows", false}, [](const S& s) { return octaves(real(s.memory->row_length) / real(std::max<std::int64_t>(1, s.memory->rows))); }},
    {{"log bytes / sm", true}, [](const S& s) { return octaves(s.bytes() / s.gpu.sms); }},
    {{"bytes / element", false},
     [](const S& s) { return std::min(64.0, s.bytes() * s.launches / std::max(1.0, real(s.memory->rows) * real(s.memory->row_length))); }},
    {{"read share", false}, [](const S& s) { return real(s.kernel.read.value) / std::max(1.0, s.bytes() * s.launches); }},
    {{"alignment row", false}, [](const S& s) { return alignment(real(s.memory->row_length)); }},
    {{"alignment rows", false}, [](const S& s) { return alignment(real(s.memory->rows)); }},
    {{"channels last", false}, [](const S& s) { return s.memory->channels_last ? 1.0 : 0.0; }},
    {{"log launches", false}, [](const S& s) { return octaves(s.launches); }},  // no size: more of the same kernel
    {{"log part", false}, [](const S& s) { return octaves(real(std::max<std::int64_t>(1, s.memory->part))); }},
    {{"alignment part", false}, [](const S& s) { return alignment(real(s.memory->part)); }},
    {{"log read bytes", true}, [](const S& s) { return octaves(real(s.kernel.read.value) / s.launches + 1); }},
    {{"log written bytes", true}, [](const S& s) { return octaves(real(s.kernel.written.value) / s.launches + 1); }},
    {{"axes", false}, [](const S& s) { return real(s.memory->axes); }},
    {{"across", false}, [](const S& s) { return real(s.memory->across); }},
    {{"log outer", false}, [](const S& s) { return s.memory->part > 0 && s.memory->axes > 0 ? octaves(real(s.memory->rows) * real(s.memory->row_length) / real(s.memory->part)) : 0; }},
    {{"own constant", false}, [](const S&) { return 0.0; }},  // the last: filled in by who knows it (own_constant.h)
};

std::span<const Feature> features(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::gemm: return kGemm;
    case FeatureKind::convolution: return kConvolution;
    case FeatureKind::attention: return kAttention;
    case FeatureKind::memory: break;
  }
  return kMemory;
}

template <std::size_t N>
std::array<FeatureName, N> names(const Feature (&list)[N]) {
  std::array<FeatureName, N> out;
  for (std::size_t i = 0; i < N; ++i) out[i] = list[i].about;
  return out;
}

}  // namespace

std::string_view residual_family(const Kernel& kernel) {
  if (kernel.unknown || kernel.fused || kernel.emulated || std::holds_alternative<CollectiveShape>(kernel.shape)) return {};
  // What is known by itself (fallback_kernels.h).
  if (kernel.name == "memset" || kernel.name.starts_with("ctc_log_") || kernel.name.starts_with("ctc_collect") || kernel.name == "index_put_repeated" || kernel.name.starts_with("rnn_bias_gradient") || kernel.name.starts_with("rnn_recurrent") || kernel.name.starts_with("rnn_gates") ||
      kernel.name.starts_with("rnn_persistent") || kernel.name == "rnn_join")
    return {};
  if (kernel.name == "group_norm_moments" || kernel.name == "group_norm_parameters") return "group_norm";
  if (kernel.name.starts_with("group_norm_") && kernel.name != "group_norm_copy") return "group_norm_backward";
  if (kernel.estimated) return kernel.name;
  if (kernel.name.starts_with("embedding_s")) return "embedding_backward";  // sorted tokens, segments and their sums: what a call takes says nothing of each
  if (std::holds_alternative<GemmShape>(kernel.shape)) return "gemm";
  if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) {
    static constexpr std::array<std::string_view, 3> kDense = {"conv_forward", "conv_data_gradient", "conv_weight_gradient"};
    static constexpr std::array<std::string_view, 3> kDepthwise = {"depthwise_forward", "depthwise_data_gradient", "depthwise_weight_gradient"};
    if (walks_long_filter(*conv, kernel.math, std::max<std::int64_t>(conv->groups, kernel.launches))) return "conv_long_filter";
    if (cuts_slowly(*conv, kernel.math)) return "conv_cut_gradient";
    if (conv->turned_groups) return "conv_turned_groups";
    if (conv->by_fourier) return conv->direction == ConvDirection::forward ? "conv_forward_by_fourier" : "conv_data_gradient_by_fourier";
    return (conv->depthwise() ? kDepthwise : kDense)[static_cast<std::size_t>(conv->direction)];
  }
  if (const auto* attention = std::get_if<AttentionShape>(&kernel.shape)) return attention->backward ? "attention_backward" : "attention_forward";
  return to_text(std::get<MemoryShape>(kernel.shape).pattern);
}

std::string residual_dtype(const Kernel& kernel) {
  if (!std::holds_alternative<MemoryShape>(kernel.shape)) return std::string(to_text(kernel.math));
  if (kernel.input == kernel.output) return fmt::format("{}-bit", bits_of(kernel.input));
  return fmt::format("{}-to-{}-bit", bits_of(kernel.input), bits_of(kernel.output));
}

FeatureKind feature_kind(const Kernel& kernel) {
  if (std::holds_alternative<GemmShape>(kernel.shape)) return FeatureKind::gemm;
  if (std::holds_alternative<ConvShape>(kernel.shape)) return FeatureKind::convolution;
  return std::holds_alternative<AttentionShape>(kernel.shape) ? FeatureKind::attention : FeatureKind::memory;
}

std::span<const FeatureName> feature_names(FeatureKind kind) {
  static const auto kGemmNames = names(kGemm);
  static const auto kConvolutionNames = names(kConvolution);
  static const auto kAttentionNames = names(kAttention);
  static const auto kMemoryNames = names(kMemory);
  switch (kind) {
    case FeatureKind::gemm: return kGemmNames;
    case FeatureKind::convolution: return kConvolutionNames;
    case FeatureKind::attention: return kAttentionNames;
    case FeatureKind::memory: break;
  }
  return kMemoryNames;
}

namespace {

constexpr double kVectorStep = 8, kMatrixStepBytes = 128;  // of the sum, that cuDNN's kernels take at once

void split_sum(Situation& s) {
  const ConvShape& c = *s.conv;
  const double x = real(c.batch * c.in_h * c.in_w), y = real(c.batch * c.out_h * c.out_w);
  switch (c.direction) {
    case ConvDirection::forward: s.rows = y, s.columns = s.out_each(), s.taps = s.taps_all(), s.depth = s.in_each(); break;
    case ConvDirection::data_gradient: s.rows = x, s.columns = s.in_each(), s.taps = s.taps_all() / real(c.strides()), s.depth = s.out_each(); break;
    case ConvDirection::weight_gradient: s.rows = s.out_each(), s.columns = s.in_each() * s.taps_all(), s.depth = y; break;
  }
  s.depth_step = s.gpu.matrix.has(s.kernel.math) ? kMatrixStepBytes / s.element_bytes() : kVectorStep;
}

}  // namespace

std::vector<double> features_of(const Kernel& kernel, const KernelCost& physics, const GpuSpec& gpu, bool warm) {
  Situation s{kernel, physics, gpu, warm};
  s.launches = std::max(1, kernel.launches);
  if (const auto* gemm = std::get_if<GemmShape>(&kernel.shape)) {
    s.batch = real(gemm->batch), s.m = real(gemm->m), s.n = real(gemm->n), s.k = real(gemm->k);
  } else if ((s.conv = std::get_if<ConvShape>(&kernel.shape))) {
    const GemmProblem product = conv_problem(*s.conv, kernel.math, gpu.matrix.has(kernel.math), 1, {}).product;
    s.batch = product.batch, s.m = product.m, s.n = product.n, s.k = product.k;
    split_sum(s);
  } else if ((s.attention = std::get_if<AttentionShape>(&kernel.shape))) {
    s.m = std::max(1.0, real(s.attention->batch * s.attention->heads) * std::ceil(real(s.attention->q_len) / 128));  // blocks
  } else {
    s.memory = std::get_if<MemoryShape>(&kernel.shape);
  }
  std::optional<ConvWays> ways;
  if (s.conv) s.ways = &ways.emplace(*s.conv, kernel.math, s.element_bytes(), s.bytes(), kernel.flops.value / s.launches, gpu);
  s.batch = std::max(1.0, s.batch), s.m = std::max(1.0, s.m), s.n = std::max(1.0, s.n), s.k = std::max(1.0, s.k);
  const auto list = features(feature_kind(kernel));
  std::vector<double> values;
  values.reserve(list.size());
  for (const Feature& feature : list) values.push_back(feature.value(s));
  return values;
}

}  // namespace precog
