#include <limits>
#include <set>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>

#include "base/ensure.h"
#include "report/example_report.h"
#include "report/html_report.h"
#include "report/parts.h"
#include "report/svg.h"
#include "report/text_report.h"
#include "report/precision_colours.h"
#include "report/trace.h"

using namespace precog;

namespace {

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) longest = std::max(longest, display_width(line));
  return longest;
}

// Every tag that opens closes, in order; returns what is wrong, or nothing.
std::string tag_trouble(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag never ends";
    std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.empty() || tag[0] == '!') continue;
    if (tag.back() == '/') continue;
    std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] != '/') {
      name = tag.substr(0, tag.find(' '));
      open.push_back(name);
    } else {
      name = tag.substr(1);
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Two operators on the host and on the compute stream, in two steps.
struct ToyTimeline {
  Graph graph;
  KernelProgram program;
  std::vector<KernelCost> costs;
  Schedule schedule;
  Timeline timeline;

  ToyTimeline() {
    TensorId in = graph.add_tensor({.shape = Shape({4, 4}),
                                    .dtype = DType::fp32,
                                    .role = Role::input,
                                    .requires_grad = false,
                                    .storage = {},
                                    .name = graph.intern("x")});
    TensorId out = graph.add_tensor({.shape = Shape({4, 4}),
                                     .dtype = DType::bf16,
                                     .role = Role::activation,
                                     .requires_grad = false,
                                     .storage = {},
                                     .name = {}});
    Op op;
    op.kind = OpKind::cast;
    op.math = DType::bf16;
    op.module = graph.intern("block.\"0\"");  // needs escaping
    TensorId ins[] = {in}, outs[] = {out};
    OpId id = graph.add_op(op, ins, outs);
    Kernel kernel;
    kernel.math = DType::bf16;
    program.kernels = {kernel};
    Call call;
    call.op = id;
    call.family = Family::cast;
    call.kernel_count = 1;
    program.calls = {call};
    costs.resize(1);
    for (std::int16_t step = 0; step < 2; ++step) {
      std::int32_t host = schedule.graph.add(kHost, 1'000'000, {});
      schedule.labels.push_back({0, step, 0});
      schedule.graph.add(kCompute, 3'000'000, {host});
      schedule.labels.push_back({0, step, 0});
    }
    timeline = simulate(schedule.graph);
  }
  TimelineParts parts() const { return {graph, program, costs, schedule, timeline}; }
};

}  // namespace

TEST_CASE("JsonReportHasEveryFieldOfTheContract") {
  Json json = to_json(example_report("amp-bf16", 0.1));
  for (const char* key : {"step_s",      "step_s_low", "step_s_high",    "samples_per_s", "tokens_per_s",   "tokens_per_s_per_gpu",
                          "mfu",         "mfu_bf16",   "tflops_per_gpu", "peak_bytes",    "reserved_bytes", "device_bytes",
                          "fits",        "memory",     "total_s",        "cost_usd",      "breakdown",      "by_dtype",
                          "by_op_class", "kernels",    "gpu_busy_s",     "host_s",        "bound",          "provenance",
                          "warnings",    "request",    "schema"})
    CHECK_MESSAGE(json.contains(key), key);
  for (const char* key : {"parameters", "gradients", "optimizer", "activations", "workspace", "fragmentation"})
    CHECK(json["memory"].contains(key));
  for (const char* key :
       {"forward", "backward", "optimizer", "casts", "loss_scaling", "exposed_communication", "pipeline_bubble", "between_kernels",
        "host", "input"})
    CHECK(json["breakdown"].contains(key));
  CHECK(json["cast_kernels"].is_number_integer());
  CHECK(json["cast_kernels"] == 200);
  CHECK(json["provenance"][0]["on"] == "hopper");
  CHECK_FALSE(json["provenance"][1].contains("on"));
  CHECK(json["schema"] == 1);
  CHECK(json["total_s"].is_null());
  CHECK(json["cost_usd"].is_null());
  CHECK(json["tokens_per_s"].get<double>() == doctest::Approx(40960));
  CHECK(json["breakdown"]["exposed_communication"]["all_reduce"].get<double>() == doctest::Approx(0.004));
  CHECK(json["peak_bytes"] == 100'000'000);
}

