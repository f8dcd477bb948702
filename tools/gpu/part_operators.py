"""Part D: single operators on the GPU, for fitting kernel costs. Output: operators.jsonl; see precog.gpu.operators."""
import in_package  # noqa: F401
from precog.gpu.operators import run  # noqa: F401
