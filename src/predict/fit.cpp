#include "predict/fit.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {
namespace {

constexpr std::int64_t kLargestBatch = 1 << 20;
constexpr std::size_t kTogether = 3;       // changes in one fix
constexpr std::size_t kMostTogether = 3;   // combinations predicted of the same kinds of change
constexpr std::size_t kMostPredicted = 24; // and of all kinds, for each number of changes
constexpr std::size_t kEnough = 3;          // ways that fit, before more is changed at once
constexpr int kLossPieces = 8, kMostLayers = 256;
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
    const std::int64_t each = first.global_batch / std::max(1, first.plan.dp);
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

struct Change {
  std::string change, flags, note, group;  // at most one of a group can be had
  Json patch;
};

class FixSearch {
 public:
  FixSearch(const Json& request, const Report& base, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder)
      : request_(request), base_(base), catalog_(catalog), where_(where), folder_(folder) {}

  std::vector<Fix> run(std::size_t most) {
    for (const Change& change : changes()) {
      auto report = predicted(change.patch);
      if (!report) continue;
      if (report->memory.fits) found_.push_back(fix_of(change, *report));
      else note(change, *report);
      if (report->memory.fits && change.flags == "--recompute full") fewest_layers(change);
    }
    smaller_batches();
    for (std::size_t size = 2; size <= kTogether && found_.size() < kEnough; ++size) together(size);
    if (found_.empty()) everything();
    std::stable_sort(found_.begin(), found_.end(), [](const Fix& a, const Fix& b) { return a.time_cost < b.time_cost; });
    if (found_.size() > most) found_.resize(most);
    return std::move(found_);
  }

