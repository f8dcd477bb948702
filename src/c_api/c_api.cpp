// include/precog/precog.h over the C++ functions. `guarded` is the edge: it turns results, errors and exceptions into a status
// and a text, so that the functions below it are about JSON only.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <thread>

#include "base/compression.h"
#include "precog/precog.h"
#include "import/import.h"
#include "predict/advise.h"
#include "predict/compare.h"
#include "predict/fit.h"
#include "predict/predict.h"
#include "validate/validate.h"

#ifndef PRECOG_VERSION
#define PRECOG_VERSION "0"
#endif

struct precog_catalog {
  precog::Catalog catalog;
};

namespace precog {
namespace {

struct Answer {
  precog_status status = PRECOG_DONE;
  std::string text;
};

// The command line's --json, byte for byte.
std::string document(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string error_text(const char* code, const std::string& message, const std::vector<Problem>& problems) {
  Json json = {{"code", code}, {"message", message}, {"problems", Json::array()}};
  for (const Problem& problem : problems) json["problems"].push_back({{"where", problem.where}, {"message", problem.message}});
  return document(json);
}

char* copied(const std::string& text) {
  char* out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out) std::memcpy(out, text.c_str(), text.size() + 1);
  return out;
}

Answer answered(const std::function<Result<Answer>()>& work) {
  try {
    auto answer = work();
    if (answer) return std::move(*answer);
    return {PRECOG_WRONG_INPUT, error_text("wrong_input", answer.error().text(), answer.error().problems)};
  } catch (const std::bad_alloc&) {
    return {PRECOG_OUR_BUG, R"({"code": "out_of_memory", "message": "precog ran out of memory", "problems": []})"};
  } catch (const std::exception& error) {
    return {PRECOG_OUR_BUG, error_text("bug", std::string("this is a bug in precog: ") + error.what(), {})};
  } catch (...) {
    return {PRECOG_OUR_BUG, R"({"code": "bug", "message": "this is a bug in precog", "problems": []})"};
  }
}

// Sets *out to what `work` answered; nothing leaves but the status.
precog_status guarded(char** out, const std::function<Result<Answer>()>& work) noexcept {
  if (!out) return PRECOG_WRONG_INPUT;  // nowhere to say why
  *out = nullptr;
  try {
    Answer answer = answered(work);
    *out = copied(answer.text);
    return *out ? answer.status : PRECOG_OUR_BUG;
  } catch (...) {  // even the message found no memory
    return PRECOG_OUR_BUG;
  }
}

Result<Json> request_of(const precog_catalog* catalog, const char* request, std::size_t size, const char* folder) {
  if (!catalog) return fail("catalog", "is NULL; precog_open makes one");
  if (!request) return fail("request", "is NULL; a JSON object is wanted");
  PRECOG_TRY(json, parse_json(std::string_view(request, size), "request"));
  return with_imports(std::move(json), "request", folder ? folder : "");
}

// "precision": a list of what a request's precision may be, or nothing; one counts as a list of one. "all" and "advise" are
// taken out of the request.
Result<CompareOptions> compare_options(Json& request, const Catalog& catalog, const std::filesystem::path& folder, Json& advise_from) {
  CompareOptions options;
  if (!request.is_object()) return options;
  for (const char* key : {"all", "advise"})
    if (request.contains(key) && !request[key].is_boolean() && !(request[key].is_string() && std::string_view(key) == "advise"))
      return fail(std::string("request.") + key, "wants true or false (advise: or the precision to start from)");
  options.all = request.value("all", false);
  advise_from = request.value("advise", Json(false));
  request.erase("all");
  request.erase("advise");
  if (!request.contains("precision") || request["precision"].is_null()) return options;
  Json names = request["precision"];
  if (!names.is_array()) names = Json::array({names});
  if (names.empty()) return fail("request.precision", "is an empty list; leave it out for every precision");
  options.chosen.assign(names.begin(), names.end());
  request["precision"] = "fp32";
  if (auto probe = parse_request(request, catalog, "request", folder); !probe) return tl::unexpected(probe.error());
  if (auto problems = wrong_precisions(request, options, catalog, "request.precision", folder); !problems.empty()) return fail(std::move(problems));
  return options;
}

template <class T>
Json names_of(const std::vector<T>& things) {
  Json names = Json::array();
  for (const T& thing : things) names.push_back(thing.name);
  return names;
}

Result<Json> names_of_kind(const Catalog& catalog, const std::string& kind) {
  if (kind == "gpus") return names_of(catalog.gpus);
  if (kind == "clusters") return names_of(catalog.systems);
  if (kind == "networks") return names_of(catalog.networks);
  if (kind == "hosts") return names_of(catalog.hosts);
  if (kind == "precisions") return names_of(catalog.precisions);
  if (kind == "models") return names_of(catalog.models);
  if (kind == "software") return names_of(catalog.software);
  return fail("kind", "'" + kind.substr(0, 40) + "' is none of gpus, clusters, networks, hosts, precisions, models, software");
}

std::vector<std::string> comma_separated(std::string_view text) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == ',') out.emplace_back();
    else out.back() += c;
  }
  return out;
}

using Packer = std::function<Result<std::string>(std::string_view)>;

