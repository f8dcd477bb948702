// A prediction, and several side by side, as text for a terminal of 80 columns.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/advice_report.h"
#include "report/report.h"
#include "report/style.h"

namespace precog {

std::string text_report(const Report& report, const Style& style);

struct LeftOut {  // a precision that has no row, and why
  std::string precision, reason;
};

struct Comparison {
  std::vector<Report> reports;  // fastest first
  std::vector<LeftOut> left_out;
  std::optional<AdviceList> advice;  // where it was asked for
  bool any_fits() const;
};

// Sorts, fastest first: what fits before what does not, since a step that cannot run is not fast.
Comparison make_comparison(std::vector<Report> reports, std::vector<LeftOut> left_out);

// "bf16, amp-bf16 (no bf16 hardware)": one text for each reason.
std::vector<std::string> left_out_texts(const Comparison& comparison);

std::string compare_text(const Comparison& comparison, const Style& style);
Json to_json(const Comparison& comparison);

// The precision that speed-ups are measured against: fp32 where it is there, else the slowest that fits.
const Report& baseline(const Comparison& comparison);
// What a mixed precision must beat: TF32 where it is there, else the framework's default, else fp32; null where none of them is.
const Report* plain_fp32(const Comparison& comparison);
// One sentence per report: what it wins or loses against the fastest and against plain fp32 or TF32, and why.
std::string win_or_loss(const Comparison& comparison, const Report& report);
// What to take from it: the fastest that fits, and the fastest that keeps its weights in fp32, with what the run takes.
std::string verdict(const Comparison& comparison);
// "39.06 k steps on 8 GPUs at $2.50 per GPU-hour"; empty when neither a length nor a price was given.
std::string run_terms(const Report& report);
// One sentence that the table alone does not say: what the fastest owes its place to, or what holds it back.
std::string insight(const Comparison& comparison);

}  // namespace precog
