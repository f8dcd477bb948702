// A job with some of its settings changed, tried: predicted whole, asked for its memory alone, or roughly, at two small depths of
// the model from which its own is reckoned. Whoever searches for what makes a job fit (fix_search.h) asks here.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "predict/fix_rules.h"
#include "predict/predict.h"

namespace precog {

// What estimates are made of.
struct FixNeed {
  bool known = false;
  std::array<BytesByCategory, kStepParts> moments{};
  double outside = 0;  // of the allocator
  double host = 0;     // of a node
  bool host_full = false;  // beyond what it has
  double time = 0;     // per sample
  bool whole = false, fits = false;  // tried at its own depth; and fits then
  double device = 0;                 // then
  std::size_t worst() const;  // of the moments
  double most() const;        // its bytes
};

inline constexpr std::int64_t kManyInStages = 128;  // samples of a replica

class FixTrials {
 public:
  // All outlive it. `request`: the job, with configurations read in; `parsed`: it without what is undone, and `base`: that one's report.
  FixTrials(const Json& request, const FixUndone& undone, const Request& parsed, const Report& base, const Catalog& catalog, const std::filesystem::path& folder, const std::vector<FixChoice>& choices);

  // `layers`: as fix_of_choices().
  Fix described(const FixCombination& combination, int layers = 0) const;
  std::optional<Report> whole(const FixCombination& combination, int layers = 0) const;
  std::optional<MemoryUse> memory(const FixCombination& combination, int layers = 0) const;
  FixNeed rough(const FixCombination& combination) const;  // whole where a shallow model would not do
  bool shallow() const { return alike_after_.has_value(); }
  bool many_in_stages() const { return parsed_.plan.pp > 1 && base_.batch * base_.micro_batches >= kManyInStages; }  // a small micro-batch is dear to try
  int layers(const FixCombination& combination) const;  // of the longest stage; 0 where that is not known
  int gpus_of_node() const { return std::min(parsed_.cluster.gpus, parsed_.cluster.gpus_per_node); }
  bool fixed_batch() const { return static_cast<bool>(parsed_.model->fixed_batch); }
  Fix smaller(std::int64_t batch) const { return smaller_batch(batch, request_, base_); }
  std::optional<Report> whole_of(const Json& patch) const;
  std::optional<MemoryUse> memory_of_batch(std::int64_t batch) const;

 private:
  std::optional<Request> changed(const FixCombination& combination, int layers) const;
  std::optional<Request> patched(const Json& patch) const;
  std::optional<Report> predicted(const Request& request) const;

  const Json& request_;
  const FixUndone& undone_;
  const Request& parsed_;
  const Report& base_;
  const Catalog& catalog_;
  const std::filesystem::path& folder_;
  const std::vector<FixChoice>& choices_;
  double host_capacity_ = 0;  // of a node; 0 where nobody says
  std::optional<std::int64_t> alike_after_;  // layers, after which all are alike; none where a shallow model would not do
};

}  // namespace precog
