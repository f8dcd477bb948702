#include "predict/catalog.h"

#include <algorithm>
#include <unordered_map>

#include "base/text.h"

namespace precog {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> json_files(const fs::path& folder, std::vector<Problem>& problems) {
  std::vector<fs::path> files;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (code) problems.push_back({folder.string(), "cannot be listed: " + code.message()});
  std::sort(files.begin(), files.end());
  return files;
}

// Files as written, so that each can extend any other. What cannot be read is reported by read_folder.
std::vector<NamedJson> read_files_as_written(const fs::path& folder) {
  std::vector<Problem> ignored;
  std::vector<NamedJson> out;
  for (const fs::path& file : json_files(folder, ignored))
    if (auto json = read_json_file(file); json && json->is_object()) out.emplace_back(file.stem().string(), std::move(*json));
  return out;
}

// Reads every .json of a folder through `parse`, in name order so that nothing depends on the file system.
template <class T, class Parse>
std::vector<T> read_folder(const fs::path& folder, Parse parse, std::vector<Problem>& problems) {
  std::vector<T> out;
  std::unordered_map<std::string, std::string> seen;  // folded name or alias -> file
  for (const fs::path& file : json_files(folder, problems)) {
    auto json = read_json_file(file);
    auto parsed = json ? parse(*json, file.string()) : Result<T>(tl::unexpected(json.error()));
    if (!parsed) {
      problems.insert(problems.end(), parsed.error().problems.begin(), parsed.error().problems.end());
      continue;
    }
    if (parsed->name != file.stem().string())
      problems.push_back({file.string(), "is named '" + parsed->name + "' inside; the file's name must be the same"});
    std::vector<std::string> names = parsed->aliases;
    names.push_back(parsed->name);
    for (const std::string& name : names) {
      auto [it, fresh] = seen.try_emplace(normalised_name(name), file.filename().string());
      if (!fresh) problems.push_back({file.string(), "'" + name + "' is already a name in " + it->second});
    }
    out.push_back(std::move(*parsed));
  }
  return out;
}

// Profiles of single GPUs, which precog calibrate wrote; each must be of a GPU that is known.
void list_fitted_profiles(const fs::path& folder, Catalog& catalog, std::vector<Problem>& problems) {
  for (const fs::path& file : json_files(folder, problems)) {
    const std::string name = file.stem().string();
    if (name == "datasheet") continue;
    const auto gpu = std::find_if(catalog.gpus.begin(), catalog.gpus.end(), [&](const GpuSpec& one) { return one.name == name; });
    if (gpu == catalog.gpus.end()) problems.push_back({file.string(), "is named after no GPU of data/gpus"});
    else catalog.fitted.emplace_back(name, gpu->architecture, file);
  }
}

template <class T>
Result<const T*> find(const std::vector<T>& items, const std::string& name, std::string_view what, std::string_view list_command) {
  const std::string wanted = normalised_name(name);
  std::vector<std::string> known, aliases;
  for (const T& item : items) {
    if (normalised_name(item.name) == wanted) return &item;
    for (const std::string& alias : item.aliases)
      if (normalised_name(alias) == wanted) return &item;
    known.push_back(item.name);
    aliases.insert(aliases.end(), item.aliases.begin(), item.aliases.end());
  }
  // An alias that is nearly it (h1000 of h100) brings its name to the front.
  if (const auto near = nearest_names(name, aliases, 1); !near.empty() && differ_by_one(wanted, normalised_name(near.front()))) {
    const auto of = std::find_if(items.begin(), items.end(), [&](const T& item) { return std::find(item.aliases.begin(), item.aliases.end(), near.front()) != item.aliases.end(); });
    std::rotate(known.begin(), known.begin() + (of - items.begin()), known.begin() + (of - items.begin()) + 1);
  }
  return fail("", unknown_name(what, name, known, list_command));
}

}  // namespace

