#include "cost/fallback_kernels.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernel/library_rules.h"

namespace precog {
namespace {

constexpr double kMeasuredClock = 1.98e9, kMeasuredSms = 132;  // of the H200 whose seconds stand below

// A step of a recurrent layer (cuDNN 9) is a product and a gate kernel, both too small for the GPU: they last as long as one block walks its
// sum. Kernels of 690 layers, named one by one (data/measured/2026-11-16-h200-cached, part "several"); most lie within a quarter. The two
// directions of a layer have streams of their own, but one host: of kernels longer than it takes to issue the next the rest runs beside it.
constexpr double kIssued = 5e-6;  // seconds between two kernels of cuDNN's loop over steps; an estimate
double side_by_side(double seconds) { return seconds > kIssued ? (seconds + kIssued) / 2 : seconds; }
constexpr double kVectorRate = 11.5e12, kVectorWork = 0.6e9;  // FLOP/s up to so many FLOPs, then by their root

double recurrent_product(const Kernel& kernel, const GemmShape& s, bool backward) {
  const double m = static_cast<double>(s.m), k = static_cast<double>(s.k), flops = 2 * m * static_cast<double>(s.n) * k;
  if (is_16bit(kernel.math)) {
    if (s.n % 8 == 0 && s.k % 8 == 0) return (k < 3072 ? 1.8e-6 + 1.7e-9 * k : 4.5e-6) + flops / 600e12;
    return (2e-6 + 6.8e-9 * std::min(k, 1300.0)) * (m > 64 ? 1.55 : 1);
  }
  if (m == 1) return 2.5e-6 + 1.5e-9 * k;
  if (kernel.math == DType::tf32) return (backward ? 4.5e-6 + 4.7e-9 * std::min(k, 2600.0) : 3e-6 + 4.5e-9 * k) + flops / 150e12;
  const double walk = backward ? 5.2e-9 : m > 20 ? 18e-9 : 6e-9, rate = kVectorRate * std::sqrt(std::max(1.0, flops / kVectorWork));
  return 3.2e-6 + std::max(walk * k, flops / rate);
}

// All steps in one kernel: a block brings the weights to its SM, then walks through time with a sample of its own (in fp16 with eight, on
// tensor cores, where samples are multiples of eight); blocks that find no room wait for others. From 1,330 of these kernels, named one by one
// (2026-11-16-h200-cached and -odd): half of them within 7%, those of more than 256 samples within a quarter on average.
struct Persistent {
  double start, weight, step, width, gate;  // microseconds: of a block; per 10,000 weights; of a step, per 100 of its width, per 1000 gates
  double spilled;                           // a step's share more per octave of weights over 40,000, which registers do not hold
  double room;                              // KiB of weights whose blocks share an SM
};
constexpr Persistent kForwardWide{1.26, 5.1, 0.194, 0.127, 0.65, 2.63, 64}, kForwardNarrow{1.7, 4.04, 0.346, 0.012, 0.281, 5.4, 128}, kForwardTensor{1.65, 0.81, 0.548, 0.219, 1.7, 0.02, 64};
constexpr Persistent kBackwardWide{1.96, 0.51, 0.528, 0.134, 0.49, 1.69, 170}, kBackwardNarrow{3.5, 0, 0.347, 0.074, 2.12, 1.3, 170}, kBackwardTensor{3.86, 0, 0.65, 0, 3.63, 0, 64};

double persistent_time(const Kernel& kernel, const GemmShape& s, bool backward) {
  const double hidden = static_cast<double>(std::max<std::int64_t>(1, s.k)), gates = static_cast<double>(s.n) / hidden, width = std::ceil(hidden / 32) * 32, held = gates * width * width;
  const bool narrow = is_16bit(kernel.input), tensor = narrow && s.m % 8 == 0 && s.k % (backward ? 32 : 16) == 0;
  const Persistent& c = backward ? tensor ? kBackwardTensor : narrow ? kBackwardNarrow : kBackwardWide : tensor ? kForwardTensor : narrow ? kForwardNarrow : kForwardWide;
  const double step = (c.step + c.width * width / 100 + c.gate * gates * width / 1000) * (1 + c.spilled * std::max(0.0, std::log2(held / 40000)));
  const double together = std::max(1.0, std::floor(c.room * 1024 / (held * (tensor ? 2 : 4))));
  const double blocks = std::ceil(static_cast<double>(s.m) / (tensor ? 8 : 1)), rounds = std::ceil(std::ceil(blocks / kMeasuredSms) / together);
  return rounds * (c.start + c.weight * gates * hidden * hidden / 10000 + static_cast<double>(s.batch) * step) * 1e-6;
}

// Sums over all samples of all steps walk them one by one, the faster the less was moved since they were written; the two directions' side by side (the time
// of 175 layers both ways, 2026-11-16-h200-odd: off by 16% in the median, one after the other by 28%).
constexpr double kWalkedBySteps = 11e-9, kWalkedCached = 4.8e-9, kWalked = 9.4e-9, kCachedBytes = 8e6, kGoneBytes = 32e6;
constexpr double kJoined = 3.5e-12;  // seconds per element of both directions' gradients

std::optional<Seconds> recurrent_time(const Kernel& kernel) {
  if (!kernel.name.starts_with("rnn_")) return std::nullopt;
  const double launches = std::max(1, kernel.launches);
  const bool backward = kernel.name.find("_backward") != std::string_view::npos;
  const auto all = [&](double one) { return Seconds{(kernel.name.ends_with("_pair") ? side_by_side(one) : one) * launches}; };
  if (const auto* product = std::get_if<GemmShape>(&kernel.shape)) {
    if (kernel.name.starts_with("rnn_persistent")) return Seconds{persistent_time(kernel, *product, backward)};
    if (!kernel.name.starts_with("rnn_recurrent")) return std::nullopt;
    return all(recurrent_product(kernel, *product, backward));
  }
  const auto* memory = std::get_if<MemoryShape>(&kernel.shape);
  if (memory && kernel.name.starts_with("rnn_gates")) {
    const double numbers = static_cast<double>(memory->rows * memory->row_length) / launches;
    return all((backward ? 1.95e-6 : 1.75e-6) + numbers * (is_16bit(kernel.input) ? 2.8e-12 : 5.6e-12));
  }
  if (memory && kernel.name == "rnn_join") return Seconds{1e-6 + kJoined * static_cast<double>(memory->row_length)};
  if (!memory || !kernel.name.starts_with("rnn_bias_gradient")) return std::nullopt;
  const double gone = std::clamp((static_cast<double>(memory->part * bits_of(kernel.input)) / 8 - kCachedBytes) / (kGoneBytes - kCachedBytes), 0.0, 1.0);
  const double each = memory->part > 0 ? kWalkedCached + (kWalked - kWalkedCached) * gone : kWalkedBySteps;
  return all(2e-6 + each * static_cast<double>(memory->row_length));
}

// The other products of a recurrent layer run on kernels made for Ampere. How much longer they take than a product of cuBLAS, about, from
// timings of recurrent layers (data/measured): single shapes leave it by a factor of 1.5.
constexpr double kRecurrentWide = 1.6;       // fp32 and TF32
constexpr double kRecurrentUnaligned = 1.8;  // 16 bits where rows are no multiples of 16 bytes

double recurrent_slowdown(const Kernel& kernel, const GemmShape& s) {
  if (!kernel.name.starts_with("rnn_") || kernel.name == "rnn_mm" || s.transposed_a) return 1;
  if (!is_16bit(kernel.math)) return kRecurrentWide;
  return s.n % 8 == 0 && s.k % 8 == 0 ? 1 : kRecurrentUnaligned;
}

// PyTorch's resizing of images (aten/native/cuda/UpSample*.cu). Bilinear and bicubic ones in NCHW have a thread per pixel of the result that
// walks all planes, images times channels, one after the other: small images leave the GPU idle. The gradient of a bilinear one is
// added atomically: a warp's neighbours meet in the same pixels and wait for each other, all the results of a pixel; in NHWC its lanes
// are channels, where there are enough of them, and only warps meet. Sums in 16 bits are exchanges of words, two channels at a time
// where they pair up. The gradient of a nearest one has a thread per pixel that adds up its results, of every image in NCHW. Others take so long
// per pixel of the result, whatever the type. From 2,960 timings of enlargements by 2 to 48 on an H200 (data/measured/2026-11-16-h200-odd): gradients
// of bilinear ones within a quarter in the median, weighted by their time within 10 to 20%.
struct Resize {
  double plane, pixel;             // bilinear, NCHW: seconds per plane, and per pixel of one
  double gradient, gradient_nhwc;  // bilinear: seconds per result
  double meeting, most;            // and for each result of its pixel; of very many their root
};
constexpr Resize kResizeWide{0.18e-6, 3.6e-12, 10e-12, 9.5e-12, 0.75e-12, 1e-6}, kResizeNarrow{0.27e-6, 1.2e-12, 11e-12, 12e-12, 2.9e-12, 62e-12};
constexpr double kBilinearNhwc = 8.9e-12, kNearest = 2.9e-12, kNearestNhwc = 6e-12;
constexpr double kNearestGradient = 2.5e-12, kNearestGradientLarge = 1.6e-12, kNearestAdded = 0.14e-6;  // per result, of less than 8 a pixel or more; of a thread
constexpr double kManyChannels = 16, kUnpaired = 3, kThreadsAtOnce = kMeasuredSms * 2048;

// A bicubic one walks the planes in NHWC too, with 16 reads a pixel: of the 1024 threads of a block each then reads a line of its own, but
// that neighbours of an enlarged image share them, and one line is taken up at a time. Its gradient makes 16 atomic sums a pixel; in 16
// bits they meet and repeat, the more the larger the image grows. Of an unchanged size both copy, still plane by plane, in NHWC from one line
// to another. From 322 timings
// (data/measured/2026-11-15-h200-profile and 2026-11-16-h200-dense), half of them within a factor of 1.2; of 142 others
// (2026-11-16-h200-operands) half within 1.25; copies and lines from 246 more (2026-11-16-h200-joined).
constexpr double kBlock = 1024, kReads = 16;
constexpr double kCopiedPlane = 0.37e-6, kCopiedLines = 0.17e-6;                            // NCHW, NHWC
constexpr double kCopiedLine = 1.4e-9, kCopiedShared = 1.0e-9;                              // NHWC forward: seconds per thread of a block
constexpr double kCopiedPixel = 2.5e-12;                                                    // large images: by their bytes
constexpr double kCubicPlane = 0.4e-6, kCubicThread = 0.22e-9, kCubicPixel = 7e-12;          // NCHW: seconds per plane, thread of a block, pixel
constexpr double kLinesPlane = 0.2e-6, kLine = 0.52e-9, kLineShared = 0.31e-9, kLinesPixel = 22e-12;  // NHWC
constexpr double kLineBytes = 256;  // between neighbours: nearer ones share a line
constexpr double kCubicGradientThread = 2.3e-9, kCubicGradientPixel = 68e-12;                // fp32
constexpr double kNarrowGradient = 9.4e-6, kNarrowGradientEnlarged = 13e-6, kNarrowGradientPixel = 560e-12;

double bicubic_plane(bool narrow, bool backward, bool lines, double apart, double pixels, double enlarged) {
  const double threads = std::min(pixels, kBlock), line = apart < kLineBytes ? kLineShared : kLine;
  if (enlarged == 1 && lines) return kCopiedLines + (backward ? pixels * kCopiedPixel : threads * (apart < kLineBytes ? kCopiedShared : kCopiedLine));
  if (enlarged == 1) return std::max(kCopiedPlane, pixels * kCopiedPixel);
  if (backward && narrow) return std::max({kNarrowGradient, kNarrowGradientEnlarged * enlarged, pixels * kNarrowGradientPixel});
  if (backward) return std::max(kCubicPlane + threads * kCubicGradientThread, pixels * kCubicGradientPixel);
  if (lines) return std::max(kLinesPlane + kReads * threads / std::max(1.0, enlarged) * line, pixels * kLinesPixel);
  return std::max(kCubicPlane + threads * kCubicThread, pixels * kCubicPixel);
}

// Of one and of three axes a thread goes through all planes for each place of the result, images and channels one after the other, and of a nearest one through the
// images. Gradients of linear ones are added atomically, in 16 bits by exchanges that are repeated. Read off 1,130 timings (2026-11-16-h200-odd and 2026-11-18-h200-thin).
constexpr double kWalkedPlane = 0.4e-6, kWalkedVoxelPlane = 0.45e-6, kWalkedPixel = 12e-12, kAddedVoxel = 0.045e-6;
constexpr double kExchanged = 1.3e-6, kNearestImage = 0.4e-6, kNearestImageResult = 0.2e-6;

std::optional<Seconds> walked_resize_time(const Kernel& kernel, const MemoryShape& s) {
  const bool line = kernel.name.starts_with("upsample_linear1d"), voxels = kernel.name.starts_with("upsample_trilinear3d"), backward = s.pattern == MemoryPattern::pooling_backward;
  const bool nearest_line = kernel.name.starts_with("upsample_nearest1d"), nearest_voxels = kernel.name.starts_with("upsample_nearest3d");
  if (!(line || voxels || nearest_line || nearest_voxels)) return std::nullopt;
  const auto planes = static_cast<double>(s.rows), pixels = static_cast<double>(s.row_length);
  const double large = static_cast<double>(backward ? kernel.read.value : kernel.written.value), small = static_cast<double>(backward ? kernel.written.value : kernel.read.value);
  const double each = large / std::max(1.0, small);
  if (nearest_line || nearest_voxels) {
    const double images = planes / static_cast<double>(std::max<std::int64_t>(1, s.part));
    return Seconds{images * (kNearestImage + (backward && nearest_voxels ? kNearestImageResult * each : 0))};
  }
  const double plane = (line ? kWalkedPlane : kWalkedVoxelPlane) + pixels * kWalkedPixel;
  if (backward && is_16bit(kernel.input) && large != small) return Seconds{planes * std::max(plane, line ? kExchanged * std::max(1.0, each) : kExchanged)};
  return Seconds{planes * (plane + (backward && voxels ? kAddedVoxel * each : 0))};
}

std::optional<Seconds> resize_time(const Kernel& kernel, const MemoryShape& s) {
  if (const auto walked = walked_resize_time(kernel, s)) return walked;
  const bool cubic = kernel.name.starts_with("upsample_bicubic2d"), linear = kernel.name.starts_with("upsample_bilinear2d");
  const bool nearest = kernel.name.starts_with("upsample_nearest2d"), backward = s.pattern == MemoryPattern::pooling_backward;
  if (!(cubic || linear || nearest) || s.rows <= 1) return std::nullopt;
  const Resize& c = is_16bit(kernel.input) ? kResizeNarrow : kResizeWide;
  const double planes = static_cast<double>(s.rows), pixels = static_cast<double>(s.row_length), results = planes * pixels;
  const double enlarged = std::sqrt(static_cast<double>(backward ? kernel.read.value : kernel.written.value) /
                                    static_cast<double>(std::max<std::int64_t>(1, backward ? kernel.written.value : kernel.read.value)));
  const double each = enlarged * enlarged, channels = static_cast<double>(std::max<std::int64_t>(1, s.part));
  const double apart = static_cast<double>(s.part * bits_of(kernel.input)) / 8;  // bytes between two pixels in NHWC
  if (cubic) return Seconds{planes * bicubic_plane(is_16bit(kernel.input), backward, s.channels_last, apart, pixels, enlarged)};
  if (enlarged == 1) return std::nullopt;  // of the same size it is a copy
  if (nearest) {
    if (!backward) return Seconds{results * (s.channels_last ? kNearestNhwc : kNearest)};
    const double sources = results / each, images = s.channels_last ? 1 : planes / channels;
    return Seconds{std::max(results * (each < 8 ? kNearestGradient : kNearestGradientLarge), std::ceil(sources / images / kThreadsAtOnce) * images * each * kNearestAdded)};
  }
  const double meeting = std::min(c.meeting * each, c.most * enlarged);
  if (s.channels_last && !backward) return Seconds{results * kBilinearNhwc};
  if (!backward) return Seconds{planes * (c.plane + pixels * c.pixel)};
  if (!s.channels_last) return Seconds{results * (c.gradient + meeting)};
  const bool unpaired = is_16bit(kernel.input) && s.part % 2 != 0;
  return Seconds{results * (c.gradient_nhwc + (channels < kManyChannels ? meeting : meeting / kManyChannels * (unpaired ? kUnpaired : 1)))};
}

// Long filters that vector kernels walk (library_rules.h): forward lasts as long as one block takes to walk its sum, whatever the stride, and from so many results on longer
// by each; where the input is shorter than the filter it goes by the results alone. A data gradient by how many pixels there are. From 44 timings forward (data/measured, family
// conv1d: groups of 48 and 80, 128 taps, strides of one and two): nine tenths within a sixth.
constexpr double kWalk = 0.126e-6;             // seconds per term of a sum
constexpr double kWalkedAtOnce = 6400, kWalkedResult = 5.8e-12, kShortWalk = 11e-9, kShortResult = 7e-12;  // results; seconds per term and result, of short ones per term
constexpr double kEngineBf16 = 0.17e-9, kEngineFp16 = 0.05e-9;  // seconds per pixel and term

std::optional<Seconds> long_filter_time(const Kernel& kernel, const ConvShape& s) {
  // Groups are one kernel, or one launch each (library_rules.h).
  const std::int64_t taps = s.kernel_h * s.kernel_w, length = std::max(s.in_h, s.in_w), calls = std::max<std::int64_t>(s.groups, kernel.launches);
  if (!walks_long_filter(s, kernel.math, calls)) return std::nullopt;
  const std::int64_t width = s.in_channels / std::max<std::int64_t>(1, s.groups);
  const double groups = static_cast<double>(calls), results = static_cast<double>(s.batch * s.out_h * s.out_w);
  const double terms = static_cast<double>(width * (s.direction == ConvDirection::forward ? taps : std::min(taps, length)));  // others meet padding only
  if (s.direction == ConvDirection::forward)
    return Seconds{groups * terms * (length < taps ? kShortWalk + kShortResult * results : kWalk + kWalkedResult * std::max(0.0, results - kWalkedAtOnce))};
  const double pixels = static_cast<double>(s.batch * s.in_h * s.in_w);
  return Seconds{groups * terms * pixels * (kernel.math == DType::bf16 ? kEngineBf16 : kEngineFp16)};
}

// Pictures cut into patches (cuts_slowly, library_rules.h): 9.1 to 9.7 ns for each pixel of the result.
constexpr double kCutPixel = 9.4e-9;

std::optional<Seconds> cut_time(const Kernel& kernel, const ConvShape& s) {
  if (!cuts_slowly(s, kernel.math)) return std::nullopt;
  return Seconds{static_cast<double>(s.batch * s.out_h * s.out_w) * kCutPixel};
}

// A few bytes cleared by the driver, not by a kernel of the framework's: 1.92 to 2.14 us from start to start for up to 30 kB, of which 1.07
// lie between two kernels (14 timings of cudaMemset, data/measured/2026-11-15-h200-profile, family "transfer").
constexpr double kClearing = 0.95e-6;

// The gradient of an indexed read walks the values of one place (indexing_backward_kernel_small_stride, native/cuda/Indexing.cu): 43 us for 197
// tokens, 84 for 392. Rows wider than a warp go by another kernel, and places drawn evenly have as many values each (193 timings, 2026-11-16-h200-odd and 2026-11-18-h200-thin).
constexpr double kRepeatedValue = 0.215e-6, kRepeatedRow = 0.76e-6;
constexpr std::int64_t kNarrowRow = 32;

std::optional<Seconds> repeated_places(const Kernel& kernel, const MemoryShape& s) {
  if (kernel.name != "index_put_repeated") return std::nullopt;
  const auto places = static_cast<double>(s.part);
  return Seconds{(s.row_length <= kNarrowRow ? kRepeatedValue : kRepeatedRow) * std::max(std::sqrt(places), places / static_cast<double>(std::max<std::int64_t>(1, s.rows)))};
}

// Pooling as Inductor writes it streams its operands, or is bound by what it works out: each result of a window compares its taps, each pixel
// of a gradient asks the windows over it whether it was their maximum. From generated kernels of five recorded models (windows of 2 and 3, stride 2).
constexpr double kPooledTap = 0.75e-12, kPooledPixel = 1.1e-12, kPooledWindow = 1.5e-12;  // seconds, all SMs at work

std::optional<Seconds> generated_pooling(const Kernel& kernel, const MemoryShape& s) {
  if (!kernel.fused || s.part <= 0) return std::nullopt;
  const double results = static_cast<double>(s.rows * s.row_length), part = static_cast<double>(s.part);
  if (s.pattern == MemoryPattern::pooling_forward) return Seconds{results * part * kPooledTap};
  if (s.pattern == MemoryPattern::pooling_backward) return Seconds{results * (kPooledPixel + part * kPooledWindow)};
  return std::nullopt;
}

// PyTorch's CTC loss goes frame by frame, with a barrier after each, by few blocks: what a frame takes, and each thread of the block. Of
// what is collected by frames each place and class takes its turn in lines of its own. From the kernels of three models on an H200 (hubert,
// deep-speech-2 and crnn in data/measured), 41 to 200 frames of 2 to 32 utterances, all within a tenth.
std::optional<Seconds> alignment_time(const Kernel& kernel, const MemoryShape& s) {
  const double steps = static_cast<double>(s.rows), threads = static_cast<double>(s.row_length);
  if (kernel.name == "ctc_log_alpha") return Seconds{steps * (0.29e-6 + 0.3e-9 * threads)};
  if (kernel.name == "ctc_log_beta") return Seconds{steps * (0.21e-6 + 0.55e-9 * threads)};
  if (kernel.name == "ctc_collect") return Seconds{steps * 1.85e-9 * threads};
  if (kernel.name == "ctc_collect_letters") return Seconds{steps * 0.27e-6};
  return std::nullopt;
}

// A generated kernel that draws random numbers runs Philox's ten rounds for every element and keeps one number of the four (tl.rand): 20 wide multiplications, which an SM
// does at half its rate. Softmax over rows too long for one block keeps a maximum and a sum of exponentials as it goes (online_softmax_combine), whatever the type; rows
// of odd length are read one value at a time. From generated kernels of twenty recorded models: 4.1 to 5.5 ps and 1.29 to 1.52 ps (odd rows 1.67 and 1.71).
constexpr double kDrawnNumber = 4.4e-12, kOnlineElement = 1.35e-12, kOddRows = 1.25;  // seconds, all SMs at work
constexpr std::int64_t kOneBlock = 1024;  // longest row of a persistent reduction (torch/_inductor/choices.py)

// Values added atomically to few places in bf16, which are exchanges of words that are repeated where they meet: by how many meet in a place, and hardly by how
// many there are. Read off generated kernels of five recorded models (gradients of tables of relative positions: 49 to 8,784 places, 7,200 to 466,000 values), four of them within a fifth, BEiT's
// twice as long. In fp32 they do not repeat.
constexpr double kMeeting = 0.09e-6, kMostMeet = 200;

Seconds generated_meeting(const MemoryShape& s) {
  const double values = static_cast<double>(s.rows * s.row_length), meet = std::min(kMostMeet, values / static_cast<double>(s.part));
  return Seconds{kMeeting * meet * std::sqrt(meet) * std::pow(values, 0.2)};
}

std::optional<Seconds> generated_work(const Kernel& kernel, const MemoryShape& s) {
  if (kernel.fused && kernel.name == "fused_scatter") return s.part > 0 ? std::optional(generated_meeting(s)) : std::nullopt;
  if (!kernel.fused || s.pattern == MemoryPattern::pooling_forward || s.pattern == MemoryPattern::pooling_backward) return std::nullopt;
  const double elements = static_cast<double>(s.rows * s.row_length);
  double worked = static_cast<double>(s.part) * kDrawnNumber;
  if (s.pattern == MemoryPattern::softmax_forward && s.row_length > kOneBlock) worked = std::max(worked, elements * kOnlineElement * (s.row_length % 2 ? kOddRows : 1.0));
  if (worked <= 0) return std::nullopt;
  return Seconds{worked};
}

// Megatron-LM's causal softmax holds a row in a warp's registers, as many as the next power of two: beyond what its bytes take. From 612 timings on
// A100 and GH200 (estimate-train-time, ScaledUpperTriangMaskedSoftmax: 1.16 to 1.40 at 1,024, 1.4 to 1.8 at 2,048, 1.6 to 2.2 just above 1,024).
constexpr double kShortCausalRows = 1.2, kLongCausalRows = 1.5;

}  // namespace

KernelCost with_fallbacks(const Kernel& kernel, Hertz clock, KernelCost cost) {
  const double slower = kMeasuredClock / clock.value;
  if (const auto measured = recurrent_time(kernel)) {
    cost.compute = cost.total = *measured * slower;
    return cost;
  }
  if (const auto* product = std::get_if<GemmShape>(&kernel.shape)) {
    const double slowdown = recurrent_slowdown(kernel, *product);
    cost.compute = cost.compute * slowdown;
    cost.total = cost.total * slowdown;
  } else if (const auto* conv = std::get_if<ConvShape>(&kernel.shape)) {
    auto measured = long_filter_time(kernel, *conv);
    if (!measured) measured = cut_time(kernel, *conv);
    if (measured) {
      const Seconds slow = *measured * slower;
      if (cost.launch + slow > cost.total) cost.compute = slow, cost.total = cost.launch + slow;
    }
  } else if (const auto* memory = std::get_if<MemoryShape>(&kernel.shape)) {
    if (kernel.name == "memset") {
      cost.launch = cost.total = Seconds{kClearing * slower * std::max(1, kernel.launches)};
      cost.compute = cost.memory = {};
      cost.bound = Bound::launch;
    }
    if (kernel.name == "causal_softmax") {
      cost.compute = cost.memory * (memory->row_length > kOneBlock ? kLongCausalRows : kShortCausalRows);
      cost.total = cost.launch + cost.compute;
      return cost;
    }
    if (const auto aligned = alignment_time(kernel, *memory)) {
      cost.compute = *aligned * slower;
      cost.total = std::max(cost.total, cost.launch + cost.compute);
    }
    if (const auto walked = repeated_places(kernel, *memory)) {
      cost.compute = *walked * slower;
      cost.total = std::max(cost.total, cost.launch + cost.compute);
    }
    if (const auto worked_out = generated_pooling(kernel, *memory)) {
      cost.compute = *worked_out * slower;
      cost.total = cost.launch + std::max(cost.compute, cost.memory);
    } else if (const auto drawn = generated_work(kernel, *memory)) {
      const Seconds work = *drawn * slower;
      if (work > cost.total - cost.launch) cost.compute = work, cost.total = cost.launch + work;
    } else if (const auto measured = resize_time(kernel, *memory)) {
      const Seconds resized = *measured * slower;
      // A bicubic one's time is whole: what its bytes would take is in it.
      if (kernel.name.starts_with("upsample_bicubic2d")) cost.memory = resized;
      cost.total = cost.launch + std::max(cost.memory, resized);
    }
  }
  return cost;
}

}  // namespace precog
