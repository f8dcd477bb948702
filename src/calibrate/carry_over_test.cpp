// Costs of a GPU left out, on a part of the reference data: docs/carry_over.md's columns, that must not get worse.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <doctest/doctest.h>

#include "calibrate/carry_over.h"
#include "calibrate/smooth_residual.h"

namespace precog {
namespace {

const std::filesystem::path kData = PRECOG_DATA_DIR;

struct Committed {  // medians in per cent: carried, after thirty timings, known GPU
  const char *gpu, *family, *dtype;
  double carried, thirty, held_out;
};
constexpr Committed kCommitted[] = {
    {"a100-sxm-80gb", "attention_forward", "bfloat16", 6.7, 4.4, 2.1},
    {"a100-sxm-80gb", "gemm", "bfloat16", 5.5, 4.9, 3.8},
    {"l40s", "attention_forward", "bfloat16", 8.3, 5.0, 2.2},
    {"l40s", "gemm", "bfloat16", 8.7, 8.3, 5.7},
    {"l40s", "gemm", "fp8", 12.6, 5.7, 2.9},
    {"h100-sxm", "attention_forward", "bfloat16", 5.7, 4.3, 3.2},
    {"h100-sxm", "gemm", "bfloat16", 4.5, 4.1, 3.2},
    {"h200-sxm", "attention_forward", "bfloat16", 4.5, 3.9, 3.2},
    {"h200-sxm", "gemm", "bfloat16", 3.9, 3.6, 3.1},
    {"b200-sxm", "attention_forward", "bfloat16", 5.7, 3.9, 2.6},
    {"b200-sxm", "gemm", "bfloat16", 5.0, 4.3, 4.4},
    {"gb200", "attention_forward", "bfloat16", 4.6, 3.5, 2.9},
    {"gb200", "gemm", "bfloat16", 4.8, 4.6, 4.3},
};
constexpr double kSlack = 0.2;  // per cent points: another compiler's rounding may choose another split

TEST_CASE("coefficients follow thirty timings where they say something, and stay where they do not") {
  GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / "h100-sxm.json").value(), "h100-sxm").value();
  const CostProfile profile = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  const Physics start{*profile.find("hopper"), {}};
  Physics truth = start;
  const auto bf16 = static_cast<std::size_t>(DType::bf16);
  truth.profile.gemm.math[bf16].efficiency *= 0.8;
  std::vector<ReferenceRow> rows;
  for (std::int64_t size = 2048; size <= 9000; size += 240) {  // large products: bound by arithmetic alone
    ReferenceRow row;
    const auto n = static_cast<double>(size);
    row.kernel.shape = GemmShape{1, size, size, size, false};
    row.kernel.math = row.kernel.input = row.kernel.output = DType::bf16;
    row.kernel.flops = {2 * n * n * n};
    row.kernel.read = {4 * size * size};
    row.kernel.written = {2 * size * size};
    row.seconds = seconds_of(row, gpu, truth);
    rows.push_back(row);
  }
  const Physics found = fit_physics(rows, {}, gpu, start, product_knobs());
  CHECK(found.profile.gemm.math[bf16].efficiency == doctest::Approx(truth.profile.gemm.math[bf16].efficiency).epsilon(0.03));
  CHECK(found.profile.gemm.split_overhead.value == doctest::Approx(start.profile.gemm.split_overhead.value).epsilon(0.05));
  CHECK(fit_physics({}, {}, gpu, start, product_knobs()).profile.gemm.math[bf16].efficiency == start.profile.gemm.math[bf16].efficiency);
}

TEST_CASE("a product that lasts is slower by what power takes of the clock, a short one or one that waits for memory is not") {
  const GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / "l40s.json").value(), "l40s").value();
  const CostProfile profile = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  const Physics steady{*profile.find("ada"), {}};
  Physics falling = steady;
  falling.timing.slower_later = 0.5;
  const auto slower = [&](double m, double n, double k) {
    ReferenceRow row;
    row.kernel.shape = GemmShape{1, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n), static_cast<std::int64_t>(k), false};
    row.kernel.math = row.kernel.input = row.kernel.output = DType::bf16;
    row.kernel.flops = {2 * m * n * k};
    row.kernel.read = {static_cast<std::int64_t>(2 * (m + n) * k)};
    row.kernel.written = {static_cast<std::int64_t>(2 * m * n)};
    return seconds_of(row, gpu, falling) / seconds_of(row, gpu, steady) - 1;
  };
  CHECK(slower(16384, 16384, 16384) > 0.2);
  CHECK(slower(16384, 16384, 16384) < 0.5);
  CHECK(slower(512, 512, 512) < 0.01);
  CHECK(slower(8, 65536, 65536) < 0.01);
}