Result<Catalog> load_catalog(const fs::path& data_dir) {
  std::error_code code;
  if (!fs::is_directory(data_dir, code)) return fail(data_dir.string(), "is not a folder of precog data");
  std::vector<Problem> problems;
  Catalog catalog;
  catalog.gpus = read_folder<GpuSpec>(data_dir / "gpus", parse_gpu, problems);
  catalog.systems = read_folder<SystemSpec>(data_dir / "clusters", parse_system, problems);
  catalog.networks = read_folder<NetworkSpec>(data_dir / "networks", parse_network, problems);
  catalog.recipe_files = read_files_as_written(data_dir / "precisions");
  auto parse_recipe = [&](const Json& json, const std::string& where) -> Result<PrecisionRecipe> {
    PRECOG_TRY(whole, extended(json, catalog.recipe_files, where));
    return parse_precision(whole, where);
  };
  catalog.precisions = read_folder<PrecisionRecipe>(data_dir / "precisions", parse_recipe, problems);
  catalog.host_files = read_files_as_written(data_dir / "hosts");
  auto parse_extended_host = [&](const Json& json, const std::string& where) -> Result<HostSpec> {
    return parse_host(json, where, catalog.host_files);
  };
  catalog.hosts = read_folder<HostSpec>(data_dir / "hosts", parse_extended_host, problems);
  catalog.software = read_folder<SoftwareSpec>(data_dir / "software", parse_software, problems);
  catalog.models = read_folder<ModelSpec>(data_dir / "models", parse_model, problems);
  const fs::path profile_file = data_dir / "profiles" / "datasheet.json";
  auto profile_json = read_json_file(profile_file);
  auto profile = profile_json ? CostProfile::parse(*profile_json, profile_file.string())
                              : Result<CostProfile>(tl::unexpected(profile_json.error()));
  if (profile) catalog.profile = std::move(*profile);
  else problems.insert(problems.end(), profile.error().problems.begin(), profile.error().problems.end());

  const fs::path collectives_file = data_dir / "collectives" / "nccl.json";
  auto collectives_json = read_json_file(collectives_file);
  auto collectives = collectives_json ? CollectiveCatalog::parse(*collectives_json, collectives_file.string())
                                      : Result<CollectiveCatalog>(tl::unexpected(collectives_json.error()));
  if (collectives) catalog.collectives = std::move(*collectives);
  else problems.insert(problems.end(), collectives.error().problems.begin(), collectives.error().problems.end());
  list_fitted_profiles(data_dir / "profiles", catalog, problems);
  for (const GpuSpec& gpu : catalog.gpus) {
    if (!catalog.system(gpu.usual_system)) problems.push_back({"data/gpus/" + gpu.name + ".json: usual_system", "names no cluster of data/clusters"});
    if (profile && !catalog.profile.find(gpu.architecture))
      problems.push_back({"data/gpus/" + gpu.name + ".json: architecture", "has no coefficients in data/profiles/datasheet.json"});
  }
  for (const SystemSpec& system : catalog.systems) {
    const std::string where = "data/clusters/" + system.name + ".json: ";
    if (!catalog.network(system.network)) problems.push_back({where + "network", "names no network of data/networks"});
    if (!system.gpu.empty() && !catalog.gpu(system.gpu)) problems.push_back({where + "gpu", "names no GPU of data/gpus"});
  }
  if (!problems.empty()) return fail(std::move(problems));
  return catalog;
}

Result<const GpuSpec*> Catalog::gpu(const std::string& name) const { return find(gpus, name, "GPU", "precog gpus"); }
Result<const SystemSpec*> Catalog::system(const std::string& name) const { return find(systems, name, "cluster", "precog clusters"); }
Result<const NetworkSpec*> Catalog::network(const std::string& name) const { return find(networks, name, "network", "precog networks"); }
Result<const PrecisionRecipe*> Catalog::precision(const std::string& name) const {
  return find(precisions, name, "precision", "precog precisions");
}
Result<const HostSpec*> Catalog::host(const std::string& name) const { return find(hosts, name, "host", "precog hosts"); }
Result<const SoftwareSpec*> Catalog::software_named(const std::string& name) const { return find(software, name, "software", "precog software"); }
Result<const ModelSpec*> Catalog::model(const std::string& name) const { return find(models, name, "model", "precog models"); }

Result<const FittedProfile*> Catalog::fitted_for(const GpuSpec& gpu) const {
  const ProfileFile* nearest = nullptr;
  for (const ProfileFile& one : fitted)
    if (one.gpu() == gpu.name || (!nearest && one.architecture() == gpu.architecture)) nearest = &one;
  if (!nearest) return nullptr;
  const Result<FittedProfile>& read = nearest->read();
  if (!read) return tl::unexpected(read.error());
  return &*read;
}

}  // namespace precog
