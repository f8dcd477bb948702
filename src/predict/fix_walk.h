// From plans that were tried, the job's own and frugal ones of every layout, to plans that differ in a setting or two and promise to be
// cheaper, by what each change did to the nearest plan: those are tried, and tell more. Where nothing promises more, the best are tried at
// their own depth, and every setting of them changed in turn. Of every kind of result, in the job's own mode and in the other.
#pragma once

#include "predict/fix_pool.h"

namespace precog {

// What is tried is in the pool then.
void walk_plans(FixPool& pool, const FixRules& rules, const FixTrials& trials);

}  // namespace precog
