#include "report/reasons.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "base/text.h"
#include "report/parts.h"
#include "spec/dtype.h"

namespace precog {
namespace {

constexpr Family kProducts[] = {Family::gemm, Family::convolution, Family::attention, Family::recurrent};
constexpr Family kNorms[] = {Family::normalization, Family::softmax, Family::loss, Family::reduction};
constexpr const char *kProductsPart = "products", *kNormsPart = "norms, softmax, loss", *kElementPart = "element-wise";

Seconds of_families(const Report& r, std::span<const Family> families) {
  Seconds sum;
  for (Family family : families)
    if (auto it = r.by_op_class.find(std::string(to_text(family))); it != r.by_op_class.end()) sum += it->second;
  return sum;
}

Seconds products(const Report& r) { return of_families(r, kProducts); }
Seconds norms(const Report& r) { return of_families(r, kNorms); }
Seconds convolutions(const Report& r) { return of_families(r, std::span(kProducts).subspan(1, 1)); }
// What is left of forward and backward: element by element, copies, pooling, look-ups.
Seconds elementwise(const Report& r) {
  return std::max(Seconds{}, r.breakdown.forward + r.breakdown.backward - products(r) - norms(r));
}

// What its products run in: the narrowest arithmetic that takes a visible share of the time (the optimizer alone can make fp32
// the type that takes most).
std::string main_type(const Report& r) {
  auto width = [](const std::string& name) {
    const auto type = dtype_named(name);
    return !type || !is_floating(*type) ? 1000 : 2 * bits_of(*type) - (*type == DType::tf32 ? 1 : 0);
  };
  std::string out;
  for (const auto& [type, time] : r.by_dtype)
    if (time.value >= 0.03 * r.gpu_busy.value && (out.empty() || width(type) < width(out))) out = type;
  return out;
}

std::string signed_time(Seconds time) { return fmt::format("{}{}", time.value < 0 ? "-" : "+", to_text(Seconds{std::abs(time.value)})); }

}  // namespace

const char* part_of(Family family) {
  if (std::find(std::begin(kProducts), std::end(kProducts), family) != std::end(kProducts)) return kProductsPart;
  if (std::find(std::begin(kNorms), std::end(kNorms), family) != std::end(kNorms)) return kNormsPart;
  return kElementPart;
}

std::vector<Reason> reasons(const Report& from, const Report& that) {
  std::vector<Reason> out;
  auto add = [&](const char* part, Seconds before, Seconds after, const std::string& more = {}) {
    const Seconds difference = after - before;
    if (difference.value == 0) return;
    out.push_back({part, difference, fmt::format("{} {}{}", part, signed_time(difference), more.empty() ? "" : " (" + more + ")")});
  };
  const double casts = that.cast_kernels - from.cast_kernels;
  const std::int64_t launches = that.kernels - from.kernels;
  add(kProductsPart, products(from), products(that), main_type(from) == main_type(that) ? "" : fmt::format("{} for {}", main_type(that), main_type(from)));
  add(kNormsPart, norms(from), norms(that));
  add(kElementPart, elementwise(from), elementwise(that));
  add("casts", from.breakdown.casts, that.breakdown.casts, casts == 0 ? "" : fmt::format("{:+.0f} kernels", casts));
  add("optimizer", from.breakdown.optimizer, that.breakdown.optimizer);
  add("loss scaling", from.breakdown.loss_scaling, that.breakdown.loss_scaling);
  add("communication", exposed_total(from.breakdown), exposed_total(that.breakdown));
  add("pipeline bubble", from.breakdown.pipeline_bubble, that.breakdown.pipeline_bubble);
  add("gaps between kernels", from.breakdown.between_kernels, that.breakdown.between_kernels);
  add("waiting for the host", from.breakdown.host, that.breakdown.host, launches == 0 ? "" : fmt::format("{:+} launches", launches));
  add("waiting for input", from.breakdown.input, that.breakdown.input);
  std::stable_sort(out.begin(), out.end(), [](const Reason& a, const Reason& b) { return std::abs(a.difference.value) > std::abs(b.difference.value); });
  return out;
}

std::string reasons_text(const Report& from, const Report& that, std::size_t most) {
  const bool faster = that.step < from.step;
  std::vector<std::string> with, against;
  for (const Reason& reason : reasons(from, that)) {
    if (std::abs(reason.difference.value) < 0.005 * from.step.value) continue;
    auto& side = (reason.difference.value < 0) == faster ? with : against;
    if (side.size() < (&side == &with ? most : 1)) side.push_back(fmt::format("{} {}", reason.part, signed_time(reason.difference)));
  }
  with.insert(with.end(), against.begin(), against.end());
  return join(with, ", ");
}

std::string against(const Report& from, const Report& that) {
  const double ratio = that.step / from.step;
  if (std::abs(ratio - 1) < 0.005) return fmt::format("as fast as {}", from.precision);
  std::string out = ratio > 1 ? fmt::format("{:+.0f}% vs {}", 100 * (ratio - 1), from.precision) : fmt::format("{:.2f}x as fast as {}", 1 / ratio, from.precision);
  if (const std::string why = reasons_text(from, that); !why.empty()) out += " (" + why + ")";
  return out;
}

std::optional<Loss> loses_to(const Report& plain, const Report& mixed) {
  if (mixed.step.value <= 1.01 * plain.step.value) return std::nullopt;
  const Breakdown &a = plain.breakdown, &b = mixed.breakdown;
  struct Cause {
    Seconds more;
    const char* kind;
    std::string text;
  };
  const std::int64_t launches = std::max<std::int64_t>(0, mixed.kernels - plain.kernels);
  const auto narrow = dtype_named(main_type(mixed));
  const bool quantises = narrow && is_floating(*narrow) && bits_of(*narrow) < 16;
  const std::vector<Cause> causes = {
      {b.host - a.host, "host", fmt::format("the host is the bottleneck and has {} more kernels to launch", launches)},
      {b.between_kernels - a.between_kernels, "launches", fmt::format("{} more kernels, each with a gap before it", launches)},
      {convolutions(mixed) - convolutions(plain), "convolution", "its convolutions gain nothing: depthwise and grouped ones run on no tensor cores"},
      {norms(mixed) - norms(plain), "norms", fmt::format("norms, softmax and loss take {} longer than in fp32: their 16-bit kernels are other ones",
                                                         to_text(norms(mixed) - norms(plain)))},
      {elementwise(mixed) - elementwise(plain), "element_wise",
       quantises ? std::string("finding scales and quantising operator by operator costs more than its products save; one fused kernel, or compiling, would not")
                 : fmt::format("element-wise operators take {} longer", to_text(elementwise(mixed) - elementwise(plain)))},
      {b.casts - a.casts, "casts",
       fmt::format("its {:.0f} cast kernels cost {}, more than its products save at this batch", mixed.cast_kernels, to_text(b.casts))},
      {b.loss_scaling - a.loss_scaling, "loss_scaling", "the loss scaler's kernels, and the host waiting for its flag"}};
  const auto worst = std::max_element(causes.begin(), causes.end(), [](const Cause& x, const Cause& y) { return x.more < y.more; });
  const double share = (mixed.step - plain.step) / plain.step;
  if (worst->more.value <= 0) return Loss{share, "other", reasons_text(plain, mixed)};
  return Loss{share, worst->kind, worst->text};
}

}  // namespace precog