TEST_CASE("attention over pages: whole tiles, every row its keys, slower when it lasts") {
  const GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / "l40s.json").value(), "l40s").value();
  const PagedAttention c;
  const auto seconds = [&](std::int64_t batch, std::int64_t seq, std::int64_t dim, const PagedAttention& with) {
    return paged_attention_seconds({batch, 16, 16, seq, seq, dim, dim, true, false, AttentionBackend::flash}, gpu, gpu.matrix[DType::bf16], with, 0);
  };
  const double flops = 2.0 * 16 * 16 * 8192.0 * 8192 * 128;  // causal: half of the square
  const double peak = gpu.matrix[DType::bf16].value * c.efficiency;
  CHECK(seconds(16, 8192, 128, c) > flops / peak);
  CHECK(seconds(16, 8192, 128, c) < 1.5 * flops / peak);
  CHECK(seconds(16, 8192, 128, c) / seconds(16, 4096, 128, c) == doctest::Approx(4).epsilon(0.1));
  CHECK(seconds(16, 65, 128, c) > seconds(16, 64, 128, c) * 1.2);  // a second block of rows
  CHECK(seconds(1, 1024, 64, c) < seconds(1, 1024, 128, c));
  PagedAttention steady = c;
  steady.slower_later = 0;
  CHECK(seconds(16, 16384, 128, c) / seconds(16, 16384, 128, steady) == doctest::Approx(1.14).epsilon(0.02));
  CHECK(seconds(1, 256, 128, c) / seconds(1, 256, 128, steady) == doctest::Approx(1).epsilon(0.01));
  PagedAttention short_of_power = c;  // only when all SMs are busy
  short_of_power.power = 0.5;
  CHECK(seconds(16, 8192, 128, short_of_power) > 1.8 * seconds(16, 8192, 128, c));
  CHECK(seconds(1, 128, 128, short_of_power) == doctest::Approx(seconds(1, 128, 128, c)));
}

TEST_CASE("fp8 by scaled kernels: tiles by the shape alone, stored slowly, never split") {
  const auto tile = [](double m, double n) { return kScaledTiles[scaled_tile(m, n)]; };
  CHECK(tile(16, 4096) == ScaledTile{16, 64});
  CHECK(tile(17, 4096) == ScaledTile{32, 64});
  CHECK(tile(16, 12288) == ScaledTile{16, 128});
  CHECK(tile(16, 51200) == ScaledTile{32, 64});
  CHECK(tile(64, 10240) == ScaledTile{64, 128});
  CHECK(tile(128, 51200) == ScaledTile{128, 64});
  CHECK(tile(256, 4096) == ScaledTile{64, 128});
  CHECK(tile(257, 4096) == ScaledTile{128, 128});
  CHECK(tile(257, 4097) == ScaledTile{256, 128});
  CHECK(tile(257, 8193) == ScaledTile{128, 128});
  const GpuSpec gpu = parse_gpu(read_json_file(kData / "gpus" / "l40s.json").value(), "l40s").value();
  const GemmCoefficients c = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value().find("ada")->gemm;
  const auto seconds = [&](double m, double n, double k, const ScaledProducts& scaled, double latency = 5) {
    return scaled_product_seconds({.m = m, .n = n, .k = k, .element_bytes = 1, .peak = gpu.matrix[DType::fp8], .efficiency = 0.8, .k_latency_clocks = latency}, gpu, c, scaled);
  };
  const ScaledProducts stored;
  CHECK(seconds(8, 64, 128, stored, 500) < 1.1 * seconds(8, 64, 32, stored, 500));  // one load
  CHECK(seconds(8, 64, 192, stored, 500) > 1.5 * seconds(8, 64, 128, stored, 500));
  CHECK(seconds(512, 64, 16384, stored) > 1.6 * seconds(512, 64, 8192, stored));  // four blocks on 142 SMs: nobody splits
  ScaledProducts slow = stored;
  slow.results_per_clock /= 2;
  const double waves = 1024.0 / 142, last = std::ceil(waves) - waves, clock = gpu.boost_clock.value;
  const auto more = [&](double m, double n) { return (seconds(m, n, 32, slow) - seconds(m, n, 32, stored)) * clock; };  // of a result's clock on every SM
  CHECK(more(4096, 4096) == doctest::Approx(128.0 * 128 * (waves + last / 2)).epsilon(0.01));
  CHECK(more(128, 64) == doctest::Approx(64.0 * 128 * stored.alone).epsilon(0.01));
}