TEST_CASE("ImagesHaveNoTokensInJson") {
  Report r = example_report("fp32", 1);
  r.tokens_per_s.reset();
  r.tokens_per_s_per_gpu.reset();
  r.seq = 0;
  Json json = to_json(r);
  CHECK(json["tokens_per_s"].is_null());
  CHECK(json["seq"].is_null());
}

TEST_CASE("ANumberThatIsNotFiniteIsOurBug") {
  Report r = example_report("fp32", 1);
  r.mfu = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(to_json(r), BrokenPromise);
}

TEST_CASE("TimePartsAddUpToTheStep") {
  Report r = example_report("fp32", 2);
  Seconds total;
  for (const TimePart& part : time_parts(r.breakdown)) total += part.time;
  CHECK(total.value == doctest::Approx(2));
}

TEST_CASE("TextReportSaysTheHeadlineIn80Columns") {
  Report r = example_report("amp-bf16", 0.1);
  r.warnings = {"a warning long enough to need more than one line of a terminal that has eighty columns and no more"};
  r.total = Seconds{7200};
  r.steps = 72000;
  r.cost_usd = 40;
  r.price_usd_per_gpu_hour = 2.5;
  std::string text = text_report(r, {});
  CHECK(longest_line(text) <= kTextWidth);
  CHECK(text.find("toy (1 M parameters) in amp-bf16 on 8 x NVIDIA H100") != std::string::npos);
  CHECK(text.find("100 ms (80% interval: 90 ms to 120 ms)") != std::string::npos);
  CHECK(text.find("fits") != std::string::npos);
  CHECK(text.find("  backward                50 ms   50%  ################\n") != std::string::npos);
  CHECK(text.find("$40.00 at $2.50 per GPU-hour") != std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text_report(r, {true}).find('\x1b') != std::string::npos);
}

TEST_CASE("ComparisonIsFastestFirstAndWhatDoesNotFitLast") {
  Comparison c = make_comparison({example_report("fp32", 1), example_report("bf16", 0.1, false), example_report("tf32", 0.5)}, {});
  CHECK(c.reports[0].precision == "tf32");
  CHECK(c.reports[1].precision == "fp32");
  CHECK(c.reports[2].precision == "bf16");
  CHECK(c.any_fits());
  CHECK(baseline(c).precision == "fp32");
  CHECK_FALSE(make_comparison({example_report("fp32", 1, false)}, {}).any_fits());
}

TEST_CASE("ComparisonTable") {
  Comparison c = make_comparison({example_report("fp32", 1), example_report("amp-bf16", 0.25), example_report("bf16", 0.2, false)},
                                 {{"fp8", "no such unit"}});
  std::string text = compare_text(c, {});
  CHECK(longest_line(text) <= kTextWidth);
  CHECK(text.find("toy (1 M parameters) on 8 x NVIDIA H100\n"
                  "batch 4 x 8 GPUs, sequence 128, adamw, eager\n"
                  "\n"
                  "precision    step  vs fp32  tokens/s  peak mem.  bound by\n"
                  "amp-bf16   250 ms    4.00x   16.38 k     100 MB  compute\n"
                  "fp32          1 s    1.00x      4096     100 MB  compute\n"
                  "bf16       200 ms    5.00x   20.48 k   100 MB !  compute\n") == 0);
  CHECK(text.find("left out: fp8 (no such unit)") != std::string::npos);
  CHECK(text.find("does not fit") != std::string::npos);
  CHECK(text.find("Casting costs amp-bf16 5% of its step (200 of 1000 kernels).") != std::string::npos);
}

TEST_CASE("LeftOutIsOneLineByReason") {
  Comparison c = make_comparison({example_report("fp32", 1)}, {{"bf16", "no bf16"}, {"tf32", "no tf32"}, {"amp-bf16", "no bf16"}});
  CHECK(compare_text(c, {}).find("left out: bf16, amp-bf16 (no bf16); tf32 (no tf32)\n") != std::string::npos);
  CHECK(to_json(c)["left_out"].size() == 3);
}

TEST_CASE("WhatTheClusterWasTakenToBeIsSaid") {
  Report r = example_report("fp32", 1);
  r.request["cluster"] = {{"name", "pcie-workstation"}, {"gpu", "x"}, {"gpus", 8}, {"gpus_per_node", 4}, {"network", "eth-10g"}};
  const std::string line = "8 GPUs: 2 nodes of 4 (pcie-workstation), eth-10g between";
  CHECK(cluster_line(r) == line);
  Comparison c = make_comparison({r}, {});
  for (const std::string& view : {text_report(r, {}), compare_text(c, {}), comparison_html(c)})
    CHECK(view.find(line) != std::string::npos);
  r.request["cluster"]["gpus_per_node"] = 8;
  CHECK(cluster_line(r) == "8 GPUs: one node (pcie-workstation)");
  r.gpus = 1;
  CHECK(cluster_line(r).empty());
}

