#include "cost/fallback_kernels.h"

#include <doctest/doctest.h>

namespace precog {
namespace {

KernelCost ten_microseconds() {
  KernelCost cost;
  cost.compute = cost.total = Seconds{10e-6};
  return cost;
}

Kernel kernel_of(KernelShape shape, std::string_view name, DType type) {
  Kernel kernel;
  kernel.shape = shape;
  kernel.name = name;
  kernel.math = kernel.input = kernel.output = type;
  return kernel;
}

TEST_CASE("bytes cleared by the driver take a microsecond each time, whatever a pointwise kernel would") {
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::pointwise, 1, 1024}, "memset", DType::bf16);
  kernel.launches = 3;
  CHECK(with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value == doctest::Approx(2.85e-6));
}

TEST_CASE("values that a generated kernel adds to few places in bf16 wait for each other") {
  const auto time = [](std::int64_t places) {
    MemoryShape shape{MemoryPattern::broadcast, 1, 12 * 196 * 196};
    shape.part = places;
    Kernel kernel = kernel_of(shape, "fused_scatter", DType::bf16);
    kernel.fused = true;
    return with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time(12 * 196) == doctest::Approx(3.36e-3).epsilon(0.02));  // TinyViT's windows of 14
  CHECK(time(12 * 729) == doctest::Approx(0.47e-3).epsilon(0.02));  // Swin's
  CHECK(time(0) == doctest::Approx(10e-6));                         // in other types nothing is known of the places
}

TEST_CASE("Megatron-LM's causal softmax takes longer than its bytes, the more the longer its rows") {
  KernelCost bytes = ten_microseconds();
  bytes.memory = Seconds{100e-6};
  bytes.launch = Seconds{3e-6};
  const auto time = [&](std::int64_t length) {
    return with_fallbacks(kernel_of(MemoryShape{MemoryPattern::softmax_forward, 64 * length, length}, "causal_softmax", DType::fp16), {1.41e9}, bytes).total.value;
  };
  CHECK(time(1024) == doctest::Approx(123e-6));
  CHECK(time(2048) == doctest::Approx(153e-6));
}