 private:
  std::vector<Change> changes() const {
    std::vector<Change> out;
    const Json& now = base_.request;
    auto is = [&](const char* key, const char* value) { return now.value(key, "") == value; };
    if (is("optimizer_impl", "foreach"))
      out.push_back({"fused optimizer", "--optimizer-impl fused", "no copies of the second moments; the same result", "", {{"optimizer_impl", "fused"}}});
    if (is("mode", "eager"))
      out.push_back({"torch.compile", "--mode compile", "recomputes cheap operators instead of keeping their results", "mode", {{"mode", "compile"}}});
    if (is("memory_format", "contiguous") && base_.by_op_class.count("convolution"))
      out.push_back({"channels_last memory format", "--memory-format channels_last", "no layout copies around convolutions", "", {{"memory_format", "channels_last"}}});
    const bool language = now.contains("seq");
    if (language && !now.contains("loss_chunks"))
      out.push_back({fmt::format("head and loss in {} pieces", kLossPieces), fmt::format("--loss-chunks {}", kLossPieces), "the scores never all at once (Liger's fused linear cross-entropy); the same result", "loss", {{"loss_chunks", kLossPieces}}});
    if (base_.memory.reserved > base_.memory.peak && !now.contains("allocator"))
      out.push_back({"expandable segments", "--allocator expandable", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "", {{"allocator", "expandable"}}});
    if (is("recompute", "none")) {
      out.push_back({"recompute attention only", "--recompute selective", "what lies between queries, keys, values and their result", "recompute", {{"recompute", "selective"}}});
      if (language) out.push_back({"recompute norms and activation functions", "--recompute norm+activation", "no product is run twice", "recompute", {{"recompute", "norm+activation"}}});
    }
    if (!is("recompute", "full"))
      out.push_back({"recompute activations", "--recompute full", "a second forward pass per layer", "recompute", {{"recompute", "full"}}});
    if (base_.gpus > 1) {
      // Replicas share out what they have in common, not the GPUs that a model is split over.
      const int replicas = now.contains("plan") ? now["plan"].value("dp", base_.gpus) : base_.gpus;
      const std::string sharded = now.contains("plan") ? now["plan"].value("fsdp", "none") : "none";
      constexpr const char *kKinds[] = {"none", "zero1", "zero2", "full"}, *kNotes[] = {"", "shares out optimizer states", "and gradients", "and the weights, gathered when needed"};
      const auto from = std::find(std::begin(kKinds), std::end(kKinds), sharded) - std::begin(kKinds);
      for (std::ptrdiff_t i = from + 1; i < 4; ++i)
        out.push_back({fmt::format("shard over the {} {}: {}", replicas, replicas == base_.gpus ? "GPUs" : "replicas", kKinds[i]), fmt::format("--fsdp {}", kKinds[i]), kNotes[i], "sharding", {{"plan", {{"fsdp", kKinds[i]}}}}});
    }
    offloads(out, now);
    if (request_.contains("precision") && request_["precision"].is_string()) precisions(out, request_["precision"].get<std::string>());
    return out;
  }
  // What the host's memory can take. States must be shared out first where several replicas have them.
  void offloads(std::vector<Change>& out, const Json& now) const {
    const Json plan = now.value("plan", Json::object());
    if (plan.contains("offload") || plan.value("pp", 1) > 1 || plan.value("ep", 1) > 1) return;
    const bool alone = plan.value("dp", 1) == 1, full = plan.value("fsdp", "none") == "full";
    const std::string optimizer = now.value("optimizer", "");
    auto put = [&](const char* change, const char* what, const char* note, bool whole) {
      Json patch = {{"plan", {{"offload", what}}}};
      std::string flags = fmt::format("--offload {}", what), name = change;
      if (!alone && (whole ? !full : plan.value("fsdp", "none") == "none")) {
        patch["plan"]["fsdp"] = whole ? "full" : "zero2";
        flags += whole ? " --fsdp full" : " --fsdp zero2";
        name += whole ? ", fully sharded" : ", states and gradients sharded";
      }
      out.push_back({name, flags, note, "offload", patch});
    };
    if (optimizer == "adam" || optimizer == "adamw") {
      put("optimizer on the host", "optimizer", "states and master weights in the host's memory, updated there", false);
      if (!alone && !full) put("optimizer on the host", "optimizer", "states and master weights in the host's memory, updated there", true);
      put("optimizer and parameters on the host", "optimizer+parameters", "each layer's weights come up when it is their turn", true);
    }
    if (now.value("mode", "") == "eager" && now.value("recompute", "") == "none")
      put("activations on the host", "activations", "what layers keep for backward goes down and comes back", false);
  }
  void precisions(std::vector<Change>& out, const std::string& name) const {
    auto part = [&](const char* extra, const char* change, const char* note) {
      if (name.find(extra) == std::string::npos)
        out.push_back({change, fmt::format("--precision {}+{}", name, extra), note, "precision", {{"precision", name + "+" + extra}}});
    };
    part("optimizer-bf16", "optimizer states in bf16", "numerics: moments rounded to 8 bits of mantissa");
    part("optimizer-8bit", "optimizer states in 8 bits", "numerics: states quantised by blocks (bitsandbytes)");
    const bool bf16 = base_.peak_16bit == "bf16";  // else the GPU has fp16 only
    for (const auto& [other, note] : {std::pair{bf16 ? "amp-bf16" : "amp-fp16", "weights stay in fp32"},
                                      bf16 ? std::pair{"bf16", "numerics: weights themselves are rounded to 16 bits; small updates are lost"}
                                           : std::pair{"fp16", "numerics: weights in fp16 without loss scaling; training often diverges"}})
      if (name != other) out.push_back({fmt::format("precision {}", other), fmt::format("--precision {}", other), note, "precision", {{"precision", other}}});
  }

