#include "calibrate/reference_profile.h"

#include <algorithm>
#include <cmath>

#include "calibrate/calibrate.h"
#include "calibrate/learn_family.h"

namespace precog {
namespace {

constexpr double kMostOfReference = 0.7;

double at(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

}  // namespace

Result<FittedProfile> reference_profile(const std::filesystem::path& products, const GpuSpec& gpu, const ArchitectureProfile& physics, std::size_t most) {
  PRECOG_TRY(rows, read_reference_products(products, "bfloat16", most));
  // Only how the timings were taken is fitted: residency and speed of the cache are the last two knobs.
  const Physics timed = fit_physics(rows, {}, gpu, {physics, {}}, product_knobs().last(2));
  std::vector<KernelSample> samples;
  std::vector<const ReferenceRow*> held_out;
  for (const ReferenceRow& row : rows) {
    if (is_held_out(row.shape)) {
      held_out.push_back(&row);
      continue;
    }
    KernelSample s;
    s.features = features_of(row.kernel, kernel_cost(row.kernel, gpu, physics), gpu);
    s.target = std::clamp(std::log(row.seconds / seconds_of(row, gpu, timed)), -kMostOfReference, kMostOfReference);
    s.dtype = residual_dtype(row.kernel);
    s.name = row.kernel.name;
    s.shape = row.shape;
    samples.push_back(std::move(s));
  }
  FittedProfile out;
  out.gpu = gpu.name;
  out.architecture = gpu.architecture;
  out.sources.push_back({products.filename().string() + " (aiconfigurator, Apache-2.0)", "", "vLLM, bf16 linear layers; operands partly in the L2 cache, which was taken off", static_cast<std::int64_t>(rows.size())});
  FamilyResidual family = learn_family(samples, FeatureKind::gemm).correction;
  family.quality.rows = static_cast<std::int64_t>(samples.size());
  family.quality.held_out = static_cast<std::int64_t>(held_out.size());
  std::vector<double> errors, signs, physical;
  for (const ReferenceRow* row : held_out) {
    const double uncorrected = seconds_of(*row, gpu, timed);
    const double corrected = uncorrected * std::exp(family.correct(row->kernel, features_of(row->kernel, kernel_cost(row->kernel, gpu, physics), gpu)));
    signs.push_back(corrected / row->seconds - 1);
    errors.push_back(std::abs(signs.back()));
    physical.push_back(std::abs(uncorrected / row->seconds - 1));
  }
  family.quality.median = at(errors, 0.5), family.quality.p95 = at(errors, 0.95), family.quality.bias = at(signs, 0.5), family.quality.physics_median = at(physical, 0.5);
  out.families.emplace("gemm", std::move(family));
  return out;
}

}  // namespace precog
