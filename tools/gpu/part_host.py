"""Part C: what the host pays per operator. Output: host.jsonl; see precog.gpu.host."""
import in_package  # noqa: F401
from precog.gpu.host import run  # noqa: F401
