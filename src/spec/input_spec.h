// How batches reach the step: what the request's "input" says of the data loader. Nothing is measured here; the user knows it.
#pragma once

#include "base/units.h"

namespace precog {

struct InputSpec {
  Seconds per_batch;   // what one worker needs for one (micro-)batch: reading, decoding, augmenting, collating
  int workers = 0;     // processes that prepare batches beside the training loop; 0: the loop does it itself
  int prefetch = 2;    // batches that each worker keeps ahead (PyTorch's prefetch_factor)
  Bytes copied;        // to the GPU per batch, on the stream that computes; 0: not said
  Bytes on_gpu;        // read and written there to prepare a batch (cutting, resampling, noise), on that stream too; 0: nothing
};

}  // namespace precog
