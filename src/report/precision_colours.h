// Arithmetic as colour, the same in every drawing. Traces cannot choose: Perfetto colours a slice by the letters of its name and
// ignores what a file asks for (github.com/google/perfetto/issues/208), so that slices of one precision share a name, and the names
// differ in more than their digits. chrome://tracing does take a colour from its list: `legacy`.
#pragma once

#include <vector>

#include "report/timeline_view.h"
#include "spec/dtype.h"

namespace precog {

struct PrecisionColour {
  const char *name, *colour, *legacy;
};

// Types that differ in how they are scaled only (fp8, mxfp8) have one.
std::size_t precision_class(DType math);
const std::vector<PrecisionColour>& precision_colours();

// The arithmetic in which a call's longest kernel runs; that of its operator where it has none.
DType arithmetic_of(const TimelineParts& parts, const Call& call);

}  // namespace precog
