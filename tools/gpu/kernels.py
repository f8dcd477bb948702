"""What ran on the GPU during a call; see precog.gpu.kernels."""
import in_package  # noqa: F401
from precog.gpu.kernels import CLASSES, busy_ns, class_of, record, summarise  # noqa: F401