  // Nothing that was tried is enough: all that saves most at once, on all GPUs there are.
  void everything() {
    const Json plan = base_.request.value("plan", Json::object());
    const bool whole = plan.value("pp", 1) == 1 && plan.value("ep", 1) == 1;
    const std::string optimizer = base_.request.value("optimizer", "");
    Change all{"fully sharded, recomputed, optimizer and parameters on the host, one sample at a time", "--fsdp full --recompute full --offload optimizer+parameters", "all that saves most", "", Json::object()};
    if (!whole || (optimizer != "adam" && optimizer != "adamw")) return;
    all.patch = {{"plan", {{"fsdp", "full"}, {"offload", "optimizer+parameters"}}}, {"recompute", "full"}, {"batch", 1}, {"global_batch", base_.global_batch}};
    all.flags += fmt::format(" --batch 1 --global-batch {}", base_.global_batch);
    if (base_.request.contains("seq")) all.patch["loss_chunks"] = kLossPieces, all.flags += fmt::format(" --loss-chunks {}", kLossPieces);
    if (auto report = predicted(all.patch); report && report->memory.fits) found_.push_back(fix_of(all, *report));
  }

  // Recomputing every layer is enough: how few are?
  void fewest_layers(const Change& all) {
    int low = 0, high = 0;  // too few, enough
    std::optional<Report> best;
    Change change = all;
    const auto attempt = [&](int layers) {
      Json patch = all.patch;
      patch["recompute_layers"] = layers;
      auto report = predicted(patch);
      if (!report || !report->memory.fits) return false;
      best = std::move(report);
      change.patch = std::move(patch);
      high = layers;
      return true;
    };
    for (int layers = 1; layers <= kMostLayers && high == 0; layers *= 2)
      if (!attempt(layers)) low = layers;
    while (high > 0 && high - low > 1)
      if (const int middle = low + (high - low) / 2; !attempt(middle)) low = middle;
    if (!best || found_.empty() || best->step >= found_.back().step) return;  // as many as there are
    change.change = fmt::format("recompute activations of {} layer{}", high, high == 1 ? "" : "s");
    change.flags = fmt::format("--recompute full --recompute-layers {}", high);
    found_.push_back(fix_of(change, *best));
  }

  // The same step in smaller pieces, the largest first: smaller ones that fit too would only cost more.
  void smaller_batches() {
    const std::int64_t each = base_.batch * base_.micro_batches;
    std::int64_t last = base_.batch;
    for (std::int64_t batch = base_.batch - 1; batch >= 1; --batch) {
      if (each % batch != 0 || (batch > 1 && batch * 4 > last * 3)) continue;  // those close to the last one that failed are passed over
      last = batch;
      const Change change{fmt::format("batch {} and accumulation", batch), fmt::format("--batch {} --global-batch {}", batch, base_.global_batch),
                          "the same step in smaller pieces", "batch", {{"batch", batch}, {"global_batch", base_.global_batch}}};
      auto report = predicted(change.patch);
      if (!report) continue;
      if (report->memory.fits) return found_.push_back(fix_of(change, *report));
      note(change, *report);
    }
  }

  std::optional<Report> predicted(const Json& patch) const {
    Json changed = request_;
    changed.merge_patch(patch);
    auto parsed = parse_request(changed, catalog_, where_, folder_);
    if (!parsed) return std::nullopt;
    auto prediction = predict(*parsed, catalog_);
    if (!prediction) return std::nullopt;
    return std::move(prediction->report);
  }

  Fix fix_of(const Change& change, const Report& report) const {
    return {change.change, change.flags, change.patch, change.note, report.step, report.samples_per_s,
            report.samples_per_s > 0 ? base_.samples_per_s / report.samples_per_s - 1 : 0, report.memory.peak, report.memory.device,
            report.memory.verdict == Certainty::certain};
  }

  void note(const Change& change, const Report& report) {
    const double saved = static_cast<double>((base_.memory.device - report.memory.device).value);
    if (saved > 0) helpful_.push_back({change, saved, report.samples_per_s > 0 ? base_.samples_per_s / report.samples_per_s : 1});
  }

