// Everything under data/, read and checked once: GPUs, clusters, networks, precisions, models, hosts, software, cost profile.
// Profiles of single GPUs are read when one is asked for.
// Names and aliases are looked up folded ("H100_SXM" finds "h100-sxm"); an unknown one is an error with the nearest.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "cost/price_book.h"
#include "frontend/zoo.h"
#include "predict/profile_file.h"
#include "spec/cluster_spec.h"
#include "spec/gpu_spec.h"
#include "spec/host_spec.h"
#include "spec/precision_recipe.h"
#include "spec/recipe_json.h"
#include "spec/software_spec.h"

namespace precog {

struct Catalog {
  std::vector<GpuSpec> gpus;
  std::vector<SystemSpec> systems;
  std::vector<NetworkSpec> networks;
  std::vector<PrecisionRecipe> precisions;
  HostFiles host_files;  // hosts as written, for files that extend them
  std::vector<NamedJson> recipe_files;  // the same as written, for recipes that extend them
  std::vector<HostSpec> hosts;
  std::vector<SoftwareSpec> software;
  std::vector<ModelSpec> models;
  CostProfile profile;
  CollectiveCatalog collectives;
  std::vector<ProfileFile> fitted;  // every other file of data/profiles: what was measured on one GPU
  PriceBooks prices;                // what was worked out of these

  Result<const GpuSpec*> gpu(const std::string& name) const;
  Result<const SystemSpec*> system(const std::string& name) const;
  Result<const NetworkSpec*> network(const std::string& name) const;
  Result<const PrecisionRecipe*> precision(const std::string& name) const;
  Result<const HostSpec*> host(const std::string& name) const;
  Result<const SoftwareSpec*> software_named(const std::string& name) const;
  Result<const ModelSpec*> model(const std::string& name) const;
  // What was measured on this GPU, else on a relative of its architecture, else nullptr. Lives as long as the catalog.
  Result<const FittedProfile*> fitted_for(const GpuSpec& gpu) const;
};

// Every problem of every file at once.
Result<Catalog> load_catalog(const std::filesystem::path& data_dir);

}  // namespace precog
