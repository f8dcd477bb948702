#include "predict/fix_largest.h"

#include <algorithm>

#include "predict/fix_choices.h"
#include "predict/fix_finish.h"
#include "predict/in_parallel.h"
#include "predict/largest_batch.h"

namespace precog {
namespace {

class Largest {
 public:
  Largest(const Json& job, const Report& asked, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder)
      : job_(job), asked_(asked), catalog_(catalog), where_(where), folder_(folder) {
    if (const auto parsed = parse_request(job, catalog, where, folder, 1)) gpus_of_node_ = std::min(parsed->cluster.gpus, parsed->cluster.gpus_per_node);
  }

  // Not kept where not even one sample fits after all.
  bool put_in(Fix& fix) const {
    const auto found = with(fix.request);
    if (!found) return false;
    fill_in(fix, *found, asked_, gpus_of_node_);
    fix.batch = found->batch;
    if (!fix.faster) return true;
    const auto faster = with(fix.faster->request);
    if (faster && faster->samples_per_s >= fix.samples_per_s / kFixFaster) {
      fix.faster = faster_fix(fix.faster->flags, fix.faster->request, *faster, asked_);
      fix.faster->batch = faster->batch;
    } else {
      fix.faster.reset();
    }
    return true;
  }

 private:
  std::optional<Report> with(const Json& patch) const {
    Json changed = job_;
    changed.merge_patch(patch);  // a null takes back
    auto found = predict_largest_batch(changed, catalog_, where_, folder_);
    if (!found || !found->report.memory.fits || found->report.samples_per_s <= 0) return std::nullopt;
    return std::move(found->report);
  }

  const Json& job_;
  const Report& asked_;
  const Catalog& catalog_;
  const std::string& where_;
  const std::filesystem::path& folder_;
  int gpus_of_node_ = 1;
};

}  // namespace

std::vector<Fix> at_their_largest(std::vector<Fix> fixes, const Json& job, const Report& asked, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder) {
  const Largest largest(job, asked, catalog, where, folder);
  std::vector<char> kept(fixes.size(), 0);
  in_parallel(fixes.size(), [&](std::size_t i) { kept[i] = largest.put_in(fixes[i]) ? 1 : 0; });
  std::vector<Fix> out;
  for (std::size_t i = 0; i < fixes.size(); ++i)
    if (kept[i]) out.push_back(std::move(fixes[i]));
  std::stable_sort(out.begin(), out.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
  return out;
}

}  // namespace precog
