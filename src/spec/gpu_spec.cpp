#include "spec/gpu_spec.h"

#include "base/text.h"

namespace precog {
namespace {

void read_rates(JsonReader reader, RateTable& table) {
  for (const std::string& key : reader.keys()) {
    auto dtype = dtype_named(key);
    if (!dtype || !is_floating(*dtype) || *dtype == DType::model || (is_8bit_float(*dtype) && *dtype != DType::fp8)) {
      reader.problem(key, "is not a floating type; known: fp64, fp32, tf32, bf16, fp16, fp8, nvfp4");
      continue;
    }
    if (auto rate = reader.quantity<FlopsPerSecond>(key)) table.set(*dtype, *rate);
  }
}

}  // namespace

int GpuSpec::capability() const {
  if (vendor != "nvidia") return 0;
  int major = 0, minor = 0;  // asked of every product: no stream, no locale
  std::size_t at = 0;
  const auto digit = [&] { return at < compute_capability.size() && compute_capability[at] >= '0' && compute_capability[at] <= '9'; };
  for (; digit(); ++at) major = 10 * major + (compute_capability[at] - '0');
  if (at < compute_capability.size() && compute_capability[at] == '.' && (++at, digit())) minor = compute_capability[at] - '0';
  return 10 * major + minor;
}

Result<GpuSpec> parse_gpu(const Json& json, const std::string& where) {
  std::vector<Problem> problems;
  JsonReader file(json, where, problems);
  file.set_sources(file.raw("sources"));
  if (!file.has("sources")) file.problem("sources", "is missing: every figure needs a source");
  file.required_integer("schema", 1, 1);

  GpuSpec gpu;
  gpu.name = file.required_text("name");
  gpu.title = file.required_text("title");
  gpu.vendor = file.required_text("vendor");
  gpu.architecture = file.required_text("architecture");
  gpu.compute_capability = file.text("compute_capability").value_or("");
  gpu.aliases = file.texts("aliases");
  file.integer("year", 2000, 2100);
  file.text("notes");

  auto required = [&](JsonReader& reader, std::string_view key, auto& target) {
    using Q = std::remove_reference_t<decltype(target)>;
    if (auto value = reader.quantity<Q>(key)) target = *value;
    else if (!reader.has(key)) reader.problem(key, "is missing");
  };
  if (auto sms = file.sourced_number("sms", 1, 4096)) gpu.sms = static_cast<int>(*sms);
  else if (!file.has("sms")) file.problem("sms", "is missing");
  required(file, "boost_clock", gpu.boost_clock);
  required(file, "power", gpu.power);

  JsonReader memory = file.required_object("memory");
  required(memory, "capacity", gpu.memory_capacity);
  required(memory, "bandwidth", gpu.memory_bandwidth);
  required(memory, "l2", gpu.l2);
  if (auto reported = memory.quantity<Bytes>("reported")) gpu.memory_capacity = *reported;
  memory.reject_unknown_keys();

  read_rates(file.required_object("matrix"), gpu.matrix);
  read_rates(file.required_object("vector"), gpu.vector);
  // Block-scaled products run on the same units at the same pace; those of the microscaling formats exist from Blackwell on.
  if (gpu.matrix.has(DType::fp8)) gpu.matrix.set(DType::fp8_block, gpu.matrix[DType::fp8]);
  if (gpu.matrix.has(DType::fp8) && gpu.capability() >= 100) gpu.matrix.set(DType::mxfp8, gpu.matrix[DType::fp8]);
  if (!gpu.vector.has(DType::fp32)) file.problem("vector", "lacks fp32, which every GPU has");

  JsonReader link = file.required_object("interconnect");
  std::string kind = link.required_text("kind");
  if (kind != "nvlink" && kind != "xgmi" && kind != "pcie") link.problem("kind", "is '" + kind + "'; known: nvlink, pcie, xgmi");
  required(link, "bandwidth", gpu.link_bandwidth);
  link.reject_unknown_keys();
  JsonReader pcie = file.required_object("pcie");
  required(pcie, "bandwidth", gpu.pcie_bandwidth);
  pcie.reject_unknown_keys();
  gpu.usual_system = file.required_text("usual_system");
  if (const Json* sources = file.raw("sources"); sources && sources->is_object())
    for (const Json& source : *sources)
      if (source.is_string()) gpu.sources.push_back(source.get<std::string>());
  file.reject_unknown_keys();
  if (!problems.empty()) return fail(std::move(problems));
  return gpu;
}

}  // namespace precog
