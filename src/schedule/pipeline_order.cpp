// The orders. Sources: GPipe (Huang et al. 2019), 1F1B and its interleaved form as Megatron-LM runs them
// (megatron/core/pipeline_parallel/schedules.py), zero bubble (Qi et al. 2023, ZB-H1), its V
// (Qi et al. 2024, as PyTorch's ScheduleZBVZeroBubble runs it: torch/distributed/pipelining/schedules.py), DualPipe (DeepSeek-V3 report, 2024, and
// the steps of its published implementation).
#include <algorithm>

#include "schedule/pipeline_schedule.h"

namespace precog {
namespace {

using Kind = PipelineWork::Kind;
using Stage = std::vector<PipelineWork>;

void put(Stage& stage, Kind kind, int position, std::int64_t micro_batch) {
  stage.push_back({kind, static_cast<std::int16_t>(position), static_cast<std::int32_t>(micro_batch)});
}

Stage gpipe(const PipelineShape& shape, int stage) {
  Stage out;
  for (std::int64_t i = 0; i < shape.micro_batches; ++i) put(out, Kind::forward, stage, i);
  for (std::int64_t i = 0; i < shape.micro_batches; ++i) put(out, Kind::backward, stage, i);
  return out;
}

Stage one_f_one_b(const PipelineShape& shape, int stage) {
  Stage out;
  const std::int64_t m = shape.micro_batches, warm = std::min<std::int64_t>(m, shape.stages - 1 - stage);
  for (std::int64_t i = 0; i < warm; ++i) put(out, Kind::forward, stage, i);
  for (std::int64_t i = 0; i < m; ++i) {
    if (warm + i < m) put(out, Kind::forward, stage, warm + i);
    put(out, Kind::backward, stage, i);
  }
  return out;
}

// Micro-batches go in groups of as many as there are stages: a group through the first chunk, then through the next.
Stage interleaved(const PipelineShape& shape, int stage) {
  const std::int64_t p = shape.stages, v = shape.chunks, total = shape.micro_batches * v;
  auto forward = [&](Stage& out, std::int64_t k) {
    put(out, Kind::forward, static_cast<int>(k % (p * v) / p * p) + stage, k / (p * v) * p + k % p);
  };
  auto backward = [&](Stage& out, std::int64_t k) {
    put(out, Kind::backward, static_cast<int>((v - 1 - k % (p * v) / p) * p) + stage, k / (p * v) * p + k % p);
  };
  Stage out;
  const std::int64_t warm = std::min(total, 2 * (p - stage - 1) + (v - 1) * p);
  for (std::int64_t k = 0; k < warm; ++k) forward(out, k);
  for (std::int64_t k = 0; k < total; ++k) {
    if (warm + k < total) forward(out, warm + k);
    backward(out, k);
  }
  return out;
}

// 1F1B whose later stages put weights' gradients off, one micro-batch more per stage: the first stage's backward begins
// earlier for it, and what was put off fills the wait at the end. No stage keeps more than 1F1B's first does.
Stage zero_bubble(const PipelineShape& shape, int stage) {
  Stage out;
  const std::int64_t m = shape.micro_batches, warm = std::min<std::int64_t>(m, shape.stages - 1 - stage);
  for (std::int64_t i = 0; i < warm; ++i) put(out, Kind::forward, stage, i);
  std::int64_t weights = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    if (warm + i < m) put(out, Kind::forward, stage, warm + i);
    put(out, Kind::activations, stage, i);
    if (i >= stage) put(out, Kind::weights, stage, weights++);
  }
  while (weights < m) put(out, Kind::weights, stage, weights++);
  return out;
}

// Each stage has a chunk on the way down the V (the near one) and one on the way back. Chunks of half a stage turn around sooner, so that
// backward begins as soon as ZB-H2's with as little in flight as 1F1B; weights' gradients are put off at the end only.
class ZeroBubbleV {
 public:
  ZeroBubbleV(const PipelineShape& shape, int stage)
      : p_(shape.stages), stage_(stage), micro_batches_(shape.micro_batches), n_(std::max<std::int64_t>(2 * shape.stages - 1, shape.micro_batches)) {}

  Stage order() {
    for (int i = 0; i < 2 * (p_ - stage_) - 1; ++i) forward(kDown);
    for (int i = 0; i < stage_; ++i) forward(kBack), forward(kDown);
    for (int i = 0; i < p_ - stage_; ++i) forward(kBack), backward(kBack), weights(kBack);
    while (forwarded_[kBack] < forwarded_[kDown] || forwarded_[kDown] < n_) {
      if (forwarded_[kDown] < n_) forward(kDown);
      backward(kDown), weights(kDown);
      forward(kBack), backward(kBack), weights(kBack);
    }
    for (int i = 0; i < stage_; ++i) backward(kDown), backward(kBack);
    for (int i = 0; i < p_ - stage_; ++i) backward(kDown), weights(kDown);
    while (weighed_[kBack] < backwarded_[kBack]) weights(kBack);
    while (weighed_[kDown] < backwarded_[kDown]) weights(kDown);
    return std::move(out_);
  }

