// What would make a job faster, each change predicted on its own: values and how they are shown. Who finds them: predict/advise.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "report/style.h"

namespace precog {

struct Advice {
  std::string change;  // "fused optimizer"
  std::string flags;   // "--optimizer-impl fused"
  Json request;        // the same, as fields of the request
  std::string note;    // what it costs otherwise: numerics, memory
  Seconds step;
  double gain = 0;     // share of the time per sample that it saves
  Bytes peak;
  bool fits = true;
};

struct AdviceList {
  std::string precision;       // of the job that the advice is for
  Seconds step;
  bool fits = true;
  std::vector<Advice> advice;  // largest gain first
  std::optional<Advice> combined;  // what of it goes together
  std::int64_t tried = 0;      // predictions made
};

std::string advice_text(const AdviceList& list, const Style& style);
void add_json(const AdviceList& list, Json& comparison);  // "advice", "advice_for", "advice_combined"

}  // namespace precog