TEST_CASE("AdviceIsWhatThisVersionCanPredict") {
  Report r = example_report("fp32", 1, false);
  r.request["recompute"] = "none";
  CHECK(verdict(make_comparison({r}, {})) ==
        "Nothing here fits in memory. What may help: a smaller batch, --recompute full or a GPU with more memory.");
  r.batch = 1;
  CHECK(verdict(make_comparison({r}, {})) ==
        "Nothing here fits in memory. What may help: --recompute full or a GPU with more memory.");
  r.request["recompute"] = "full";
  CHECK(verdict(make_comparison({r}, {})) == "Nothing here fits in memory. What may help: a GPU with more memory.");
}

TEST_CASE("WeightsAndAutocastAreTheRecipesNotTheNames") {
  Report mine = example_report("my-own", 0.2), plain = example_report("fp32", 1);
  mine.fp32_weights = false;
  CHECK(verdict(make_comparison({mine, plain}, {})) == "Fastest: my-own, 5.00x fp32. With weights kept in fp32: fp32.");
  mine.fp32_weights = true;
  CHECK(verdict(make_comparison({mine, plain}, {})) == "Fastest: my-own, 5.00x fp32.");
  mine.autocast = true;
  mine.step = {2};
  CHECK(insight(make_comparison({mine, plain}, {})).rfind("my-own is slower than fp32", 0) == 0);
  mine.step = {0.5};
  mine.breakdown.casts = {0.1};
  Report whole = example_report("bf16", 0.4);
  whole.cast_kernels = 3;
  CHECK(insight(make_comparison({mine, plain, whole}, {})) ==
        "Casting costs my-own 20% of its step (200 of 1000 kernels; bf16 has 3).");
}

TEST_CASE("VerdictSaysWhatToTakeAndWhatItCosts") {
  std::vector<Report> reports = {example_report("fp32", 1), example_report("bf16", 0.2), example_report("amp-bf16", 0.25)};
  CHECK(verdict(make_comparison(reports, {})) == "Fastest: bf16, 5.00x fp32. With weights kept in fp32: amp-bf16, 4.00x fp32.");
  for (Report& r : reports) {
    r.steps = 36000;
    r.total = r.step * 36000;
    r.price_usd_per_gpu_hour = 2;
    r.cost_usd = r.total->value / 3600 * 8 * 2;
  }
  Comparison c = make_comparison(reports, {});
  CHECK(verdict(c) ==
        "Fastest: bf16, 5.00x fp32; the run takes 2 h and $32.00 instead of 10 h and $160. "
        "With weights kept in fp32: amp-bf16, 4.00x fp32; 2.5 h and $40.00.");
  CHECK(compare_text(c, {}).find("run: 36 k steps on 8 GPUs at $2.00 per GPU-hour\n") != std::string::npos);
  CHECK(verdict(make_comparison({example_report("fp32", 1)}, {})) == "Fastest: fp32.");
  CHECK(verdict(make_comparison({example_report("fp32", 1, false)}, {})).rfind("Nothing here fits", 0) == 0);
}

TEST_CASE("ProvenanceIsAtMostFiveShortLines") {
  Report r = example_report("fp32", 1);
  r.provenance.clear();
  for (const char* family : {"gemm", "softmax", "pointwise", "cast"})
    r.provenance.push_back({family, "fitted", "data/profiles/x.json", "hopper", 0.2});
  r.provenance.push_back({"pooling", "estimate", "data/profiles/x.json", "hopper", 0.2});
  r.provenance.push_back({"collective", "estimate", "data/profiles/x.json", "", 0});
  r.provenance.push_back({"hardware", "datasheet", "data/gpus/x.json", "", 0});
  r.provenance.push_back({"host", "measured", "data/hosts/x.json", "a desk", 0.1});
  r.provenance.push_back({"memory", "estimate", "", "", 0});
  const std::vector<std::string> expected = {"kernels: fitted on hopper operator timings (80% of GPU time), estimate (20%)",
                                             "communication: estimate (data/profiles/x.json)",
                                             "host: measured (data/hosts/x.json, for a desk)",
                                             "hardware: datasheet (data/gpus/x.json)", "memory: estimate"};
  CHECK(provenance_lines(r) == expected);
}

