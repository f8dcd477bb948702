#include "calibrate/collective_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace precog {
namespace {

constexpr double kSoftFrom = 0.08;  // errors well beyond this count by their size, not by its square
constexpr double kKnobStep = 1e-3;   // of a logarithm, for derivatives
constexpr int kMostRounds = 40, kMostDampings = 8;

struct CollectiveKnob {
  std::function<double&(CollectiveProfile&)> of;
  double spread;       // standard deviation of its logarithm around the start
  double least, most;
};

using ErrorsAt = std::function<std::vector<double>(const std::vector<double>&)>;

double soft(double error) { return 2 * (std::sqrt(1 + error * error) - 1); }

// Solves a x = b for a small symmetric positive matrix; a is destroyed.
std::vector<double> solution(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t row = i + 1; row < n; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (std::size_t k = i; k < n; ++k) a[row][k] -= factor * a[i][k];
      b[row] -= factor * b[i];
    }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// Levenberg and Marquardt's steps from zero; `pulls` are the springs.
std::vector<double> least_squares(const ErrorsAt& errors, const std::vector<double>& pulls) {
  const std::size_t n = pulls.size();
  std::vector<double> x(n, 0.0);
  const auto objective = [&](const std::vector<double>& at, const std::vector<double>& e) {
    double sum = 0;
    for (double one : e) sum += soft(one);
    for (std::size_t i = 0; i < n; ++i) sum += pulls[i] * at[i] * at[i];
    return sum;
  };
  std::vector<double> now = errors(x);
  double best = objective(x, now), damping = 1e-2;
  for (int step = 0; step < kMostRounds; ++step) {
    std::vector<std::vector<double>> slopes(n);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> moved = x;
      moved[i] += kKnobStep;
      slopes[i] = errors(moved);
      for (std::size_t r = 0; r < now.size(); ++r) slopes[i][r] = (slopes[i][r] - now[r]) / kKnobStep;
    }
    std::vector<std::vector<double>> a(n, std::vector<double>(n, 0.0));
    std::vector<double> b(n, 0.0);
    for (std::size_t r = 0; r < now.size(); ++r) {
      const double weight = 1 / std::sqrt(1 + now[r] * now[r]);
      for (std::size_t i = 0; i < n; ++i) {
        b[i] -= weight * slopes[i][r] * now[r];
        for (std::size_t k = 0; k < n; ++k) a[i][k] += weight * slopes[i][r] * slopes[k][r];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      a[i][i] += pulls[i];
      b[i] -= pulls[i] * x[i];
    }
    bool better = false;
    for (int retry = 0; retry < kMostDampings && !better; ++retry) {
      std::vector<std::vector<double>> damped = a;
      for (std::size_t i = 0; i < n; ++i) damped[i][i] += damping * a[i][i] + 1e-9;
      std::vector<double> moved = solution(damped, b);
      for (std::size_t i = 0; i < n; ++i) moved[i] = x[i] + std::clamp(moved[i], -1.0, 1.0);
      std::vector<double> after = errors(moved);
      const double reached = objective(moved, after);
      if (reached < best - 1e-9 * best) {
        better = true;
        damping = std::max(1e-6, damping / 4);
        if (best - reached < 1e-6 * best) step = kMostRounds;
        best = reached, x = std::move(moved), now = std::move(after);
      } else {
        damping *= 6;
      }
    }
    if (!better) break;
  }
  return x;
}

double with_knob(const CollectiveKnob& knob, double start, double x) { return std::clamp(start * std::exp(x), knob.least, knob.most); }

void fit_group(std::vector<MeasuredCollective>& timings, CollectiveProfile& profile, const std::vector<CollectiveKnob>& knobs, double pull) {
  if (timings.empty()) return;
  std::vector<double> start, pulls;
  for (const CollectiveKnob& knob : knobs) {
    start.push_back(std::max(knob.of(profile), std::max(knob.least, 1e-12)));
    pulls.push_back(pull / (knob.spread * knob.spread));
  }
  const auto set = [&](const std::vector<double>& x) {
    for (std::size_t i = 0; i < knobs.size(); ++i) knobs[i].of(profile) = with_knob(knobs[i], start[i], x[i]);
  };
  const ErrorsAt errors = [&](const std::vector<double>& x) {
    set(x);
    std::vector<double> out;
    out.reserve(timings.size());
    for (MeasuredCollective& timing : timings) {
      timing.cluster.collectives.link = profile.link;
      timing.cluster.collectives.network = profile.network;
      out.push_back(std::log(collective_cost(timing.shape, timing.cluster, *timing.gpu).total.value / timing.seconds) / kSoftFrom);
    }
    return out;
  };
  set(least_squares(errors, pulls));
}

template <class F>
std::vector<CollectiveKnob> transfer_knobs(F of) {
  return {{[of](CollectiveProfile& p) -> double& { return of(p).base.value; }, 1.0, 1e-7, 1e-3},
          {[of](CollectiveProfile& p) -> double& { return of(p).step; }, 1.0, 1e-3, 100},
          {[of](CollectiveProfile& p) -> double& { return of(p).efficiency; }, 0.5, 1e-2, 1.0},
          {[of](CollectiveProfile& p) -> double& { return of(p).join; }, 0.5, 0.25, 6}};
}

}  // namespace

double predicted(const MeasuredCollective& timing, const CollectiveProfile& profile) {
  ClusterSpec cluster = timing.cluster;
  const double contention = timing.cluster.collectives.link.contention;
  cluster.collectives = profile;
  if (contention > 0) cluster.collectives.link.contention = contention;
  return collective_cost(timing.shape, cluster, *timing.gpu).total.value;
}

