#include "cost/features.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "cost/conv_cost.h"

namespace precog {
namespace {

double real(std::int64_t v) { return static_cast<double>(v); }
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
};

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
};

double attention_blocks(const S& s, std::int64_t length, double rows) {
  return std::max(1.0, real(s.attention->batch * s.attention->heads) * std::ceil(real(length) / rows));
}
double filled(double waves) { return waves / std::ceil(waves); }

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
    {{"log launches", true}, [](const S& s) { return octaves(s.launches); }},
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
  if (kernel.estimated) return kernel.name;
  if (std::holds_alternative<GemmShape>(kernel.shape)) return "gemm";
  if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) {
    static constexpr std::array<std::string_view, 3> kDense = {"conv_forward", "conv_data_gradient", "conv_weight_gradient"};
    static constexpr std::array<std::string_view, 3> kDepthwise = {"depthwise_forward", "depthwise_data_gradient", "depthwise_weight_gradient"};
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

std::vector<double> features_of(const Kernel& kernel, const KernelCost& physics, const GpuSpec& gpu, bool warm) {
  Situation s{kernel, physics, gpu, warm};
  s.launches = std::max(1, kernel.launches);
  if (const auto* gemm = std::get_if<GemmShape>(&kernel.shape)) {
    s.batch = real(gemm->batch), s.m = real(gemm->m), s.n = real(gemm->n), s.k = real(gemm->k);
  } else if ((s.conv = std::get_if<ConvShape>(&kernel.shape))) {
    const GemmProblem product = conv_problem(*s.conv, kernel.math, gpu.matrix.has(kernel.math), 1, {}).product;
    s.batch = product.batch, s.m = product.m, s.n = product.n, s.k = product.k;
  } else if ((s.attention = std::get_if<AttentionShape>(&kernel.shape))) {
    s.m = std::max(1.0, real(s.attention->batch * s.attention->heads) * std::ceil(real(s.attention->q_len) / 128));  // blocks
  } else {
    s.memory = std::get_if<MemoryShape>(&kernel.shape);
  }
  s.batch = std::max(1.0, s.batch), s.m = std::max(1.0, s.m), s.n = std::max(1.0, s.n), s.k = std::max(1.0, s.k);
  const auto list = features(feature_kind(kernel));
  std::vector<double> values;
  values.reserve(list.size());
  for (const Feature& feature : list) values.push_back(feature.value(s));
  return values;
}

}  // namespace precog