TEST_CASE("few points say what lies between them, and nothing where there is nothing to say") {
  std::vector<Point> points;
  std::vector<double> slope, noise;
  for (int i = 0; i < 25; ++i) {
    points.push_back({static_cast<double>(i % 5) * 2, static_cast<double>(i / 5) * 2});
    slope.push_back(0.05 * points.back()[0] - 0.03 * points.back()[1]);
    noise.push_back(i % 2 == 0 ? 0.05 : -0.05);  // of a sign that changes from point to point
  }
  const SmoothResidual found = SmoothResidual::fit(points, slope);
  CHECK(found({3, 5}) == doctest::Approx(0.05 * 3 - 0.03 * 5).epsilon(0.2));
  CHECK(std::abs(SmoothResidual::fit(points, noise)({3, 5})) < 0.02);
  CHECK(SmoothResidual::fit({}, {})({3, 5}) == 0);
}

TEST_CASE("chosen shapes lie so that every other has one near") {
  std::vector<Point> points;
  for (int i = 0; i < 40; ++i) points.push_back({static_cast<double>(i % 10 + (i < 20 ? 0 : 100))});
  const std::vector<std::size_t> chosen = spread_out(points, 2, 0, 1);
  REQUIRE(chosen.size() == 2);
  CHECK((points[chosen[0]][0] < 50) != (points[chosen[1]][0] < 50));  // one of each heap
  CHECK(spread_out(points, 99, 1, 2).size() == 20);
}

TEST_CASE("a reference file that is missing or no table is refused by name") {
  CHECK(read_reference_products("nowhere.csv.gz", "bfloat16", 10).error().text().find("nowhere.csv.gz") != std::string::npos);
  CHECK_FALSE(read_reference_products(kData / "gpus" / "h100-sxm.json", "bfloat16", 10));
  CHECK_FALSE(read_reference_products(kData / "gpus" / "h100-sxm.json", "fp3", 10));
}

TEST_CASE("a GPU left out is predicted as well as docs/carry_over.md says") {
  const char* folder = std::getenv("PRECOG_REFERENCE_DATA");
  const std::filesystem::path measured = folder ? std::filesystem::path(folder) / "measured_ops" : std::filesystem::path();
  if (!folder || !std::filesystem::exists(measured)) {
    MESSAGE("skipped: PRECOG_REFERENCE_DATA is not set, or holds no measured_ops");
    return;
  }
  std::vector<GpuSpec> gpus;
  for (const char* name : {"a100-sxm-80gb", "l40s", "h100-sxm", "h200-sxm", "b200-sxm", "gb200"})
    gpus.push_back(parse_gpu(read_json_file(kData / "gpus" / (std::string(name) + ".json")).value(), name).value());
  const CostProfile profile = CostProfile::parse(read_json_file(kData / "profiles" / "datasheet.json").value(), "datasheet.json").value();
  const auto groups = carry_over(measured, gpus, profile, {.rows = 600, .trees = 40, .bf16_and_its_kin = true});
  REQUIRE(groups);
  REQUIRE(groups->size() == std::size(kCommitted));
  for (const CarriedGroup& group : *groups) {
    INFO(group.gpu << " " << group.family << " " << group.dtype << ": " << 100 * group.carried.median << ", " << 100 * group.thirty.median << ", " << 100 * group.held_out.median);
    const auto* committed = std::find_if(std::begin(kCommitted), std::end(kCommitted), [&](const Committed& c) { return c.gpu == group.gpu && c.family == group.family && c.dtype == group.dtype; });
    REQUIRE(committed != std::end(kCommitted));
    CHECK(100 * group.carried.median <= committed->carried + kSlack);
    CHECK(100 * group.thirty.median <= committed->thirty + kSlack);
    const bool missed = group.gpu == "l40s" && group.family == "gemm";  // docs/carry_over.md says why; fp8 is met with more shapes to choose the thirty from
    if (group.dtype == "bfloat16") CHECK(100 * group.carried.median <= 10);
    if (!missed) CHECK(100 * group.thirty.median <= 5 + kSlack);
    CHECK(100 * group.held_out.median <= committed->held_out + kSlack);
  }
}

}  // namespace
}  // namespace precog
