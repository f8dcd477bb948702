#include "calibrate/cholesky.h"

#include <cmath>

namespace precog {

std::optional<Cholesky> Cholesky::of(std::vector<double> matrix, std::size_t n) {
  Cholesky out;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = matrix[i * n + j];
      for (std::size_t k = 0; k < j; ++k) sum -= matrix[i * n + k] * matrix[j * n + k];
      if (i == j) {
        if (sum <= 0) return std::nullopt;
        matrix[i * n + i] = std::sqrt(sum);
        out.log_determinant_ += std::log(sum);
      } else {
        matrix[i * n + j] = sum / matrix[j * n + j];
      }
    }
  out.lower_ = std::move(matrix);
  out.n_ = n;
  return out;
}

std::vector<double> Cholesky::solve(std::span<const double> right) const {
  std::vector<double> w(right.begin(), right.end());
  for (std::size_t i = 0; i < n_; ++i) {
    for (std::size_t k = 0; k < i; ++k) w[i] -= lower_[i * n_ + k] * w[k];
    w[i] /= lower_[i * n_ + i];
  }
  for (std::size_t i = n_; i-- > 0;) {
    for (std::size_t k = i + 1; k < n_; ++k) w[i] -= lower_[k * n_ + i] * w[k];
    w[i] /= lower_[i * n_ + i];
  }
  return w;
}

std::vector<double> Cholesky::inverse_diagonal() const {
  std::vector<double> out(n_, 0);
  for (std::size_t c = 0; c < n_; ++c) {  // of L^-1, column by column: (L^-T L^-1)_cc is the sum of its squares
    std::vector<double> column(n_, 0);
    for (std::size_t i = c; i < n_; ++i) {
      double sum = i == c ? 1 : 0;
      for (std::size_t k = c; k < i; ++k) sum -= lower_[i * n_ + k] * column[k];
      column[i] = sum / lower_[i * n_ + i];
      out[c] += column[i] * column[i];
    }
  }
  return out;
}

}  // namespace precog
