// docs/carry_over.md as text.
#include <fmt/format.h>

#include "calibrate/carry_over.h"

namespace precog {
namespace {

constexpr std::string_view kBegin = R"(# How costs carry from GPU to GPU

Made by one command from the reference data (aiconfigurator's timings of products and attention on six GPUs):
`cmake --build build --target precog_carry_over && build/precog_carry_over "$PRECOG_REFERENCE_DATA" docs/carry_over.md data/profiles`,
which also writes the profiles of products of A100, L40S and B200 (`src/calibrate/reference_profile.h`).
`src/calibrate/carry_over_test.cpp` repeats a part of it and fails when a figure gets worse.

Each GPU in turn is treated as one that nobody measured:

1. **Its relative's coefficients, scaled.** The formulae of `src/cost` are fitted to each of the other GPUs from a neutral start.
   The GPU left out takes those of its nearest relative: of its architecture, else of its tensor cores' instructions (`mma.sync`: A100
   and L40S), else of the nearest compute capability. A launch takes so many clocks; a block's first operands and a split sum's second
   pass wait for memory or the cache, whose pace does not follow the SMs'. Products on `mma.sync` have a formula of their own:
   cuBLAS takes the largest tile as soon as it fills the GPU, whatever the last wave wastes (1.1 waves of 256 x 128 take the time of two where
   smaller tiles would be a quarter faster), one block to an SM; sums shorter than 128 do not fill a block's pipeline; the longer a
   product, the better loads and arithmetic overlap; and the clock falls only once the tensor cores have been busy for some tenths of a millisecond, so
   that short products have the same share of the peak everywhere (0.95) and long ones what the watts per FLOP/s leave. A100's and L40S's attention is FlashAttention 2's over a cache of pages, as vLLM calls it: another kernel than a training
   step's, with a formula of its own (`src/calibrate/paged_attention.h`); so are the L40S's fp8 products, vLLM's CUTLASS kernels for Ada, whose tile its source says for every shape
   (`src/calibrate/scaled_products.h`): their relative is the A100 in bf16. Between architectures, efficiency follows the watts per FLOP/s where power is short; attention's follows the
   width of the tensor cores per SM, since the exponentials beside the products go at the same pace everywhere.
2. **And trees of the others**: boosted trees on the logarithm of what the formulae leave, learned on all the other GPUs, the relative
   counting five times; A100 and L40S, whose library chooses tiles in another way, teach the others nothing. Attention takes them from its own architecture only: other architectures run other libraries' kernels. A GPU alone of
   its architecture (A100, L40S) takes none: what the formulae leave there is a library's choice between tiles, made anew for every GPU (the
   A100's and the L40S's have a correlation of 0.1, twins one of 0.6 to 0.7).
3. **And 30 timings** of the GPU, of shapes chosen so that every other has one near (by their extents, before anything is timed). They decide
   how much of the others' trees is kept: all, half or nothing, whichever leaves them nearest to one another. The
   coefficients are fitted again, held to the carried ones by springs (2.5 times firmer inside an architecture), and what they then leave
   is taken for a smooth function of the shape (a Gaussian process, `src/calibrate/smooth_residual.h`). A disturbed timing (one in 25 of the
   B200's in fp8 takes twice its time, at any shape) counts as no farther off than three median distances. The middle one of several
   choices of the thirty (in brackets: the best and the worst), judged on all other rows. `precog calibrate` does the like with a short
   measurement, on a relative's learned corrections and without fitting coefficients again (`src/calibrate/short_measurement.h`).
4. **Known GPU, new shapes**: for comparison, coefficients and trees fitted to four fifths of its own shapes, judged on the rest.

What the timings contain and a training step does not is fitted beside and dropped: operands that the cache still holds from the call
before, a clock that has not fallen yet (`mma.sync`), activations quantised first (fp8, nvfp4), keys and values written to a cache first (attention). Errors are those of
predicted over measured time, in per cent: median of the absolute / 95th percentile / median of the signed. *Roughness* is the median distance
of a large timing from the line through its neighbours, as one timing's error: no smooth model can be better than that there.
)";

constexpr std::string_view kEnd = R"(
Why some rows are where they are:

- **L40S, products.** Timings of large products scatter: neighbouring shapes reach between 0.50 and 0.78 of the peak without order
  (the card runs at its power limit), see roughness: 7% of a timing beyond a millisecond. Small ones jump: at m = 8 and n = 64 a sum of 3584 is
  not split (16.4 us), one of 4096 is (4.0 us); at n = 256 the split begins at 1024, at n = 1024 at 3072.
- **L40S, products in bf16 after 30 timings.** The one target that is missed (5%). Few timings cannot tell a library's choices: the way above leaves 7.0% after 100 timings and 6.5% after 300,
  the formula fitted to 1200 rows 6.9% (A100 4.3%) and with larger trees on top 6.1%, on 6,400 rows 4.0%, on 28,000 3.3%. What those learn lies everywhere:

