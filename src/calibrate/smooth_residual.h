// What a fitted model leaves, as a smooth function of the shape: a Gaussian process on few points (dozens). How far a point speaks,
// how much there is to say and how noisy a point is are chosen from a small grid by marginal likelihood; "nothing" is among the choices.
// Also which few of many shapes to measure so that every other has one near. Knows nothing of kernels: points are rows of numbers.
// Not for thousands of points: it solves a dense system.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace precog {

using Point = std::vector<double>;

class SmoothResidual {
 public:
  // One target for each point.
  static SmoothResidual fit(std::vector<Point> points, std::span<const double> targets);
  double operator()(const Point& at) const;
  double length() const { return length_; }  // 0: nothing was found

 private:
  std::vector<Point> points_;
  std::vector<double> weights_;
  double length_ = 0, variance_ = 0;
};

// `count` of the points, chosen one by one so that the mean distance of all points to the nearest chosen one falls most. Only every
// `stride`-th point from `first` on is a candidate; the others are still to be near one.
std::vector<std::size_t> spread_out(std::span<const Point> points, std::size_t count, std::size_t first, std::size_t stride);

}  // namespace precog