TEST_CASE("PartsTooSmallToSpeakOfAreADash") {
  Report r = example_report("fp32", 1);
  r.breakdown.host = {1e-10};
  r.peak_16bit = "fp16";
  std::string text = text_report(r, {});
  CHECK(text.find("waiting for host            - <0.1%\n") != std::string::npos);
  CHECK(text.find("of the fp16 peak") != std::string::npos);
}

TEST_CASE("ControlCharactersAreNotEchoed") {
  CHECK(printable("plain \u00e9 \u4e16") == "plain \u00e9 \u4e16");
  CHECK(printable("a\x1b[31m\n\t\x7f") == "a\\x1B[31m\\x0A\\x09\\x7F");
  CHECK(printable("\xc2\x9b" "2J") == "\\xC2\\x9B" "2J");  // the other set of control characters
  CHECK(printable("\xff\xe4\xb8") == "\\xFF\\xE4\\xB8");
  Table table({{"id"}});
  table.add({{"\x1b]0;x"}});
  CHECK(table.text({}).find('\x1b') == std::string::npos);
}

TEST_CASE("TheColumnThatGivesWayIsCut") {
  Table table({{"name", Table::Align::left, true}, {"number", Table::Align::right}});
  table.add({{std::string(100, 'x')}, {"123456789"}});
  CHECK(longest_line(table.text({})) == kTextWidth);
  CHECK(table.text({}).find("..  123456789\n") != std::string::npos);
}

TEST_CASE("InsightNamesAmpSlowerThanTf32") {
  Comparison c = make_comparison({example_report("tf32", 1), example_report("amp-bf16", 1.5)}, {});
  CHECK(insight(c).rfind("amp-bf16 is slower than tf32", 0) == 0);
}

TEST_CASE("ComparisonJsonKeepsEveryReport") {
  Json json = to_json(make_comparison({example_report("fp32", 1), example_report("tf32", 0.5)}, {{"fp8", "why"}}));
  CHECK(json["reports"].size() == 2);
  CHECK(json["reports"][0]["speedup"].get<double>() == doctest::Approx(2));
  CHECK(json["left_out"][0]["precision"] == "fp8");
}

TEST_CASE("HtmlIsWellFormedEscapedAndFetchesNothing") {
  Report hostile = example_report("amp-bf16", 0.1);
  hostile.model = "<script>alert('x')</script> & \"co\"";
  hostile.warnings = {"a < b"};
  Comparison c = make_comparison({hostile, example_report("fp32", 1, false)}, {{"fp8", "<b>"}});
  ToyTimeline toy;
  for (const std::string& html : {comparison_html(c), report_html(hostile, timeline_view(toy.parts())), comparison_svg(c)}) {
    CHECK(tag_trouble(html) == "");
    CHECK(html.find("<script") == std::string::npos);
    CHECK(html.find("<desc") != std::string::npos);
    CHECK(html.find("prefers-color-scheme:dark") != std::string::npos);
    std::string rest = html;  // the only address is the name space of SVG
    for (const std::string name_space = "http://www.w3.org/2000/svg"; rest.find(name_space) != std::string::npos;)
      rest.erase(rest.find(name_space), name_space.size());
    CHECK(rest.find("http") == std::string::npos);
  }
}

