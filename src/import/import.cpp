#include "import/import.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "import/formats.h"
#include "import/read_tree.h"

namespace precog {
namespace {

constexpr std::size_t kLargestFile = 4u << 20;  // configurations are written by hand
constexpr int kMostLinks = 3;                   // files that name files

struct Format {
  const char *kind, *title;
  Json (*read)(Settings& s, const ImportContext& context);
};
constexpr Format kFormats[] = {
    {"deepspeed", "DeepSpeed", from_deepspeed}, {"megatron", "Megatron-LM", from_megatron},       {"torchtitan", "torchtitan", from_torchtitan},
    {"accelerate", "Accelerate", from_accelerate}, {"trainer", "Hugging Face Trainer", from_trainer}, {"lightning", "Lightning", from_lightning}};

// Words of a command line that only Megatron's programs take, without their dashes.
constexpr const char* kMegatronWords[] = {"tensor-model-parallel-size", "pipeline-model-parallel-size", "num-layers", "hidden-size", "num-attention-heads", "micro-batch-size", "seq-length", "use-mcore-models"};

int megatron_words(const Json& flags) {
  return static_cast<int>(std::count_if(std::begin(kMegatronWords), std::end(kMegatronWords), [&](const char* word) { return flags.contains(word); }));
}

// YAML of flags ("--num-layers: 24" below MODEL_ARGS) or of their names with underscores: all leaves under the names of flags.
void collect_flags(const Json& tree, Json& out, int depth = 0) {
  for (const auto& [name, value] : tree.items()) {
    if (value.is_object() && depth < 8) {
      if (name != "ENV_VARS") collect_flags(value, out, depth + 1);
      continue;
    }
    std::string flag = name;
    while (flag.starts_with('-')) flag.erase(0, 1);
    std::replace(flag.begin(), flag.end(), '_', '-');
    out[flag] = value;
  }
}

struct Tree {
  Json value;
  std::vector<std::string> programs;
  bool flags = false;  // Megatron's words
};

bool has_line(std::string_view text, bool (*holds)(std::string_view line)) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (holds(line)) return true;
    begin = end + 1;
  }
  return false;
}

// What the text looks like decides how it is read; a wrong guess is an error of that reader's.
Result<Tree> read_tree(std::string_view text, const std::string& where) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return fail(where, "is empty");
  if (text[first] == '{') {
    PRECOG_TRY(json, parse_json(text, where));
    return Tree{std::move(json), {}, false};
  }
  if (text.find('\0') != std::string_view::npos) return fail(where, "is no text");
  const bool yaml_of_flags = has_line(text, [](std::string_view line) { return line.starts_with("--") && line.find(": ") != std::string_view::npos && line.find(": ") < line.find(' ') + 1; });
  if (!yaml_of_flags) {
    ShellFlags flags = parse_flags(text);
    if (megatron_words(flags.flags) >= 2) return Tree{std::move(flags.flags), std::move(flags.programs), true};
  }
  const bool toml = has_line(text, [](std::string_view line) { return line.size() > 2 && line.front() == '[' && line.find(']') != std::string_view::npos && line.find(',') == std::string_view::npos; });
  PRECOG_TRY(tree, toml ? parse_toml(text, where) : parse_yaml(text, where));
  if (!tree.is_object()) return fail(where, "holds no settings: wants a configuration of DeepSpeed, Megatron-LM, torchtitan, Accelerate, the Hugging Face Trainer or Lightning");
  Json flags = Json::object();
  collect_flags(tree, flags);
  if (megatron_words(flags) >= 3) return Tree{std::move(flags), {}, true};
  return Tree{std::move(tree), {}, false};
}

