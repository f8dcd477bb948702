// The framework's operators by name: which of ours each is, what autocast does with it, how its kernels behave.
// A name is PyTorch's without namespace, overload and in-place underscore ("add", "native_layer_norm"). Known names map to
// operators of our own list where those fit; several hundred others to a generic kind, with the name as label.
// Not here: operators with settings (convolution, attention, ...), which frontends read themselves, and any costs.
#pragma once

#include <span>
#include <string_view>

#include "graph/graph.h"

namespace precog {

struct FrameworkName {
  std::string_view name;  // lives as long as the program
  OpKind kind = OpKind::unknown;
  Autocast autocast = Autocast::none;
  bool transcendental = false;  // evaluates an exponential or the like: slower than moving its operands
  bool clears_first = false;    // zeroes its result in a kernel of its own, then fills in part of it
  bool clones_first = false;    // copies its first operand, then changes the copy (not when it works in place)
  bool reduces_after = false;   // a pointwise kernel, then a sum or mean of what it made (losses)
  bool waits = false;           // the result's size depends on values: the host waits for the GPU
  ViewKind view = ViewKind::reshape;  // where the kind is a view
};

const FrameworkName* framework_name(std::string_view name);  // nullptr: nobody knows it
std::span<const FrameworkName> framework_names();            // all of them, for tests and listings

}  // namespace precog
