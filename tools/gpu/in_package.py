"""Makes the package of this checkout importable. What is measured and how lives there (python/precog/gpu), so that
`precog profile` and these campaigns measure the same things in the same way."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