std::string kind_of(const Tree& tree) {
  const Json& t = tree.value;
  const auto object = [&](const char* key) { return t.contains(key) && t[key].is_object(); };
  const auto any = [&](std::initializer_list<const char*> keys) { return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return t.contains(key); }); };
  if (tree.flags) return "megatron";
  if (object("trainer")) return "lightning";
  if (object("training") && (any({"parallelism", "job", "activation_checkpoint"}) || (object("model") && t["model"].contains("flavor")))) return "torchtitan";
  if (any({"compute_environment", "distributed_type"})) return "accelerate";
  if (any({"per_device_train_batch_size", "output_dir", "model_name_or_path", "gradient_checkpointing", "num_train_epochs"})) return "trainer";
  if (any({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping"})) return "deepspeed";
  if ((object("fp16") && t["fp16"].contains("enabled")) || (object("bf16") && t["bf16"].contains("enabled"))) return "deepspeed";
  if (any({"deepspeed", "fsdp", "bf16", "fp16", "optim"})) return "trainer";
  return "";
}

std::string titles() {
  std::vector<std::string> out;
  for (const Format& format : kFormats) out.push_back(fmt::format("{} ({})", format.kind, format.title));
  return join(out, ", ");
}

Result<Imported> imported(const Tree& tree, const Format& format, const std::string& where, const ImportContext& context) {
  Imported out{.kind = format.kind, .title = format.title};
  const bool of_flags = std::string_view(format.kind) == "megatron";
  Json flags = Json::object();
  if (of_flags && !tree.flags) collect_flags(tree.value, flags);
  Settings settings(of_flags && !tree.flags ? flags : tree.value, where, of_flags ? "--" : "");
  out.request = format.read(settings, context);
  if (!settings.problems().empty()) return fail(std::move(settings.problems()));
  out.notes = settings.notes();
  out.not_taken = settings.not_taken();
  out.quiet = settings.quiet();
  out.said_by = settings.said_by();
  return out;
}

// Bytes that are no UTF-8 (a comment in another encoding) are replaced: what they say is no setting's name.
std::string as_utf8(std::string_view text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

Result<Imported> import_at(std::string_view bytes, const std::string& where, std::string kind, const ImportContext& given) {
  const std::string text = as_utf8(bytes);
  const bool forced_flags = kind == "megatron";
  auto tree = read_tree(text, where);
  if (forced_flags && (!tree || !tree->flags)) {  // few flags, and none that only Megatron has
    ShellFlags flags = parse_flags(text);
    if (!flags.flags.empty()) tree = Tree{std::move(flags.flags), std::move(flags.programs), true};
  }
  if (!tree) return tl::unexpected(tree.error());
  if (kind.empty()) kind = kind_of(*tree);
  if (kind.empty()) return fail(where, fmt::format("is no configuration that is known: none of the usual keys; say which it is with --from-kind: {}", titles()));
  const auto format = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& one) { return one.kind == kind; });
  if (format == std::end(kFormats)) return fail("from_kind", unknown_name("kind of configuration", kind, import_kinds(), "precog predict --help"));
  if (tree->flags && kind != "megatron") return fail(where, fmt::format("holds flags of a command line, as Megatron-LM's, and no {}", format->title));
  ImportContext context = given;
  context.programs = tree->programs;
  return imported(*tree, *format, where, context);
}

Result<Imported> import_path(const std::filesystem::path& path, const std::string& shown, const std::string& kind, ImportContext context) {
  PRECOG_TRY(text, read_text_file(path, kLargestFile));
  context.folder = path.parent_path();
  return import_at(text, shown, kind, context);
}

// A cluster that says how many GPUs or nodes there are: "dgx-h100:8".
bool has_count(const Json& cluster) {
  return cluster.is_string() ? cluster.get_ref<const std::string&>().find(':') != std::string::npos
                             : cluster.is_object() && cluster.value("name", Json()).dump().find(':') != std::string::npos;
}

// What the command line changes, other fields of the file follow.
void drop_overridden(const Json& own, Json& base) {
  const auto gives = [&](const char* key) { return own.contains(key) && !own[key].is_null(); };
  const auto in = [&](const char* outer, const char* key) { return own.contains(outer) && own[outer].is_object() && own[outer].contains(key); };
  if (gives("micro_batches")) base.erase("global_batch");
  else if (gives("global_batch") || (gives("batch") && base.contains("global_batch"))) base.erase("micro_batches");
  if (gives("cluster") && (own["cluster"].is_string() || (own["cluster"].is_object() && own["cluster"].value("name", Json()).dump().find(':') != std::string::npos))) base.erase("cluster");
  if (gives("model")) {
    const bool depth_only = own["model"].is_object() && own["model"].size() == 1 && own["model"].contains("layers");
    if (!depth_only) base.erase("model"), base.erase("pad_vocabulary");
    else if (base.contains("model") && base["model"].is_string()) base["model"] = {{"name", base["model"]}};
  }
  if (gives("run"))
    for (const char* length : {"tokens", "samples", "epochs", "steps"})
      if (in("run", length)) base.erase("run");
  if (gives("recompute")) base.erase("recompute_layers"), base.erase("recompute_every");
  if (!base.contains("plan")) return;
  Json& plan = base["plan"];
  const auto drop = [&](const char* cause, std::initializer_list<const char*> keys) {
    if (in("plan", cause))
      for (const char* key : keys) plan.erase(key);
  };
  drop("tp", {"sp", "tp_overlap", "tp_scatter_fp8", "etp"});
  drop("pp", {"vpp", "schedule", "stage_layers"});
  drop("fsdp", {"shard_size", "replicate", "offload", "offload_layers", "overlap_gather", "overlap_reduce", "bucket_mb", "first_bucket_mb", "bucket_views", "find_unused", "zero3", "wrap", "backward_prefetch", "forward_prefetch", "limit_all_gathers"});
  drop("shard_size", {"replicate"});
  drop("replicate", {"shard_size"});
  if (in("cluster", "gpus") || in("plan", "tp") || in("plan", "pp") || in("plan", "cp")) plan.erase("dp");
}

bool said_in_plan(const Json& request, const char* key) { return request.contains("plan") && request["plan"].is_object() && request["plan"].contains(key); }

// Where two files say the same field differently.
void contradictions(const Json& a, const Json& b, const std::string& at, const std::string& file, std::vector<Problem>& problems) {
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) continue;
    const std::string path = at.empty() ? key : at + "." + key;
    if (a[key].is_object() && value.is_object()) contradictions(a[key], value, path, file, problems);
    else if (a[key] != value) problems.push_back({file, fmt::format("makes {} {}, and a file before it {}; leave one out, or say it in the request", path, value.dump().substr(0, 60), a[key].dump().substr(0, 60))});
  }
}

}  // namespace

