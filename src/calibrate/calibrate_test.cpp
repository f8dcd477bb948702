// From measured lines to a profile: trees, samples, held-out shapes, and what becomes of lines that are no use.
#include <array>
#include <cmath>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "calibrate/calibrate.h"
#include "calibrate/learn_family.h"
#include "calibrate/operator_kernels.h"
#include "cost/profile.h"

namespace precog {
namespace {

const std::filesystem::path kData = PRECOG_DATA_DIR;

struct Machine {
  CostProfile profile = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / "h200-sxm.json").value(), "h200-sxm").value();
  const ArchitectureProfile& physics = *profile.find("hopper");
};
const Machine& machine() {
  static const Machine made;
  return made;
}

// y = step in x0 plus a slope in x1; x2 is nothing.
std::vector<Sample> known_function(int count) {
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const double x0 = i % 17, x1 = (i * 7) % 29, x2 = (i * 13) % 31;
    samples.push_back({{x0, x1, x2}, (x0 > 8 ? 0.5 : 0.0) + 0.02 * x1, 1});
  }
  return samples;
}

double sum_of(const std::vector<Tree>& trees, const std::vector<double>& features) {
  double sum = 0;
  for (const Tree& tree : trees) sum += value_of(tree, features);
  return sum;
}

std::string gemm_line(std::int64_t m, std::int64_t n, std::int64_t k, double seconds, const char* dtype = "bf16") {
  return fmt::format("{{\"family\":\"gemm\",\"op\":\"nt\",\"dtype\":\"{}\",\"m\":{},\"n\":{},\"k\":{},\"graph\":true,\"s\":{:.9g}}}\n", dtype, m, n, k, seconds);
}

// Products that take so many times what the physics say.
std::string gemm_lines(int count, double ratio) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::int64_t m = 512 + 64 * (i % 23), n = 1024 + 128 * (i % 19), k = 768 + 64 * (i % 13);
    const Json line = parse_json(gemm_line(m, n, k, 1), "").value();
    const Kernel kernel = kernels_of(line, machine().gpu).value().front();
    text += gemm_line(m, n, k, ratio * kernel_cost(kernel, machine().gpu, machine().physics).total.value);
  }
  return text;
}

Measurements measured(const std::string& text) {
  Measurements out;
  const auto added = add_measurements(text, "some.jsonl", machine().gpu, machine().physics, out);
  REQUIRE_MESSAGE(added, added.error().text());
  return out;
}

std::string refused(const std::string& text) {
  Measurements out;
  const auto added = add_measurements(text, "some.jsonl", machine().gpu, machine().physics, out);
  return added ? std::string() : added.error().text();
}

std::string unusable(const std::string& line) {
  const auto kernels = kernels_of(parse_json(line, "").value(), machine().gpu);
  return kernels ? std::string() : kernels.error().text();
}

}  // namespace

TEST_CASE("boosted trees learn a known function, and the same one twice") {
  const std::vector<Sample> samples = known_function(600);
  const std::vector<Tree> trees = boost(samples, {}), again = boost(samples, {});
  double worst = 0;
  for (const Sample& s : samples) worst = std::max(worst, std::abs(sum_of(trees, s.features) - s.target));
  CHECK(worst < 0.05);
  CHECK(sum_of(trees, {12, 10, 5}) == doctest::Approx(0.7).epsilon(0.05));
  for (const Sample& s : samples) CHECK(sum_of(trees, s.features) == sum_of(again, s.features));
}

TEST_CASE("trees of one kind say nothing of another") {
  std::vector<Sample> samples = known_function(600);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].features.push_back(static_cast<double>(i % 3));  // its kind: 1 is the known function, the others are constants
    if (i % 3 != 1) samples[i].target = i % 3 == 0 ? -2 : 5;
  }
  const std::size_t kind = samples[0].features.size() - 1;
  const std::array limits = {0.5, 1.5};
  const std::vector<Tree> trees = boost_apart(samples, {}, kind, limits);
  double worst = 0;
  for (const Sample& s : samples) worst = std::max(worst, std::abs(sum_of(trees, s.features) - s.target));
  CHECK(worst < 0.1);
  for (const Tree& tree : trees) {
    int speak = 0;
    for (double of : {0.0, 1.0, 2.0}) {
      bool any = false;
      for (Sample s : samples) s.features[kind] = of, any = any || value_of(tree, s.features) != 0;
      speak += any;
    }
    CHECK(speak <= 1);
  }
  CHECK(boost_apart(samples, {}, kind, {}).size() == boost(samples, {}).size());
}

