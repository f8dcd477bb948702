#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <doctest/doctest.h>

#include "frontend/onnx_fold.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_wire.h"
#include "support.h"

using namespace precog;

namespace {

// Just enough of a writer to make models by hand. Field numbers as in onnx.proto.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
std::string number(int field, std::int64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(static_cast<std::uint64_t>(value));
}
std::string bytes(int field, const std::string& value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}

std::string tensor(const std::string& name, std::vector<std::int64_t> dims, int type = 1) {  // without data, as a stripped weight
  std::string out;
  for (std::int64_t dim : dims) out += number(1, dim);
  return out + number(2, type) + bytes(8, name) + number(14, 1);
}
std::string integers(const std::string& name, std::vector<std::int64_t> values, bool vector = true) {
  std::string out = (vector ? number(1, static_cast<std::int64_t>(values.size())) : "") + number(2, 7) + bytes(8, name), packed;
  for (std::int64_t value : values) packed += varint(static_cast<std::uint64_t>(value));
  return out + bytes(7, packed);
}
std::string real(const std::string& name, float value) {
  return number(2, 1) + bytes(8, name) + bytes(4, std::string(reinterpret_cast<const char*>(&value), 4));
}
std::string value(const std::string& name, const std::vector<std::string>& dims, int type = 1) {
  std::string shape;
  for (const std::string& dim : dims)
    shape += bytes(1, std::isdigit(static_cast<unsigned char>(dim[0])) ? number(1, std::stoll(dim)) : bytes(2, dim));
  return bytes(1, name) + bytes(2, bytes(1, number(1, type) + bytes(2, shape)));
}
std::string attribute(const std::string& name, std::int64_t integer) { return bytes(5, bytes(1, name) + number(3, integer)); }
std::string attribute(const std::string& name, const std::vector<std::int64_t>& list) {
  std::string out = bytes(1, name);
  for (std::int64_t one : list) out += number(8, one);
  return bytes(5, out);
}

struct Model {
  std::string graph = bytes(2, "g");
  Model& input(const std::string& name, const std::vector<std::string>& dims, int type = 1) {
    return add(11, value(name, dims, type));
  }
  Model& output(const std::string& name) { return add(12, value(name, {"1"})); }
  Model& weight(const std::string& name, const std::vector<std::int64_t>& dims) { return add(5, tensor(name, dims)); }
  Model& ints(const std::string& name, const std::vector<std::int64_t>& values, bool vector = true) {
    return add(5, integers(name, values, vector));
  }
  Model& number_of(const std::string& name, float value_of) { return add(5, real(name, value_of)); }
  Model& node(const std::string& op, const std::vector<std::string>& in, const std::vector<std::string>& out,
              const std::string& attributes = "", const std::string& domain = "") {
    std::string made;
    for (const std::string& name : in) made += bytes(1, name);
    for (const std::string& name : out) made += bytes(2, name);
    return add(1, made + bytes(4, op) + attributes + (domain.empty() ? "" : bytes(7, domain)));
  }
  std::string file() const { return number(1, 8) + bytes(8, number(2, 17)) + bytes(7, graph); }

  Result<Graph> build(ModelInputs inputs) const {
    auto read = read_onnx_bytes(file(), "test.onnx");
    if (!read) return tl::unexpected(read.error());
    return build_onnx(*read, inputs);
  }

