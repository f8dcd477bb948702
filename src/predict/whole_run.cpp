#include "predict/whole_run.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "training/optimizer.h"

namespace precog {
namespace {

// A checkpoint is written by the nodes that have a part of it of their own, at once, to shared storage. 2 GB/s per node is an estimate: parallel
// file systems of such clusters give a few GB/s per client. If it is too high, checkpoints come out too short and too frequent.
constexpr double kCheckpointBytesPerSecondPerNode = 2e9;
// Agreeing on who writes what, opening files, waiting for the last: seconds however small the model. Estimate.
constexpr double kCheckpointFixedSeconds = 3;
// Noticing, replacing a node and starting up again: minutes in published accounts. Estimate.
constexpr double kRestartSeconds = 600;
constexpr double kShortestInterval = 1;  // checkpoints that cost nothing would be taken all the time

// The inverse of the normal distribution's cumulative function, by Newton's method from a crude start.
double normal_quantile(double p) {
  constexpr double kRootTwoPi = 2.5066282746310002;
  double x = p < 0.5 ? -std::sqrt(-2 * std::log(p)) : std::sqrt(-2 * std::log(1 - p));
  for (int i = 0; i < 60; ++i) {
    const double error = 0.5 * std::erfc(-x / std::sqrt(2.0)) - p, density = std::exp(-x * x / 2) / kRootTwoPi;
    const double move = error / std::max(density, 1e-300);
    x -= std::clamp(move, -0.5, 0.5);
    if (std::abs(move) < 1e-12) break;
  }
  return x;
}

double checkpoint_bytes(const Request& request, std::int64_t parameters) {
  const double states = static_cast<double>(state_tensors(request.training.optimizer)) * bits_of(request.precision->optimizer_state) / 8;
  return static_cast<double>(parameters) * (bits_of(request.precision->updated_weights()) / 8.0 + states);
}

}  // namespace

// States that are shared out are written by every rank. Else one replica writes: its rank 0 (torch.save), or the ranks that share its layers.
int writing_nodes(const Request& request) {
  const Plan& plan = request.plan;
  const int nodes = request.cluster.nodes(), each = request.cluster.gpus_per_node;
  if (plan.fsdp != Sharding::none) return nodes;
  const int stage = std::max(plan.tp, plan.ep), across = (stage + each - 1) / each;  // replicas' first ranks are neighbours
  const int apart = std::max(1, request.cluster.gpus / std::max(1, plan.pp));         // from one stage to the next
  return std::min(nodes, apart >= each ? plan.pp * across : (plan.pp * apart + each - 1) / each);
}

double expected_largest(std::int64_t draws) {
  if (draws <= 1) return 0;
  const auto n = static_cast<double>(draws);
  return normal_quantile((n - 0.375) / (n + 0.25));
}

StepTimes with_stragglers(StepTimes times, double sigma, std::int64_t ranks) {
  Seconds own = times.length - times.bubble;
  for (const auto& [name, exposed] : times.exposed) own = own - exposed;
  const Seconds waited = std::max(Seconds{}, own) * (sigma * expected_largest(ranks));
  if (waited.value <= 0) return times;
  times.length += waited;
  times.exposed["stragglers"] += waited;
  return times;
}

void add_failures(const Request& request, std::int64_t parameters, Report& report) {
  const RunLength& run = request.run;
  if (!report.total || !run.mtbf_hours) return;
  const double steps = report.total->value, m = *run.mtbf_hours * 3600 / report.gpus;
  RunLosses losses;
  losses.between_failures = {m};
  losses.checkpoint_bytes = checkpoint_bytes(request, parameters);
  losses.checkpoint = {run.checkpoint_s ? *run.checkpoint_s : kCheckpointFixedSeconds + losses.checkpoint_bytes / (kCheckpointBytesPerSecondPerNode * writing_nodes(request))};
  losses.checkpoint_estimated = !run.checkpoint_s;
  losses.restart = {run.restart_s.value_or(kRestartSeconds)};
  losses.restart_estimated = !run.restart_s;
  const double c = losses.checkpoint.value, r = losses.restart.value;
  const double interval = c < m / 2 ? std::max({std::sqrt(2 * c * m) - c, c, kShortestInterval}) : m;
  losses.interval = {interval};
  const double total = m * std::exp(std::min(r / m, 100.0)) * std::expm1(std::min((interval + c) / m, 100.0)) * steps / interval;
  if (!(total < 100 * steps)) {
    report.total.reset();
    report.cost_usd.reset();
    report.warnings.push_back(fmt::format("with {} GPUs that fail every {:g} hours each, the job fails every {}: with checkpoints of {} and restarts of {} it would hardly advance", report.gpus,
                                          *run.mtbf_hours, to_text(losses.between_failures), to_text(losses.checkpoint), to_text(losses.restart)));
    return;
  }
  losses.failures = total / m;
  losses.useful_share = steps / total;
  report.total = Seconds{total};
  if (report.cost_usd) *report.cost_usd *= total / steps;
  report.losses = losses;
}

}  // namespace precog
