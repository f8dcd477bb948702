#include "cost/profile.h"

#include <string>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr std::array<std::string_view, 3> kDirectionKeys = {"forward", "backward_data", "backward_weight"};  // by ConvDirection

constexpr std::array<std::string_view, static_cast<std::size_t>(DepthwiseKernel::kCount)> kDepthwiseKeys = {
    "native", "cudnn_fp16", "cudnn_nhwc_fp32", "cudnn_nhwc_fp16", "cudnn_nhwc_bf16"};  // by DepthwiseKernel

// Reads leaves {"value", "source"}: a missing one is a problem, a present one also tells how far to trust it.
class Leaves {
 public:
  explicit Leaves(JsonReader reader) : reader_(std::move(reader)) {}

  void read(std::string_view key, double& target, double min = 1e-9, double max = 1e6) {
    if (auto value = reader_.sourced_number(key, min, max)) target = *value;
    note(key);
  }
  void read(std::string_view key, Seconds& target) {
    if (auto value = reader_.quantity<Seconds>(key)) target = *value;
    note(key);
  }
  Leaves group(std::string_view key) { return Leaves(reader_.required_object(key)); }
  std::vector<std::string> keys() const { return reader_.keys(); }
  JsonReader& reader() { return reader_; }
  void done() { reader_.reject_unknown_keys(); }
  CostSource source() const { return source_; }

 private:
  void note(std::string_view key) {
    if (!reader_.has(key)) return reader_.problem(key, "is missing");
    auto figure = reader_.sourced(key);
    const bool fitted = figure && figure->source.starts_with("fitted");
    if (!fitted) source_ = CostSource::scaled;
  }

  JsonReader reader_;
  CostSource source_ = CostSource::fitted;
};

void read_by_math(Leaves leaves, GemmCoefficients& gemm, double MathCoefficients::* target, double max) {
  for (const std::string& key : leaves.keys()) {
    auto dtype = dtype_named(key);
    if (!dtype || !is_floating(*dtype) || *dtype == DType::model || *dtype == DType::fp64) {
      leaves.reader().problem(key, "is not an arithmetic; known: fp32, tf32, bf16, fp16, fp8, fp8-block, mxfp8, nvfp4");
      continue;
    }
    Leaves one = leaves;
    MathCoefficients& math = gemm.math[static_cast<std::size_t>(*dtype)];
    one.read(key, math.*target, 1e-3, max);
    if (target == &MathCoefficients::efficiency) math.source = one.source();
  }
}

void read_gemm(Leaves leaves, GemmCoefficients& gemm) {
  leaves.read("launch_floor", gemm.launch_floor);
  leaves.read("tile_overhead", gemm.tile_overhead);
  leaves.read("split_overhead", gemm.split_overhead);
  leaves.read("l2_bytes_per_clock", gemm.l2_bytes_per_clock);
  leaves.read("bandwidth_efficiency", gemm.bandwidth_efficiency, 0.01, 1);
  leaves.read("wave_quantisation", gemm.wave_quantisation, 0, 1.5);
  leaves.read("l2_gain", gemm.l2_gain, 0.1, 100);
  leaves.read("overlap_norm", gemm.overlap_norm, 1, 100);
  read_by_math(leaves.group("efficiency"), gemm, &MathCoefficients::efficiency, 1);
  read_by_math(leaves.group("k_latency_clocks"), gemm, &MathCoefficients::k_latency_clocks, 1e4);
  read_by_math(leaves.group("transposed_a_factor"), gemm, &MathCoefficients::transposed_a_factor, 1);
  read_by_math(leaves.group("misaligned_pace"), gemm, &MathCoefficients::misaligned_pace, 1e6);
  read_by_math(leaves.group("odd_pace"), gemm, &MathCoefficients::odd_pace, 1e6);
  read_by_math(leaves.group("watts_per_tflops"), gemm, &MathCoefficients::watts_per_tflops, 1e4);
  for (DType scaled : {DType::fp8_block, DType::mxfp8})  // without coefficients of their own: fp8's, and said to be an estimate
    if (MathCoefficients& math = gemm.math[static_cast<std::size_t>(scaled)]; math.k_latency_clocks == 0) {
      math = gemm.math[static_cast<std::size_t>(DType::fp8)];
      math.source = CostSource::estimate;
    }
  gemm.math[static_cast<std::size_t>(DType::fp64)] = gemm.math[static_cast<std::size_t>(DType::fp32)];  // no data of its own
  leaves.done();
}