 private:
  Model& add(int field, const std::string& message) {
    graph += bytes(field, message);
    return *this;
  }
};

Graph built(const Model& model, ModelInputs inputs) {
  auto graph = model.build(inputs);
  REQUIRE_MESSAGE(graph.has_value(), (graph ? "" : graph.error().text()));
  REQUIRE(verify(*graph) == "");
  return *graph;
}

const Op* first(const Graph& graph, OpKind kind) {
  for (const Op& op : graph.ops)
    if (op.kind == kind) return &op;
  return nullptr;
}

// q, k, v [b, 4, s, 16] from one input; scores scaled, masked by position, guarded against NaN: as torch.export writes it.
Model attention(bool causal, bool guarded) {
  Model m;
  m.input("x", {"batch", "seq", "64"}).output("y");
  for (const char* name : {"wq", "wk", "wv", "wo"}) m.weight(name, {64, 64});
  m.ints("heads", {0, 0, 4, 16})
      .ints("zero", {0}, false)
      .ints("one", {1}, false)
      .ints("axis", {1})
      .ints("last", {0, 0, 64})
      .ints("first_axis", {0});
  m.number_of("scale", 0.25f).number_of("none", 0).number_of("hide", -3e38f);
  for (const char* name : {"q", "k", "v"}) {
    const std::string n = name;
    m.node("MatMul", {"x", "w" + n}, {n + "1"}).node("Reshape", {n + "1", "heads"}, {n + "2"});
  }
  m.node("Transpose", {"q2"}, {"q3"}, attribute("perm", {0, 2, 1, 3}))
      .node("Transpose", {"v2"}, {"v3"}, attribute("perm", {0, 2, 1, 3}));
  m.node("Transpose", {"k2"}, {"kt"}, attribute("perm", {0, 2, 3, 1}));  // two turns that the exporter merged
  m.node("Mul", {"q3", "scale"}, {"q4"}).node("MatMul", {"q4", "kt"}, {"scores"});
  std::string scores = "scores";
  if (causal) {
    m.node("Shape", {"x"}, {"shape"})
        .node("Gather", {"shape", "one"}, {"length"})
        .node("Range", {"zero", "length", "one"}, {"places"});
    m.node("Unsqueeze", {"places", "first_axis"}, {"columns"}).node("Unsqueeze", {"places", "axis"}, {"rows"});
    m.node("LessOrEqual", {"columns", "rows"}, {"seen"}).node("Where", {"seen", "none", "hide"}, {"bias"});
    m.node("Add", {"scores", "bias"}, {"masked"});
    scores = "masked";
  }
  m.node("Softmax", {scores}, {"weights"}, attribute("axis", -1));
  std::string weights = "weights";
  if (guarded) {
    m.node("IsNaN", {"weights"}, {"bad"}).node("Where", {"bad", "none", "weights"}, {"safe"});
    weights = "safe";
  }
  m.node("MatMul", {weights, "v3"}, {"mixed"}).node("Transpose", {"mixed"}, {"turned"}, attribute("perm", {0, 2, 1, 3}));
  m.node("Reshape", {"turned", "last"}, {"flat"}).node("MatMul", {"flat", "wo"}, {"y"});
  return m;
}

}  // namespace

TEST_CASE("onnx: a classifier becomes linear layers and a cross-entropy") {
  Model m;
  m.input("x", {"batch", "64"})
      .output("y")
      .weight("a.weight", {128, 64})
      .weight("a.bias", {128})
      .weight("b.weight", {128, 10})
      .weight("b.bias", {10});
  m.node("Gemm", {"x", "a.weight", "a.bias"}, {"h"}, attribute("transB", 1)).node("Relu", {"h"}, {"r"});
  m.node("MatMul", {"r", "b.weight"}, {"p"}).node("Add", {"p", "b.bias"}, {"y"});
  const Graph graph = built(m, {.batch = 32});
  CHECK(testing::kinds(graph, Phase::forward) == std::vector<std::string>{"linear", "relu", "linear", "log_softmax", "nll_loss"});
  CHECK(parameter_count(graph) == 128 * 64 + 128 + 128 * 10 + 10);
  CHECK(std::get<GemmAttributes>(graph.ops.begin()->attributes) == GemmAttributes{1, 32, 128, 64, true});
}

