#include "job_flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "base/text.h"
#include "import/import.h"

namespace precog::cli {
namespace {

constexpr const char* kModel = "The job";
constexpr const char* kHardware = "The hardware";
constexpr const char* kPlan = "The plan";
constexpr const char* kRun = "The run";

constexpr JobFlag kJobFlags[] = {
    {"--model", "/model", ValueKind::text, "NAME|PATH", kModel, "model (precog models), or its file", "models"},
    {"--layers", "/layers", ValueKind::whole, "N", kModel, "another depth than the model's own", ""},
    {"--from", "/from", ValueKind::list, "FILE", kModel, "a framework's configuration (repeatable)", ""},
    {"--from-kind", "/from_kind", ValueKind::text, "NAME", kModel, "whose file --from is; told from it else", "deepspeed|megatron|torchtitan|accelerate|trainer|lightning"},
    {"--batch", "/batch", ValueKind::whole, "N", kModel, "samples per GPU and micro-batch", ""},
    {"--seq", "/seq", ValueKind::whole, "N", kModel, "sequence length", ""},
    {"--src-seq", "/src_seq", ValueKind::whole, "N", kModel, "the encoder's sequence length", ""},
    {"--global-batch", "/global_batch", ValueKind::whole, "N", kModel, "samples per step, all GPUs", ""},
    {"--micro-batches", "/micro_batches", ValueKind::whole, "N", kModel, "per step and replica", ""},
    {"--precision", "/precision", ValueKind::text, "NAME", kModel, "a precision, A+PART, or FILE.json", "precisions"},
    {"--override", "/overrides", ValueKind::list, "PATTERN=TYPE", kModel, "lm_head=fp32, op:softmax=bf16 (repeat)", ""},
    {"--mode", "/mode", ValueKind::text, "NAME", kModel, "eager, compile, compile-cudagraphs", "eager|compile|compile-cudagraphs"},
    {"--optimizer", "/optimizer", ValueKind::text, "NAME", kModel, "adamw, adam, sgd, sgd-momentum, lamb", "adamw|adam|sgd|sgd-momentum|lamb"},
    {"--optimizer-impl", "/optimizer_impl", ValueKind::text, "NAME", kModel, "foreach, fused, for-loop", "foreach|fused|for-loop"},
    {"--clip-grad-norm", "/clip_grad_norm", ValueKind::number, "NORM", kModel, "clip the gradients' norm", ""},
    {"--recompute", "/recompute", ValueKind::text, "NAME", kModel, "none, selective, full, per-op, norm+mlp+..", "none|selective|full|per-op|up-projections|norm|activation|mlp|qkv|core|attention"},
    {"--recompute-layers", "/recompute_layers", ValueKind::whole, "N", kModel, "only the first N of a stage", ""},
    {"--recompute-every", "/recompute_every", ValueKind::whole, "N", kModel, "only every Nth layer", ""},
    {"--loss-chunks", "/loss_chunks", ValueKind::whole, "N", kModel, "head and loss in N pieces, in place", ""},
    {"--allocator", "/allocator", ValueKind::text, "NAME", kModel, "caching, expandable, planned", "caching|expandable|planned"},
    {"--memory-format", "/memory_format", ValueKind::text, "NAME", kModel, "contiguous, channels_last", "contiguous|channels_last"},
    {"--attention", "/attention", ValueKind::text, "NAME", kModel, "sdpa, sdpa-causal, flash, flash1, eager", "sdpa|sdpa-causal|flash|flash1|eager"},
    {"--stack", "/stack", ValueKind::text, "NAME", kModel, "whose kernels: pytorch, megatron, te", "pytorch|megatron|te"},
    {"--pad-vocabulary", "/pad_vocabulary", ValueKind::whole, "N", kModel, "vocabulary to a multiple of N", ""},
    {"--frozen", "/frozen", ValueKind::list, "PATTERN", kModel, "parameters not trained (repeatable)", ""},
    {"--software", "/software", ValueKind::text, "NAME", kModel, "framework version (precog software)", "software"},
    {"--gpu", "/cluster/gpu", ValueKind::text, "NAME", kHardware, "GPU (precog gpus)", "gpus"},
    {"--gpus", "/cluster/gpus", ValueKind::whole, "N", kHardware, "how many GPUs", ""},
    {"--gpus-per-node", "/cluster/gpus_per_node", ValueKind::whole, "N", kHardware, "GPUs in one node", ""},
    {"--network", "/cluster/network", ValueKind::text, "NAME", kHardware, "between nodes (precog networks)", "networks"},
    {"--cluster", "/cluster/name", ValueKind::text, "NAME[:NODES]", kHardware, "a known system: dgx-h100:8", "clusters"},
    {"--host", "/host", ValueKind::text, "NAME|FILE", kHardware, "CPU side (precog hosts), or its file", "hosts"},
    {"--input-seconds", "/input/seconds_per_batch", ValueKind::number, "S", kHardware, "one worker's time for one batch", ""},
    {"--input-workers", "/input/workers", ValueKind::whole, "N", kHardware, "data loader's processes; 0: the loop", ""},
    {"--jitter", "/cluster/jitter", ValueKind::number, "SIGMA", kHardware, "a rank's step varies by so much", ""},
    {"--profile", "/profile", ValueKind::text, "FILE|none", kHardware, "costs fitted by precog calibrate", ""},
    {"--allow-emulated", "/allow_emulated", ValueKind::truth, "", kHardware, "precisions without hardware too", ""},
    {"--dp", "/plan/dp", ValueKind::whole, "N", kPlan, "data-parallel replicas", ""},
    {"--fsdp", "/plan/fsdp", ValueKind::text, "NAME", kPlan, "none, zero1, zero2, zero3, full, hybrid",
     "none|zero1|zero2|zero3|full|hybrid"},
    {"--shard-size", "/plan/shard_size", ValueKind::whole, "N", kPlan, "ranks that share one copy (hybrid)", ""},
    {"--offload", "/plan/offload", ValueKind::text, "NAME", kPlan, "optimizer (ZeRO-Offload), states, ..", "none|optimizer|states|master|parameters|activations"},
    {"--offload-layers", "/plan/offload_layers", ValueKind::whole, "N", kPlan, "activations of the first N layers", ""},
    {"--offload-fraction", "/plan/offload_fraction", ValueKind::number, "X", kPlan, "of the optimizer, from 0 to 1", ""},
    {"--bucket-views", "/plan/bucket_views", ValueKind::truth, "", kPlan, "gradients live in DDP's buckets", ""},
    {"--secondary-ranks", "/plan/zero3/secondary_ranks", ValueKind::whole, "N", kPlan, "ZeRO++: ranks of a second copy", ""},
    {"--tp", "/plan/tp", ValueKind::whole, "N", kPlan, "tensor-parallel degree", ""},
    {"--sp", "/plan/sp", ValueKind::truth, "", kPlan, "sequence parallelism", ""},
    {"--pp", "/plan/pp", ValueKind::whole, "N", kPlan, "pipeline stages", ""},
    {"--vpp", "/plan/vpp", ValueKind::whole, "N", kPlan, "virtual stages per GPU", ""},
    {"--schedule", "/plan/schedule", ValueKind::text, "NAME", kPlan, "gpipe, 1f1b, interleaved, zb, zbv, dualpipe", "gpipe|1f1b|interleaved|zb|zbv|dualpipe"},
    {"--cp", "/plan/cp", ValueKind::whole, "N", kPlan, "context-parallel degree", ""},
    {"--cp-exchange", "/plan/cp_exchange", ValueKind::text, "NAME", kPlan, "ring, all_to_all (Ulysses)", "ring|all_to_all|ulysses"},
    {"--ep", "/plan/ep", ValueKind::whole, "N", kPlan, "expert-parallel degree", ""},
    {"--etp", "/plan/etp", ValueKind::whole, "N", kPlan, "GPUs that share each expert", ""},
    {"--tokens", "/run/tokens", ValueKind::number, "N", kRun, "train on so many tokens", ""},
    {"--samples", "/run/samples", ValueKind::number, "N", kRun, "train on so many samples", ""},
    {"--epochs", "/run/epochs", ValueKind::number, "N", kRun, "train for so many epochs", ""},
    {"--dataset-samples", "/run/dataset_samples", ValueKind::number, "N", kRun, "samples of one epoch", ""},
    {"--steps", "/run/steps", ValueKind::number, "N", kRun, "train for so many steps", ""},
    {"--mtbf", "/run/mtbf_hours", ValueKind::number, "HOURS", kRun, "between failures of one GPU", ""},
    {"--checkpoint", "/run/checkpoint_s", ValueKind::number, "S", kRun, "a checkpoint stops training so long", ""},
    {"--restart", "/run/restart_s", ValueKind::number, "S", kRun, "a failure stops training so long", ""},
    {"--price", "/price_usd_per_gpu_hour", ValueKind::number, "USD", kRun, "USD per GPU-hour", ""},
};

const std::string* given(const Arguments& arguments, const char* flag) {
  auto it = arguments.flags.find(flag);
  return it == arguments.flags.end() ? nullptr : &it->second;
}

std::string shown(const std::string& text) { return text.size() <= 40 ? text : text.substr(0, 37) + "..."; }

Result<Json> flag_value(const JobFlag& flag, const std::string& text) {
  switch (flag.kind) {
    case ValueKind::text:
      if (text.empty()) return fail(flag.flag, fmt::format("is empty; it wants {}", flag.value));
      return Json(text);
    case ValueKind::whole:
      return whole_number(text, flag.flag).map([](std::int64_t value) { return Json(value); });
    case ValueKind::number:
      return any_number(text, flag.flag).map([](double value) { return Json(value); });
    case ValueKind::truth:
      if (text == "true" || text == "false") return Json(text == "true");
      return fail(flag.flag, fmt::format("is '{}'; it takes no value, or true or false", shown(text)));
    case ValueKind::list: {
      Json list = Json::array();
      for (std::size_t begin = 0; begin < text.size();) {  // joined by line ends where the command line was read
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        list.push_back(text.substr(begin, end - begin));
        begin = end + 1;
      }
      return list;
    }
  }
  return Json(nullptr);
}

// Where a file says "cluster": "dgx-h100:8" or "model": "bert-large", make room for fields beside the name.
void make_object(Json& field) {
  if (field.is_string()) {
    Json name = field;
    field = Json::object();
    field["name"] = std::move(name);
  }
}

// What a flag sets, as messages call it: "cluster.gpus".
std::string field_of(const JobFlag& flag) {
  std::string field = flag.pointer == std::string("/layers") ? "model.layers" : flag.pointer + 1;
  std::replace(field.begin(), field.end(), '/', '.');
  return field;
}

// The field of "request.batch", "job.json: batch" or "batch".
std::string field_named(const std::string& where, const std::string& request) {
  for (const std::string& before : {request + ".", request + ": "})
    if (where.starts_with(before)) return where.substr(before.size());
  return where;
}

// Fields that a message speaks of, as the flags they are. Plain words (batch, tokens) are the same in both.
std::string flags_named_in(const std::string& message) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' || c == '/'; };
  std::string out;
  for (std::size_t begin = 0; begin < message.size();) {
    std::size_t end = begin;
    while (end < message.size() && is_part(message[end])) ++end;
    std::string word = message.substr(begin, end - begin);
    if (word.find_first_of("_.") != std::string::npos)
      for (const JobFlag& flag : kJobFlags)
        if (const std::string field = field_of(flag); word == field || (word.find('_') != std::string::npos && field.ends_with("." + word))) word = flag.flag;
    out += word;
    if (end < message.size()) out += message[end++];
    begin = end;
  }
  return out;
}

constexpr const char* kStandardInput = "standard input";

Result<Json> read_standard_input() {
  std::string text;
  char piece[1 << 16];
  while (text.size() <= kMaxInputFileBytes)
    if (const std::size_t read = std::fread(piece, 1, sizeof piece, stdin); read > 0) text.append(piece, read);
    else break;
  if (std::ferror(stdin)) return fail(kStandardInput, "cannot be read");
  if (text.size() > kMaxInputFileBytes) return fail(kStandardInput, fmt::format("is more than {} MB, the largest accepted", kMaxInputFileBytes >> 20));
  if (text.empty()) return fail(kStandardInput, "is empty; it wants a request such as {\"model\": ..., \"batch\": ...}");
  return parse_json(text, kStandardInput);
}

Result<Json> read_request(const std::string& path) {
  if (path == "-") return read_standard_input();
  std::error_code ignored;
  const bool a_name = path.find_first_of("./") == std::string::npos && !std::filesystem::exists(path, ignored);
  if (a_name) return fail(shown(path), fmt::format("no such file; a model is given as --model {}", shown(path)));
  return read_json_file(path);
}

}  // namespace

