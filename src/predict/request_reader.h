// The reader behind parse_request, for the files request_*.cpp only: one object that goes over the request once, field by field, and
// gathers every problem on its way. Each file reads one part; request.cpp says in which order.
#pragma once

#include <map>

#include <fmt/format.h>

#include "base/text.h"
#include "predict/request.h"

namespace precog {

class RequestReader {
 public:
  RequestReader(const Json& json, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder,
                std::int64_t default_batch, std::shared_ptr<const ModelSource> model)
      : known_model_(std::move(model)), catalog_(catalog), folder_(folder), default_batch_(default_batch), root_(json, where, problems_) {
    request_.where = where;
  }

  Result<Request> read();

 private:
  static constexpr std::int64_t kMaxGpus = 1'000'000;
  static constexpr std::int64_t kMaxBatch = 1'000'000'000;  // rays, points and rows of tables come in millions
  static constexpr std::int64_t kMaxMicroBatches = 1'000'000;
  static constexpr std::int64_t kMaxGlobalBatch = 1'000'000'000'000;
  static constexpr std::int64_t kMaxStages = 4096;
  // Identical GPUs do not run at one speed, and a synchronous step ends with the slowest. Their standard deviation, unless the request
  // says its own: Sinha et al. (SC 2022) found 8% between the ends of the boxplots' whiskers on five large systems, most of V100;
  // of a normal distribution that is 5.4 of them (8% is from memory of the paper; four values had been tried on published rows). 0: all alike. Too high: large jobs too slow, by 0.015 x 3.2 at a thousand GPUs.
  static constexpr double kGpuVariation = 0.015;

  // Looks a name up and reports under the field it came from.
  template <class T>
  const T* look_up(JsonReader& reader, std::string_view key, const Result<const T*>& found) {
    if (found) return *found;
    reader.problem(key, found.error().text());
    return nullptr;
  }

  // request_model.cpp
  void read_model();
  void accept(std::string_view key, std::int64_t& size, std::int64_t own, bool fixed);
  void take(JsonReader& reader, std::string_view key, Result<ModelSource> source);
  void read_named(JsonReader& reader, std::string_view key, const std::string& name);
  void read_source();

  // request_cluster.cpp
  const SystemSpec* named_system(JsonReader& reader, std::string_view key, std::string name, std::optional<std::int64_t>& nodes);
  void read_cluster();

  // request_plan.cpp
  void read_plan();
  void check_experts(JsonReader& plan, std::int64_t dp);
  std::int64_t read_pipeline(JsonReader& reader);
  void check_micro_batches();
  std::int64_t read_split_layers(JsonReader& plan);

  // request_replicas.cpp
  void read_replicas(JsonReader& plan, std::int64_t dp);
  void read_module_gathers(JsonReader& plan);
  void read_zero_plus_plus(JsonReader& zero3, ModuleGathers& out);
  void read_unit_gathers(JsonReader& plan);
  void read_offload(JsonReader& plan, bool shards, std::int64_t dp);
  void settle_sharding();
  void settle_offload();

  // request_precision.cpp
  static Result<Json> rule_of(const std::string& text);
  void read_precision();
  std::optional<Json> recipe_of(const Json& given);
  void add_overrides(Json& recipe, const Json& overrides);
  void own_recipe(Json recipe, Json as_given);
  std::string supported_names() const;

  // request_training.cpp
  void read_batch();
  void read_training();
  void check_lamb();
  void read_recompute();
  void check_layers(JsonReader& reader, std::string_view key, std::int64_t count);
  static std::vector<std::string> joined_parts(std::string_view text);
  static bool read_parts(std::string_view text, RecomputedParts& out);
  static std::string parts_text(const RecomputedParts& parts);
  void read_software();

  // request_surroundings.cpp
  void read_host();
  void read_input();
  void read_profile();
  void read_run();

  // request_echo.cpp
  void echo();

  template <class T>
  T choice(JsonReader& reader, std::string_view key, std::initializer_list<std::pair<const char*, T>> known, T fallback) {
    auto text = reader.text(key);
    if (!text) return fallback;
    std::vector<std::string> names;
    for (const auto& [name, value] : known) {
      if (normalised_name(*text) == normalised_name(name)) return value;
      names.emplace_back(name);
    }
    reader.problem(key, fmt::format("is '{}'; known: {}", text->substr(0, 80), join(names, ", ")));
    return fallback;
  }

  std::shared_ptr<const ModelSource> known_model_;  // the request's, where somebody has read it before
  const Catalog& catalog_;
  std::filesystem::path folder_;
  std::int64_t default_batch_ = 0;
  bool sharding_given_ = false, nics_given_ = false, jitter_given_ = false;
  std::error_code ignored_;
  std::vector<Problem> problems_;
  JsonReader root_;
  Request request_;
};

}  // namespace precog