TEST_CASE("onnx: a decomposed attention is one operator again") {
  for (bool causal : {false, true})
    for (bool guarded : {false, true}) {
      const Graph graph = built(attention(causal, guarded), {.batch = 2, .seq = 33});
      const Op* op = first(graph, OpKind::scaled_dot_product_attention);
      REQUIRE(op);
      const auto& a = std::get<AttentionAttributes>(op->attributes);
      CHECK(a == AttentionAttributes{.batch = 2,
                                     .heads = 4,
                                     .kv_heads = 4,
                                     .q_len = 33,
                                     .kv_len = 33,
                                     .head_dim = 16,  // The operands lie in the order [batch, sequence, heads, width].
                                     .value_dim = 16,
                                     .causal = causal,
                                     .scattered = {true, true, true}});
      // No score is left, no mask is built, and turning the result back copies nothing. (A causal model's labels are shifted.)
      CHECK(testing::count(graph, OpKind::softmax) == 0);
      CHECK(testing::count(graph, OpKind::integer_pointwise) == (causal ? 2 : 0));
      CHECK(testing::count(graph, OpKind::contiguous) == (causal ? 1 : 0));
      CHECK(testing::count(graph, OpKind::linear) == 4);
    }
}

TEST_CASE("onnx: attention whose weights somebody else reads stays as it is") {
  Model m = attention(false, false);
  m.output("weights");
  const Graph graph = built(m, {.batch = 2, .seq = 8});
  CHECK(testing::count(graph, OpKind::scaled_dot_product_attention) == 0);
  CHECK(testing::count(graph, OpKind::softmax) == 1);
}

TEST_CASE("onnx: a mask that comes in is given to attention") {
  Model masked = attention(true, false);  // but its condition comes from an input instead of from positions
  const std::string made = bytes(2, "seen") + bytes(4, "LessOrEqual");
  const std::size_t at = masked.graph.find(made);
  REQUIRE(at != std::string::npos);
  masked.graph.replace(at, made.size(), bytes(2, "see2") + bytes(4, "LessOrEqual"));
  masked.input("seen", {"batch", "1", "seq", "seq"}, 9);
  const Graph graph = built(masked, {.batch = 2, .seq = 8});
  const auto& a = std::get<AttentionAttributes>(first(graph, OpKind::scaled_dot_product_attention)->attributes);
  CHECK(a.mask);
  CHECK_FALSE(a.causal);
}

TEST_CASE("onnx: GELU, SiLU and norms are put together") {
  Model m;
  m.input("x", {"batch", "64"}).output("y").weight("w", {64}).weight("v", {64}).weight("o", {64, 3});
  m.number_of("root2", 1.41421356f)
      .number_of("one", 1)
      .number_of("half", 0.5f)
      .number_of("two", 2)
      .number_of("eps", 1e-6f)
      .ints("last", {-1});
  m.node("Div", {"x", "root2"}, {"a"})
      .node("Erf", {"a"}, {"b"})
      .node("Add", {"b", "one"}, {"c"})
      .node("Mul", {"x", "c"}, {"d"})
      .node("Mul", {"d", "half"}, {"g"});
  m.node("Sigmoid", {"g"}, {"s"}).node("Mul", {"g", "s"}, {"h"});
  m.node("Pow", {"h", "two"}, {"p"}).node("ReduceMean", {"p"}, {"q"}, attribute("axes", std::vector<std::int64_t>{-1}));
  m.node("Add", {"q", "eps"}, {"r"})
      .node("Sqrt", {"r"}, {"t"})
      .node("Reciprocal", {"t"}, {"u"})
      .node("Mul", {"h", "u"}, {"n"})
      .node("Mul", {"w", "n"}, {"z"});
  m.node("ReduceMean", {"z"}, {"m1"}, attribute("axes", std::vector<std::int64_t>{-1}))
      .node("Sub", {"z", "m1"}, {"e"})
      .node("Pow", {"e", "two"}, {"f"});
  m.node("ReduceMean", {"f"}, {"m2"}, attribute("axes", std::vector<std::int64_t>{-1}))
      .node("Add", {"m2", "eps"}, {"m3"})
      .node("Sqrt", {"m3"}, {"m4"});
  m.node("Div", {"e", "m4"}, {"m5"})
      .node("Mul", {"m5", "w"}, {"m6"})
      .node("Add", {"m6", "v"}, {"m7"})
      .node("MatMul", {"m7", "o"}, {"y"});
  const Graph graph = built(m, {.batch = 4});
  CHECK(testing::kinds(graph, Phase::forward) == std::vector<std::string>{"gelu", "silu", "cast", "pow", "mean", "add_scalar",
                                                                          "rsqrt", "mul", "cast", "mul", "layer_norm", "linear",
                                                                          "log_softmax", "nll_loss"});
}

