// What the host needs to issue each call of a step: Python, dispatcher, autograd and driver, from a HostSpec's figures.
// Not here: when it issues them, and what it waits for (schedule.h).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "spec/host_spec.h"

namespace precog {

// A call by itself: the host's figure for that operator, else for its family, else its default, and its launches.
class HostTimes {
 public:
  explicit HostTimes(const HostSpec& host) : host_(host) {}
  Seconds operator()(const Call& call, const KernelProgram& program, const Graph& graph) const;
  Seconds without_node(const Call& call, const KernelProgram& program, const Graph& graph) const;  // a call of backward that no node of autograd's makes
  Seconds forward_of(OpKind kind) const { return known(forward_, host_.forward, kind, nullptr); }

 private:
  Seconds compiled(const Call& call, const KernelProgram& program, OpKind kind) const;
  Seconds more_launches(const Call& call, const KernelProgram& program, const Graph& graph) const;

  // Looked up when the first call of a kind asks: a step has a few dozen of them.
  using ByKind = std::array<std::optional<Seconds>, static_cast<std::size_t>(OpKind::kCount)>;
  static Seconds known(ByKind& found, const std::map<std::string, Seconds, std::less<>>& table, OpKind kind, const Seconds* otherwise);
  Seconds backward_of(OpKind kind) const { return known(backward_, host_.backward, kind, nullptr); }
  Seconds library_of(OpKind kind) const { return known(library_, host_.compiled.library, kind, &host_.compiled.library_call); }

  const HostSpec& host_;
  mutable ByKind forward_, backward_, library_;  // the last of a compiled graph's
};

struct HostStep {
  std::vector<Seconds> calls;  // one per call of the program, with what lies around it: modules entered, graphs entered, parameters' share
  Seconds begin;               // once per step, before the first
};
HostStep host_step(const KernelProgram& program, const Graph& graph, const HostSpec& host);

// Calls of forward that Python does not make but the framework's own code: attention written as its parts, and what a product of
// batches does to its operands (an expand, a copy, a reshape to three axes) and to its result, and the cuts after the first of one indexing. Of backward those
// that no node of autograd's makes: sums of gradients, parts of a joint's. One flag per call.
std::vector<bool> inner_calls(const KernelProgram& program, const Graph& graph);

}  // namespace precog
