#include "calibrate/smooth_residual.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "calibrate/cholesky.h"

namespace precog {
namespace {

// In units of the points: shapes come as binary logarithms, so that 4 is a factor of sixteen. Standard deviations of logarithms of time.
constexpr std::array kLengths = {1.5, 2.5, 4.0, 7.0};
constexpr std::array kSpreads = {0.03, 0.06, 0.12, 0.25, 0.5};
constexpr std::array kNoises = {0.015, 0.03, 0.06, 0.12};

double distance(const Point& a, const Point& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}
// Matern 3/2: smooth, but with kinks at every scale, as times over shapes are.
double likeness(double away, double length) {
  const double r = std::sqrt(3.0) * away / length;
  return (1 + r) * std::exp(-r);
}

struct Solved {
  std::vector<double> weights;
  double likelihood = -std::numeric_limits<double>::infinity();
};

Solved solve(std::vector<double> matrix, std::span<const double> targets) {
  const auto taken_apart = Cholesky::of(std::move(matrix), targets.size());
  if (!taken_apart) return {};
  Solved out;
  out.weights = taken_apart->solve(targets);
  double fit = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) fit += out.weights[i] * targets[i];
  out.likelihood = -0.5 * (fit + taken_apart->log_determinant());
  return out;
}

}  // namespace

SmoothResidual SmoothResidual::fit(std::vector<Point> points, std::span<const double> targets) {
  SmoothResidual out;
  const std::size_t n = targets.size();
  std::vector<double> away(n * n), matrix(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) away[i * n + j] = distance(points[i], points[j]);
  double best = -std::numeric_limits<double>::infinity();
  auto attempt = [&](double length, double spread, double noise) {
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        matrix[i * n + j] = spread * spread * (length > 0 ? likeness(away[i * n + j], length) : 0) + (i == j ? noise * noise : 0);
    Solved solved = solve(matrix, targets);
    if (solved.likelihood <= best) return;
    best = solved.likelihood;
    out.length_ = length, out.variance_ = spread * spread, out.weights_ = std::move(solved.weights);
  };
  for (double noise : kNoises) {
    attempt(0, 0, std::hypot(noise, 0.05));  // nothing but noise
    for (double length : kLengths)
      for (double spread : kSpreads) attempt(length, spread, noise);
  }
  out.points_ = std::move(points);
  return out;
}

double SmoothResidual::operator()(const Point& at) const {
  double sum = 0;
  if (length_ > 0)
    for (std::size_t i = 0; i < points_.size(); ++i) sum += weights_[i] * variance_ * likeness(distance(at, points_[i]), length_);
  return sum;
}

std::vector<std::size_t> spread_out(std::span<const Point> points, std::size_t count, std::size_t first, std::size_t stride) {
  std::vector<double> nearest(points.size(), std::numeric_limits<double>::max());
  std::vector<std::size_t> candidates, chosen;
  for (std::size_t i = first; i < points.size(); i += std::max<std::size_t>(1, stride)) candidates.push_back(i);
  for (double& far : nearest) far = 1e3;
  while (chosen.size() < std::min(count, candidates.size())) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::max();
    for (std::size_t candidate : candidates) {
      if (std::find(chosen.begin(), chosen.end(), candidate) != chosen.end()) continue;
      double sum = 0;
      for (std::size_t i = 0; i < points.size(); ++i) sum += std::min(nearest[i], distance(points[i], points[candidate]));
      if (sum < least) least = sum, best = candidate;
    }
    for (std::size_t i = 0; i < points.size(); ++i) nearest[i] = std::min(nearest[i], distance(points[i], points[best]));
    chosen.push_back(best);
  }
  return chosen;
}

}  // namespace precog
