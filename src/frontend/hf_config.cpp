#include "frontend/hf_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "frontend/hf_reader.h"
#include "frontend/text_blocks.h"

namespace precog {
namespace hf {

bool Reader::given(const char* key) const {
  auto found = json.find(key);
  return found != json.end() && !found->is_null();
}
bool Reader::null(const char* key) const {
  auto found = json.find(key);
  return found != json.end() && found->is_null();
}

void Reader::set(const char* name, const char* key, Json value) {
  architecture[name] = std::move(value);
  spelled[name] = key;
}

namespace {
const char* first_given(const Reader& r, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (r.given(key)) return key;
  return *keys.begin();
}
}  // namespace

std::int64_t Reader::integer(const char* name, std::initializer_list<const char*> keys, std::int64_t fallback, std::int64_t min, std::int64_t max) {
  const char* key = first_given(*this, keys);
  const std::int64_t value = in.integer(key, min, max).value_or(fallback);
  set(name, key, value);
  return value;
}
bool Reader::boolean(const char* name, std::initializer_list<const char*> keys, bool fallback) {
  const char* key = first_given(*this, keys);
  const bool value = in.boolean(key).value_or(fallback);
  set(name, key, value);
  return value;
}
double Reader::probability(const char* name, std::initializer_list<const char*> keys, double fallback) {
  const char* key = first_given(*this, keys);
  const double value = in.number(key, 0, 0.99).value_or(fallback);
  set(name, key, value);
  return value;
}
std::string Reader::activation(std::initializer_list<const char*> keys, const char* fallback) {
  const char* key = first_given(*this, keys);
  const std::string value = in.text(key).value_or(fallback);
  set("activation", key, value);
  return value;
}

void Reader::refuse(const char* key, bool asked, std::string_view what) {
  if (asked) in.problem(key, fmt::format("{}; capture the model instead (precog.capture)", what));
}

double Reader::rope_number(const char* key, double fallback) {
  for (const char* outer : {"rope_parameters", "rope_scaling"})
    if (auto found = json.find(outer); found != json.end() && found->is_object()) {
      auto value = found->find(key);
      if (value == found->end() || value->is_null()) continue;
      if (value->is_number()) return value->get<double>();
      in.problem(outer, fmt::format("\"{}\" wants a number", key));
    }
  return in.number(key, 0, 1).value_or(fallback);
}

void Reader::read_rope_type() {
  std::string kind = "default";
  for (const char* outer : {"rope_scaling", "rope_parameters"}) {
    auto found = json.find(outer);
    if (found == json.end() || found->is_null()) continue;
    if (!found->is_object()) {
      in.problem(outer, "wants an object");
      continue;
    }
    const Json* rope = &*found;
    if (auto full = rope->find("full_attention"); full != rope->end() && full->is_object()) rope = &*full;
    for (const char* key : {"rope_type", "type"})
      if (auto value = rope->find(key); value != rope->end() && value->is_string()) {
        kind = value->get<std::string>();
        break;
      }
  }
  const bool phi3 = json.value("model_type", std::string()) == "phi3" && (kind == "su" || kind == "yarn");  // its old names for longrope
  set("dynamic_rotary", "rope_parameters", kind == "dynamic" || kind == "longrope" || phi3);
}

void Reader::sliding_layers(std::int64_t layers, bool (*pattern)(std::int64_t, std::int64_t), std::int64_t parameter) {
  Json slides = Json::array();
  if (given("layer_types")) {
    const std::vector<std::string> kinds = in.texts("layer_types");
    if (kinds.size() != static_cast<std::size_t>(layers))
      in.problem("layer_types", fmt::format("names {} layers, num_hidden_layers says {}", kinds.size(), layers));
    for (const std::string& kind : kinds) {
      if (kind != "full_attention" && kind != "sliding_attention") {
        in.problem("layer_types", fmt::format("has '{}'; known: full_attention, sliding_attention", kind.substr(0, 40)));
        break;
      }
      slides.push_back(kind == "sliding_attention");
    }
    const bool any = std::find(kinds.begin(), kinds.end(), "sliding_attention") != kinds.end();
    if (any && !architecture.contains("sliding_window"))
      in.problem("layer_types", "has sliding layers, but no sliding_window is in use");
  } else {
    for (std::int64_t layer = 0; layer < layers; ++layer) slides.push_back(pattern(layer, parameter));
  }
  if (slides.empty()) slides.push_back(false);
  set("sliding_layers", "layer_types", std::move(slides));
}

void Reader::classes() {
  std::int64_t count = 2;
  const char* key = "num_labels";
  if (auto labels = json.find("id2label"); !given("num_labels") && labels != json.end() && labels->is_object()) {
    key = "id2label";
    count = static_cast<std::int64_t>(labels->size());
  } else {
    count = in.integer("num_labels", 1, zoo::kMaxWidth).value_or(2);
  }
  if (count < 2) in.problem(key, fmt::format("is {}; a classifier of at least 2 is built (regression is not; capture the model instead)", count));
  const std::string kind = in.text("problem_type").value_or("single_label_classification");
  refuse("problem_type", kind != "single_label_classification", "only single_label_classification is built");
  set("classes", key, count);
}

namespace {

constexpr std::pair<std::string_view, Head> kHeadNames[] = {
    {"ForCausalLM", Head::language_model},        {"LMHeadModel", Head::language_model},
    {"ForMaskedLM", Head::masked},                {"ForPreTraining", Head::pretraining},
    {"ForConditionalGeneration", Head::translation}, {"WithLMHeadModel", Head::translation},
    {"ForSequenceClassification", Head::classifier}, {"ForImageClassification", Head::classifier}};

std::string_view name_of(Head head, std::string_view model_type) {
  if (head == Head::classifier) return model_type == "vit" ? "ForImageClassification" : "ForSequenceClassification";
  if (head == Head::language_model && model_type == "gpt2") return "LMHeadModel";
  for (const auto& [name, known] : kHeadNames)
    if (known == head) return name;
  return "";
}

// What "architectures" asks for, longest suffix first; nothing for a bare model or none at all.
std::optional<Head> named_head(Reader& r, const Type& type) {
  const std::vector<std::string> names = r.in.texts("architectures");
  if (names.empty()) return std::nullopt;
  const std::string& name = names.front();
  std::optional<Head> found;
  if (type.name == "t5" && name.ends_with("LMHeadModel")) found = Head::translation;
  for (const auto& [suffix, head] : kHeadNames)
    if (!found && name.ends_with(suffix)) found = head;
  if (!found && name.ends_with("Model")) return std::nullopt;
  if (found && std::find(type.heads.begin(), type.heads.end(), *found) != type.heads.end()) return found;
  std::vector<std::string> known;
  for (Head head : type.heads) known.push_back(fmt::format("...{}", name_of(head, type.name)));
  r.in.problem("architectures", fmt::format("names {}; of {} these are built: {}. Capture the model for another head (precog.capture)",
                                            name.substr(0, 80), type.name, join(known, ", ")));
  return type.usual;
}

// More parameters than any model will have for long, and few enough that all sums of sizes are exact.
constexpr double kMaxParameters = 1e14;

double rough_parameters(const Json& a) {
  auto at = [&](const char* key, double fallback) {
    auto found = a.find(key);
    return found != a.end() && found->is_number() ? found->get<double>() : fallback;
  };
  const double hidden = at("hidden", 1), heads = at("heads", 1);
  const double widest_head = std::max({at("head_dim", 1), at("qk_nope_head_dim", 1), at("v_head_dim", 1)});
  const double ranks = at("q_lora_rank", 0) + at("kv_lora_rank", 0);
  const double inner = std::max({at("intermediate", 1), at("mlp", 1), at("expert_intermediate", 1), at("shared_intermediate", 1)});
  const double mixing = 8 * (hidden + ranks) * std::max(hidden, heads * widest_head);
  const double layer = mixing + 4 * hidden * inner * (at("experts", 1) + at("shared_experts", 0));
  return (at("layers", 1) + at("decoder_layers", 0)) * layer + (2 * at("vocab", 1) + at("max_positions", 1)) * hidden;
}

}  // namespace
}  // namespace hf

std::vector<std::string> hf_model_types() {
  std::vector<std::string> names;
  for (const hf::Type& type : hf::types()) names.emplace_back(type.name);
  return names;
}

Result<ModelSpec> read_hf_config(const Json& config, const std::string& where) {
  if (!config.is_object()) return fail(where, "wants a Hugging Face configuration: an object with a \"model_type\"");
  std::vector<Problem> problems;
  hf::Reader r(config, where, problems);
  const std::string wanted = r.in.required_text("model_type");
  if (!problems.empty()) return fail(std::move(problems));
  const auto& types = hf::types();
  const auto type = std::find_if(types.begin(), types.end(), [&](const hf::Type& known) { return known.name == wanted; });
  if (type == types.end())
    return fail(r.in.path("model_type"),
                fmt::format("is '{}'; this reader knows {}. Any other PyTorch model can be captured instead: "
                            "precog.capture(...).save(\"m.precog.json.zst\")",
                            wanted.substr(0, 80), join(hf_model_types(), ", ")));
  const auto head = hf::named_head(r, *type);
  r.head = head.value_or(type->usual);
  if (!head)
    r.notes.push_back(fmt::format("{}: the configuration names no head; taken as ...{}", wanted, hf::name_of(r.head, wanted)));
  type->read(r);
  if (r.head == hf::Head::classifier) r.classes();
  if (r.given("quantization_config"))
    r.notes.emplace_back("quantization_config is left out: weights are as the precision says");
  if (const double parameters = hf::rough_parameters(r.architecture); problems.empty() && parameters > hf::kMaxParameters)
    problems.push_back({where, fmt::format("describes a model of some {:.0e} parameters; at most {:.0e} can be counted", parameters, hf::kMaxParameters)});
  if (!problems.empty()) return fail(std::move(problems));

  // As a file of the zoo, checked by the family like any other. What it finds wrong is said in the file's own words.
  const std::string inner = "model";
  Json file = {{"schema", 1}, {"name", wanted}, {"title", wanted + " configuration"}, {"family", std::string(type->family)},
               {"source", "config.json"}, {"published_parameters", 1}, {"architecture", r.architecture}};
  if (type->family != "hf_vit") file["default_seq"] = std::clamp<std::int64_t>(r.max_positions, 1, 4096);
  auto model = parse_model(file, inner);
  if (!model) {
    const std::string prefix = inner + ".architecture.";
    for (const Problem& problem : model.error().problems) {
      std::string name = problem.where.rfind(prefix, 0) == 0 ? problem.where.substr(prefix.size()) : problem.where, message = problem.message;
      auto found = r.spelled.find(name);
      problems.push_back({r.in.path(found == r.spelled.end() ? name : found->second), std::move(message)});
    }
    return fail(std::move(problems));
  }
  model->name = "";
  if (auto named = config.find("_name_or_path"); named != config.end() && named->is_string()) {
    const std::string text = named->get<std::string>();
    if (text.size() <= 120 && !text.empty() && text.front() != '/' && text.front() != '.') model->name = text;
  }
  model->published_parameters = 0;
  model->notes = std::move(r.notes);
  if (type->name == "roberta") model->max_seq = r.max_positions;
  return std::move(*model);
}

}  // namespace precog
