// `precog models | gpus | clusters | networks | precisions | hosts | software`: what is known, each with its source.
#include <fmt/format.h>

#include "base/text.h"
#include "list_precisions.h"

namespace precog::cli {
namespace {

using Align = Table::Align;

std::string first_of(const std::vector<std::string>& sources) { return sources.empty() ? "" : sources.front(); }

std::string rate(const RateTable& matrix, const RateTable& vector, DType dtype) {
  FlopsPerSecond best = std::max(matrix[dtype], vector[dtype]);
  return best.value > 0 ? fmt::format("{:.4g}", best.value / 1e12) : "-";
}

Table gpu_table(const Catalog& catalog) {
  Table table({{"gpu"},
               {"memory", Align::right},
               {"GB/s", Align::right},
               {"fp32", Align::right},
               {"tf32", Align::right},
               {"bf16", Align::right},
               {"fp16", Align::right},
               {"fp8", Align::right}});
  for (const GpuSpec& gpu : catalog.gpus)
    table.add({{gpu.name, Ink::bold},
               {to_text(gpu.memory_capacity)},
               {fmt::format("{:.4g}", gpu.memory_bandwidth.value / 1e9)},
               {rate(gpu.matrix, gpu.vector, DType::fp32)},
               {rate(gpu.matrix, {}, DType::tf32)},
               {rate(gpu.matrix, gpu.vector, DType::bf16)},
               {rate(gpu.matrix, gpu.vector, DType::fp16)},
               {rate(gpu.matrix, {}, DType::fp8)}});
  return table;
}

Table model_table(const Catalog& catalog) {
  Table table({{"model"}, {"parameters", Align::right}, {"layers", Align::right}, {"seq", Align::right}, {"source"}});
  for (const ModelSpec& model : catalog.models)
    table.add({{model.name, Ink::bold},
               {number_text(static_cast<double>(model.published_parameters))},
               {model.layers > 0 ? fmt::format("{}", model.layers) : "-"},
               {model.language ? fmt::format("{}", model.default_seq) : "-"},
               {model.source, Ink::dim}});
  return table;
}

Table cluster_table(const Catalog& catalog) {
  Table table({{"cluster"}, {"gpu"}, {"one node"}, {"network"}});
  for (const SystemSpec& system : catalog.systems)
    table.add({{system.name, Ink::bold},
               {system.gpu.empty() ? "any" : system.gpu},
               {fmt::format("{} x {}", system.gpus_per_node, system.intra_kind)},
               {fmt::format("{} x {}", system.nics_per_node, system.network)}});
  return table;
}

Table network_table(const Catalog& catalog) {
  Table table({{"network"}, {"port", Align::right}, {"latency", Align::right}, {"source"}});
  for (const NetworkSpec& network : catalog.networks)
    table.add({{network.name, Ink::bold},
               {to_text(network.port_bandwidth)},
               {to_text(network.latency)},
               {first_of(network.sources), Ink::dim}});
  return table;
}

Table host_table(const Catalog& catalog) {
  Table table({{"host"}, {"forward op", Align::right}, {"backward op", Align::right}, {"launch", Align::right}, {"source"}});
  for (const HostSpec& host : catalog.hosts)
    table.add({{host.name, Ink::bold},
               {to_text(host.forward.at("default"))},
               {to_text(host.backward.at("default"))},
               {to_text(host.kernel_launch)},
               {first_of(host.sources), Ink::dim}});
  return table;
}

Table software_table(const Catalog& catalog) {
  Table table({{"software"}, {"what it is"}, {"also"}});
  for (const SoftwareSpec& software : catalog.software) table.add({{software.name, Ink::bold}, {software.title}, {join(software.aliases, ", "), Ink::dim}});
  return table;
}

struct Kind {
  const char* name;
  const char* folder;  // of data/
  const char* note;
  std::vector<TitledTable> (*tables)(const Catalog&);
  std::vector<std::string> (*names)(const Catalog&);
};

template <Table (*table)(const Catalog&)>
std::vector<TitledTable> only(const Catalog& catalog) {
  return {{"", table(catalog)}};
}

template <class T>
std::vector<std::string> names_in(const std::vector<T>& items) {
  std::vector<std::string> out;
  for (const T& item : items) out.push_back(item.name);
  return out;
}

constexpr Kind kKinds[] = {
    {"models", "models", "Parameters as published.", only<model_table>, [](const Catalog& c) { return names_in(c.models); }},
    {"gpus", "gpus", "Peaks in TFLOP/s, dense.", only<gpu_table>, [](const Catalog& c) { return names_in(c.gpus); }},
    {"clusters", "clusters", "As --cluster NAME:NODES.", only<cluster_table>, [](const Catalog& c) { return names_in(c.systems); }},
    {"networks", "networks", "One port, one direction.", only<network_table>, [](const Catalog& c) { return names_in(c.networks); }},
    {"precisions", "precisions", "weights: a+b where the optimizer updates a copy in b; gradients: a>b where they travel in a.", precision_tables,
     [](const Catalog& c) { return names_in(c.precisions); }},
    {"hosts", "hosts", "Time of one framework operator.", only<host_table>, [](const Catalog& c) { return names_in(c.hosts); }},
    {"software", "software", "What older versions do at the end of a step; kernels' speed is not told apart.", only<software_table>,
     [](const Catalog& c) { return names_in(c.software); }},
};

const Kind* kind_named(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (name == kind.name) return &kind;
  return nullptr;
}

Result<std::string> canonical(const Kind& kind, const std::string& name, const Catalog& catalog) {
  auto text = [](const auto& found) -> Result<std::string> {
    if (!found) return tl::unexpected(found.error());
    return (*found)->name;
  };
  std::string wanted = kind.name;
  if (wanted == "models") return text(catalog.model(name));
  if (wanted == "gpus") return text(catalog.gpu(name));
  if (wanted == "clusters") return text(catalog.system(name));
  if (wanted == "networks") return text(catalog.network(name));
  if (wanted == "precisions") return text(catalog.precision(name));
  if (wanted == "software") return text(catalog.software_named(name));
  return text(catalog.host(name));
}

std::string scalar(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Every figure of a data file on a line of its own, with the text of its source under it.
void figures(const Json& node, const std::string& path, const Json& sources, const Style& style, std::string& out) {
  for (auto it = node.begin(); it != node.end(); ++it) {
    std::string name = path.empty() ? it.key() : path + "." + it.key();
    if (path.empty() && (name == "sources" || name == "schema")) continue;
    if (it->is_object() && it->contains("value") && it->contains("source")) {
      out += wrapped(fmt::format("  {:<24}", name + ":"), scalar((*it)["value"]));
      std::string key = scalar((*it)["source"]);
      out += style(Ink::dim, wrapped("      source: ", sources.is_object() && sources.contains(key) ? scalar(sources[key]) : key));
    } else if (it->is_object()) {
      figures(*it, name, sources, style, out);
    } else {
      std::string text;
      if (it->is_array()) {
        for (const Json& item : *it) text += (text.empty() ? "" : ", ") + scalar(item);
      } else {
        text = scalar(*it);
      }
      out += wrapped(fmt::format("  {:<24}", name + ":"), text);
    }
  }
}

}  // namespace

const std::vector<std::string>& list_kinds() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> out;
    for (const Kind& kind : kKinds) out.emplace_back(kind.name);
    return out;
  }();
  return kNames;
}