TEST_CASE("BadTextIsEscaped") {
  CHECK(escaped("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escaped(std::string("\x01z")) == " z");
  CHECK(escaped("\xff") == "\xEF\xBF\xBD");
}

TEST_CASE("TimelineViewShowsTheLastStepInFewBlocks") {
  ToyTimeline toy;
  TimelineView view = timeline_view(toy.parts(), 100);
  // The host's second step starts at 1 us while the GPU runs the first until 4 us and the second until 7 us.
  CHECK(view.window.value == doctest::Approx(6e-6));
  REQUIRE(view.tracks[kCompute].size() == 2);
  CHECK(view.tracks[kCompute][0].earlier_step);
  CHECK(view.tracks[kCompute][0].end == doctest::Approx(0.5));
  CHECK_FALSE(view.tracks[kCompute][1].earlier_step);
  CHECK(view.tracks[kCompute][1].activity == Activity::casts);
  CHECK(view.tracks[kHost].size() <= 2);
  CHECK(view.tracks[kCommunication].empty());
}

TEST_CASE("TraceIsJsonOfTheLastStep") {
  ToyTimeline toy;
  Json trace = Json::parse(chrome_trace(toy.parts(), "a \"title\""));
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == "X") events.push_back(event);
  REQUIRE(events.size() == 3);  // the band that says the precision comes before what it spans
  CHECK(events[0]["tid"] == 1);
  CHECK(events[0]["cat"] == "precision");
  CHECK(events[0]["name"] == "bf16 bfloat");
  CHECK(events[0]["ts"] == events[2]["ts"]);
  CHECK(events[0]["dur"] == events[2]["dur"]);
  CHECK(events[1]["tid"] == 0);
  CHECK(events[1]["ts"].get<double>() == doctest::Approx(0));
  CHECK(events[2]["tid"] == 1);
  CHECK(events[2]["ts"].get<double>() == doctest::Approx(3));  // waits for the first step's kernel
  CHECK(events[2]["dur"].get<double>() == doctest::Approx(3));
  CHECK(events[2]["name"] == "cast");
  CHECK(events[2]["args"]["dtype"] == "bf16");
  CHECK(events[2]["args"]["module"] == "block.\"0\"");
}

TEST_CASE("PrecisionsDifferInMoreThanTheirDigits") {  // which is all that Perfetto colours by
  std::set<std::string> letters, colours;
  for (const PrecisionColour& one : precision_colours()) {
    std::string left;
    for (const char* c = one.name; *c; ++c)
      if (*c < '0' || *c > '9') left += *c;
    CHECK(letters.insert(left).second);
    CHECK(colours.insert(one.colour).second);
  }
  CHECK(precision_class(DType::fp8) == precision_class(DType::mxfp8));
  CHECK(precision_class(DType::fp32) != precision_class(DType::tf32));
  CHECK(precision_class(DType::int64) + 1 == precision_colours().size());
}

TEST_CASE("TimelineShowsThePrecisionOfTheComputeStream") {
  ToyTimeline toy;
  const TimelineView view = timeline_view(toy.parts(), 100);
  REQUIRE_FALSE(view.arithmetic.empty());
  CHECK(precision_colours()[view.arithmetic.back().precision].name == std::string("bf16 bfloat"));
  CHECK(view.arithmetic.back().end == doctest::Approx(1));
  CHECK(timeline_svg(view).find("bf16 bfloat") != std::string::npos);
}

TEST_CASE("NumbersForPeople") {
  CHECK(number_text(12.345) == "12.35");
  CHECK(number_text(895900) == "895.9 k");
  CHECK(number_text(1.096e6) == "1.096 M");
  CHECK(money_text(5120.4) == "$5,120");
  CHECK(money_text(1234567) == "$1,234,567");
  CHECK(money_text(0.0042) == "$0.0042");
  CHECK(percent_text(0.432) == "43%");
  CHECK(percent_text(0.004) == "0.4%");
  CHECK(percent_text(0.0001) == "<0.1%");
  CHECK(percent_text(0) == "0%");
}

TEST_CASE("WrappingLosesNothingAndStaysIn80Columns") {
  std::string word(200, 'x');
  std::string text = wrapped("label: ", "some words and then " + word + " and the end");
  CHECK(longest_line(text) <= kTextWidth);
  CHECK(count(text, "x") == 200);
  CHECK(text.find("and the end") != std::string::npos);
}

TEST_CASE("ShorteningKeepsWholeCharacters") {
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdefg", 6) == "abcd..");
  CHECK(shortened("\u00e9\u00e9\u00e9\u00e9\u00e9", 4) == "\u00e9\u00e9..");
}

TEST_CASE("UnknownOperatorsAreInTheJsonAndInTheText") {
  Report r = example_report("fp32", 1);
  CHECK(to_json(r)["unknown_operators"] == Json({{"share", 0.0}, {"names", Json::array()}}));
  CHECK(text_report(r, {}).find("costed by the bytes they move") == std::string::npos);
  r.unknown_share = 0.125;
  r.unknown_names = {"mylib::strange"};
  CHECK(to_json(r)["unknown_operators"]["share"] == 0.125);
  CHECK(to_json(r)["unknown_operators"]["names"] == Json::array({"mylib::strange"}));
  const std::string text = text_report(r, {});
  CHECK(text.find("mylib::strange") != std::string::npos);
}
