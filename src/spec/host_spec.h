// The host's speed at feeding the GPU: how long Python, the dispatcher and the driver take per operator.
// Read from data/hosts/<name>.json. A property of the machine, not of the GPU.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace precog {

struct HostSpec {
  std::string name, title;
  std::vector<std::string> aliases;
  Seconds forward_op;      // one framework operator called from Python, output allocated, autograd node made
  Seconds view_op;         // one that launches nothing: view, transpose, slice
  Seconds autocast_op;     // added to each operator that autocast looks at
  Seconds backward_op;     // one operator run by autograd's thread
  Seconds optimizer_op;    // one multi-tensor call of the optimizer
  Seconds optimizer_tensor;  // per parameter: the optimizer's Python loop around those calls
  Seconds kernel_launch;   // each launch after the first within one call
  Seconds synchronise;     // a read-back after the GPU has finished
  Seconds step;            // per step: the user's loop, zero_grad, the module calls outside operators
  std::vector<std::string> sources;
};

Result<HostSpec> parse_host(const Json& json, const std::string& where);

}  // namespace precog