void read_convolution(Leaves leaves, ConvCoefficients& conv) {
  for (std::size_t i = 0; i < kDirectionKeys.size(); ++i) {
    Leaves direction = leaves.group(kDirectionKeys[i]);
    direction.read("matrix", conv.direction[i].matrix, 0.001, 10);
    direction.read("tf32", conv.direction[i].tf32, 0.001, 10);
    direction.read("vector", conv.direction[i].vector, 0.001, 10);
    direction.read("winograd", conv.direction[i].winograd, 0.1, 10);
    direction.read("grouped_matrix", conv.direction[i].grouped_matrix, 0.001, 10);
    direction.read("grouped_tf32", conv.direction[i].grouped_tf32, 0.001, 10);
    direction.read("grouped_vector", conv.direction[i].grouped_vector, 0.001, 10);
    direction.done();
  }
  leaves.read("indexing_overhead", conv.indexing_overhead);
  leaves.read("winograd_channels_exponent", conv.winograd_channels_exponent, 0, 4);
  leaves.read("thin_weight_gradient_factor", conv.thin_weight_gradient_factor, 0.001, 10);
  leaves.read("few_channels_rate", conv.few_channels_rate, 0.001, 10);
  leaves.read("strided_gradient_factor", conv.strided_gradient_factor, 0.001, 10);
  leaves.read("tf32_pointwise_factor", conv.tf32_pointwise_factor, 0.001, 10);
  if (leaves.reader().has("unfused_factor")) leaves.read("unfused_factor", conv.unfused_factor, 0.001, 10);
  conv.source = leaves.source();  // of the rates; where cuDNN changes algorithm is an estimate everywhere
  leaves.read("winograd_work", conv.winograd_work, 0, 1e9);
  leaves.read("winograd_gradient_size", conv.winograd_gradient_size, 0, 1e6);
  leaves.done();
}

void read_depthwise(Leaves leaves, std::array<DepthwiseCoefficients, 3>& depthwise) {
  for (std::size_t i = 0; i < kDirectionKeys.size(); ++i) {
    Leaves one = leaves.group(kDirectionKeys[i]);
    one.read("launch_floor", depthwise[i].launch_floor);
    one.read("efficiency", depthwise[i].efficiency, 0.001, 1);
    one.read("flops_per_clock", depthwise[i].flops_per_clock, 0.01, 1000);
    one.read("tap_overhead", depthwise[i].tap_overhead, 0, 1000);
    depthwise[i].source = one.source();
    one.done();
  }
  leaves.done();
}

void read_stream(Leaves& one, MemoryCoefficients& memory) {
  one.read("launch_floor", memory.launch_floor);
  one.read("efficiency", memory.efficiency, 0.001, 1);
  one.read("accesses_per_clock", memory.accesses_per_clock, 0.001, 1000);
  memory.source = one.source();
}

void read_memory(Leaves one, MemoryCoefficients& memory) {
  one.read("bytes_per_clock", memory.bytes_per_clock, 0.01, 10000);
  if (one.reader().has("row_clocks")) one.read("row_clocks", memory.row_clocks, 0, 1e6);
  read_stream(one, memory);
  one.done();
}

void read_batch_norm(Leaves leaves, std::array<BatchNormCoefficients, 2>& norm) {
  read_memory(leaves.group("channels_last"), norm[1].stream);
  Leaves first = leaves.group("channels_first");
  read_stream(first, norm[0].stream);
  first.read("block_overhead", norm[0].block_overhead);
  first.read("block_accesses_per_clock", norm[0].block_accesses_per_clock, 0.001, 1000);
  first.read("resident_gain", norm[0].resident_gain, 0.1, 100);
  first.done();
  leaves.done();
}