Result<std::vector<std::string>> names_of(const std::string& name, const Catalog& catalog) {
  const Kind* kind = kind_named(name);
  if (!kind) return fail("", unknown_name("kind", name, list_kinds(), ""));
  return kind->names(catalog);
}

Result<Output> run_list(const Arguments& arguments, const Context& context) {
  const Kind& kind = *kind_named(arguments.command);
  std::filesystem::path folder = context.data_dir / kind.folder;
  Output out;
  if (!arguments.name.empty()) {
    PRECOG_TRY(name, canonical(kind, arguments.name, context.catalog));
    PRECOG_TRY(file, read_json_file(folder / (name + ".json")));
    if (arguments.json) {
      out.text = json_document(file);
      return out;
    }
    out.text = context.style(Ink::bold, name) + '\n';
    figures(file, "", file.value("sources", Json::object()), context.style, out.text);
    const auto bases = kind.folder == std::string_view("precisions") ? extended_by(context.catalog, name) : std::vector<ExtendedRecipe>();
    if (bases.empty()) return out;
    out.text += '\n' + context.style(Ink::bold, "With everything it extends") + '\n';
    PRECOG_TRY(whole, whole_recipe(context.catalog, name));
    for (const char* own : {"schema", "name", "title", "source", "aliases", "part", "listed"}) whole.erase(own);
    figures(whole, "", Json::object(), context.style, out.text);
    for (const ExtendedRecipe& base : bases) out.text += context.style(Ink::dim, wrapped("      source of " + base.name + ": ", base.source));
    return out;
  }
  if (arguments.json) {
    // The data files themselves: nothing is left out, and every figure keeps its source.
    Json items = Json::array();
    for (const std::string& name : kind.names(context.catalog)) {
      PRECOG_TRY(file, read_json_file(folder / (name + ".json")));
      items.push_back(std::move(file));
    }
    out.text = json_document(items);
    return out;
  }
  for (const TitledTable& one : kind.tables(context.catalog)) {
    if (!one.title.empty()) out.text += (out.text.empty() ? "" : "\n") + context.style(Ink::bold, one.title) + '\n';
    out.text += one.table.text(context.style);
  }
  out.text += '\n' + wrapped("", fmt::format("{} `precog {} NAME` shows all of one, with every source.", kind.note, kind.name));
  return out;
}

}  // namespace precog::cli