  | rows | share | noise of one timing | formula, 1200 own rows | and trees, 1200 | 6,400 | 28,000 |
  |---|---|---|---|---|---|---|
  | m to 16 | 22% | 0.9% | 6.8 | 5.6 | 3.6 | 2.4 |
  | m 17 to 64 | 8% | 1.4% | 7.3 | 5.8 | 4.3 | 3.5 |
  | m 65 to 257 | 23% | 1.2% | 6.5 | 5.3 | 3.5 | 3.1 |
  | m from 512, to 0.1 ms | 19% | 2.1% | 7.8 | 6.8 | 3.3 | 2.6 |
  | to 1 ms | 17% | 4.3% | 5.5 | 5.4 | 4.0 | 4.0 |
  | beyond | 12% | 6.2% | 10.4 | 9.4 | 8.1 | 7.4 |

  (Noise: how far timings lie apart whose rows need nearly the same blocks, m = 9 and 10, 65 and 80, 1025 and 1280, over the root of two. Beyond a millisecond they fall into two heaps, near 195 and 265
  TFLOP/s, whatever the shape: the card's clock, or several cards.) Seen on the dense grid: products of m n k below 2^21 are never split, at 4.2 ns for each of k; with m to 64 the others
  split from k = 640 (one tile of 64 x 64) to 3584 (16 tiles), and never from 24 tiles on; tiles from 128 x 64 to 256 x 128 lose about a fifth below m n k = 2^32; tiles wait for the L2 cache
  (17 to 22 bytes a clock and SM, the A100's 40, shared by the blocks there are). The A100 shows the thresholds of splits and the wait. These in the formula, alone and together, leave 6.6% to 7.1% on
  1200 rows, however freely fitted, and 7.5% to 8.2% after 30. Its choices are its own: what the
  formulae leave on it has a correlation of 0.1 at most with what they leave on any other GPU (0.2 among products of one size). Also tried without gain: a Gaussian
  process with a length for each of eleven coordinates (waves, tiles) learned on the GPU itself, means of nine variants of the formula, several relatives' mean as the start,
  thirty shapes chosen for the least expected error or where variants agree (worse: they lie where a formula is most wrong).
- **What was chosen with these figures in view**: the formula of `mma.sync` products, its constants (128, 32 splits, 0.95), and that A100 and L40S teach the others nothing. It was
  found on all of the A100's and L40S's rows, so that the A100's 5% after 30 timings is not that of a GPU nobody has looked at; no coefficient comes from the GPU left out. Likewise the shape of the formula of the
  L40S's fp8 (its tiles are vLLM's; that stores are slow and shared, a row's own time in the pass before, were seen on its rows).
- **L40S in fp8.** How fast a kernel stores its results (0.1 to 0.6 a clock and SM, by tile; its scales come by row and column) and what a row costs the pass that quantises it no other GPU's timings say: unaided 13%.
  With an H100 in fp8 as its relative, whose kernels are others, it was 28%, and 14% after 30 timings.
- **L40S in fp8_block.** The A100 has none, so that its relative is an H100, with other kernels (here Triton's, which
  nobody else runs); without timings the figures have no meaning for a prediction, and are shown to be complete.
- **fp8_block.** The host sets a floor of 55 to 350 us by machine there; only timings four times above it are counted.
- **GB200** runs slower than its datasheet says it should against B200, most of all on products of seconds: the bias between the two.
)";

std::string text(const CarriedError& e) { return fmt::format("{:.1f} / {:.0f} / {:+.1f}", 100 * e.median, 100 * e.p95, 100 * e.bias); }

}  // namespace

std::string carry_over_page(const std::vector<CarriedGroup>& groups, const CarryOverOptions& options) {
  std::string out(kBegin);
  out += fmt::format("\n{} rows of each GPU and type at most (four times as many in the last column but one), {} trees, {} draws.\n\n", options.rows, options.trees, options.draws);
  out += "| GPU | operator | type | rows | relative | its coefficients, scaled | and trees of the others | and 30 timings | known GPU, new shapes | roughness |\n"
         "|---|---|---|---|---|---|---|---|---|---|\n";
  for (const CarriedGroup& g : groups) {
    const bool alone = g.relative.empty();
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", g.gpu, g.family, g.dtype, g.rows, alone ? "none" : g.relative, alone ? "" : text(g.datasheet),
                       alone ? "" : text(g.carried), alone ? "" : fmt::format("{} ({:.1f} to {:.1f})", text(g.thirty), 100 * g.thirty_least, 100 * g.thirty_most), text(g.held_out), g.roughness > 0 ? fmt::format("{:.1f}", 100 * g.roughness) : "");
  }
  out += kEnd;
  return out;
}

}  // namespace precog
