#include "predict/catalog.h"

#include <doctest/doctest.h>

namespace {

using namespace precog;

TEST_CASE("every profile of data/profiles reads, and says the GPU that its file is named after") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  CHECK(catalog.fitted.size() >= 4);
  for (const ProfileFile& file : catalog.fitted) {
    INFO(file.gpu());
    const Result<FittedProfile>& profile = file.read();
    REQUIRE_MESSAGE(profile, profile.error().text());
    CHECK(profile->gpu == file.gpu());
    CHECK(&file.read() == &profile);  // read once
    CHECK(*catalog.fitted_for(**catalog.gpu(file.gpu())) == &*profile);
  }
}

TEST_CASE("a GPU without measurements takes those of its architecture, one without relatives none") {
  const Catalog catalog = load_catalog(PRECOG_DATA_DIR).value();
  CHECK((*catalog.fitted_for(**catalog.gpu("h100-sxm")))->gpu == "h200-sxm");
  CHECK(*catalog.fitted_for(**catalog.gpu("v100-sxm2-32gb")) == nullptr);
}

TEST_CASE("a profile that is not of its GPU is an error when it is asked for") {
  const std::filesystem::path file = std::filesystem::path(PRECOG_DATA_DIR) / "profiles" / "h200-sxm.json";
  const ProfileFile other("h100-sxm", "hopper", file), older("h200-sxm", "volta", file), missing("h200-sxm", "hopper", file / "none");
  CHECK(other.read().error().text().find("'h200-sxm'") != std::string::npos);
  CHECK(older.read().error().text().find("'volta'") != std::string::npos);
  CHECK_FALSE(missing.read());
}

}  // namespace
