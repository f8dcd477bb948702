#include "calibrate/sittings.h"

#include <algorithm>
#include <map>

#include "calibrate/calibrate.h"

namespace precog {
namespace {

constexpr double kShortCall = 20e-6;  // seconds: of longer ones the clock says more than the launch
constexpr double kPriorPairs = 20;    // as many calls say nothing
constexpr double kMostOffset = 0.5e-6;
constexpr int kSweeps = 8;

struct SharedCall {
  std::size_t a, b;  // files
  double later;      // how much longer a launch took in the second
};

double middle_of(std::vector<double>& values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

}  // namespace

double launches_of(const Measurement& measurement) {
  double launches = 0;
  for (const Kernel& kernel : measurement.kernels) launches += std::max(1, kernel.launches);
  return launches;
}

std::vector<double> sitting_offsets(const Measurements& measurements) {
  std::map<std::uint64_t, std::map<std::size_t, std::vector<double>>> calls;  // by what was called, by file: seconds per launch
  std::vector<double> rows(measurements.files.size(), 0), offsets(measurements.files.size(), 0);
  std::vector<bool> shares(measurements.files.size(), false);
  for (const Measurement& m : measurements.rows) {
    rows[m.file] += 1;
    if (m.seconds < kShortCall && !is_held_out(m.shape)) calls[m.call][m.file].push_back(m.seconds / launches_of(m));
  }
  std::vector<SharedCall> shared;
  for (auto& [call, files] : calls)
    for (auto b = files.begin(); b != files.end(); ++b)
      for (auto a = files.begin(); a != b; ++a) shared.push_back({a->first, b->first, middle_of(b->second) - middle_of(a->second)});
  for (int sweep = 0; sweep < kSweeps; ++sweep)
    for (std::size_t file = 0; file < offsets.size(); ++file) {
      std::vector<double> said;
      for (const SharedCall& one : shared)
        if (one.b == file) said.push_back(offsets[one.a] + one.later);
        else if (one.a == file) said.push_back(offsets[one.b] - one.later);
      const auto n = static_cast<double>(said.size());
      shares[file] = !said.empty();
      if (shares[file]) offsets[file] = std::clamp(middle_of(said) * n / (n + kPriorPairs), -kMostOffset, kMostOffset);
    }
  double mean = 0, all = 0;
  for (std::size_t file = 0; file < offsets.size(); ++file)
    if (shares[file]) mean += rows[file] * offsets[file], all += rows[file];
  for (std::size_t file = 0; file < offsets.size(); ++file)
    if (shares[file]) offsets[file] -= mean / all;
  return offsets;
}

}  // namespace precog