TEST_CASE("onnx: a turned tensor is copied only where its order forces it") {
  Model m;
  m.input("x", {"batch", "4", "6"}).output("y").weight("w", {6, 4}).ints("flat", {-1, 24}).ints("halves", {0, 2, 2, 4});
  m.node("Transpose", {"x"}, {"t"}, attribute("perm", {0, 2, 1})).node("Reshape", {"t", "flat"}, {"f"});  // a copy
  m.node("Reshape", {"x", "flat"}, {"g"}).node("Add", {"f", "g"}, {"s"});                                 // a view
  m.weight("v", {24, 3}).node("MatMul", {"s", "v"}, {"y"});
  const Graph graph = built(m, {.batch = 2});
  CHECK(testing::count(graph, OpKind::contiguous) == 1);
}

TEST_CASE("onnx: an unknown operator is labelled, costed and noted") {
  Model m;
  m.input("x", {"batch", "64"})
      .output("y")
      .weight("w", {64, 8})
      .node("Wobble", {"x"}, {"h"}, "", "com.example")
      .node("MatMul", {"h", "w"}, {"y"});
  auto model = read_onnx_bytes(m.file(), "test.onnx");
  REQUIRE(model.has_value());
  CHECK(std::any_of(model->notes.begin(), model->notes.end(),
                    [](const std::string& note) { return note.find("com.example.Wobble is not") != std::string::npos; }));
  const Graph graph = built(m, {.batch = 2});
  const Op* op = first(graph, OpKind::unknown);
  REQUIRE(op);
  CHECK(graph.name(op->label) == "onnx.Wobble");
}

TEST_CASE("onnx: extents are chosen by name and by place, and fixed ones hold") {
  Model m;
  m.input("ids", {"N", "time"}, 7).output("y").weight("table", {100, 16}).weight("w", {16, 100});
  m.node("Gather", {"table", "ids"}, {"x"}).node("MatMul", {"x", "w"}, {"y"});
  auto model = read_onnx_bytes(m.file(), "test.onnx");
  REQUIRE(model.has_value());
  CHECK(model->has_batch);
  CHECK(model->has_seq);
  CHECK_FALSE(build_onnx(*model, {.batch = 2}).has_value());  // no sequence said
  CHECK(build_onnx(*model, {.batch = 2, .seq = 5}).has_value());
  CHECK_FALSE(build_onnx(*model, {.batch = 2, .seq = 5, .layers = 3}).has_value());

  Model fixed;
  fixed.input("ids", {"4", "128"}, 7).output("y").weight("table", {100, 16}).weight("w", {16, 100});
  fixed.node("Gather", {"table", "ids"}, {"x"}).node("MatMul", {"x", "w"}, {"y"});
  model = read_onnx_bytes(fixed.file(), "test.onnx");
  REQUIRE(model.has_value());
  CHECK(model->captured_batch == 4);
  CHECK(model->captured_seq == 128);
  CHECK_FALSE(build_onnx(*model, {.batch = 8}).has_value());
  CHECK(build_onnx(*model, {.batch = 4}).has_value());

  Model image;
  image.input("x", {"batch", "3", "height", "width"}).output("y").weight("w", {8, 3, 3, 3}).node("Conv", {"x", "w"}, {"y"});
  CHECK_FALSE(read_onnx_bytes(image.file(), "test.onnx").has_value());
}