precog_status packed(const void* bytes, std::size_t size, void** out, std::size_t* out_size, char** error, const Packer& pack) noexcept {
  if (!error) return PRECOG_WRONG_INPUT;
  if (out) *out = nullptr;
  if (out_size) *out_size = 0;
  precog_status status = guarded(error, [&]() -> Result<Answer> {
    if (!out || !out_size) return fail("out", "is NULL");
    if (!bytes && size > 0) return fail("bytes", "is NULL");
    PRECOG_TRY(result, pack({static_cast<const char*>(bytes), size}));
    *out = std::malloc(result.size() > 0 ? result.size() : 1);
    if (!*out) throw std::bad_alloc();
    std::memcpy(*out, result.data(), result.size());
    *out_size = result.size();
    return Answer{};
  });
  if (status == PRECOG_DONE) {  // no error: say so with NULL rather than with an empty text
    std::free(*error);
    *error = nullptr;
  }
  return status;
}

}  // namespace
}  // namespace precog

using namespace precog;

extern "C" {

int precog_abi_version(void) { return PRECOG_ABI_VERSION; }
const char* precog_version(void) { return PRECOG_VERSION; }

precog_status precog_open(const char* data_dir, precog_catalog** catalog, char** error) {
  if (catalog) *catalog = nullptr;
  precog_status status = guarded(error, [&]() -> Result<Answer> {
    if (!catalog) return fail("catalog", "is NULL");
    if (!data_dir) return fail("data_dir", "is NULL");
    PRECOG_TRY(loaded, load_catalog(data_dir));
    *catalog = new precog_catalog{std::move(loaded)};
    return Answer{};
  });
  if (status == PRECOG_DONE) {
    std::free(*error);
    *error = nullptr;
  }
  return status;
}

void precog_close(precog_catalog* catalog) { delete catalog; }

precog_status precog_predict(const precog_catalog* catalog, const char* request, size_t size, const char* folder, char** answer) {
  return guarded(answer, [&]() -> Result<Answer> {
    PRECOG_TRY(json, request_of(catalog, request, size, folder));
    PRECOG_TRY(prediction, predict_job(json, catalog->catalog, "request", folder ? folder : ""));
    draw_memory(prediction);
    return Answer{prediction.report.memory.fits ? PRECOG_DONE : PRECOG_DOES_NOT_FIT, document(to_json(prediction.report))};
  });
}

precog_status precog_compare(const precog_catalog* catalog, const char* request, size_t size, const char* folder, char** answer) {
  return guarded(answer, [&]() -> Result<Answer> {
    PRECOG_TRY(json, request_of(catalog, request, size, folder));
    const std::filesystem::path base = folder ? folder : "";
    Json from;
    if (json.is_object() && json.contains("imported")) {  // a configuration's own precision is one of those compared, not the only one
      PRECOG_TRY(own, parse_json(std::string_view(request, size), "request"));
      if (!own.contains("precision")) json.erase("precision");
    }
    PRECOG_TRY(options, compare_options(json, catalog->catalog, base, from));
    PRECOG_TRY(comparison, compare_precisions(json, options, catalog->catalog, "request", base));
    if (from.is_string() || from == true) {
      json["precision"] = from.is_string() ? from : Json(advised(comparison).precision);
      PRECOG_TRY(advice, advise(json, comparison.reports, catalog->catalog, "request", base));
      comparison.advice = std::move(advice);
    }
    return Answer{comparison.any_fits() ? PRECOG_DONE : PRECOG_DOES_NOT_FIT, document(to_json(comparison))};
  });
}

precog_status precog_validate(const precog_catalog* catalog, const char* runs, size_t size, const char* name, const char* by,
                              char** answer) {
  return guarded(answer, [&]() -> Result<Answer> {
    if (!catalog) return fail("catalog", "is NULL; precog_open makes one");
    if (!runs || !name) return fail("runs", "is NULL");
    PRECOG_TRY(file, parse_runs(std::string(runs, size), name));
    ValidateOptions options;
    if (by && *by) options.by = comma_separated(by);
    options.jobs = std::max(1u, std::thread::hardware_concurrency());
    auto predictor = [&](const Json& json, const std::string& where) -> Result<Report> {
      PRECOG_TRY(request, parse_request(json, catalog->catalog, where, std::filesystem::path(name).parent_path()));
      PRECOG_TRY(prediction, predict(request, catalog->catalog));
      return std::move(prediction.report);
    };
    return Answer{PRECOG_DONE, document(to_json(validate_runs(file, predictor, options)))};
  });
}

precog_status precog_names(const precog_catalog* catalog, const char* kind, char** answer) {
  return guarded(answer, [&]() -> Result<Answer> {
    if (!catalog) return fail("catalog", "is NULL; precog_open makes one");
    PRECOG_TRY(names, names_of_kind(catalog->catalog, kind ? kind : ""));
    return Answer{PRECOG_DONE, document(Json{{"names", names}})};
  });
}

precog_status precog_compress(const void* bytes, size_t size, int level, void** out, size_t* out_size, char** error) {
  return packed(bytes, size, out, out_size, error, [&](std::string_view text) { return compress(text, level); });
}

precog_status precog_decompress(const void* bytes, size_t size, size_t limit, void** out, size_t* out_size, char** error) {
  return packed(bytes, size, out, out_size, error, [&](std::string_view text) { return decompress(text, limit, "bytes"); });
}

void precog_free(void* memory) { std::free(memory); }

}  // extern "C"
