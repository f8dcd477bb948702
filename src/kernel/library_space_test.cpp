#include <doctest/doctest.h>

#include "graph/recurrent_space.h"
#include "kernel/library_space.h"

using namespace precog;

// Bytes that the allocator was asked for on an H200, whose 132 processors set the number of blocks.
TEST_CASE("ColumnSumsLeaveTheirParts") {
  CHECK(column_sum_space(4096, 4096, 132).value == 134217728);
  CHECK(column_sum_space(768, 8192, 132).value == 50331648);
  CHECK(column_sum_space(1024, 16384, 132).value == 134217728);
  CHECK(column_sum_space(64, 8192, 132).value == 1048576);
  CHECK(column_sum_space(8, 65536, 132).value == 16384);
  CHECK(column_sum_space(30522, 512, 132).value == 0);
  CHECK(column_sum_space(999, 1001, 132).value == 0);
}

TEST_CASE("FourierTransformsOfTrueFp32Convolutions") {
  ConvShape shape{ConvDirection::forward, 32, 256, 256, 56, 56, 56, 56, 3, 3};
  CHECK(fourier_space(shape).value == doctest::Approx(2493.8e6).epsilon(0.001));
  shape = {ConvDirection::forward, 32, 512, 512, 14, 14, 14, 14, 3, 3};
  CHECK(fourier_space(shape).value == doctest::Approx(651.2e6).epsilon(0.001));
  shape.direction = ConvDirection::data_gradient;
  CHECK(fourier_space(shape).value == 0);
  shape = {ConvDirection::data_gradient, 32, 64, 128, 112, 112, 112, 112, 3, 3};
  CHECK(fourier_space(shape).value == doctest::Approx(89.1e6).epsilon(0.001));
  shape.stride = 2;
  CHECK(fourier_space(shape).value == 0);
}

TEST_CASE("RecurrentLayersReserveAndWorkspace") {
  const RnnAttributes gru{.batch = 16, .steps = 200, .input = 640, .hidden = 512, .layers = 5, .directions = 2, .gates = 3};
  CHECK(reserve_elements(gru) * 4 + 256 == 445645056);
  CHECK(recurrent_workspace(gru, DType::fp32).value == doctest::Approx(277414272).epsilon(0.05));
  const RnnAttributes lstm{.batch = 64, .steps = 35, .input = 650, .hidden = 650, .layers = 2, .directions = 1, .gates = 4};
  CHECK(reserve_elements(lstm) * 2 + 256 == 32032256);
  CHECK(recurrent_workspace(lstm, DType::bf16).value == doctest::Approx(49433984).epsilon(0.02));
  const RnnAttributes alone{.batch = 32, .steps = 100, .input = 512, .hidden = 512, .layers = 1, .directions = 1, .gates = 4};
  CHECK(recurrent_workspace(alone, DType::fp16).value == doctest::Approx(84935168).epsilon(0.02));
  CHECK(recurrent_workspace(alone, DType::bf16).value == doctest::Approx(32604672).epsilon(0.02));
}