const std::vector<std::string>& import_kinds() {
  static const std::vector<std::string> kKinds = [] {
    std::vector<std::string> out;
    for (const Format& format : kFormats) out.emplace_back(format.kind);
    return out;
  }();
  return kKinds;
}

bool ImportContext::said(std::string_view field) const {
  const Json* at = &request;
  for (std::size_t begin = 0; begin <= field.size();) {
    const std::size_t end = std::min(field.find('.', begin), field.size());
    const std::string key(field.substr(begin, end - begin));
    if (!at->is_object() || !at->contains(key)) return false;
    at = &(*at)[key];
    begin = end + 1;
  }
  return !at->is_null();
}

bool ImportContext::gpus_said() const { return said("cluster.gpus") || (said("cluster") && has_count(request["cluster"])); }

Result<Imported> import_text(std::string_view text, const std::string& where, const std::string& kind, bool model_wanted, const std::filesystem::path& folder,
                             const Json& request) {
  return import_at(text, where, kind, {.model_wanted = model_wanted, .folder = folder, .request = request});
}

Result<Imported> import_file(const std::filesystem::path& path, const std::string& shown, const std::string& kind, bool model_wanted) {
  return import_path(path, shown, kind, {.model_wanted = model_wanted});
}

void fill_in(Json& into, const Json& from) {
  for (const auto& [key, value] : from.items()) {
    if (!into.contains(key)) into[key] = value;
    else if (into[key].is_object() && value.is_object()) fill_in(into[key], value);
  }
}

