#pragma once
// A count as a number to calculate with. Conversions from 64 bits are explicit here, and a cast at every use hides the formula.
#include <cstdint>

namespace precog {

inline double real(std::int64_t count) { return static_cast<double>(count); }

}  // namespace precog