TEST_CASE("few samples give a constant, shrunken, and no tree") {
  std::vector<KernelSample> samples;
  for (std::uint32_t i = 0; i < 8; ++i) {
    KernelSample s;
    s.features.assign(feature_names(FeatureKind::memory).size(), static_cast<double>(i));
    s.target = 0.3;
    s.dtype = "16-bit";
    s.name = "relu";
    s.shape = i;
    samples.push_back(s);
  }
  const LearnedFamily learned = learn_family(samples, FeatureKind::memory);
  const FamilyResidual& family = learned.correction;
  CHECK(learned.helps);
  CHECK(family.trees.empty());
  double sum = 0;
  for (const auto& [key, value] : family.constants) sum += value;
  CHECK(sum > 0.25);
  CHECK(sum < 0.3);
  CHECK(family.ratio.least <= 0.85);
  CHECK(family.ratio.most >= 1.18);
}

TEST_CASE("what tells nothing of shapes left out says so") {
  std::vector<KernelSample> samples;
  for (std::uint32_t i = 0; i < 60; ++i) {
    KernelSample s;
    s.features.assign(feature_names(FeatureKind::gemm).size(), 0);
    s.target = i % 5 == 0 ? -0.4 : 0.1;  // each fifth, left out, is unlike the others
    s.dtype = "bf16";
    s.name = "mm";
    s.shape = i;
    samples.push_back(s);
  }
  CHECK_FALSE(learn_family(samples, FeatureKind::gemm).helps);
  for (KernelSample& s : samples) s.target = 0.1;
  CHECK(learn_family(samples, FeatureKind::gemm).helps);
}

TEST_CASE("a GPU that is a fifth slower than its physics is found to be") {
  const Measurements measurements = measured(gemm_lines(300, 1.2));
  const Calibration calibration = calibrate(measurements, machine().gpu, machine().physics);
  CHECK(calibration.fitted + calibration.held_out == 300);
  CHECK(calibration.held_out > 20);
  REQUIRE(calibration.groups.size() == 1);
  CHECK(calibration.groups[0].physics_bias == doctest::Approx(1 / 1.2 - 1).epsilon(0.001));
  CHECK(calibration.groups[0].median < 0.01);
  const Calibration again = calibrate(measurements, machine().gpu, machine().physics);
  CHECK(to_json_text(again.profile) == to_json_text(calibration.profile));
}

TEST_CASE("a base profile carries what was not measured, and is corrected where it was") {
  CalibrateOptions thorough;
  thorough.from_few = false;
  const Calibration base = calibrate(measured(gemm_lines(300, 1.2)), machine().gpu, machine().physics, thorough);
  CHECK(base.profile.method.empty());
  FittedProfile with_more = base.profile;
  with_more.families["copy"] = with_more.families["gemm"];
  with_more.families["copy"].kind = FeatureKind::memory;
  CalibrateOptions options;
  options.base = &with_more;
  const Calibration quick = calibrate(measured(gemm_lines(30, 1.3)), machine().gpu, machine().physics, options);
  CHECK(quick.profile.families.at("copy").carried);
  CHECK_FALSE(quick.profile.families.at("gemm").carried);
  CHECK(quick.groups[0].median < 0.03);  // from 30 points, where 1.2 alone would be 8% off
  CHECK(quick.profile.method.find("corrections of h200-sxm") != std::string::npos);

  // Written and read again it says the same of a kernel, and how it was made.
  FittedProfile written = quick.profile;
  written.families.erase("copy");  // which has a product's features
  const FittedProfile read = parse_fitted_profile(parse_json(to_json_text(written), "").value(), "quick.json").value();
  CHECK(read.method == quick.profile.method);
  const Kernel kernel = kernels_of(parse_json(gemm_line(640, 1280, 1024, 1), "").value(), machine().gpu).value().front();
  const std::vector<double> features = features_of(kernel, kernel_cost(kernel, machine().gpu, machine().physics), machine().gpu);
  const double said = quick.profile.find("gemm")->correct(kernel, features);
  CHECK(said == doctest::Approx(std::log(1.3)).epsilon(0.1));
  CHECK(read.find("gemm")->correct(kernel, features) == doctest::Approx(said).epsilon(0.005));
}