CollectiveProfile fit_collectives(std::span<const MeasuredCollective> timings, const CollectiveProfile& start, const CollectiveFitOptions& options) {
  CollectiveProfile profile = start;
  const auto of_group = [&](auto belongs) {
    std::vector<MeasuredCollective> out;
    for (const MeasuredCollective& one : timings) {
      const CollectiveSetting setting = collective_setting(one.shape, one.cluster, *one.gpu);
      if (belongs(nccl_choice(one.shape, setting, start.link.choice), setting.nodes > 1)) out.push_back(one);
    }
    return out;
  };
  const double known_contention = !timings.empty() && !options.contention ? timings.front().cluster.collectives.link.contention : 0;
  const double start_contention = profile.link.contention;
  if (known_contention > 0) profile.link.contention = known_contention;
  using Algorithm = CollectiveAlgorithm;
  for (Protocol protocol : {Protocol::simple, Protocol::ll, Protocol::ll128}) {
    const auto p = static_cast<std::size_t>(protocol);
    std::vector<CollectiveKnob> knobs = transfer_knobs([p](CollectiveProfile& one) -> TransferCoefficients& { return one.link.ring[p]; });
    if (protocol == Protocol::simple) {
      knobs.push_back({[](CollectiveProfile& one) -> double& { return one.link.ring_own_share; }, 1.0, 1e-2, 4});
      if (options.contention) knobs.push_back({[](CollectiveProfile& one) -> double& { return one.link.contention; }, 1.0, 1e-2, 4});
    }
    auto rows = of_group([&](CollectiveChoice choice, bool across) { return !across && choice == CollectiveChoice{Algorithm::ring, protocol}; });
    fit_group(rows, profile, knobs, options.pull);
  }
  auto reduced = of_group([&](CollectiveChoice choice, bool across) { return !across && choice.algorithm == Algorithm::in_switch; });
  fit_group(reduced, profile, transfer_knobs([](CollectiveProfile& one) -> TransferCoefficients& { return one.link.in_switch; }), options.pull);
  for (Protocol protocol : {Protocol::ll, Protocol::simple}) {
    const std::size_t p = protocol == Protocol::ll ? 0 : 1;
    std::vector<CollectiveKnob> knobs = transfer_knobs([p](CollectiveProfile& one) -> TransferCoefficients& { return one.link.direct[p]; });
    if (p == 1) knobs.push_back({[](CollectiveProfile& one) -> double& { return one.link.direct_own_share; }, 1.0, 1e-2, 4});
    auto rows = of_group([&](CollectiveChoice choice, bool across) { return !across && choice == CollectiveChoice{Algorithm::direct, protocol}; });
    fit_group(rows, profile, knobs, options.pull);
  }

  // Between nodes.
  std::vector<CollectiveKnob> ring, tree, direct;
  for (std::size_t p = 0; p < kProtocols; ++p) ring.push_back({[p](CollectiveProfile& one) -> double& { return one.network.hop[p]; }, 1.0, 1e-2, 100});
  ring.push_back({[](CollectiveProfile& one) -> double& { return one.network.ring; }, 0.3, 0.05, 1.05});
  ring.push_back({[](CollectiveProfile& one) -> double& { return one.network.ring_join; }, 0.5, 0.25, 4});
  tree.push_back({[](CollectiveProfile& one) -> double& { return one.network.tree; }, 0.3, 0.05, 1.1});
  tree.push_back({[](CollectiveProfile& one) -> double& { return one.network.tree_join; }, 0.5, 0.25, 4});
  direct.push_back({[](CollectiveProfile& one) -> double& { return one.network.direct_hop; }, 1.0, 1e-2, 100});
  direct.push_back({[](CollectiveProfile& one) -> double& { return one.network.direct; }, 0.5, 0.05, 1.05});
  direct.push_back({[](CollectiveProfile& one) -> double& { return one.network.direct_join; }, 0.5, 0.25, 4});
  auto rings = of_group([](CollectiveChoice choice, bool across) { return across && choice.algorithm == Algorithm::ring; });
  fit_group(rings, profile, ring, options.pull);
  auto trees = of_group([](CollectiveChoice choice, bool across) { return across && choice.algorithm != Algorithm::ring && choice.algorithm != Algorithm::direct; });
  fit_group(trees, profile, tree, options.pull);
  auto directs = of_group([](CollectiveChoice choice, bool across) { return across && choice.algorithm == Algorithm::direct; });
  fit_group(directs, profile, direct, options.pull);
  if (options.one_network) {
    // What some algorithms show of the ports holds for those that no timing used: else a larger job, where NCCL takes another one, would
    // run over ports that nobody has corrected.
    struct Way {
      double NetworkCoefficients::*share;
      bool timed;
      double most;
    };
    const std::array<Way, 3> ways = {{{&NetworkCoefficients::ring, !rings.empty(), 1.05}, {&NetworkCoefficients::tree, !trees.empty(), 1.1}, {&NetworkCoefficients::direct, !directs.empty(), 1.05}}};
    double logarithms = 0, timed = 0;
    for (const Way& way : ways)
      if (way.timed) logarithms += std::log(profile.network.*way.share / (start.network.*way.share)), ++timed;
    for (const Way& way : ways)
      if (!way.timed && timed > 0) profile.network.*way.share = std::clamp(start.network.*way.share * std::exp(logarithms / timed), 0.05, way.most);
  }
  if (known_contention > 0) profile.link.contention = start_contention;  // that machine's, not the link's
  return profile;
}

}  // namespace precog
