// Fits the coefficients of collectives to the reference data and writes docs/collectives.md: how well they predict, also what
// they were not fitted to. tools/collectives runs it.
// usage: precog_collectives REFERENCE_DATA DATA PAGE.md [--fit]
//   --fit  also rewrites DATA/collectives/nccl.json; without it, the shipped coefficients are judged
#include <iostream>

#include "calibrate/reference_collectives.h"
#include "predict/catalog.h"

int main(int argc, char** argv) {
  using namespace precog;
  namespace fs = std::filesystem;
  const auto stop = [](const std::string& message) {
    std::cerr << message << "\n";
    return 2;
  };
  if (argc < 4 || argc > 5 || (argc == 5 && std::string(argv[4]) != "--fit")) return stop("usage: precog_collectives REFERENCE_DATA DATA PAGE.md [--fit]");
  auto catalog = load_catalog(argv[2]);
  if (!catalog) return stop(catalog.error().text());
  ReferenceClusters clusters;
  for (const ReferencePlace& place : reference_places()) {
    auto gpu = catalog->gpu(place.gpu);
    auto system = catalog->system(place.cluster);
    if (!gpu || !system) return stop(std::string(place.gpu) + " or " + place.cluster + " is not in the data");
    auto network = catalog->network((*system)->network);
    clusters[place.name] = reference_cluster(**gpu, **system, **network);
  }
  auto rows = read_reference_collectives(argv[1], clusters);
  if (!rows) return stop(rows.error().text());
  const CollectiveFits fits = fit_reference(*rows, catalog->collectives);
  CollectiveCatalog shipped = catalog->collectives;
  if (argc == 5) {
    const std::string text = to_json_text(fits.all);
    if (auto written = write_text_file(fs::path(argv[2]) / "collectives" / "nccl.json", text); !written) return stop(written.error().text());
    shipped = *CollectiveCatalog::parse(Json::parse(text), "nccl.json");  // as rounded there
  }
  if (auto written = write_text_file(argv[3], collectives_page(*rows, shipped, fits.held_out)); !written) return stop(written.error().text());
  return 0;
}
