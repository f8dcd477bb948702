#include "frontend/zoo.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"
#include "frontend/families.h"

namespace precog {
namespace {

constexpr std::int64_t kMaxBatch = 1'000'000'000;
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 20;
// Sizes are counted in bits in a 64-bit integer, 64 bits an element at most; one binary order is left as margin.
constexpr double kMaxElements = static_cast<double>(std::int64_t{1} << 56);

const std::array<zoo::ModelFamily, 15>& families() {
  static const std::array<zoo::ModelFamily, 15> kFamilies = {
      zoo::resnet_family(),   zoo::vgg_family(), zoo::mobilenet_v2_family(), zoo::vit_family(),
      zoo::bert_family(),     zoo::gpt2_family(), zoo::gpt_neox_family(),    zoo::t5_family(),
      zoo::llama_family(),    zoo::mixtral_family(), zoo::deepseek_v3_family(),
      zoo::phi_family(),      zoo::opt_family(), zoo::hf_vit_family(),       zoo::mpt_family()};
  return kFamilies;
}

const zoo::ModelFamily* family_named(const std::string& name) {
  for (const zoo::ModelFamily& family : families())
    if (family.name == name) return &family;
  return nullptr;
}

std::int64_t integer_at(const Json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

// An upper bound on any tensor that grows with the batch: rows times the widest thing the architecture names.
double largest_tensor(const Json& architecture, const zoo::Sizes& sizes, bool eager) {
  double widest = 1;
  for (const Json& value : architecture)
    if (value.is_number_integer()) widest = std::max(widest, value.get<double>());
  double head = 1;
  for (const char* key : {"head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    head = std::max(head, static_cast<double>(integer_at(architecture, key)));
  const double heads = std::max<double>(1, static_cast<double>(integer_at(architecture, "heads")));
  widest = std::max(widest * 4, heads * head * 2);  // fused q, k, v; GPT-2's inner width; joined head parts
  widest *= std::max<double>(1, static_cast<double>(integer_at(architecture, "experts_per_token")));
  const double side = static_cast<double>(std::max(integer_at(architecture, "image"), std::int64_t{1}));
  const double longest = static_cast<double>(std::max({sizes.seq, sizes.src_seq, std::int64_t{1}}));
  const double batch = static_cast<double>(sizes.batch);
  return std::max(batch * longest * side * side * widest, longest * longest * (eager ? batch * heads : std::max(batch, heads)));
}

Result<zoo::Sizes> checked_sizes(const ModelSpec& model, const ModelInputs& inputs) {
  std::vector<Problem> problems;
  zoo::Sizes sizes{inputs.batch, inputs.seq, inputs.src_seq};
  if (inputs.batch < 1 || inputs.batch > kMaxBatch)
    problems.push_back({"batch", fmt::format("is {}; 1 to {} samples are possible", inputs.batch, kMaxBatch)});
  if (!model.language) {
    if (inputs.seq != 0 || inputs.src_seq != 0)
      problems.push_back({"seq", fmt::format("{} takes images and has no sequence length; leave it out", model.name)});
    sizes.seq = sizes.src_seq = 0;
  } else {
    if (sizes.seq == 0) sizes.seq = model.default_seq;
    if (sizes.src_seq == 0) sizes.src_seq = sizes.seq;
    if (sizes.seq < 1 || sizes.seq > model.max_seq)
      problems.push_back({"seq", fmt::format("is {}; {} takes 1 to {} tokens", inputs.seq, model.name, model.max_seq)});
    if (inputs.src_seq != 0 && !model.encoder_decoder)
      problems.push_back({"src_seq", fmt::format("{} has no encoder beside its decoder; leave it out", model.name)});
    else if (sizes.src_seq != sizes.seq && (sizes.src_seq < 1 || sizes.src_seq > model.max_seq))
      problems.push_back({"src_seq", fmt::format("is {}; {} takes 1 to {} tokens", inputs.src_seq, model.name, model.max_seq)});
  }
  if (inputs.layers) {
    if (model.layers == 0)
      problems.push_back({"layers", fmt::format("{} has no single number of layers to change; leave it out", model.name)});
    else if (*inputs.layers < 1 || *inputs.layers > zoo::kMaxLayers)
      problems.push_back({"layers", fmt::format("is {}; 1 to {} are possible", *inputs.layers, zoo::kMaxLayers)});
  }
  if (problems.empty()) {
    if (const double elements = largest_tensor(model.architecture, sizes, inputs.eager_attention); elements > kMaxElements)
      problems.push_back({"batch", fmt::format("{} at sequence {} asks for tensors of some {:.0e} elements, of which at most {:.0e} can be "
                                               "counted; make the batch or the sequence smaller",
                                               sizes.batch, sizes.seq, elements, kMaxElements)});
  }
  if (!problems.empty()) return fail(std::move(problems));
  return sizes;
}

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const zoo::ModelFamily& family : families()) names.emplace_back(family.name);
  return names;
}

Result<ModelSpec> parse_model(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  file.required_integer("schema", 1, 1);
  ModelSpec model;
  model.name = file.required_text("name");
  model.title = file.required_text("title");
  model.family = file.required_text("family");
  model.source = file.required_text("source");
  model.aliases = file.texts("aliases");
  model.published_parameters = file.required_integer("published_parameters", 1, std::int64_t{1} << 50);
  JsonReader architecture = file.required_object("architecture");
  if (const zoo::ModelFamily* family = family_named(model.family)) {
    family->check(architecture);
    architecture.reject_unknown_keys();
    if (const Json* raw = file.raw("architecture")) model.architecture = *raw;
    model.language = family->language;
    model.encoder_decoder = family->encoder_decoder;
    model.scores = family->scores;
    model.unit = family->language ? "tokens" : "images";
    if (family->layered && model.architecture.is_object()) model.layers = integer_at(model.architecture, "layers");
    if (family->language) {
      const std::int64_t positions = model.architecture.is_object() ? integer_at(model.architecture, "max_positions") : 0;
      model.max_seq = family->learned_positions ? positions : kMaxSequence;
      model.default_seq = file.required_integer("default_seq", 1, std::max<std::int64_t>(1, model.max_seq));
    }
  } else if (!model.family.empty()) {
    file.integer("default_seq", 1, kMaxSequence);
    file.problem("family", fmt::format("is '{}'; known: {}", model.family, join(family_names(), ", ")));
  }
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return model;
}

namespace {

Json architecture_of(const ModelSpec& model, const ModelInputs& inputs) {
  Json out = model.architecture;
  if (inputs.layers)
    for (const char* key : {"layers", "decoder_layers"})
      if (out.contains(key)) out[key] = *inputs.layers;
  return out;
}

}  // namespace

Result<Graph> build_model(const ModelSpec& model, const ModelInputs& inputs) {
  PRECOG_TRY(sizes, checked_sizes(model, inputs));
  const zoo::ModelFamily* family = family_named(model.family);
  if (!family) return fail(model.name, fmt::format("is of family '{}'; known: {}", model.family, join(family_names(), ", ")));
  const Json architecture = architecture_of(model, inputs);
  std::vector<Problem> problems;
  JsonReader reader(architecture, model.name, problems);
  GraphBuilder builder;
  builder.write_out_attention(inputs.eager_attention);
  builder.leave_out(inputs.left_out);
  family->check(reader);
  if (!problems.empty()) return fail(std::move(problems));
  family->build(builder, reader, sizes);
  return std::move(builder).finish();
}

std::vector<int> layer_kinds(const ModelSpec& model, const ModelInputs& inputs) {
  const zoo::ModelFamily* family = family_named(model.family);
  if (!family || !family->layer_kinds || !checked_sizes(model, inputs)) return {};
  const Json architecture = architecture_of(model, inputs);
  std::vector<Problem> problems;
  JsonReader reader(architecture, model.name, problems);
  std::vector<int> out = family->layer_kinds(reader);
  return problems.empty() ? out : std::vector<int>();
}

std::int64_t tokens_per_sample(const ModelSpec& model, const ModelInputs& inputs) {
  if (!model.language) return 0;
  return inputs.seq != 0 ? inputs.seq : model.default_seq;
}

}  // namespace precog