TEST_CASE("a short measurement that contradicts itself leaves what was carried over") {
  CalibrateOptions thorough, options;
  thorough.from_few = false;
  const Calibration base = calibrate(measured(gemm_lines(300, 1.2)), machine().gpu, machine().physics, thorough);
  options.base = &base.profile;
  std::string text;  // ratios to what was carried of 0.7 and 1.43, whatever the shape
  for (int i = 0; i < 40; ++i) {
    const std::string one = gemm_lines(i + 1, i % 2 == 0 ? 1.2 * 0.7 : 1.2 * 1.43);
    text += one.substr(one.rfind('\n', one.size() - 2) + 1);
  }
  const Calibration few = calibrate(measured(text), machine().gpu, machine().physics, options);
  const Kernel kernel = kernels_of(parse_json(gemm_line(640, 1280, 1024, 1), "").value(), machine().gpu).value().front();
  const std::vector<double> features = features_of(kernel, kernel_cost(kernel, machine().gpu, machine().physics), machine().gpu);
  CHECK(std::abs(few.profile.find("gemm")->correct(kernel, features) - base.profile.find("gemm")->correct(kernel, features)) < 0.1);
  CHECK(few.profile.find("gemm")->ratio.most > 1.3);  // and its interval says so
}

TEST_CASE("a damaged short profile is refused by field") {
  const std::string good = to_json_text(calibrate(measured(gemm_lines(20, 1.1)), machine().gpu, machine().physics).profile);
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    const auto read = parse_fitted_profile(parse_json(text, "").value(), "p.json");
    return read ? std::string() : read.error().text();
  };
  CHECK(parse_fitted_profile(parse_json(good, "").value(), "p.json").has_value());
  CHECK(refusal("\"points\":[[\"bf16\"", "\"points\":[[7").find("points") != std::string::npos);
  CHECK(refusal("\"coordinates\":[\"log m\"", "\"coordinates\":[\"log q\"").find("run precog calibrate again") != std::string::npos);
  CHECK(refusal("\"length\":", "\"length\":-").find("length") != std::string::npos);
}

TEST_CASE("a line is the kernels that the program launches for it") {
  const auto kernels = [&](const char* line) { return kernels_of(parse_json(line, "").value(), machine().gpu).value(); };
  const auto linear = kernels(R"({"family":"gemm","op":"nt+bias","dtype":"tf32","m":64,"n":32,"k":16,"s":1})");
  REQUIRE(linear.size() == 1);
  CHECK(std::get<GemmShape>(linear[0].shape) == GemmShape{.m = 64, .n = 32, .k = 16, .b_turned = true, .bias = true});
  CHECK(linear[0].math == DType::tf32);
  CHECK(linear[0].read.value == 4 * (64 * 16 + 32 * 16 + 32));
  const auto convolution = kernels(R"({"family":"conv","op":"forward","dtype":"bf16","batch":2,"cin":64,"cout":64,"kernel":3,"stride":1,"size":14,"groups":1,"layout":"nchw","s":1})");
  CHECK(convolution.size() == 4);  // and copies of image and filter to the other layout, and of the result back
  const auto optimizer = kernels(R"({"family":"optimizer","op":"adamw foreach","dtype":"fp32","elements":4096,"tensors":4,"s":1})");
  CHECK(optimizer.size() == 8);
  const auto attention = kernels(R"({"family":"sdpa","op":"flash backward","dtype":"fp16","b":1,"heads":2,"seq":64,"dim":32,"causal":true,"dropout":0.1,"lies":"bshd","s":1})");
  REQUIRE(attention.size() == 3);
  CHECK(std::get<AttentionShape>(attention[1].shape).dropout);
  const auto copied = kernels(R"({"family":"sdpa","op":"flash backward","dtype":"fp16","b":1,"heads":2,"seq":64,"dim":32,"causal":true,"dropout":0.1,"s":1})");
  REQUIRE(copied.size() == 5);  // the result and its gradient are brought into the order that the kernel takes
  CHECK(copied[0].read.value == 2 * 2 * 64 * 32);
  CHECK(copied[0].written.value == 2 * 2 * 64 * 32);
}

