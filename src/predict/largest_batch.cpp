#include "predict/largest_batch.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace precog {
namespace {

constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr int kGuesses = 8;  // along a line, before the search only halves
constexpr std::size_t kClimbs = 2;   // again from beyond a batch that fragmentation stops
constexpr std::int64_t kProbes = 6;  // for a place beyond it

// The largest of the batches that may be asked for: all, or those that divide a given global batch.
class BatchSearch {
 public:
  BatchSearch(Json request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder)
      : request_(std::move(request)), catalog_(catalog), where_(where), folder_(folder) {
    if (request_.is_object()) request_.erase("batch");
  }

  Result<Prediction> run() {
    PRECOG_TRY(first, parse_request(request_, catalog_, where_, folder_, 1));
    if (first.model->fixed_batch) {
      return fail(where_ + ".max_batch", fmt::format("{} was captured at batch {} and not symbolically, so it has no other", first.model->name, first.inputs.batch));
    }
    list_choices(first);
    PRECOG_TRY(reached, climb(-1, count()));
    // Fragmentation can stop one batch and let larger ones through: try those of which the peak alone would fit.
    for (std::size_t round = 0; round < kClimbs && reached >= 0 && reached + 1 < count(); ++round) {
      PRECOG_TRY(beyond, beyond_a_hole(reached));
      if (beyond < 0) break;
      const auto wall = std::find_if(tried_.upper_bound(beyond), tried_.end(), [](const auto& one) { return !one.second.fits; });
      PRECOG_TRY(higher, climb(beyond, wall == tried_.end() ? count() : wall->first));
      reached = higher;
    }
    LargestBatch largest{.batch = reached >= 0 ? batch_at(reached) : 0, .next = std::nullopt, .next_device = {}, .tried = static_cast<std::int64_t>(tried_.size()), .holes = {}};
    if (reached + 1 < count()) {
      largest.next = batch_at(reached + 1);
      largest.next_device = tried_.at(reached + 1).device;
    }
    for (const auto& [place, one] : tried_)
      if (place < reached && !one.fits) largest.holes.push_back(batch_at(place));
    Prediction& best = *best_;
    best.report.largest_batch = std::move(largest);
    return std::move(best);
  }

 private:
  struct Tried {
    Bytes device, peak;
    bool fits = false;
  };

  // Between a place that fits (or -1) and one that does not (or the end): the last before one that does not.
  Result<std::int64_t> climb(std::int64_t low, std::int64_t high) {
    for (int tried = 0; high - low > 1; ++tried) {
      std::int64_t next = low + (high - low) / 2;
      if (low < 1 && tried_.size() < 2) next = low + 1;  // the two smallest first: they say how much a sample takes
      else if (tried < kGuesses) next = along_a_line(low, high);
      PRECOG_TRY(fits, attempt(next));
      (fits ? low : high) = next;
    }
    return low;
  }

  Result<bool> attempt(std::int64_t place) {
    if (const auto known = tried_.find(place); known != tried_.end()) return known->second.fits;
    PRECOG_TRY(made, at(place));
    const MemoryUse& memory = made.report.memory;
    tried_[place] = {memory.device, memory.peak, memory.fits};
    capacity_ = memory.capacity;
    outside_ = memory.device - memory.device_pinned;
    if (memory.fits ? place >= best_place_ : place == 0) best_ = std::move(made), best_place_ = place;
    return tried_[place].fits;
  }

  // A place above `reached` and the next one that fits, where the line through the peaks leaves room for one; else -1.
  Result<std::int64_t> beyond_a_hole(std::int64_t reached) {
    const auto at = tried_.find(reached);
    if (at == tried_.begin()) return -1;
    const Tried& here = at->second;
    const auto other = std::prev(at);  // near: where activations make the peak, it grows faster than where an optimizer's update does
    const double slope = static_cast<double>((here.peak - other->second.peak).value) / static_cast<double>(batch_at(reached) - batch_at(other->first));
    if (slope <= 0) return -1;
    const double room = static_cast<double>((capacity_ - outside_ - here.peak).value) / slope;
    const std::int64_t top = place_of(batch_at(reached) + static_cast<std::int64_t>(std::min(1e12, room)));
    for (std::int64_t probe = 0; probe < kProbes; ++probe) {  // from the top down: the larger the better
      const std::int64_t place = top - (top - reached - 1) * probe / kProbes;
      if (place <= reached + 1) break;
      PRECOG_TRY(fits, attempt(place));
      if (fits) return place;
    }
    return -1;
  }

  // The last place whose batch is not above this one.
  std::int64_t place_of(std::int64_t batch) const {
    if (choices_.empty()) return std::min(batch, kLargestBatch) - 1;
    return std::upper_bound(choices_.begin(), choices_.end(), batch) - choices_.begin() - 1;
  }

  void list_choices(const Request& first) {
    if (!request_.contains("global_batch")) return;
    std::int64_t each = first.global_batch / std::max(1, first.plan.dp);
    if (request_.contains("micro_batches")) {  // the two leave one batch only
      choices_.push_back(std::max<std::int64_t>(1, each / first.training.micro_batches));
      return;
    }
    for (std::int64_t batch = 1; batch <= each; ++batch)
      if (each % batch == 0) choices_.push_back(batch);
  }
  std::int64_t count() const { return choices_.empty() ? kLargestBatch : static_cast<std::int64_t>(choices_.size()); }
  std::int64_t batch_at(std::int64_t place) const { return choices_.empty() ? place + 1 : choices_[static_cast<std::size_t>(place)]; }

  Result<Prediction> at(std::int64_t place) {
    request_["batch"] = batch_at(place);
    PRECOG_TRY(parsed, parse_request(request_, catalog_, where_, folder_));
    return predict(parsed, catalog_);
  }

  // Memory grows almost linearly with the batch: the two batches nearest to the limit say where it would be reached.
  std::int64_t along_a_line(std::int64_t low, std::int64_t high) const {
    if (low < 0) return low + (high - low) / 2;
    const auto here = tried_.find(low);
    const auto other = here == tried_.begin() ? std::next(here) : std::prev(here);
    std::int64_t wanted = 2 * batch_at(low);
    if (other != tried_.end() && other->second.device != here->second.device) {
      const double slope = static_cast<double>((here->second.device - other->second.device).value) / static_cast<double>(batch_at(low) - batch_at(other->first));
      if (slope > 0) wanted = batch_at(low) + static_cast<std::int64_t>(std::min(1e12, static_cast<double>((capacity_ - here->second.device).value) / slope));
    }
    return std::clamp(place_of(wanted), low + 1, high - 1);
  }

  Json request_;
  const Catalog& catalog_;
  const std::string& where_;
  const std::filesystem::path& folder_;
  std::vector<std::int64_t> choices_;          // empty: every batch
  std::map<std::int64_t, Tried> tried_;        // by place
  Bytes capacity_, outside_;                   // of the device; what of it is not the allocator's
  std::optional<Prediction> best_;             // of the largest batch that fits, or of the smallest
  std::int64_t best_place_ = -1;
};

}  // namespace

Result<Prediction> predict_largest_batch(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder) {
  return BatchSearch(request, catalog, where, folder).run();
}

}  // namespace precog
