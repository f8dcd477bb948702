#include "base/json.h"
#include "cli.h"

namespace precog::cli {

// Text from outside (a run's id, a file's name) may be broken UTF-8; it is replaced rather than refused.
std::string json_document(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

}  // namespace precog::cli