std::string sharding_said(const Json& plan) { return plan.is_object() ? plan.value("fsdp", "none") : "none"; }

Json linked_deepspeed(Settings& s, std::string_view key, const ImportContext& context) {
  const auto take = [&](Result<Imported> made, const std::string& called) -> Json {
    if (!made) {
      for (const Problem& problem : made.error().problems) s.problem(key, (problem.where.empty() ? "" : problem.where + ": ") + problem.message);
      return Json::object();
    }
    for (const std::string& note : made->notes) s.note(called + ": " + note);
    for (const auto& [field, name] : made->said_by) s.said_by(field, fmt::format("{} ({})", name, called));
    if (!made->not_taken.empty()) s.note(fmt::format("{}: not taken over: {}", called, join(made->not_taken, ", ")));
    return made->request;
  };
  ImportContext below = context;
  below.linked = true;
  if (const Json* inside = s.tree(key)) return take(imported({*inside, {}, false}, kFormats[0], s.file() + ": " + std::string(key), below), std::string(key));
  const Json* value = s.raw(key);
  if (!value || *value == false) return Json::object();
  if (!value->is_string()) {
    s.problem(key, "wants a path or an object");
    return Json::object();
  }
  if (context.depth >= kMostLinks) {
    s.problem(key, "names a file that names a file that names a file: too many");
    return Json::object();
  }
  ++below.depth;
  const std::string path = value->get<std::string>();
  return take(import_path(context.folder / path, path, "deepspeed", below), path);
}

void set_optimizer(Settings& s, std::string_view key, Json& request) {
  const auto said = s.text(key);
  if (!said) return;
  std::string name = normalised_name(said->substr(said->rfind('.') == std::string::npos ? 0 : said->rfind('.') + 1));
  if (name == "adamw" || name == "fusedadam" || name == "deepspeedcpuadam") request["optimizer"] = "adamw";
  else if (name == "adam") request["optimizer"] = "adam";
  else if (name == "sgd") request["optimizer"] = "sgd";
  else if (name == "lamb" || name == "fusedlamb") request["optimizer"] = "lamb";
  else s.problem(key, fmt::format("is '{}'; modelled: Adam, AdamW, SGD, Lamb", said->substr(0, 60)));
}

