// The host's speed at feeding the GPU: how long Python, the dispatcher and the driver take per operator.
// Read from data/hosts/<name>.json. A property of the machine, not of the GPU.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace precog {

struct HostSpec {
  std::string name, title;
  std::vector<std::string> aliases;
  // By operator family ("gemm", "pointwise", "view" ...), with "default" for the rest; every launch of the call included.
  std::map<std::string, Seconds> forward;   // called from Python: output allocated, autograd node made
  std::map<std::string, Seconds> backward;  // run by autograd's thread
  Seconds autocast_cast;                    // a cast that autocast makes inside another call
  Seconds parameter_gradient;               // handing one finished gradient to its parameter
  Seconds optimizer_op;                     // one multi-tensor call of the optimizer
  Seconds optimizer_tensor;                 // per parameter: the optimizer's Python loop around those calls
  Seconds loss_scaler;                      // per step: GradScaler's own bookkeeping
  Seconds kernel_launch;                    // each launch after the first within one multi-tensor call
  Seconds synchronise;                      // a read-back after the GPU has finished
  Seconds step;                             // per step: the user's loop, zero_grad
  struct Compiled {                         // of a compiled graph's program
    Seconds kernel;                         // launching one generated kernel
    Seconds library_call;                   // one call that stays with a library
    Seconds graph;                          // per run of a graph: guards, arguments, saved tensors
    Seconds replay;                         // per run of a graph that is replayed as one CUDA graph, instead of all of these
  } compiled;
  std::vector<std::string> sources;
  bool estimated = false;                   // the sources say that the figures are estimates
  bool compiled_estimated = true;           // those of compiled graphs
};

Result<HostSpec> parse_host(const Json& json, const std::string& where);

}  // namespace precog