TEST_CASE("onnx: what cannot be read is one error that says where") {
  auto message = [](const Model& m) {
    auto read = read_onnx_bytes(m.file(), "test.onnx");
    return read ? std::string() : read.error().text();
  };
  Model loose;
  loose.input("x", {"batch", "4"}).output("y").weight("w", {5, 4}).node("MatMul", {"x", "w"}, {"y"});
  CHECK(message(loose).find("MatMul 'y'") != std::string::npos);
  Model missing;
  missing.input("x", {"batch", "4"}).output("y").node("Relu", {"nobody"}, {"y"});
  CHECK(message(missing).find("'nobody' is made by no node") != std::string::npos);
  Model barren;
  barren.input("x", {"batch", "4"}).output("y").node("Relu", {"x"}, {"y"});
  CHECK(message(barren).find("nothing to train") != std::string::npos);
  Model data;
  data.input("x", {"batch", "4"}).output("y").node("NonZero", {"x"}, {"y"});
  CHECK(message(data).find("depends on data") != std::string::npos);
  Model flow;
  flow.input("x", {"batch", "4"}).output("y").node("Loop", {"x"}, {"y"});
  CHECK(message(flow).find("control flow") != std::string::npos);
  CHECK_FALSE(read_onnx_bytes("", "test.onnx").has_value());
  CHECK_FALSE(read_onnx_bytes("{\"this\": \"is JSON\"}", "test.onnx").has_value());
  CHECK_FALSE(read_onnx("/no/such/file.onnx").has_value());
}

TEST_CASE("onnx: shape arithmetic") {
  using namespace onnx;
  auto constant = [](Shape shape, std::vector<double> values) {
    return Constant{shape, DType::int64, std::make_shared<const std::vector<double>>(std::move(values))};
  };
  auto run = [](const char* op, const std::vector<Constant>& in, std::vector<Attribute> attributes = {}) {
    Node node;
    node.op = op;
    node.attributes = std::move(attributes);
    std::vector<const Constant*> operands;
    for (const Constant& one : in) operands.push_back(&one);
    auto out = fold(node, operands);
    REQUIRE(out.has_value());
    return *out->front().values;
  };
  using List = std::vector<double>;
  CHECK(run("Shape", {Constant{Shape{2, 3, 4}, DType::model, nullptr}}) == List{2, 3, 4});
  CHECK(run("Div", {constant({}, {7}), constant({}, {-2})}) == List{-3});
  CHECK(run("Add", {constant({2, 1}, {1, 2}), constant({3}, {10, 20, 30})}) == List{11, 21, 31, 12, 22, 32});
  CHECK(run("Slice", {constant({4}, {1, 2, 3, 4}), constant({1}, {-2}), constant({1}, {9e18})}) == List{3, 4});
  CHECK(run("Slice", {constant({4}, {1, 2, 3, 4}), constant({1}, {-1}), constant({1}, {-9e18}), constant({1}, {0}),
                      constant({1}, {-2})}) == List{4, 2});
  CHECK(run("Range", {constant({}, {2}), constant({}, {8}), constant({}, {3})}) == List{2, 5});
  CHECK(run("CumSum", {constant({2, 2}, {1, 2, 3, 4}), constant({}, {0})}) == List{1, 2, 4, 6});
  CHECK(run("Gather", {constant({3}, {5, 6, 7}), constant({2}, {-1, 0})}) == List{7, 5});
  CHECK(run("Trilu", {constant({2, 2}, {1, 1, 1, 1})}) == List{1, 1, 0, 1});
  CHECK(run("Expand", {constant({2, 1}, {1, 2}), constant({2}, {2, 2})}) == List{1, 1, 2, 2});
  CHECK(run("ReduceProd", {constant({3}, {2, 3, 4})}) == List{24});
}

