#include "predict/scale.h"

#include "predict/predict.h"

namespace precog {

Result<ScaleStudy> scale(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder, std::int64_t from, std::int64_t to) {
  ScaleStudy out;
  out.strong = request.contains("global_batch") && !request["global_batch"].is_null();
  Error last;
  bool any = false;
  for (std::int64_t gpus = from; gpus <= to; gpus *= 2) {
    Json one = request;
    // "dgx-h100:8" says how many nodes: here that is what changes.
    Json& cluster = one["cluster"];
    if (cluster.is_string()) cluster = Json{{"name", cluster}};
    if (cluster.is_object() && cluster.contains("name") && cluster["name"].is_string()) {
      const std::string name = cluster["name"].get<std::string>();
      cluster["name"] = name.substr(0, name.find(':'));
    }
    if (cluster.is_object() || cluster.is_null()) cluster["gpus"] = gpus;
    if (one.contains("plan") && one["plan"].is_object()) one["plan"].erase("dp");
    auto parsed = parse_request(one, catalog, where, folder);
    auto predicted = parsed ? predict(*parsed, catalog) : Result<Prediction>(tl::unexpected(parsed.error()));
    ScalePoint& point = out.points.emplace_back();
    point.gpus = gpus;
    if (predicted) {
      point.report = std::move(predicted->report);
      point.dp = parsed->plan.dp;
      any = true;
    } else {
      last = predicted.error();
      if (last.problems.empty()) continue;
      auto [subject, message] = last.problems.front();
      if (subject.starts_with(where)) subject.erase(0, subject.find_first_not_of(".: ", where.size()));  // what it is about, not whose request it is
      point.problem = subject.empty() ? message : subject + ": " + message;
    }
  }
  if (!any) return tl::unexpected(last);
  return out;
}

}  // namespace precog