 private:
  static constexpr int kDown = 0, kBack = 1;
  // Fewer micro-batches than fill the V: the places of those that are not there stay empty.
  void add(Kind kind, int way, std::int64_t micro_batch) {
    if (micro_batch < micro_batches_) put(out_, kind, way == kDown ? stage_ : 2 * p_ - 1 - stage_, micro_batch);
  }
  void forward(int way) { add(Kind::forward, way, forwarded_[way]++); }
  void backward(int way) { add(Kind::activations, way, backwarded_[way]++); }
  void weights(int way) { add(Kind::weights, way, weighed_[way]++); }

  int p_, stage_;
  std::int64_t micro_batches_, n_;
  std::int64_t forwarded_[2] = {0, 0}, backwarded_[2] = {0, 0}, weighed_[2] = {0, 0};
  Stage out_;
};

class DualPipe {
 public:
  DualPipe(const PipelineShape& shape, int stage)
      : half_(shape.micro_batches / 2), near_(std::min(stage, shape.stages - 1 - stage)), p_(shape.stages), second_half_(stage >= shape.stages / 2), stage_(stage) {}

  Stage order() {
    const std::int64_t left = p_ / 2 - near_ - 1;
    for (std::int64_t i = 0; i < 2 * left; ++i) forward(0);
    for (std::int64_t i = 0; i <= near_; ++i) forward(0), forward(1);
    for (std::int64_t i = 0; i < left; ++i) backward(1, false), weights(), forward(1);
    for (std::int64_t i = 0; i < half_ - p_ + near_ + 1; ++i) forward(0), backward(1, true), forward(1), backward(0, true);
    for (std::int64_t i = 0; i < left; ++i) backward(1, true), forward(1), backward(0, true);
    const std::int64_t both = near_ + 1;  // the second half of these 2 x both leave weights' gradients for the end
    for (std::int64_t i = 0; i < 2 * both; ++i) backward(i % 2 == 0 ? 1 : 0, i < both);
    for (std::int64_t i = 0; i < left; ++i) weights(), backward(0, false);
    for (std::int64_t i = 0; i < both; ++i) weights();
    return std::move(out_);
  }

 private:
  // Direction 0 is the one whose first layers are at this stage's half of the pipeline.
  int position(int direction) const { return from_the_end(direction) ? p_ - 1 - stage_ : stage_; }
  bool from_the_end(int direction) const { return (direction == 1) != second_half_; }
  std::int64_t micro_batch(int direction, std::int64_t index) const { return from_the_end(direction) ? half_ + index : index; }

  void forward(int direction) { put(out_, Kind::forward, position(direction), micro_batch(direction, forwarded_[direction]++)); }
  void backward(int direction, bool whole) {
    const std::int64_t which = micro_batch(direction, backwarded_[direction]++);
    put(out_, whole ? Kind::backward : Kind::activations, position(direction), which);
    if (!whole) put_off_.push_back({Kind::weights, static_cast<std::int16_t>(position(direction)), static_cast<std::int32_t>(which)});
  }
  void weights() { out_.push_back(put_off_.at(next_weights_++)); }

  std::int64_t half_, near_;
  int p_;
  bool second_half_;
  int stage_;
  std::int64_t forwarded_[2] = {0, 0}, backwarded_[2] = {0, 0};
  std::vector<PipelineWork> put_off_;
  std::size_t next_weights_ = 0;
  Stage out_;
};

}  // namespace

PipelineOrder pipeline_order(const PipelineShape& shape) {
  PipelineOrder out;
  for (int stage = 0; stage < shape.stages; ++stage) {
    switch (shape.schedule) {
      case PipelineSchedule::gpipe: out.push_back(gpipe(shape, stage)); break;
      case PipelineSchedule::one_f_one_b: out.push_back(one_f_one_b(shape, stage)); break;
      case PipelineSchedule::interleaved: out.push_back(interleaved(shape, stage)); break;
      case PipelineSchedule::zero_bubble: out.push_back(zero_bubble(shape, stage)); break;
      case PipelineSchedule::zero_bubble_v: out.push_back(ZeroBubbleV(shape, stage).order()); break;
      case PipelineSchedule::dualpipe: out.push_back(DualPipe(shape, stage).order()); break;
    }
  }
  return out;
}

}  // namespace precog
