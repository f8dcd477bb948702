// The answer: every field of the JSON report, as plain values. Views of it (JSON, table, HTML, trace) are functions
// in the files beside this one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "memory/memory.h"
#include "report/fit_report.h"

namespace precog {

struct Breakdown {  // adds up to the step
  Seconds forward, backward, optimizer, casts, loss_scaling;
  std::map<std::string, Seconds> exposed_communication;  // by collective
  Seconds pipeline_bubble;
  Seconds between_kernels;  // the stream's own idle time between queued kernels
  Seconds host;             // the GPU idle, waiting for the host
  Seconds input;            // the GPU idle, waiting for its next batch
};

struct ProvenanceEntry {
  std::string what;    // "gemm", "memory-bound kernels", "all_reduce", "host", "memory", ...
  std::string kind;    // measured, fitted, scaled, datasheet, estimate
  std::string source;  // which file
  std::string on;      // the architecture or system it was taken for; may be empty
  double share = 0;    // of the GPU's busy time, where that makes sense
};

// Memory while the step runs: what is there at most between this time and the next point's.
struct MemoryPoint {
  Seconds at;  // since the step began on the GPU
  BytesByCategory bytes{};
};

// What failures and checkpoints add to a whole run (predict/whole_run.h).
struct RunLosses {
  Seconds between_failures;  // of the whole job, on average
  double checkpoint_bytes = 0;
  Seconds checkpoint, restart, interval;  // interval: work between two checkpoints
  bool checkpoint_estimated = true, restart_estimated = true;
  double failures = 0;       // of the whole run, on average
  double useful_share = 1;   // steps that are kept, of the whole time
};

struct Report {
  Json request;  // as understood, defaults filled in
  std::string model, gpu, gpu_title, precision, precision_title, bound;  // bound: compute, memory, host, network, input
  std::int64_t parameters = 0;
  int gpus = 1;
  std::int64_t batch = 1, global_batch = 1, micro_batches = 1, seq = 0;

  Seconds step, step_low, step_high;
  double samples_per_s = 0;
  std::optional<double> tokens_per_s, tokens_per_s_per_gpu;  // absent for models without a sequence
  double mfu = 0, mfu_bf16 = 0, tflops_per_gpu = 0;
  std::string peak_16bit = "bf16";  // what mfu_bf16 is of: fp16 on GPUs without bf16
  MemoryUse memory;  // without its timeline, one entry per operator
  std::vector<MemoryPoint> memory_points;     // where they were asked for: a bounded number of them, in order of time, from 0 to the step's end
  int memory_stage = 0;                       // of a pipeline: the stage that memory is of
  std::optional<LargestBatch> largest_batch;  // where it was asked for
  std::vector<Fix> fixes;                     // where the job does not fit
  bool fixes_sought = true;
  std::optional<Seconds> total;
  std::optional<double> steps;  // of the whole run
  std::optional<double> cost_usd;
  std::string sharding;  // what data-parallel ranks share out, in words; empty where each keeps everything
  std::optional<double> skipped_steps;  // of the run, lost to the loss scaler; part of total
  std::optional<double> price_usd_per_gpu_hour;
  std::optional<RunLosses> losses;  // part of total

  Breakdown breakdown;
  std::map<std::string, Seconds> by_dtype, by_op_class;
  std::int64_t kernels = 0;
  Seconds gpu_busy, host;
  Seconds start_up;  // what a block of steps that begins and ends with an idle GPU takes beyond so many of `step`
  double sustained_clock = 1;  // share of the full clock that the power limit leaves over minutes
  double cast_kernels = 0;
  std::vector<ProvenanceEntry> provenance;
  double unknown_share = 0;                // of the GPU's busy time: operators nobody knows, costed by the bytes they move
  std::vector<std::string> unknown_names;  // those operators, each once
  std::vector<std::string> warnings;
  std::string peak_at;       // the operator that runs when memory peaks
  bool fp32_weights = true;  // the recipe updates its weights in fp32
  bool autocast = false;     // the recipe lets autocast decide per operator
};

Json to_json(const Report& report);  // the contract's report

// A count that may be too large for any integer, or no whole number: in JSON an integer where it is one.
Json count_json(double value);

}  // namespace precog
