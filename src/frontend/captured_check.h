// What a captured operator's settings mean for these operands, and whether the two fit: after these checks the passes'
// own promises hold, whatever the file said. For captured*.cpp only.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "frontend/captured_document.h"

namespace precog::captured {

struct OperandView {
  std::span<const Shape> in, out;
};

// Both return what is wrong and what would be right; empty: nothing is.
std::string attributes_of(const Call& call, const OperandView& shapes, const Symbols& symbols, Attributes& attributes);
std::string check_operands(OpKind kind, const Attributes& attributes, const OperandView& shapes);

// Results that our operators have and a file need not list: what backward will read.
std::vector<Tensor> left_out(OpKind kind, const Attributes& attributes, const OperandView& shapes);

}  // namespace precog::captured
