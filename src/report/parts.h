// The parts a step and its memory are shown in: one order, one name and one colour each, whatever the view.
#pragma once

#include <string>
#include <vector>

#include "report/report.h"
#include "report/style.h"

namespace precog {

struct TimePart {
  const char* key;    // as in the JSON report
  std::string label;  // for people
  Seconds time;
  const char* colour;  // of a picture
  Ink ink;             // of a terminal
};

// All of them, zeros included, in the order of the step; together they are the step.
std::vector<TimePart> time_parts(const Breakdown& breakdown);

struct MemoryPart {
  const char* key;
  Bytes bytes;
  const char* colour;
};
std::vector<MemoryPart> memory_parts(const MemoryUse& memory);  // up to the peak, then what is around it
// What the device must have beyond the peak: `gaps` in segments that cannot be given back whole, and what is outside the allocator.
struct AroundPeak {
  Bytes gaps, outside;
};
AroundPeak around_peak(const MemoryUse& memory);

// What memory over the step is stacked of, from the bottom: what stays first.
struct MemoryLayer {
  const char* name;
  const char* colour;
  std::vector<MemoryCategory> categories;
};
const std::vector<MemoryLayer>& memory_layers();
Bytes layer_bytes(const MemoryLayer& layer, const BytesByCategory& bytes);

Seconds exposed_total(const Breakdown& breakdown);

// "12.3 ms", or "-" for nothing: a difference of sums may leave less than a nanosecond.
std::string part_text(const TimePart& part);
bool negligible(const TimePart& part, Seconds step);  // less than a picture shows: 0.05% of the step

// At most five short lines: what the kernels, the communication, the host, the hardware and the memory rest on.
// The JSON report says the same cost by cost.
std::vector<std::string> provenance_lines(const Report& report);

// "batch 32 x 8 GPUs, sequence 512, adamw, eager"
std::string job_line(const Report& report);

// "8 GPUs: 2 nodes of 4 (pcie-workstation), eth-10g between": what the cluster was taken to be, most of it by default.
// Empty for one GPU.
std::string cluster_line(const Report& report);

// Okabe and Ito's palette: told apart with every common kind of colour blindness, on white and on black.
inline constexpr const char* kColourForward = "#0072b2";
inline constexpr const char* kColourBackward = "#56b4e9";
inline constexpr const char* kColourOptimizer = "#e69f00";
inline constexpr const char* kColourCasts = "#cc79a7";
inline constexpr const char* kColourLossScaling = "#f0e442";
inline constexpr const char* kColourCommunication = "#009e73";
inline constexpr const char* kColourBubble = "#888888";
inline constexpr const char* kColourBetween = "#c8c8c8";
inline constexpr const char* kColourHost = "#d55e00";
inline constexpr const char* kColourInput = "#7f3b08";
inline constexpr const char* kColourWeightCasts = "#8c6bb1";

}  // namespace precog