TEST_CASE("a step of a recurrent layer lasts as long as a block walks its sum") {
  const auto time = [](std::string_view name, std::int64_t batch, std::int64_t n, std::int64_t k, DType type) {
    return with_fallbacks(kernel_of(GemmShape{1, batch, n, k}, name, type), {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time("linear", 64, 2600, 650, DType::bf16) == doctest::Approx(10e-6));
  // Measured: data/measured/2026-11-16-h200-cached.
  CHECK(time("rnn_recurrent", 16, 2048, 512, DType::bf16) == doctest::Approx(2.79e-6).epsilon(0.15));
  CHECK(time("rnn_recurrent_backward", 20, 512, 2048, DType::bf16) == doctest::Approx(4.89e-6).epsilon(0.15));
  CHECK(time("rnn_recurrent", 20, 1024, 256, DType::tf32) == doctest::Approx(4.21e-6).epsilon(0.15));
  CHECK(time("rnn_recurrent_backward", 64, 1024, 4096, DType::fp32) == doctest::Approx(42.7e-6).epsilon(0.15));
  CHECK(time("rnn_recurrent", 64, 1950, 650, DType::bf16) > 2 * time("rnn_recurrent", 64, 1944, 648, DType::bf16));  // rows of no 16 bytes
}

TEST_CASE("two directions share the GPU where their kernels last longer than it takes to issue them") {
  const auto time = [](std::string_view name, std::int64_t batch) {
    return with_fallbacks(kernel_of(GemmShape{1, batch, 1024, 4096}, name, DType::fp32), {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time("rnn_recurrent_backward_pair", 64) == doctest::Approx((time("rnn_recurrent_backward", 64) + 5e-6) / 2));
}

// Kernels of data/measured/2026-11-16-h200-odd, odd_kernels.jsonl.gz.
TEST_CASE("bias gradients of recurrent layers walk all samples of all steps, two directions side by side") {
  const auto time = [](std::string_view name, std::int64_t rows, std::int64_t moved) {
    MemoryShape shape{MemoryPattern::bias_gradient, 256, rows};
    shape.part = moved;
    return with_fallbacks(kernel_of(shape, name, DType::fp16), {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time("rnn_bias_gradient", 40000, 1 << 20) == doctest::Approx(2e-6 + 40000 * 4.8e-9));
  CHECK(time("rnn_bias_gradient", 40000, 1 << 25) == doctest::Approx(2e-6 + 40000 * 9.4e-9));
  CHECK(time("rnn_bias_gradient_pair", 40000, 1 << 25) == doctest::Approx((2e-6 + 40000 * 9.4e-9 + 5e-6) / 2));
}

TEST_CASE("an alignment lasts as long as its frames, one after the other") {
  const auto time = [](std::string_view name, std::int64_t steps, std::int64_t threads) {
    return with_fallbacks(kernel_of(MemoryShape{MemoryPattern::loss, steps, threads}, name, DType::fp32), {1.98e9}, ten_microseconds()).total.value;
  };
  // Measured in steps of hubert-base (2 and 8 utterances), crnn and deep-speech-2.
  CHECK(time("ctc_log_alpha", 199, 128) == doctest::Approx(64.4e-6).epsilon(0.12));
  CHECK(time("ctc_log_alpha", 41, 1024) == doctest::Approx(25.2e-6).epsilon(0.12));
  CHECK(time("ctc_log_beta", 199, 512) == doctest::Approx(91e-6).epsilon(0.12));
  CHECK(time("ctc_collect", 41 + 32, 199 * 2) == doctest::Approx(55e-6).epsilon(0.12));
  CHECK(time("ctc_collect", 25 + 37, 41 * 16) == doctest::Approx(68.4e-6).epsilon(0.12));
  CHECK(time("ctc_collect_letters", 200, 1024) == doctest::Approx(55e-6).epsilon(0.12));
}

TEST_CASE("resizing many small planes takes as long as walking them, its gradient as long as its collisions") {
  Kernel kernel = kernel_of(MemoryShape{MemoryPattern::pooling_forward, 49 * 208, 40 * 40, false}, "upsample_bilinear2d", DType::bf16);
  kernel.read = Bytes{49 * 208 * 20 * 20 * 2}, kernel.written = Bytes{49 * 208 * 40 * 40 * 2};
  CHECK(with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value == doctest::Approx(3.16e-3).epsilon(0.2));  // measured
  CHECK(with_fallbacks(kernel, {0.99e9}, ten_microseconds()).total.value == doctest::Approx(2 * 3.16e-3).epsilon(0.2));  // so many clocks
  kernel.shape = MemoryShape{MemoryPattern::pooling_backward, 49 * 208, 40 * 40, false};
  kernel.name = "upsample_bilinear2d_backward";
  std::swap(kernel.read, kernel.written);
  CHECK(with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value == doctest::Approx(0.40e-3).epsilon(0.2));  // measured
  kernel.name = "max_pool2d_backward";
  CHECK(with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value == doctest::Approx(10e-6));
}

TEST_CASE("resizing lines and volumes walks planes or images, gradients in 16 bits exchange words") {
  const auto time = [](const char* name, std::int64_t images, std::int64_t channels, std::int64_t from, std::int64_t to, DType type) {
    const bool backward = std::string_view(name).ends_with("backward");
    Kernel kernel = kernel_of(MemoryShape{backward ? MemoryPattern::pooling_backward : MemoryPattern::pooling_forward, images * channels, to, false, channels}, name, type);
    kernel.read = Bytes{images * channels * from * 4}, kernel.written = Bytes{images * channels * to * 4};
    if (backward) std::swap(kernel.read, kernel.written);
    return with_fallbacks(kernel, {1.98e9}, {}).total.value;
  };
  // Measured: data/measured/2026-11-18-h200-thin.
  CHECK(time("upsample_linear1d", 6, 96, 8000, 8000, DType::fp32) == doctest::Approx(226e-6).epsilon(0.3));
  CHECK(time("upsample_linear1d_backward", 4, 33, 1000, 2000, DType::bf16) == doctest::Approx(344e-6).epsilon(0.15));
  CHECK(time("upsample_trilinear3d", 6, 64, 256, 1372, DType::fp32) == doctest::Approx(172e-6).epsilon(0.15));
  CHECK(time("upsample_trilinear3d_backward", 8, 130, 50, 400, DType::fp16) == doctest::Approx(1543e-6).epsilon(0.2));
  CHECK(time("upsample_nearest1d", 24, 16, 128, 256, DType::fp32) == doctest::Approx(11.8e-6).epsilon(0.25));
  CHECK(time("upsample_nearest3d_backward", 24, 2, 784, 6272, DType::bf16) == doctest::Approx(54e-6).epsilon(0.2));
}

TEST_CASE("bicubic resizing walks planes: lines apart are slower, and an unchanged size still walks") {
  const auto time = [](std::int64_t planes, std::int64_t from, std::int64_t to, bool last, bool backward, DType type) {
    const MemoryPattern pattern = backward ? MemoryPattern::pooling_backward : MemoryPattern::pooling_forward;
    Kernel kernel = kernel_of(MemoryShape{pattern, planes, to, last, planes}, backward ? "upsample_bicubic2d_backward" : "upsample_bicubic2d", type);
    kernel.read = Bytes{planes * from * 4}, kernel.written = Bytes{planes * to * 4};
    if (backward) std::swap(kernel.read, kernel.written);
    return with_fallbacks(kernel, {1.98e9}, ten_microseconds()).total.value;
  };
  // Measured: data/measured, family "resize".
  CHECK(time(1024, 7 * 7, 14 * 14, false, false, DType::fp32) < time(1024, 7 * 7, 14 * 14, true, false, DType::fp32));
  CHECK(time(384, 17 * 17, 30 * 30, false, false, DType::fp32) == doctest::Approx(0.223e-3).epsilon(0.2));
  CHECK(time(1024, 17 * 17, 11 * 11, true, false, DType::fp32) == doctest::Approx(1.238e-3).epsilon(0.2));
  CHECK(time(768, 24 * 24, 24 * 24, false, false, DType::fp32) == doctest::Approx(0.289e-3).epsilon(0.25));
  CHECK(time(768, 700, 700, true, false, DType::fp32) == doctest::Approx(0.841e-3).epsilon(0.15));
  CHECK(time(1024, 448, 448, true, true, DType::fp32) == doctest::Approx(0.186e-3).epsilon(0.15));
  CHECK(time(384, 17 * 17, 30 * 30, false, true, DType::fp32) == doctest::Approx(0.993e-3).epsilon(0.2));
  CHECK(time(128, 80 * 13, 109 * 18, false, true, DType::bf16) == doctest::Approx(3.377e-3).epsilon(0.35));
}

TEST_CASE("few results of many cut pictures take a time for each pixel") {
  const auto time = [](std::int64_t batch, std::int64_t channels) {
    const ConvShape shape{ConvDirection::weight_gradient, batch, 3, channels, 224, 224, 56, 56, 4, 4, 4};
    return with_fallbacks(kernel_of(shape, "conv2d_weight_gradient", DType::bf16), {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time(64, 40) == doctest::Approx(1.93e-3).epsilon(0.05));  // measured
  CHECK(time(192, 54) == doctest::Approx(5.81e-3).epsilon(0.05));
  CHECK(time(64, 80) == doctest::Approx(10e-6));
}

TEST_CASE("long filters over wide groups run old kernels in 16 bits") {
  const auto time = [](ConvDirection direction, std::int64_t batch, std::int64_t width, std::int64_t length, DType type) {
    ConvShape s{direction, batch, 16 * width, 16 * width, 1, length, 1, length, 1, 128, 1, 16};
    s.axes = 1;
    return with_fallbacks(kernel_of(s, "convolution", type), {1.98e9}, ten_microseconds()).total.value;
  };
  CHECK(time(ConvDirection::forward, 6, 80, 399, DType::bf16) == doctest::Approx(21.3e-3).epsilon(0.1));  // measured
  CHECK(time(ConvDirection::data_gradient, 1, 64, 999, DType::bf16) == doctest::Approx(23.9e-3).epsilon(0.1));
  CHECK(time(ConvDirection::forward, 6, 80, 399, DType::tf32) == doctest::Approx(10e-6));
  CHECK(time(ConvDirection::forward, 24, 64, 199, DType::bf16) == doctest::Approx(10e-6));
  CHECK(time(ConvDirection::data_gradient, 24, 64, 199, DType::bf16) == doctest::Approx(10e-6));
}

// Recorded: the gradients of BEiT's (197 tokens) and Swin3D's (392) tables of relative positions, 43 and 84 us; Inductor's gradients of max
// pooling for VGG-16 and ResNet-50 at 128 images, 1079 and 733 us.
TEST_CASE("values added to one place are walked, and gradients of pooling ask every window") {
  Kernel table;
  table.name = "index_put_repeated";
  MemoryShape places{MemoryPattern::index, 732, 12};
  places.part = 197 * 197;
  table.shape = places;
  CHECK(with_fallbacks(table, {1.98e9}, {}).total.value == doctest::Approx(43e-6).epsilon(0.05));
  places = {MemoryPattern::index, 66, 368};  // measured with what sorts them: 1358 us
  places.part = 111'113;
  table.shape = places;
  CHECK(with_fallbacks(table, {1.98e9}, {}).total.value == doctest::Approx(1300e-6).epsilon(0.05));
  Kernel pool;
  pool.fused = true;
  MemoryShape pixels{MemoryPattern::pooling_backward, 1, std::int64_t{128} * 64 * 224 * 224};
  pixels.part = 1;
  pool.shape = pixels;
  CHECK(with_fallbacks(pool, {1.98e9}, {}).total.value == doctest::Approx(1079e-6).epsilon(0.05));
  pixels.row_length /= 4, pixels.part = 4;
  pool.shape = pixels;
  CHECK(with_fallbacks(pool, {1.98e9}, {}).total.value == doctest::Approx(733e-6).epsilon(0.05));
}

// Recorded: XLNet's gelu and dropout of 8192 x 3072 values 138 us (what else it does takes the rest), T5's relu and dropout of as many 113 us; the loss of BERT's 8192 x 30522 scores 365 us, of
// GPT-2's 8192 x 50257 ones 687 us, in 32 bits as in 16.
TEST_CASE("generated kernels are bound by random numbers and by exponentials") {
  KernelCost streamed;
  streamed.memory = streamed.total = Seconds{44e-6};
  Kernel drawn;
  drawn.fused = true;
  MemoryShape s{MemoryPattern::dropout, 1, std::int64_t{8192} * 3072};
  s.part = s.row_length;
  drawn.shape = s;
  CHECK(with_fallbacks(drawn, {1.98e9}, streamed).total.value == doctest::Approx(113e-6).epsilon(0.05));
  s.part = 0;
  drawn.shape = s;
  CHECK(with_fallbacks(drawn, {1.98e9}, streamed).total.value == doctest::Approx(44e-6));
  Kernel loss;
  loss.fused = true;
  loss.shape = MemoryShape{MemoryPattern::softmax_forward, 8192, 30522};
  CHECK(with_fallbacks(loss, {1.98e9}, streamed).total.value == doctest::Approx(365e-6).epsilon(0.1));
  loss.shape = MemoryShape{MemoryPattern::softmax_forward, 8192, 50257};
  CHECK(with_fallbacks(loss, {1.98e9}, streamed).total.value == doctest::Approx(687e-6).epsilon(0.05));
  loss.fused = false;  // PyTorch's own has figures of its own
  CHECK(with_fallbacks(loss, {1.98e9}, streamed).total.value == doctest::Approx(44e-6));
}

}  // namespace
}  // namespace precog
