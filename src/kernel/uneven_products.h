// Which products an old library keeps off the tensor cores.
#pragma once

#include "kernel/kernel.h"

namespace precog {

// What cuBLAS did before its release 11: products in 16 bits whose rows are no multiple of 16 bytes run on the vector units, in fp32's
// arithmetic (kernels named fp16_sgemm, not fp16_s884gemm).
void leave_tensor_cores_where_uneven(KernelProgram& program);

}  // namespace precog
