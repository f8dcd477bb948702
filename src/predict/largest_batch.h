// The largest batch that fits, and its prediction. Found by predicting batches; memory grows almost linearly with them, but for
// fragmentation, which can stop one batch and let larger ones through.
#pragma once

#include "predict/predict.h"

namespace precog {

// The request's own batch is not looked at. At one sample where nothing fits.
Result<Prediction> predict_largest_batch(const Json& request, const Catalog& catalog, const std::string& where, const std::filesystem::path& folder);

}  // namespace precog
