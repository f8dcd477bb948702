#include "frontend/attention_rows.h"

#include <doctest/doctest.h>

#include "graph/builder.h"

using namespace precog;

namespace {

// Heads cut out of `channels` behind the pixels or in front of them.
bool across(bool channels_first) {
  GraphBuilder b;
  TensorId rows[3];
  for (TensorId& id : rows) {
    const TensorId image = b.gelu(b.input("x", channels_first ? Shape{2, 128, 7, 7} : Shape{2, 49, 128}));
    id = channels_first ? b.view(b.view(image, {2, 4, 32, 49}), {2, 4, 49, 32}, ViewKind::transpose)
                        : b.view(b.view(image, {2, 49, 4, 32}), {2, 4, 49, 32}, ViewKind::transpose);
  }
  b.attention(rows[0], rows[1], rows[2], false);
  Graph graph = std::move(b).finish();
  note_rows_across(graph);
  for (const Op& op : graph.ops)
    if (const auto* attention = std::get_if<AttentionAttributes>(&op.attributes)) return attention->across;
  return false;
}

}  // namespace

TEST_CASE("AttentionOverPixelsWhoseChannelsComeFirstReadsAcrossMemory") {
  CHECK(across(true));
  CHECK_FALSE(across(false));
}