void read_attention(Leaves leaves, std::array<AttentionCoefficients, 2>& attention) {
  constexpr std::array<std::string_view, 2> kKeys = {"forward", "backward"};
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    Leaves one = leaves.group(kKeys[i]);
    one.read("launch_floor", attention[i].launch_floor);
    one.read("block_overhead", attention[i].block_overhead);
    one.read("efficiency", attention[i].efficiency, 0.001, 1);
    one.read("head_dim_exponent", attention[i].head_dim_exponent, 0, 4);
    one.read("tail", attention[i].tail, 0, 10);
    one.read("bandwidth_efficiency", attention[i].bandwidth_efficiency, 0.01, 1);
    attention[i].source = one.source();
    one.done();
  }
  leaves.done();
}

void read_power(Leaves leaves, PowerCoefficients& power) {
  auto watts = [&](std::string_view key, Watts& target) {
    if (auto value = leaves.reader().quantity<Watts>(key)) target = *value;
    else leaves.reader().problem(key, "is missing");
  };
  watts("idle", power.idle);
  watts("streaming", power.streaming);
  leaves.read("exponent", power.exponent, 1, 4);
  Leaves drawn = leaves.group("watts_per_tflops");
  for (const std::string& key : drawn.keys()) {
    auto dtype = dtype_named(key);
    if (!dtype) drawn.reader().problem(key, "is not an arithmetic");
    else drawn.read(key, power.watts_per_tflops[static_cast<std::size_t>(*dtype)], 0.01, 10);
  }
  leaves.done();
}

void read_architecture(Leaves leaves, ArchitectureProfile& profile) {
  read_gemm(leaves.group("gemm"), profile.gemm);
  read_convolution(leaves.group("convolution"), profile.convolution);
  Leaves depthwise = leaves.group("depthwise");
  for (std::size_t i = 0; i < kDepthwiseKeys.size(); ++i) read_depthwise(depthwise.group(kDepthwiseKeys[i]), profile.depthwise[i]);
  depthwise.done();
  Leaves memory = leaves.group("memory");
  for (std::size_t i = 0; i < profile.memory.size(); ++i) {
    const auto pattern = static_cast<MemoryPattern>(i);
    if (is_batch_norm(pattern))
      read_batch_norm(memory.group(to_text(pattern)), profile.batch_norm[is_native_batch_norm(pattern)][is_batch_norm_backward(pattern)]);
    else read_memory(memory.group(to_text(pattern)), profile.memory[i]);
  }
  read_memory(memory.group("cast_widen"), profile.cast_widen);
  read_memory(memory.group("pointwise_mixed"), profile.pointwise_mixed);
  memory.done();
  Leaves attention = leaves.group("attention");
  read_attention(attention.group("flash"), profile.attention.flash);
  read_attention(attention.group("cudnn"), profile.attention.cudnn);
  read_attention(attention.group("memory_efficient"), profile.attention.memory_efficient);
  read_attention(attention.group("memory_efficient_16bit"), profile.attention.memory_efficient_16bit);
  attention.done();
  leaves.read("kernel_gap", profile.kernel_gap);
  if (leaves.reader().has("power")) read_power(leaves.group("power"), profile.power);
  leaves.done();
}

}  // namespace

Result<CostProfile> CostProfile::parse(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  file.set_sources(file.raw("sources"));
  if (!file.has("sources")) file.problem("sources", "is missing: every coefficient needs a source");
  file.required_integer("schema", 1, 1);
  CostProfile profile;
  profile.name_ = file.required_text("name");
  file.required_text("title");
  JsonReader architectures = file.required_object("architectures");
  for (const std::string& key : architectures.keys()) {
    auto one = std::make_shared<ArchitectureProfile>();
    read_architecture(Leaves(architectures.required_object(key)), *one);
    profile.architectures_.emplace(key, std::move(one));
  }
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return profile;
}

const ArchitectureProfile* CostProfile::find(std::string_view architecture) const {
  auto it = architectures_.find(architecture);
  return it == architectures_.end() ? nullptr : it->second.get();
}

}  // namespace precog
