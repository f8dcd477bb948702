#include "kernel/uneven_products.h"

namespace precog {

void leave_tensor_cores_where_uneven(KernelProgram& program) {
  constexpr std::int64_t kWholeRow = 8;  // elements of 16 bits in 16 bytes
  for (Kernel& kernel : program.kernels) {
    const auto* shape = std::get_if<GemmShape>(&kernel.shape);
    if (!shape || !is_16bit(kernel.math)) continue;
    const std::int64_t row = shape->transposed_a ? shape->m : shape->k;
    if (shape->n % kWholeRow != 0 || row % kWholeRow != 0) kernel.math = DType::fp32;
  }
}

}  // namespace precog
