// The whole pipeline as one function, read top to bottom in predict.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "predict/pipeline.h"
#include "predict/request.h"
#include "report/pipeline_view.h"
#include "report/report.h"
#include "schedule/schedule.h"

namespace precog {

// The stages in order; `--dump-after NAME` prints what a stage made.
const std::vector<std::string>& stage_names();  // frontend precision training parallel kernel cost schedule sim memory report

struct Prediction {
  Report report;
  std::string dump;  // the text of the stage asked for, else empty
  // What views of the timeline need (trace, HTML):
  Graph graph;
  KernelProgram program;
  std::vector<KernelCost> costs;
  Schedule schedule;
  Timeline timeline;
  std::vector<BytesByCategory> memory_by_op;  // what is there while each operator runs
  std::optional<PipelineView> pipeline;  // of a pipelined plan, instead of the above
  StageMemory stage_memory;              // and of the stage that needs most
  std::vector<Seconds> stage_times;  // one per stage: how long predicting took
};

Result<Prediction> predict(const Request& request, const Catalog& catalog, std::string_view dump_after = {});

// Fills the report's memory_points, which JSON, trace and HTML show: work that others are spared.
void draw_memory(Prediction& prediction);

// What a job needs in memory: predict()'s figures without the work for its time.
Result<MemoryUse> predict_memory(const Request& request);

// The forward graph after the precision pass: what `precog inspect` shows.
Result<Graph> forward_after_precision(const Request& request);

}  // namespace precog
