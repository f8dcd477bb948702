#include "calibrate/measurements.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/compression.h"
#include "calibrate/operator_kernels.h"
#include "cost/profile.h"

namespace precog {
namespace {

// Operands of so many times the cache's size do not survive in it from one repetition to the next.
constexpr double kPastCache = 1.6;

// What a line says beside the shape.
constexpr std::array<std::string_view, 22> kNotShape = {"family", "op", "dtype", "layout", "s", "s_min", "calls", "bytes", "flops", "rotated", "cold", "graph",
                                                        "model", "axis", "off", "error", "failed", "causal", "dropout", "mask", "lies", "copy"};

std::uint32_t hash_of(std::string_view text) {  // FNV-1a: the same on every machine
  std::uint32_t hash = 2166136261u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  hash ^= hash >> 15;
  hash *= 2246822519u;
  return hash ^ (hash >> 13);
}

std::uint32_t shape_of(const Json& line) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : line.items()) {
    const bool one = key == "b" && value == 1;
    if (!one && std::find(kNotShape.begin(), kNotShape.end(), key) == kNotShape.end()) parts.push_back(key + "=" + value.dump());
  }
  std::sort(parts.begin(), parts.end());
  std::string text;
  for (const std::string& part : parts) text += part + ";";
  return hash_of(text);
}

std::string software_of(const Json& meta) {
  std::string out;
  const auto add = [&](const char* what, const char* key) {
    if (auto it = meta.find(key); it != meta.end() && (it->is_string() || it->is_number())) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", what, it->is_string() ? it->get<std::string>() : it->dump());
  };
  add("PyTorch", "torch");
  add("CUDA", "cuda");
  add("cuDNN", "cudnn");
  add("driver", "driver");
  return out;
}

bool says(const Json& line, const char* key) {
  auto it = line.find(key);
  return it != line.end() && ((it->is_boolean() && it->get<bool>()) || (it->is_number() && it->get<double>() > 0));
}

// What a line says of its timing alone.
constexpr std::array<std::string_view, 7> kOfTiming = {"s", "s_min", "calls", "bytes", "flops", "rotated", "graph"};

std::uint64_t call_of(const Json& line) {
  std::string text;
  for (const auto& [key, value] : line.items())  // in the order of the keys
    if (std::find(kOfTiming.begin(), kOfTiming.end(), key) == kOfTiming.end()) text += key + "=" + value.dump() + ";";
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Of the moment between two kernels: how much passes around one that goes with its call's own. A product's queued call takes 0.97 us more than its
// kernel under a profiler (median of 4,500), 0.6 more where a split sum follows, 0.3 more where a memset goes before (640 and 1,200; 2026-11-16-h200-products);
// sums down columns with a memset were 1.2 us too short for as long as it was taken to be a kernel like others (2026-11-16-h200-cached).
double gap_before(const Kernel& kernel) { return kernel.name == "memset" ? 0.3 : kernel.name == "split_sum" ? 0.6 : 1; }

// A line with a family as a measurement, or why it is none.
Result<Measurement> measurement_of(const Json& line, const GpuSpec& gpu, const ArchitectureProfile& physics) {
  auto seconds = line.find("s");
  if (seconds == line.end()) return fail("", "failed when it was measured");
  if (!seconds->is_number() || !std::isfinite(seconds->get<double>()) || seconds->get<double>() <= 0) return fail("", "\"s\" must be a positive number of seconds");
  PRECOG_TRY(kernels, kernels_of(line, gpu));
  Measurement out;
  double gaps = 0;
  for (const Kernel& kernel : kernels) {
    gaps += std::max(1, kernel.launches) * gap_before(kernel);
    out.bytes += static_cast<double>(kernel.read.value + kernel.written.value);
  }
  // Calls queued one after the other: between two kernels the GPU idles for a moment, which is the schedule's to count. Replayed
  // from a CUDA graph there is next to none.
  // A convolution's kernels take that moment themselves when others ran before them: named one by one under a profiler, with the
  // cache cold and another kernel before each, those of 8,300 calls add up to the time of the queued call, gaps included (median
  // 1.7% off; 2026-11-16-h200-conv, choices.jsonl.gz).
  const bool convolves = std::any_of(kernels.begin(), kernels.end(), [](const Kernel& kernel) { return std::holds_alternative<ConvShape>(kernel.shape); });
  out.seconds = seconds->get<double>() - (says(line, "graph") || convolves ? 0 : gaps * physics.kernel_gap.value);
  if (out.seconds <= 0.2 * seconds->get<double>()) return fail("", "is shorter than the gaps between its kernels: fewer kernels run than are known of");
  out.kernels = std::move(kernels);
  const bool kept_out = says(line, "rotated") || says(line, "cold");
  out.warm = !kept_out && out.bytes > kAlwaysCached && out.bytes < kPastCache * static_cast<double>(gpu.l2.value);
  out.chilled = kept_out && out.bytes <= kAlwaysCached;
  out.shape = shape_of(line);
  out.call = call_of(line);
  out.dtype = line["dtype"].get<std::string>();
  return out;
}

}  // namespace

Result<bool> add_measurements(std::string_view text, const std::string& name, const GpuSpec& gpu, const ArchitectureProfile& physics, Measurements& out) {
  const std::size_t file = out.files.size();
  out.files.push_back({name, "", "", 0});
  std::size_t number = 0, before = out.rows.size();
  std::vector<Problem> problems;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    const std::string_view current = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (current.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}, line {}", name, number);
    auto json = parse_json(current, where);
    if (!json || !json->is_object()) {
      problems.push_back({where, "is no measurement: a JSON object is wanted, as precog.profile writes them"});
      if (problems.size() >= 10) break;
      continue;
    }
    if (auto meta = json->find("meta"); meta != json->end() && meta->is_object()) {
      if (says(*meta, "dry_run")) return fail(where, "was a rehearsal without a GPU (dry_run): its times mean nothing");
      if (auto date = meta->find("date"); date != meta->end() && date->is_string()) out.files[file].date = date->get<std::string>().substr(0, 10);
      out.files[file].software = software_of(*meta);
    }
    if (!json->contains("family")) {
      ++out.other_lines;
      continue;
    }
    auto row = measurement_of(*json, gpu, physics);
    if (!row) {
      const auto text_of = [&](const char* key) { return json->contains(key) && (*json)[key].is_string() ? (*json)[key].get<std::string>() : std::string("?"); };
      out.unusable.push_back({file, number, fmt::format("{} {} {}: {}", text_of("family"), text_of("op"), text_of("dtype"), row.error().text())});
      continue;
    }
    row->file = file;
    row->line = number;
    out.rows.push_back(std::move(*row));
  }
  if (!problems.empty()) return fail(std::move(problems));
  out.files[file].rows = static_cast<std::int64_t>(out.rows.size() - before);
  if (out.rows.size() == before) return fail(name, "has no measured operator that can be used" + (out.unusable.empty() ? std::string() : "; the last: " + out.unusable.back().reason));
  return true;
}

Result<Measurements> read_measurements(const std::vector<std::string>& paths, const GpuSpec& gpu, const ArchitectureProfile& physics) {
  Measurements out;
  for (const std::string& path : paths) {
    PRECOG_TRY(bytes, read_text_file(path));
    PRECOG_TRY(text, opened(std::move(bytes), kMaxInputFileBytes, path));
    PRECOG_TRY(added, add_measurements(text, path, gpu, physics, out));
    (void)added;
  }
  return out;
}

}  // namespace precog