// Every shortening and a few thousand random changes of real files: a graph or an error, never a crash, never an endless run.
TEST_CASE("onnx: damaged files are errors") {
  std::mt19937 random(7);
  std::vector<std::string> files = {attention(true, true).file()};
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PRECOG_SOURCE_DIR) + "/tests/data/onnx")) {
    if (entry.path().extension() != ".onnx" || entry.file_size() > 100'000) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  REQUIRE(files.size() > 1);
  int readable = 0, refused = 0;
  auto attempt = [&](const std::string& file) {
    auto model = read_onnx_bytes(file, "damaged.onnx");
    if (!model) {
      CHECK(!model.error().text().empty());
      ++refused;
      return;
    }
    auto graph = build_onnx(*model, {.batch = std::max<std::int64_t>(model->captured_batch, 2), .seq = model->has_seq ? 16 : 0});
    if (graph) CHECK(verify(*graph) == "");
    ++readable;
  };
  for (const std::string& file : files) {
    const bool small = file.size() < 5000;
    for (std::size_t cut = 0; cut < file.size(); cut += small ? 7 : file.size() / 20) attempt(file.substr(0, cut));
    for (int round = 0; round < (small ? 3000 : 60); ++round) {
      std::string damaged = file;
      for (int change = 0; change < 1 + static_cast<int>(random() % 4); ++change)
        damaged[random() % damaged.size()] = static_cast<char>(random());
      attempt(damaged);
    }
  }
  CHECK(refused > 100);
  CHECK(readable > 10);
}

TEST_CASE("onnx: batch normalisations that an exporter folded away are put back") {
  Model m;
  m.input("x", {"batch", "3", "32", "32"})
      .output("y")
      .weight("c.weight", {8, 3, 3, 3})
      .weight("c.weight_bias", {8})
      .weight("d.weight", {4, 8, 1, 1})
      .weight("d.bias", {4});
  m.node("Conv", {"x", "c.weight", "c.weight_bias"}, {"a"}).node("Conv", {"a", "d.weight", "d.bias"}, {"y"});
  const Graph graph = built(m, {.batch = 2});
  CHECK(testing::kinds(graph, Phase::forward) ==
        std::vector<std::string>{"conv2d", "integer_pointwise", "batch_norm", "conv2d", "pow", "mean"});
  CHECK(parameter_count(graph) == 8 * 27 + 8 + 8 + 4 * 8 + 4);
}

TEST_CASE("onnx: grouped queries keep their fewer heads") {
  Model m;
  m.input("x", {"batch", "seq", "64"})
      .output("y")
      .weight("wq", {64, 64})
      .weight("wk", {64, 32})
      .weight("wv", {64, 32})
      .weight("wo", {64, 64});
  m.ints("four", {0, 0, 4, 16})
      .ints("two", {0, 0, 2, 16})
      .ints("middle", {2})
      .ints("first", {0})
      .ints("twice", {1, 1, 2, 1, 1})
      .ints("back", {0, 4, -1, 16})
      .ints("flat", {0, 0, 64});
  m.node("MatMul", {"x", "wq"}, {"q1"})
      .node("Reshape", {"q1", "four"}, {"q2"})
      .node("Transpose", {"q2"}, {"q3"}, attribute("perm", {0, 2, 1, 3}));
  for (const char* name : {"k", "v"}) {
    const std::string n = name;
    m.node("MatMul", {"x", "w" + n}, {n + "1"})
        .node("Reshape", {n + "1", "two"}, {n + "2"})
        .node("Transpose", {n + "2"}, {n + "3"}, attribute("perm", {0, 2, 1, 3}));
    m.node("Unsqueeze", {n + "3", "middle"}, {n + "4"})
        .node("Expand", {n + "4", "twice"}, {n + "5"})
        .node("Reshape", {n + "5", "back"}, {n + "6"});
  }
  m.node("Transpose", {"k6"}, {"kt"}, attribute("perm", {0, 1, 3, 2}))
      .node("MatMul", {"q3", "kt"}, {"s"})
      .node("Softmax", {"s"}, {"p"}, attribute("axis", -1));
  m.node("MatMul", {"p", "v6"}, {"o"})
      .node("Transpose", {"o"}, {"t"}, attribute("perm", {0, 2, 1, 3}))
      .node("Reshape", {"t", "flat"}, {"f"})
      .node("MatMul", {"f", "wo"}, {"y"});
  const Graph graph = built(m, {.batch = 2, .seq = 8});
  const Op* op = first(graph, OpKind::scaled_dot_product_attention);
  REQUIRE(op);
  CHECK(std::get<AttentionAttributes>(op->attributes).heads == 4);
  CHECK(std::get<AttentionAttributes>(op->attributes).kv_heads == 2);
}