TEST_CASE("a line that is no kernel says why") {
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"bf16","m":64,"n":32})") == "has no \"k\"");
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"bf17","m":64,"n":32,"k":1})").find("dtype 'bf17'") != std::string::npos);
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"bf16","m":-1,"n":32,"k":1})").find("whole number") != std::string::npos);
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"bf16","m":1e30,"n":32,"k":1})").find("whole number") != std::string::npos);
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"bf16","m":1000000000,"n":1000000000,"k":1})").find("larger than any") != std::string::npos);
  CHECK(unusable(R"({"family":"weather","op":"rain","dtype":"bf16"})") == "family 'weather' is not known");
  CHECK(unusable(R"({"family":"conv","op":"forward","dtype":"bf16","batch":2,"cin":3,"cout":64,"kernel":9,"stride":1,"size":1,"groups":2})").find("do not fit") != std::string::npos);
  CHECK(unusable(R"({"family":"gemm","op":"nt","dtype":"nvfp4","m":64,"n":32,"k":16})").find("no arithmetic in nvfp4") != std::string::npos);
}

TEST_CASE("damaged measurement files are refused by line, odd lines are kept with the reason") {
  CHECK(refused("{\"family\":\n").find("some.jsonl, line 1") != std::string::npos);
  CHECK(refused("[1, 2]\n").find("JSON object") != std::string::npos);
  CHECK(refused("{\"meta\":{\"dry_run\":true}}\n" + gemm_line(64, 64, 64, 1e-5)).find("rehearsal") != std::string::npos);
  CHECK(refused("{\"clocks\":{}}\n").find("no measured operator") != std::string::npos);
  const Measurements some = measured(gemm_line(64, 64, 64, 1e-5) + gemm_line(64, 64, 64, -1) + "{\"family\":\"gemm\",\"op\":\"nt\",\"dtype\":\"bf16\"}\n\n{\"clocks\":{}}\n");
  CHECK(some.rows.size() == 1);
  CHECK(some.other_lines == 1);
  REQUIRE(some.unusable.size() == 2);
  CHECK(some.unusable[0].line == 2);
  CHECK(some.unusable[0].reason.find("positive number of seconds") != std::string::npos);
  CHECK(some.unusable[1].reason.find("failed when it was measured") != std::string::npos);
}

TEST_CASE("all types and directions of a shape are held out together") {
  const std::string forward = R"({"family":"conv","op":"forward","dtype":"fp32","batch":8,"cin":64,"cout":64,"kernel":3,"stride":1,"size":14,"groups":1,"layout":"nchw","s":1e-3})";
  const std::string gradient = R"({"family":"conv","op":"wgrad","dtype":"bf16","flops":5,"batch":8,"cin":64,"cout":64,"kernel":3,"stride":1,"size":14,"groups":1,"layout":"nhwc","s":2e-3})";
  const Measurements both = measured(forward + "\n" + gradient + "\n");
  CHECK(both.rows[0].shape == both.rows[1].shape);
}

