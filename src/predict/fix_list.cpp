#include "predict/fix_list.h"

#include <algorithm>

#include "predict/fix_choices.h"

namespace precog {
namespace {

constexpr double kTooDear = 4;  // times another's time

double time_at_best(const Fix& fix) { return 1 + (fix.faster ? fix.faster->time_cost : fix.time_cost); }
bool in_other_mode(const Fix& fix) { return std::count(fix.axes.begin(), fix.axes.end(), static_cast<std::uint8_t>(FixAxis::mode)) > 0; }

// But for what saves a little: how many layers, pieces of the loss, the allocator, the optimizer's kernels.
Json gist(const Fix& fix) {
  Json out = fix.request;
  for (const char* key : {"recompute_layers", "loss_chunks", "allocator", "optimizer_impl"}) out.erase(key);
  if (out.contains("plan")) out["plan"].erase("offload_layers");
  return out;
}

// Whether the other one will do as well.
bool needless(const Fix& fix, const Fix& other, bool before) {
  if (other.result > fix.result) return false;
  if (1 + fix.time_cost > kTooDear * (1 + other.time_cost)) return true;
  const bool fewer = other.axes.size() < fix.axes.size();
  const bool less_host = other.host_of_node.value == 0 || (fix.host_of_node.value > 0 && other.much_of_host <= fix.much_of_host);
  const bool simpler = fewer || (before && other.axes.size() == fix.axes.size());
  if (simpler && less_host && 1 + other.time_cost <= kFixEarned * (1 + fix.time_cost) && time_at_best(other) <= kFixEarned * time_at_best(fix) && gist(fix) == gist(other)) return true;
  if (!std::includes(fix.axes.begin(), fix.axes.end(), other.axes.begin(), other.axes.end()) || !less_host) return false;
  if (other.faster && other.faster->flags.starts_with(kFixCompiled) && in_other_mode(fix)) return time_at_best(other) <= kFixHardly * time_at_best(fix);
  return 1 + other.time_cost <= (fewer ? kFixHardly : 1) * (1 + fix.time_cost) && time_at_best(other) <= kFixHardly * time_at_best(fix) && (fewer || before);
}

// Who is shown first: of each mode, the cheapest of each degree of nearness that nothing nearer is as cheap as; then a smaller step; then
// whatever is cheapest.
std::vector<std::size_t> by_rank(const std::vector<Fix>& kept) {
  std::vector<std::size_t> order;
  const auto add = [&](std::size_t i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  };
  for (std::uint8_t result = 0; result < kFixResults; ++result)
    for (const bool any_mode : {false, true}) {
      const auto time = [&](std::size_t i) { return any_mode ? time_at_best(kept[i]) : 1 + kept[i].time_cost; };
      std::optional<std::size_t> best;
      for (std::size_t i = 0; i < kept.size(); ++i)  // the nearer one where two are as cheap
        if (kept[i].result <= result && !kept[i].smaller_step && (any_mode || !in_other_mode(kept[i])) && (!best || time(i) * (kept[i].result > kept[*best].result ? kFixHardly : 1) < time(*best))) best = i;
      if (best) add(*best);
    }
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i].smaller_step) add(i);
  for (std::size_t i = 0; i < kept.size(); ++i) add(i);
  return order;
}

}  // namespace

std::vector<Fix> listed_fixes(std::vector<Fix> all, std::optional<Fix> smaller, std::size_t most) {
  std::vector<Fix> kept, out;
  std::stable_sort(all.begin(), all.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
  for (const Fix& fix : all) {
    const bool spared = std::any_of(all.begin(), all.end(), [&](const Fix& other) {
      return &other != &fix && (needless(fix, other, &other < &fix) || (fix.much_of_host && !other.much_of_host && other.result <= fix.result));
    });
    if (!spared) kept.push_back(fix);
  }
  if (smaller) kept.insert(std::find_if(kept.begin(), kept.end(), [&](const Fix& fix) { return fix.time_cost > smaller->time_cost; }), std::move(*smaller));
  std::vector<std::size_t> order = by_rank(kept);
  order.resize(std::min(order.size(), most));
  std::sort(order.begin(), order.end());
  for (std::size_t i : order) out.push_back(std::move(kept[i]));
  return out;
}

}  // namespace precog
