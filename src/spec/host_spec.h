// The host's speed at feeding the GPU: how long Python, the dispatcher and the driver take per operator.
// Read from data/hosts/<name>.json, or from a file that `python -m precog host` measured. A property of the machine, not of the GPU.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace precog {

struct HostSpec {
  std::string name, title;
  std::vector<std::string> aliases;
  // By operator or family ("gemm", "pointwise", "view" ...), with "default" for the rest; the call's first launch included. A recurrent
  // layer's is per layer and direction.
  std::map<std::string, Seconds, std::less<>> forward;   // called from Python: output allocated, autograd node made
  std::map<std::string, Seconds, std::less<>> backward;  // run by autograd's thread
  Seconds kernel_launch;                    // each launch after a call's first
  Seconds library_launch;                   // the same where a library issues hundreds in one call of its own: a recurrent layer's time steps
  Seconds memset;                           // the same of a buffer cleared by the driver: no kernel to choose, no arguments
  Seconds python_call;                      // beyond the operator itself, where a model's Python calls it: the interpreter, cold caches
  Seconds module_call;                      // entering one module: __call__, its checks for hooks
  Seconds autocast_cast;                    // a cast that autocast makes inside another call
  Seconds autocast_parameter;               // and what it costs beyond that for a parameter: looked up, cast, kept in the cache
  Seconds recurrent_parameter;              // the same of a recurrent layer, which lays them into one buffer, one by one, each time (and in bf16 always)
  Seconds parameter_gradient;               // handing one finished gradient to its parameter
  Seconds optimizer_op;                     // one multi-tensor call of the optimizer
  Seconds optimizer_tensor;                 // per parameter: Adam's Python loops around those calls (step counters, bias corrections)
  Seconds optimizer_tensor_fused;           // the same where one fused call does it all
  Seconds optimizer_tensor_sgd;             // the same of SGD
  Seconds loss_scaler;                      // per step: GradScaler's own bookkeeping
  Seconds loss_scaler_tensor;               // and per parameter: it sorts the gradients by device and type in Python
  Seconds synchronise;                      // a read-back after the GPU has finished
  Seconds step;                             // per step: the user's loop, entering autograd
  Seconds zero_grad_tensor;                 // per parameter: its gradient dropped and freed
  struct Compiled {                         // of a compiled graph's program
    Seconds kernel;                         // launching one generated kernel
    Seconds library_call;                   // one call that stays with a library
    std::map<std::string, Seconds, std::less<>> library; // the same by operator or family, where they differ
    Seconds graph;                          // per run of a graph: guards, arguments, saved tensors
    Seconds replay;                         // per run of a graph that is replayed as one CUDA graph, instead of all of these
    Seconds parameter;                      // per parameter and run of a graph, whichever way it runs: guarded, handed in; its gradient handed out, in place of parameter_gradient
  } compiled;
  // What all cores together move through the node's memory, where an optimizer runs there.
  BytesPerSecond memory_bandwidth;
  bool memory_estimated = true;
  Bytes memory;                             // of the node; 0: not said
  std::vector<std::string> sources;
  bool estimated = false;                   // the sources say that the figures are estimates
  bool compiled_estimated = true;           // those of compiled graphs
  bool blocking_launches = false;           // every launch returns when its kernel has ended (CUDA_LAUNCH_BLOCKING=1)
};

using HostFiles = std::vector<std::pair<std::string, Json>>;  // names and files as written

// A file may start from another ("extends", one of `files`), every figure of that one times "scale", and give only what differs.
Result<HostSpec> parse_host(const Json& json, const std::string& where, const HostFiles& files = {});

}  // namespace precog