std::span<const JobFlag> job_flags() { return kJobFlags; }

Result<double> any_number(const std::string& text, const std::string& where) {
  double value = 0;
  const char* end = text.data() + text.size();
  auto [rest, status] = std::from_chars(text.data(), end, value);
  if (status == std::errc::result_out_of_range)
    return fail(where, fmt::format("'{}' is beyond every number this could be", shown(text)));
  if (status != std::errc{} || rest != end || !std::isfinite(value))
    return fail(where, fmt::format("'{}' is not a number, such as 0.5 or 1e12", shown(text)));
  return value;
}

Result<std::int64_t> whole_number(const std::string& text, const std::string& where) {
  std::int64_t whole = 0;
  const char* end = text.data() + text.size();
  auto [rest, status] = std::from_chars(text.data(), end, whole);
  if (status == std::errc{} && rest == end) return whole;
  if (status == std::errc::result_out_of_range)
    return fail(where, fmt::format("'{}' is beyond every number this could be", shown(text)));
  auto number = any_number(text, where);
  if (!number || *number != std::floor(*number)) return fail(where, fmt::format("'{}' is not a whole number, such as 8 or 1e6", shown(text)));
  if (std::abs(*number) > 9e15) return fail(where, fmt::format("'{}' is beyond every number this could be", shown(text)));
  return static_cast<std::int64_t>(*number);
}

