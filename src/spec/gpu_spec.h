// One GPU as its vendor describes it: what a cost model may know without measuring.
// Read from data/gpus/<name>.json; every figure there carries its source.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "spec/dtype.h"

namespace precog {

class RateTable {
 public:
  bool has(DType dtype) const { return rates_[index(dtype)].value > 0; }
  FlopsPerSecond operator[](DType dtype) const { return rates_[index(dtype)]; }
  void set(DType dtype, FlopsPerSecond rate) { rates_[index(dtype)] = rate; }

 private:
  static std::size_t index(DType dtype) { return static_cast<std::size_t>(dtype); }
  std::array<FlopsPerSecond, kDTypeCount> rates_{};
};

struct GpuSpec {
  std::string name, title, vendor, architecture, compute_capability;
  std::vector<std::string> aliases;
  int sms = 0;
  Hertz boost_clock;
  Watts power;
  Bytes memory_capacity;  // what the driver reports where known, else what the datasheet says
  BytesPerSecond memory_bandwidth;
  Bytes l2;
  RateTable matrix;  // dense, fp32 accumulation; only what the hardware has a unit for
  RateTable vector;  // ordinary cores
  BytesPerSecond link_bandwidth;  // to its peers, one direction
  BytesPerSecond pcie_bandwidth;  // to its host, one direction
  std::string usual_system;
  std::vector<std::string> sources;

  // NVIDIA's compute capability as a number, 8.0 -> 80; 0 for other vendors.
  int capability() const;
  // Whether arithmetic in `dtype` has hardware of its own here, on either kind of core.
  bool computes(DType dtype) const { return matrix.has(dtype) || vector.has(dtype); }
};

Result<GpuSpec> parse_gpu(const Json& json, const std::string& where);

}  // namespace precog
