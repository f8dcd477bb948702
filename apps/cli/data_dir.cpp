#include <filesystem>

#include "cli.h"

namespace precog::cli {

Result<std::filesystem::path> find_data_dir(const std::string& given) {
  namespace fs = std::filesystem;
  std::error_code code;
  if (!given.empty()) {
    if (!fs::is_directory(given, code)) return fail("--data", "'" + given.substr(0, 200) + "' is not a folder");
    return fs::path(given);
  }
  // Installed: bin/precog beside share/precog/data.
  fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    fs::path installed = program.parent_path().parent_path() / "share" / "precog" / "data";
    if (fs::is_directory(installed, code)) return installed;
  }
#ifdef PRECOG_SOURCE_DATA_DIR
  if (fs::is_directory(PRECOG_SOURCE_DATA_DIR, code)) return fs::path(PRECOG_SOURCE_DATA_DIR);
#endif
  return fail("", "the data folder is not beside the program; name it with --data DIR");
}

}  // namespace precog::cli
