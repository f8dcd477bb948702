// A symmetric, positive matrix taken apart, to solve with it: for Gaussian processes on at most some hundreds of points.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace precog {

class Cholesky {
 public:
  // Of n x n numbers, row by row; nothing where the matrix is not positive.
  static std::optional<Cholesky> of(std::vector<double> matrix, std::size_t n);
  std::vector<double> solve(std::span<const double> right) const;
  double log_determinant() const { return log_determinant_; }
  std::vector<double> inverse_diagonal() const;

 private:
  std::vector<double> lower_;
  std::size_t n_ = 0;
  double log_determinant_ = 0;
};

}  // namespace precog