Result<Json> with_imports(Json request, const std::string& where, const std::filesystem::path& folder) {
  if (!request.is_object() || (!request.contains("from") && !request.contains("from_kind"))) return request;
  const Json from = request.value("from", Json()), kind = request.value("from_kind", Json(""));
  request.erase("from");
  request.erase("from_kind");
  const auto at = [&](const char* key) { return where.empty() ? std::string(key) : where + "." + key; };
  std::vector<std::string> files;
  if (from.is_string()) files.push_back(from.get<std::string>());
  if (from.is_array())
    for (const Json& one : from)
      if (one.is_string()) files.push_back(one.get<std::string>());
  if (files.empty() || (from.is_array() && files.size() != from.size())) return fail(at("from"), "wants a configuration's path, or a list of paths");
  if (!kind.is_string()) return fail(at("from_kind"), fmt::format("wants one of {}", join(import_kinds(), ", ")));

  Json base = Json::object(), notes = Json::array();
  std::vector<Problem> problems;
  const bool depth_only = request.contains("model") && request["model"].is_object() && request["model"].size() == 1 && request["model"].contains("layers");
  const bool model_wanted = !request.contains("model") || request["model"].is_null() || depth_only;
  for (const std::string& file : files) {
    const auto text = read_text_file(folder / file, kLargestFile);
    if (!text) {
      problems.push_back({at("from"), text.error().text()});
      continue;
    }
    auto made = import_text(*text, file, kind.get<std::string>(), model_wanted, (folder / file).parent_path(), request);
    if (!made) {
      problems.insert(problems.end(), made.error().problems.begin(), made.error().problems.end());
      continue;
    }
    Json candidate = made->request, kept = base;
    drop_overridden(request, candidate);  // what the request itself says is no contradiction
    drop_overridden(request, kept);
    for (const auto& [key, value] : request.items()) candidate.erase(key == "plan" || key == "cluster" || key == "run" ? "" : key);
    contradictions(kept, candidate, "", file, problems);
    fill_in(base, made->request);
    for (const auto& [key, value] : request.items()) made->said_by.erase(key);
    notes.push_back({{"file", file}, {"kind", made->kind}, {"title", made->title}, {"notes", made->notes}, {"not_taken", made->not_taken}, {"quiet", made->quiet}});
    if (!made->said_by.empty()) notes.back()["said_by"] = made->said_by;
    if (made->request.contains("plan") && made->request["plan"].contains("dp") && candidate.contains("plan") && !candidate["plan"].contains("dp") && !said_in_plan(request, "dp"))
      notes.back()["notes"].push_back(fmt::format("its data parallelism of {} gives way to the GPUs and degrees that are given beside it", made->request["plan"]["dp"].dump()));
  }
  if (!problems.empty()) return fail(std::move(problems));

  drop_overridden(request, base);
  Json out = request;
  if (out.contains("model") && out["model"].is_null()) out.erase("model");
  if (out.contains("cluster") && out["cluster"].is_string() && base.contains("cluster")) out["cluster"] = {{"name", out["cluster"]}};
  fill_in(out, base);
  // Degrees that are all said make the number of GPUs.
  const Json plan = out.value("plan", Json::object());
  const bool counted = out.contains("cluster") && (out["cluster"].is_string() || out["cluster"].contains("gpus") || out["cluster"].value("name", Json()).dump().find(':') != std::string::npos);
  if (plan.is_object() && plan.contains("dp") && plan["dp"].is_number_integer() && !counted) {
    double gpus = plan["dp"].get<double>();
    for (const char* key : {"tp", "pp", "cp"})
      if (plan.contains(key) && plan[key].is_number_integer()) gpus *= plan[key].get<double>();
    if (gpus >= 1 && gpus <= 1e6) out["cluster"]["gpus"] = static_cast<std::int64_t>(gpus);
  }
  out["imported"] = notes;
  return out;
}

std::string batches_said_by(const Json& imported) {
  std::vector<std::string> out;
  if (!imported.is_array()) return "";
  for (const Json& one : imported)
    if (one.is_object() && one.contains("file") && one["file"].is_string() && one.contains("said_by") && one["said_by"].is_object())
      for (const auto& [field, key] : one["said_by"].items())
        if (key.is_string()) out.push_back(fmt::format("{} is {} of {}", field, key.get<std::string>(), one["file"].get<std::string>()));
  return join(out, ", ");
}

std::vector<std::string> import_notes(const Json& imported) {
  std::vector<std::string> out;
  if (!imported.is_array()) return out;
  for (const Json& one : imported) {
    if (!one.is_object() || !one.contains("file") || !one["file"].is_string()) continue;
    const std::string file = one["file"].get<std::string>();
    std::vector<std::string> names;
    for (const char* list : {"notes", "not_taken"})
      if (one.contains(list) && one[list].is_array())
        for (const Json& text : one[list]) {
          if (!text.is_string()) continue;
          if (std::string_view(list) == "notes") out.push_back(file + ": " + text.get<std::string>());
          else names.push_back(text.get<std::string>());
        }
    if (!names.empty()) out.push_back(fmt::format("{}: not taken over: {}", file, join(names, ", ")));
  }
  return out;
}

}  // namespace precog