std::string request_name(const Arguments& arguments) {
  if (arguments.job_file == "-") return kStandardInput;
  return arguments.job_file.empty() ? "request" : arguments.job_file;
}

std::filesystem::path request_folder(const Arguments& arguments) {
  if (arguments.job_file.empty() || given(arguments, "--model")) return {};
  return std::filesystem::path(arguments.job_file).parent_path();
}

Result<Json> request_json(const Arguments& arguments) {
  Json request = Json::object();
  if (!arguments.job_file.empty()) {
    PRECOG_TRY(file, read_request(arguments.job_file));
    if (!file.is_object()) return fail(request_name(arguments), "wants an object: a request such as {\"model\": ..., \"batch\": ...}");
    request = std::move(file);
  }
  std::vector<Problem> problems;
  // A named cluster replaces whatever the file describes; a length of the run replaces the file's.
  if (given(arguments, "--cluster")) request.erase("cluster");
  for (const char* length : {"--tokens", "--samples", "--epochs", "--steps"})
    if (given(arguments, length) && request.contains("run") && request["run"].is_object())
      for (const char* key : {"tokens", "samples", "epochs", "steps"}) request["run"].erase(key);
  for (const JobFlag& flag : kJobFlags) {
    const std::string* text = given(arguments, flag.flag);
    if (!text) continue;
    auto value = flag_value(flag, *text);
    if (!value) {
      problems.insert(problems.end(), value.error().problems.begin(), value.error().problems.end());
      continue;
    }
    std::string pointer = flag.pointer;
    if (pointer == "/layers") {
      make_object(request["model"]);
      pointer = "/model/layers";
    } else if (pointer == "/model" && request.contains("model") && request["model"].is_object()) {
      request["model"] = nullptr;
    }
    Json* place = &request;
    std::size_t begin = 1, slash = pointer.find('/', 1);
    for (; slash != std::string::npos && place; begin = slash + 1, slash = pointer.find('/', begin)) {  // the objects that hold the field
      Json& outer = (*place)[pointer.substr(begin, slash - begin)];
      if (pointer.rfind("/cluster/", 0) == 0) make_object(outer);
      place = outer.is_object() || outer.is_null() ? &outer : nullptr;
    }
    if (!place) {
      std::string outer = pointer.substr(1, begin - 2);
      std::replace(outer.begin(), outer.end(), '/', '.');
      problems.push_back({request_name(arguments), fmt::format("\"{}\" must be an object for {} to override a part of it", outer, flag.flag)});
      continue;
    }
    (*place)[pointer.substr(begin)] = *value;
  }
  if (!problems.empty()) return fail(std::move(problems));
  auto whole = with_imports(std::move(request), request_name(arguments), given(arguments, "--from") ? std::filesystem::path() : std::filesystem::path(arguments.job_file).parent_path());
  if (!whole) return tl::unexpected(with_flag_names(whole.error(), arguments));
  return whole;
}

Error with_flag_names(Error error, const Arguments& arguments) {
  const bool flags_alone = arguments.job_file.empty();  // then what is missing is a flag too
  for (Problem& problem : error.problems) {
    const std::string field = field_named(problem.where, request_name(arguments));
    if (flags_alone) problem.message = flags_named_in(problem.message);
    if (flags_alone && field == "cluster" && !given(arguments, "--gpu") && !given(arguments, "--cluster")) {
      problem = {"--gpu", "is missing: a name from `precog gpus` (or --cluster: a system, as dgx-h100:8)"};
      continue;
    }
    std::vector<std::string> of_group;  // "cluster" is wrong as a whole: the flags that made it
    for (const JobFlag& flag : kJobFlags) {
      const std::string own = field_of(flag);
      const bool typed = given(arguments, flag.flag) != nullptr;
      if (typed && own.starts_with(field + ".")) of_group.push_back(flag.flag);
      if (!typed && !flags_alone) continue;
      if (own != field && !(own == "model" && field == "model.name")) continue;
      problem.where = flag.flag;
      of_group.clear();
      break;
    }
    if (flags_alone && !of_group.empty()) problem.where = join(of_group, ", ");
  }
  return error;
}

}  // namespace precog::cli
