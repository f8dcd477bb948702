// What a launch took longer or shorter in one sitting (a measurement file) than in the others: machines of one kind, and one machine
// on two days, differ by a tenth of a microsecond, which is several per cent of a small kernel. Told from calls that several sittings
// have timed; a sitting that shares none has nothing taken off. Knows nothing of kernels but how many a call launches.
#pragma once

#include <vector>

#include "calibrate/measurements.h"

namespace precog {

// Seconds per launch, by file. Held-out shapes say nothing; over all rows of sittings that share calls they add up to nothing.
std::vector<double> sitting_offsets(const Measurements& measurements);

double launches_of(const Measurement& measurement);

}  // namespace precog
