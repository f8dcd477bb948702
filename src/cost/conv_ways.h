// The ways in which a library may run a dense convolution, each with the time it would take: tiles of one size or another, a sum
// that is split, a direct kernel. A library takes one of them by rules of its own; its time is then within a few per cent of that
// way's (cuDNN's kernels named by a profiler, one way at a time: 1 to 6% in the median). Which one it takes is learned, with these
// as features (features.cpp).
// Not here: the physics' own estimate (conv_cost.h; of a call that is known to be transformed it is `fourier`), depthwise convolutions, layout copies.
#pragma once

#include "kernel/kernel.h"
#include "spec/gpu_spec.h"

namespace precog {

class ConvWays {
 public:
  // `bytes` and `flops`: of one launch.
  ConvWays(const ConvShape& shape, DType math, double element_bytes, double bytes, double flops, const GpuSpec& gpu);

  // All in microseconds.
  double tiles(double tm, double tn) const;                   // one block to an SM, wave after wave
  double small_tiles(double tm, double tn, double few) const;  // several to an SM; fewer than `few` leave it waiting
  double split(double tm, double tn) const;                   // the sum cut into as many pieces as are worth it
  double work(bool skipping) const;                           // all units busy; `skipping`: taps of a strided gradient that meet nothing
  double vector_work() const;                                 // on the vector units, whatever the type
  double moving() const;                                      // the operands, once
  double fourier() const;                                     // by Fourier transforms, whole images forward, tiles of them backward; zero where the library has none
  double square() const;                                      // what the image is of the square that is transformed

 private:
  void transform(const ConvShape& shape, const GpuSpec& gpu);
  double blocks(double tm, double tn) const;
  double step(double tm, double tn) const;  // of the sum, in one block
  double with_memory(double microseconds) const;

  double sms_, rows_ = 1, columns_ = 1, groups_, steps_, step_length_, element_bytes_, flops_, tried_;
  double rate_, vector_rate_, feed_;  // operations and bytes per microsecond, of one SM
  double memory_, partial_;           // microseconds; bytes of partial sums per microsecond
  double fourier_ = 0, square_ = 0;   // microseconds; a share
};

}  // namespace precog
