#include "spec/plan.h"

namespace precog {

std::string_view to_text(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::sgd: return "sgd";
    case OptimizerKind::sgd_momentum: return "sgd-momentum";
    case OptimizerKind::adam: return "adam";
    case OptimizerKind::adamw: return "adamw";
    case OptimizerKind::lamb: return "lamb";
  }
  return "";
}

std::string_view to_text(Sharding sharding) {
  switch (sharding) {
    case Sharding::none: return "none";
    case Sharding::zero1: return "zero1";
    case Sharding::zero2: return "zero2";
    case Sharding::full: return "full";
  }
  return "";
}

std::string_view to_text(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::gpipe: return "gpipe";
    case PipelineSchedule::one_f_one_b: return "1f1b";
    case PipelineSchedule::interleaved: return "interleaved";
    case PipelineSchedule::zero_bubble: return "zb";
    case PipelineSchedule::zero_bubble_v: return "zbv";
    case PipelineSchedule::dualpipe: return "dualpipe";
  }
  return "";
}

std::string_view to_text(Mode mode) {
  switch (mode) {
    case Mode::eager: return "eager";
    case Mode::compile: return "compile";
    case Mode::compile_cudagraphs: return "compile-cudagraphs";
  }
  return "";
}

}  // namespace precog