TEST_CASE("images unfolded, folded, padded and sampled are kernels of their own") {
  const auto kernels = [](const char* line) { return kernels_of(parse_json(line, "").value(), machine().gpu).value(); };
  const auto unfolded = kernels(R"({"family":"fold","op":"im2col","dtype":"fp32","shape":[4,64,56,56],"kernel":3,"stride":1,"padding":1,"dilation":1})");
  REQUIRE(unfolded.size() == 1);
  CHECK(residual_family(unfolded[0]) == "im2col");
  CHECK(unfolded[0].launches == 4);  // one sample after the other
  CHECK(unfolded[0].written.value == 9 * unfolded[0].read.value);
  const auto folded = kernels(R"({"family":"fold","op":"col2im","dtype":"bf16","shape":[4,64,56,56],"kernel":2,"stride":2,"padding":0,"dilation":1})");
  REQUIRE(folded.size() == 1);
  CHECK(residual_family(folded[0]) == "col2im");
  CHECK(folded[0].written.value == folded[0].read.value);
  const auto padded = kernels(R"({"family":"edge","op":"reflection_pad2d_backward","dtype":"fp32","shape":[2,3,32,32],"by":1})");
  REQUIRE(padded.size() == 2);
  CHECK(residual_family(padded[0]) == "fill");
  CHECK(residual_family(padded[1]) == "reflection_pad2d_backward");
  CHECK(residual_family(kernels(R"({"family":"sampled","op":"grid_sampler_2d","dtype":"fp32","shape":[2,16,32,32],"to":[8,8]})").back()) == "grid_sampler_2d");
  const auto volume = kernels(R"({"family":"resize","op":"trilinear backward","dtype":"fp32","shape":[2,16,8,8,8],"to":[16,16,16]})").back();
  CHECK(residual_family(volume) == "upsample_trilinear3d_backward");
  // Lines are pooled as images of height one, all of a volume is a mean, and rows and columns tell sorts apart.
  const auto pooled = kernels(R"({"family":"pool","op":"average backward","dtype":"fp32","shape":[4,64,1000],"kernel":3,"stride":2,"padding":1})").back();
  CHECK(residual_family(pooled) == "avg_pool2d_backward");
  CHECK(std::get<MemoryShape>(pooled.shape).part == 3);
  CHECK(std::get<MemoryShape>(pooled.shape).rows == 4 * 64);
  CHECK(residual_family(kernels(R"({"family":"pool","op":"adaptive average","dtype":"bf16","shape":[4,64,8,8,8],"output":1})").back()) == "reduction");
  CHECK(residual_family(kernels(R"({"family":"pool","op":"adaptive average backward","dtype":"bf16","shape":[4,64,8,8],"output":1})").back()) == "broadcast");
  CHECK(residual_family(kernels(R"({"family":"pool","op":"adaptive average backward","dtype":"bf16","shape":[4,64,8,8,8],"output":3})").back()) == "_adaptive_avg_pool3d_backward");
  const auto sorted = [&](const char* op, const char* dtype, std::int64_t rows, std::int64_t columns) {
    return kernels(fmt::format(R"({{"family":"sort","op":"{}","dtype":"{}","rows":{},"columns":{},"k":5}})", op, dtype, rows, columns).c_str()).back();
  };
  CHECK(sorted("sort", "fp32", 300, 1000).launches == 5);  // as recorded, all of them
  CHECK(sorted("argsort", "fp32", 1, 20'000).launches == 14);
  CHECK(sorted("sort", "bf16", 64, 20'000).launches == 17);
  CHECK(sorted("sort", "fp32", 300, 20'000).launches == 8);
  CHECK(sorted("topk", "bf16", 300, 1000).launches == 2);
  CHECK(sorted("topk", "fp32", 300, 4000).launches == 22);
  CHECK(std::get<MemoryShape>(sorted("topk", "fp32", 300, 4000).shape).part == 5);
  CHECK(volume.written.value == 4 * 2 * 16 * 512);
  CHECK(residual_family(kernels(R"({"family":"resize","op":"linear","dtype":"fp32","shape":[2,16,8],"to":[16]})").back()) == "upsample_linear1d");
  const auto gated = kernels(R"({"family":"rows","op":"glu backward","dtype":"fp32","rows":64,"columns":128})").back();
  CHECK(gated.read.value == 4 * 64 * (128 + 64));
  CHECK(unusable(R"({"family":"fold","op":"im2col","dtype":"fp32","shape":[4,64,2,2],"kernel":3,"stride":1,"padding":0})").find("larger than the image") != std::string::npos);
}

}  // namespace precog