  // Few changes are enough alone: several that go together, first those that promise to cost least time among those that promise
  // to save enough, were savings to add up and times to multiply.
  void together(std::size_t size) {
    struct Promise {
      double time = 1, saved = 0;
      std::vector<std::size_t> members;
    };
    std::vector<Promise> promises, grown = {{}};
    for (std::size_t depth = 0; depth < size; ++depth) {
      promises = std::move(grown);
      grown.clear();
      for (const Promise& promise : promises)
        for (std::size_t i = promise.members.empty() ? 0 : promise.members.back() + 1; i < helpful_.size(); ++i) {
          const std::string& group = helpful_[i].change.group;
          const bool taken = std::any_of(promise.members.begin(), promise.members.end(), [&](std::size_t other) {
            return (!group.empty() && helpful_[other].change.group == group) || contradict(helpful_[other].change.patch, helpful_[i].change.patch);
          });
          if (taken) continue;
          grown.push_back(promise);
          grown.back().time *= helpful_[i].time;
          grown.back().saved += helpful_[i].saved;
          grown.back().members.push_back(i);
        }
    }
    const double wanted = static_cast<double>((base_.memory.device - base_.memory.capacity).value);
    std::erase_if(grown, [&](const Promise& promise) { return promise.saved < 0.8 * wanted; });  // sums promise too little now and then
    std::stable_sort(grown.begin(), grown.end(), [&](const Promise& a, const Promise& b) {
      const bool enough_a = a.saved >= wanted, enough_b = b.saved >= wanted;
      return enough_a != enough_b ? enough_a : a.time < b.time;
    });
    std::map<std::string, std::size_t> tried;  // by kinds of change, so that no kind crowds out another
    std::size_t predictions = 0;
    for (const Promise& promise : grown) {
      std::string kinds;
      for (std::size_t member : promise.members) kinds += helpful_[member].change.group + "+";
      if (tried[kinds]++ >= kMostTogether) continue;
      if (predictions++ >= kMostPredicted) break;
      Change all;
      all.patch = Json::object();
      for (std::size_t member : promise.members) {
        const Change& change = helpful_[member].change;
        all.change += (all.change.empty() ? "" : " + ") + change.change;
        all.flags += (all.flags.empty() ? "" : " ") + change.flags;
        if (change.note.starts_with("numerics")) all.note = change.note;
        all.patch.merge_patch(change.patch);
      }
      if (auto report = predicted(all.patch); report && report->memory.fits) found_.push_back(fix_of(all, *report));
    }
  }

  // Both say something of the same setting.
  static bool contradict(const Json& a, const Json& b) {
    if (!a.is_object() || !b.is_object()) return true;
    for (auto item = a.begin(); item != a.end(); ++item)
      if (const auto other = b.find(item.key()); other != b.end() && contradict(*item, *other)) return true;
    return false;
  }

  struct Helpful {
    Change change;
    double saved = 0, time = 1;  // bytes; times the base's time per sample
  };
  const Json& request_;
  const Report& base_;
  const Catalog& catalog_;
  const std::string& where_;
  const std::filesystem::path& folder_;
  std::vector<Fix> found_;
  std::vector<Helpful> helpful_;
};

}  // namespace

std::vector<Fix> find_fixes(const Json& request, const Report& base, const Catalog& catalog, const std::string& where,
                            const std::filesystem::path& folder, std::size_t most) {
  return FixSearch(request, base, catalog, where, folder).run(most);
}

Result<Prediction> predict_job(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                               std::string_view dump_after) {
  Json job = request;
  bool largest = false;
  if (job.is_object() && job.contains("max_batch")) {
    if (!job["max_batch"].is_boolean()) return fail(where + ".max_batch", "wants true or false");
    largest = job["max_batch"].get<bool>();
    job.erase("max_batch");
  }
  auto run = [&]() -> Result<Prediction> {
    if (largest) return BatchSearch(job, catalog, where, folder).run();
    PRECOG_TRY(parsed, parse_request(job, catalog, where, folder));
    return predict(parsed, catalog, dump_after);
  };
  PRECOG_TRY(prediction, run());
  if (largest) job["batch"] = prediction.report.batch;
  if (!prediction.report.memory.fits) prediction.report.fixes = find_fixes(job, prediction.report, catalog, where, folder);
  return prediction;
}

}  // namespace precog
