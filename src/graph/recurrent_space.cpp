#include "graph/recurrent_space.h"
#include "base/real.h"

#include <algorithm>

namespace precog {
namespace {

constexpr int kLstm = 4, kGru = 3;

std::int64_t weight_elements(const RnnAttributes& a) {
  std::int64_t total = 0;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) total += a.directions * a.gates * a.hidden * ((layer == 0 ? a.input : a.hidden * a.directions) + a.hidden);
  return total;
}

// So many numbers for every time step, sample and hidden unit: copies of what layers read and write, turned for the products.
// `wide`: the input's width against the hidden one's.
double per_step(const RnnAttributes& a, double wide) {
  if (a.directions > 1) return a.gates == kLstm ? 14 + wide : (a.layers == 1 ? 11 : 12) + 2 * wide;
  if (a.gates == kLstm) return 3 + 2 * std::max(1.0, wide) + wide;
  return (a.layers == 1 ? 3 : 2) + std::max(1.0, wide) + 2 * wide;
}

// Weights that stay in registers and shared memory over all time steps: gates of all steps beside the rest. Which layers that is was
// read off the measurements: narrow plain ones; layers by themselves of whole multiples of 64 units, in fp16 but for GRUs, else narrow.
bool stays_on_chip(const RnnAttributes& a, DType type) {
  if (type == DType::bf16) return false;
  if (a.gates == 1 && a.hidden <= 256) return true;
  if (a.layers > 1 || a.directions > 1 || a.hidden % 64 != 0) return false;
  return a.hidden <= 128 || (type == DType::fp16 && a.gates != kGru && a.hidden <= 1024);
}

}  // namespace

std::int64_t reserve_elements(const RnnAttributes& a) {
  // Of each layer and direction an LSTM keeps its gates and cell states, a GRU its gates and as much again, a plain layer its results;
  // besides, what every layer but the last hands on.
  const std::int64_t kept = a.gates == kLstm ? 5 : a.gates == kGru ? 6 : a.gates;
  return a.batch * a.steps * a.hidden * a.directions * (a.layers * kept + a.layers - 1);
}

Bytes recurrent_workspace(const RnnAttributes& a, DType type) {
  constexpr double kEach = 8 << 20;  // of every layer and direction: its products' own
  const double bytes = bits_of(type) / 8.0, wide = real(a.input) / real(std::max<std::int64_t>(1, a.hidden)), runs = real(a.layers * a.directions);
  double steps = per_step(a, wide) * real(a.steps) + (a.gates == kLstm ? 12 : 8) * runs;
  if (stays_on_chip(a, type)) steps += (a.gates == kLstm ? 16 : a.gates == kGru ? 14 : 9) * real(a.steps);
  return Bytes{static_cast<std::int64_t>(kEach * runs + bytes * (real(weight_elements(a)) + real(a.batch * a.hidden) * steps))};
}

}  // namespace precog
