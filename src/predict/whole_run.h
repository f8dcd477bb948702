// What large and long jobs lose beyond the sum of their steps: ranks that wait for the slowest, checkpoints, failures.
// Each is an option of the request, off unless asked for, and an estimate: the figures that it rests on are the user's.
#pragma once

#include <cstdint>

#include "predict/request.h"
#include "predict/summarise.h"
#include "report/report.h"

namespace precog {

// The largest of so many draws of a standard normal distribution, in expectation (Blom's approximation); 0 for one.
double expected_largest(std::int64_t draws);

// A synchronous step ends with its slowest rank: each rank's own work varies by `sigma` (relative, from step to step,
// independently), and all wait. What is waited is communication that takes longer, and is counted there.
StepTimes with_stragglers(StepTimes times, double sigma, std::int64_t ranks);

// How many nodes write a checkpoint.
int writing_nodes(const Request& request);

// Failures and checkpoints on top of the steps' own time. A job of n GPUs fails n times as often as one; each failure costs a restart and what was
// done since the last checkpoint, which are taken as often as Daly (2006) has it: sqrt(2 c m) - c for checkpoints of c seconds and m seconds
// between failures. The whole is Daly's m e^(r/m) (e^((t+c)/m) - 1) T / t. Changes total and cost; says in a warning where the job would not advance.
void add_failures(const Request& request, std::int64_t parameters, Report& report);

}  // namespace precog
